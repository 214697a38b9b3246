"""The query of a file of statements, over the sources that a plan has: what `zset-join diff` and `evolve` compare it with.

    SELECT city, sum(total) AS t FROM orders JOIN people USING (who) GROUP BY city

The law: a source of the plan is present under its name, as it is described there; a file that declares one itself is taken at
its word. What the file keeps, by CREATE MATERIALIZED VIEW or INSERT INTO, is a view of that name; where it keeps nothing, its
only SELECT is the view.

Nothing runs and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zset_join.changelog import AppendFormat
from zset_join.core.errors import OptionError
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.plan.tree import Read
from zset_join.query import View
from zset_join.query.reading import Reading
from zset_join.sql.commands import CheckingSession, file_text
from zset_join.sql.tables.bound import BoundQuery
from zset_join.sql.tables.catalog import NamedView
from zset_join.sql.tables.results import Query
from zset_join.sql_expressions.dialects import split

__all__ = ["views_of_file"]

_DECLARES = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:MUTABLE\s+)?(?:TABLE|STREAM|SOURCE)\s+"
    r"(?:IF\s+NOT\s+EXISTS\s+)?[\"`]?(\w+)",
    re.IGNORECASE,
)


def views_of_file(path: str, plan: QueryPlan, *, dialect: str) -> View | Mapping[str, View]:
    statements = list(split(file_text(path), dialect=dialect))
    declared = {match[1].lower() for one in statements if (match := _DECLARES.match(one.sql)) is not None}
    selected: list[Query] = []
    with CheckingSession(dialect=dialect) as session:
        for source in plan.sources:
            if source.name.lower() not in declared:
                bound = BoundQuery(_view(source), frozenset({source.name}))
                session.catalog.add(NamedView(source.name, bound, f"the source {source.name}"))
        for statement in statements:
            result = session.run(statement)
            selected += [result] if isinstance(result, Query) else []
        running = {one.name: _shown(one.query.bound) for one in session.running}
    if running and not selected:
        return running
    if len(selected) == 1 and not running:
        return _shown(selected[0].bound)
    raise OptionError(
        f"{path} has {len(selected)} SELECT and {len(running)} other queries for the views {[one.name for one in plan.views]}; "
        "expected one SELECT for one view, or for several views an INSERT INTO or CREATE MATERIALIZED VIEW of each of their "
        "names.",
        code="PROGRAM",
        program=path,
    )


def _view(source: PlanSource) -> View:
    """Return a source of a plan as rows; how they are fed does not count here."""
    reading = Reading(source=source, given=source.relation.schema, changelog_format=AppendFormat())
    return View(node=Read(source), name=source.name, bindings=(reading,))


def _shown(query: BoundQuery) -> View:
    return query.view.select(*query.columns) if query.columns != query.view.columns else query.view
