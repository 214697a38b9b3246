"""A plan as one batch query: what the view must be, given all that arrived. It is what `verify()` compares with.

The law: nothing of the engine is in it. DuckDB or Spark picks the newest change of every key, evaluates row steps from their
SQL text, and each kind of stage registers its query (`register_batch_query`). Both get one text; `dialect` has the words in
which they differ.

The query comes in parts, each a SELECT over parts before it: DuckDB runs them as one statement, Spark as views, between which
a step that no tree expresses is applied to a DataFrame.

A kind of stage whose answer depends on more than the rows that are present gets the times of the last epoch and, of inputs that
come from sources whose changes are all known, every one of them (`BatchTable.history`).
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zset_join.changelog.formats import IMAGE
from zset_join.core.relation import Relation
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan
from zset_join.plan.row_steps import RowStep, SelectStep, WhereStep
from zset_join.shapes.deduplicate import TRUNCATE
from zset_join.stages.batch import (
    BatchScope,
    BatchTable,
    BatchTimes,
    Dialect,
    batch_query,
    column,
    expression_sql,
    newest_first,
    numbered,
    one_side,
    tied_query,
)
from zset_join.stages.current_versions import CurrentVersionsStage
from zset_join.stages.latest import LatestStage, latest_changes

__all__ = [
    "EPOCHS",
    "BatchView",
    "Part",
    "SourceForm",
    "batch_parts",
    "live_name",
    "marks_name",
    "one_statement",
    "source_name",
]

SourceForm = Literal["all changes", "changes", "rows"]
"""What is known of a source: all its changes in the order in which they came; changes that may start with a sum of earlier
ones; or the rows that are present."""

_PASSED_ON = ("latest", "route", "unchanged")
"""Kinds of stages whose answer is their input."""

EPOCHS = "epoch_times"
"""The table of the processing time `t` of every epoch `e`."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Define one table of a batch query."""

    name: str
    query: str
    is_read_often: bool = True


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """A plan as a batch query."""

    parts: tuple[Part, ...]
    answer: str
    tied_parts: tuple[Part, ...] = ()
    tied: str | None = None


def source_name(number: int, prefix: str = "") -> str:
    """Return the table of the changes of a source, by the number of the source in the plan."""
    # Its columns are those of the relation, `w` the weight, `e` the epoch and `n` the place among all.
    return f"{prefix}source_{number}"


def live_name(number: int, prefix: str = "") -> str:
    """Return the table of the rows of a source that are present."""
    return f"{prefix}now_{number}"


def marks_name(number: int, prefix: str = "") -> str:
    """Return the table of the watermarks of a stage, epoch by epoch; see `BatchScope`."""
    return f"{prefix}marks_{number}"


def batch_parts(
    plan: QueryPlan,
    times: Sequence[BatchTimes],
    dialect: Dialect,
    *,
    prefix: str = "",
    forms: Mapping[str, SourceForm] | None = None,
    marked: Collection[int] = (),
    has_all_epochs: bool = True,
) -> BatchView:
    """Return the view of a plan as a batch query, over a table per source and `EPOCHS`."""
    writer = _Writer(plan, dialect, prefix, forms or {})
    named = [
        {*(one.relation.name for one in node.stage.inputs), *(str(feed.origin) for one in node.feeds for feed in one)}
        for node in plan.nodes
    ]
    scopes = [
        BatchScope(
            dialect=dialect,
            times=replace(times[node.number], late_inputs=times[node.number].late_inputs & named[node.number]),
            epochs=prefix + EPOCHS,
            has_all_epochs=has_all_epochs,
            marks=marks_name(node.number, prefix) if node.number in marked else None,
        )
        for node in plan.nodes
    ]
    writer.add_sources()
    inputs = [writer.add_stage(number, scope) for number, scope in enumerate(scopes)]
    answer = writer.input("answer", plan.outputs, plan.output).name
    parts = tuple(writer.parts)
    writer.parts.clear()
    tied = writer.tied(plan.outputs, inputs, scopes)
    if not tied:
        return BatchView(parts=parts, answer=answer)
    last = writer.add("tied", "\nUNION ALL\n".join(f"SELECT * FROM {name}" for name in tied))
    return BatchView(parts=parts, answer=answer, tied_parts=tuple(writer.parts), tied=last)


def one_statement(view: BatchView, *, of_ties: bool = False) -> str:
    """Return the view, or the rows that ties leave open, as one statement of DuckDB's."""
    texts = [
        f"{part.name} AS {'MATERIALIZED ' if part.is_read_often else ''}(\n{part.query}\n)"
        for part in [*view.parts, *(view.tied_parts if of_ties else ())]
    ]
    return f"WITH {', '.join(texts)}\nSELECT * FROM {view.tied if of_ties else view.answer}"


class _Writer:
    """Collect the parts of the query."""

    def __init__(self, plan: QueryPlan, dialect: Dialect, prefix: str, forms: Mapping[str, SourceForm]) -> None:
        self.parts: list[Part] = []
        self._plan = plan
        self._dialect = dialect
        self._prefix = prefix
        self._forms = forms
        self._versions: dict[int, tuple[CurrentVersionsStage, BatchTable]] = {}
        self._latest: dict[int | str, tuple[LatestStage, BatchTable]] = {}
        self._numbers = {source.name: number for number, source in enumerate(plan.sources)}

    def add(self, name: str, query: str, *, is_read_often: bool = True) -> str:
        """Add a table, and return its name."""
        self.parts.append(Part(name=self._prefix + name, query=query, is_read_often=is_read_often))
        return self._prefix + name

    def add_sources(self) -> None:
        """Add the rows of every source that are present."""
        for number, source in enumerate(self._plan.sources):
            if self._form(source.name) != "rows":
                history, control = source_name(number, self._prefix), _control_of(self._plan, source)
                current = _current(source, history, self._dialect) if control is None else _filled(source, history, control)
                self.add(f"now_{number}", current)

    def add_stage(self, number: int, scope: BatchScope) -> list[BatchTable]:
        """Add a stage, and return its inputs."""
        node = self._plan.nodes[number]
        inputs = [
            self.input(f"in_{number}_{place}", feeds, one.relation, is_left=node.stage.kind == "temporal_join" and not place)
            for place, (feeds, one) in enumerate(zip(node.feeds, node.stage.inputs, strict=True))
        ]
        if isinstance(node.stage, CurrentVersionsStage):
            self._versions[number] = node.stage, inputs[0]
        if isinstance(node.stage, LatestStage) and inputs[0].history is not None and node.stage.control is None:
            self._latest[number] = node.stage, inputs[0]
        self.add(f"stage_{number}", batch_query(node.stage, inputs, scope))
        return inputs

    def input(self, name: str, feeds: Sequence[Feed], relation: Relation, *, is_left: bool = False) -> BatchTable:
        """Add the rows of an input, and the changes they come from where these are given."""
        # Latest rows of one epoch have no order among them: their changes are for the left side of a temporal join (`is_left`).
        table = self._united(name, feeds, is_history=False)
        if not all(self._is_known(one) or (is_left and one.origin in self._latest) for one in feeds):
            origin = feeds[0].origin if len(feeds) == 1 and not feeds[0].steps else None
            versions = self._versions.get(origin) if isinstance(origin, int) else None
            return BatchTable(name=table, relation=relation, versions=versions)
        return BatchTable(name=table, relation=relation, history=self._united(f"{name}_history", feeds, is_history=True))

    def _united(self, name: str, feeds: Sequence[Feed], *, is_history: bool) -> str:
        tables = [self._fed(f"{name}_{at}", feed, is_history=is_history) for at, feed in enumerate(feeds)]
        if len(feeds) == 1 and not feeds[0].steps:
            return tables[0]
        return self.add(name, "\nUNION ALL\n".join(f"SELECT * FROM {one}" for one in tables), is_read_often=not is_history)

    def stepped(self, name: str, table: str, feed: Feed, *, is_history: bool) -> str:
        """Add the row steps of a feed, and return the table behind them."""
        relation = self._plan.relation_of(feed.origin)
        for place, step in enumerate(feed.steps):
            query = _step_sql(step, relation, table, self._dialect, is_history=is_history)
            table = self.add(f"{name}_{place}", query, is_read_often=False)
            relation = step.output(relation)
        return table

    def tied(self, feeds: Sequence[Feed], inputs: Sequence[Sequence[BatchTable]], scopes: Sequence[BatchScope]) -> list[str]:
        """Add the rows of feeds that ties leave open, and return their tables."""
        # Only the stages that feed the view itself are looked at, and those before them whose rows they pass on: what a tie
        # below another stage leads to is not followed.
        tables = []
        for feed in feeds:
            if not isinstance(feed.origin, int):
                continue
            node, scope = self._plan.nodes[feed.origin], scopes[feed.origin]
            if node.stage.kind in _PASSED_ON:
                before = self.tied(node.feeds[0], inputs, scopes)
                relation = node.stage.inputs[0].relation
                queries = [batch_query(node.stage, [BatchTable(name=one, relation=relation)], scope) for one in before]
            else:
                query = tied_query(node.stage, inputs[feed.origin], scope)
                queries = [] if query is None else [query]
            for query in queries:
                name = f"tied_{len(self.parts)}"
                tables.append(self.stepped(name, self.add(name, query), feed, is_history=False))
        return tables

    def _fed(self, name: str, feed: Feed, *, is_history: bool) -> str:
        if isinstance(feed.origin, int):
            table = f"{self._prefix}stage_{feed.origin}"
            if is_history:
                table = self.add(f"{name}_latest", latest_changes(*self._latest[feed.origin]))
        else:
            table = (source_name if is_history else live_name)(self._numbers[feed.origin], self._prefix)
            if not is_history:
                columns = ", ".join(numbered(self._plan.relation_of(feed.origin).schema))
                if self._form(feed.origin) == "rows":
                    query = f"SELECT {columns} FROM {self._dialect.repeated(table, 'w')}"
                    table = self.add(f"{name}_rows", query)
        return self.stepped(name, table, feed, is_history=is_history)

    def _form(self, source: str) -> SourceForm:
        return self._forms.get(source, "all changes")

    def _is_known(self, feed: Feed) -> bool:
        """Return whether all changes of a feed are known, in their order."""
        return isinstance(feed.origin, str) and self._form(feed.origin) == "all changes"


def _step_sql(step: RowStep, relation: Relation, table: str, dialect: Dialect, *, is_history: bool) -> str:
    sides = one_side(relation.schema)
    if isinstance(step, SelectStep):
        selected = [f"{expression_sql(expression, sides, dialect)} AS c{at}" for at, (_, expression) in enumerate(step.columns)]
        return f"SELECT {', '.join(selected)}{', w, e, n' if is_history else ''} FROM {table}"
    if not isinstance(step, WhereStep):
        raise step.refusal()
    passes = expression_sql(step.condition, sides, dialect)
    if is_history and relation.mode == "upsert":
        columns = ", ".join(numbered(relation.schema))
        return f"SELECT {columns}, CASE WHEN {passes} THEN w ELSE -1 END AS w, e, n FROM {table}"
    return f"SELECT * FROM {table} WHERE {passes}"


def _current(source: PlanSource, history: str, dialect: Dialect) -> str:
    """Return the rows of a source that are present, given its changes."""
    relation = source.relation
    names = numbered(relation.schema)
    columns = ", ".join(names)
    if relation.mode == "upsert":
        key = ", ".join(column(relation.schema, name) for name in relation.primary_key)
        newest = f"row_number() OVER (PARTITION BY {key} ORDER BY {', '.join(newest_first(relation))}) AS place"
        # Under quarantine the history has rows that were set aside: a key or an order that is NULL.
        known = [*relation.primary_key, *(one for one in relation.sequence_by if one != IMAGE)]
        accepted = " AND ".join(f"{column(relation.schema, name)} IS NOT NULL" for name in known)
        return f"SELECT {columns} FROM (SELECT *, {newest} FROM {history} WHERE {accepted}) WHERE place = 1 AND w > 0"
    if relation.mode == "append":
        return f"SELECT {columns} FROM {dialect.repeated(history, 'w')}"
    summed = dialect.distinct(names, "sum(w) AS copies", history, having="sum(w) > 0")
    return f"SELECT {columns} FROM {dialect.repeated(f'({summed})', 'copies')}"


def _control_of(plan: QueryPlan, source: PlanSource) -> str | None:
    """Return the column of a source that lists what a change omits; None where changes are whole rows."""
    for node in plan.nodes:
        control = getattr(node.stage, "control", None)
        if control is not None and any(feed.origin == source.name for feed in node.feeds[0]):
            return str(control)
    return None


def _filled(source: PlanSource, history: str, control: str) -> str:
    """Return the rows of a source that are present, where changes may leave columns out, or be truncates."""
    # A truncate deletes what is before it in the order. Of the changes of a key behind it the newest counts, and a column
    # that it omits has the value that the last one before it, back to the last delete, did send. A change that arrived after
    # a newer one of its key was applied counts for nothing. It is DuckDB's SQL: inside Spark `spark.tools.partial_tables` is
    # the same.
    schema = source.relation.schema
    keys = [column(schema, name) for name in source.relation.primary_key]
    orders = [column(schema, name) for name in source.relation.sequence_by if name != IMAGE]
    key, at = ", ".join(keys), f"row({', '.join(orders)})" if orders else "0"
    accepted = " AND ".join(f"{one} IS NOT NULL" for one in (*keys, *orders))
    in_order = "ORDER BY e, sequence, n ROWS UNBOUNDED PRECEDING"
    left_out = f"coalesce({column(schema, control)}, 0)"
    emptied = f"max(CASE WHEN {left_out} = {TRUNCATE} THEN row({at}, e, n) END) OVER ()"
    filled = [
        f"struct_extract_at(last_value(CASE WHEN w > 0 AND (left_out >> {place}) & 1 = 0 THEN row({name}) END IGNORE NULLS) "
        f"OVER (PARTITION BY {key}, life {in_order}), 1) AS {name}"
        for place, name in enumerate(numbered(schema))
    ]
    return f"""SELECT {", ".join(numbered(schema))} FROM (
  SELECT {", ".join(filled)}, w, row_number() OVER (PARTITION BY {key} ORDER BY e DESC, sequence DESC, n DESC) AS place FROM (
    SELECT *, sum(CASE WHEN w < 0 THEN 1 ELSE 0 END) OVER (PARTITION BY {key} {in_order}) AS life FROM (
      SELECT *, max(sequence) OVER (PARTITION BY {key} {in_order}) AS newest FROM (
        SELECT *, {left_out} AS left_out, {at} AS sequence, {emptied} AS emptied
        FROM {history}) WHERE left_out <> {TRUNCATE} AND {accepted} AND (emptied IS NULL OR row(sequence, e, n) > emptied)
    ) WHERE sequence = newest)
) WHERE place = 1 AND w > 0"""
