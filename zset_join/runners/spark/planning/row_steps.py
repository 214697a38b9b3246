"""WHERE, SELECT and computed columns over the changes of a join, as Spark's own expressions.

The law: what an expression makes of a row depends on that row alone. Then a retraction becomes the retraction of what its
insertion became, and nothing has to be remembered. What breaks it is refused when the view is described: expressions that
are not deterministic, the current time, date or user (Spark calls them deterministic, but every epoch has its own),
aggregates, windows, generators and subqueries.

Expressions are evaluated in the session's time zone as it is when the view is described, in every epoch.

The text of an expression is part of the query's description, and so is the name of a user's function: `user_functions`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.runners.spark.frames.facts import StepFacts, analysed, reader_of
from zset_join.runners.spark.planning.job_settings import job_settings
from zset_join.runners.spark.rows.layout import WEIGHT
from zset_join.runners.spark.rows.names import first_line, names_clash
from zset_join.runners.spark.rows.schemas import arrow_schema, spark_schema
from zset_join.runners.spark.rows.user_functions import UserFunction, functions_in

__all__ = ["ZONE", "RowStep", "Transform", "row_step", "template"]

ZONE = "spark.sql.session.timeZone"
"""The setting by which expressions of times are analysed."""
_CURES = {
    "Aggregate": "it is an aggregate; use groupBy(...).agg(...) or agg(...)",
    "Window": "it looks at other rows (a window function); aggregate, or compute it where the view is read",
    "Generate": "it makes several rows of one (explode and the like); do that where the view is read",
}

Transform = Callable[[DataFrame, Sequence[str]], DataFrame]
"""Takes rows, and the columns to keep beside those it chooses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowStep:
    """One call such as `where` or `select` on a view; made by `row_step`."""

    relation: Relation
    title: str
    description: tuple[str, ...]
    zone: str
    transform: Transform
    kept: Mapping[str, str]
    functions: tuple[UserFunction, ...] = ()
    reads: frozenset[str] = frozenset()
    is_selection: bool = False
    condition: str | None = None
    selected: tuple[tuple[str, str], ...] | None = None
    is_zoned: bool = False

    def apply(self, rows: DataFrame, beside: Sequence[str] = (WEIGHT,)) -> DataFrame:
        """Return rows with their weights, after the step."""
        names: list[str] = []

        def change(given: DataFrame) -> DataFrame:
            transformed = self.transform(given, beside)
            names.extend(transformed.columns)
            return transformed

        numbered = self.evaluated(rows, change)
        places = {name: at for at, name in enumerate(names)}  # the last ones: a star has brought others
        chosen = [at for at, name in enumerate(names) if name not in beside] + [places[name] for name in beside]
        return numbered.select(*(F.col(f"c{at}").alias(names[at]) for at in chosen))

    def evaluated(self, rows: DataFrame, change: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """Return rows after a change whose expressions are in the zone of the step; the columns are called c0, c1 and so on."""
        session = rows.sparkSession
        is_elsewhere = self.is_zoned and session.conf.get(ZONE) != self.zone
        with job_settings(session, {ZONE: self.zone}):
            changed = change(rows)
            numbered = changed.toDF(*(f"c{at}" for at in range(len(changed.columns))))
            return analysed(numbered, f"zset_join_step_{uuid.uuid4().hex}") if is_elsewhere else numbered


def row_step(session: SparkSession, before: Relation, call: str, transform: Transform, *, is_internal: bool = False) -> RowStep:
    """Describe a call, and check it."""
    rows = template(session, before)
    try:
        transformed = transform(rows, [])
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f"{call}: Spark cannot resolve it: {first_line(error)} The columns here are {before.schema.names}. Write "
            'expressions as text or with col("..."), not with a column of a certain DataFrame.',
            code="EXPRESSION",
            call=call,
        ) from error
    facts = reader_of(session).step(rows, transformed)
    _check_facts(facts, call)
    _check_names(transformed.columns, call, is_internal=is_internal)
    zone = str(session.conf.get(ZONE))
    texts = [*facts.texts, *([f"in {zone}"] if facts.needs_zone else [])]
    schema = arrow_schema(transformed.schema, relation=call)
    kept = facts.kept
    key = [kept[name] for name in before.primary_key if name in kept]
    return RowStep(
        relation=Relation(
            name=before.name,
            schema=schema,
            primary_key=tuple(key) if len(key) == len(before.primary_key) else (),
            mode="changelog" if before.mode == "upsert" else before.mode,
            event_time=kept.get(before.event_time or ""),
            watermark_delay=before.watermark_delay if before.event_time in kept else None,
        ),
        title=facts.title,
        description=(*texts, *(f"{field.name}: {field.type}" for field in schema)),
        zone=zone,
        transform=transform,
        kept=kept,
        functions=tuple(functions_in(transformed)),
        reads=facts.reads,
        is_selection=facts.is_selection,
        condition=facts.condition,
        selected=facts.selected,
        is_zoned=facts.needs_zone,
    )


def template(session: SparkSession, relation: Relation) -> DataFrame:
    """Return a DataFrame with the columns of a relation, and no rows: what expressions are analysed with."""
    return session.createDataFrame([], spark_schema(relation.schema))


def _check_facts(facts: StepFacts, call: str) -> None:
    """Reject expressions that depend on more than the row."""
    if facts.foreign is not None:
        why = _CURES.get(facts.foreign, f"Spark makes a plan with {facts.foreign} of it, which looks at more than one row")
        raise PlanError(
            f"{call}: what is here is applied to every changed row by itself, and {why}.",
            code="NOT_PER_ROW",
            call=call,
            found=facts.foreign,
        )
    if not facts.is_deterministic:
        raise PlanError(
            f"{call}: an expression is not deterministic (rand, uuid, monotonically_increasing_id, a function declared "
            "nondeterministic, ...). A retraction would not find the row that was inserted. Compute such values at the source.",
            code="NOT_DETERMINISTIC",
            call=call,
        )
    if facts.momentary is not None:
        raise PlanError(
            f"{call}: {facts.momentary} is another value in every epoch, so a retraction would not find the row that was "
            "inserted. Compare with a literal, or with a column that the source fills.",
            code="NOT_DETERMINISTIC",
            call=call,
            expression=facts.momentary,
        )
    if facts.subquery is not None:
        raise PlanError(
            f"{call}: a subquery reads a table that may change while the view does not. Join that table as a stream.",
            code="NOT_PER_ROW",
            call=call,
            found=facts.subquery,
        )


def _check_names(columns: Sequence[str], call: str, *, is_internal: bool) -> None:
    clashing = names_clash(columns)
    if clashing or not columns:
        what = f"has the columns {clashing} more than once (ignoring case)" if clashing else "has no column left"
        raise PlanError(
            f"{call}: the view {what}; give every column a name of its own with alias(...).",
            code="OUTPUT_NAMES",
            call=call,
            columns=clashing,
        )
    if any(not name.strip() for name in columns):
        raise PlanError(f"{call}: a column has no name; give it one with alias(...).", code="COLUMN_NAME", call=call)
    taken = [name for name in columns if name.startswith(("__", "_zset_"))]
    if taken and not is_internal:
        raise PlanError(
            f"{call}: {taken} begin with two underscores or with _zset_; such names are the engine's. Rename them.",
            code="RESERVED_COLUMN",
            call=call,
            columns=taken,
        )
