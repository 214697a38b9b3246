"""WHERE, SELECT and computed columns over the changes of a join, as Spark's own expressions.

The law: what an expression makes of a row depends on that row alone. Then a retraction becomes the retraction of what its
insertion became, and nothing has to be remembered. What breaks it is refused when the view is described: expressions that
are not deterministic, the current time, date or user (Spark calls them deterministic, but every epoch has its own),
aggregates, windows, generators and subqueries.

Expressions are evaluated in the session's time zone as it is when the view is described, in every epoch.

The text of an expression is part of the query's description, and so is the code of a user's function: `user_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from py4j.java_gateway import is_instance_of
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.plan.row_steps import SelectStep, WhereStep
from zset_join.spark.planning.job_settings import job_settings
from zset_join.spark.rows.layout import WEIGHT
from zset_join.spark.rows.names import first_line, names_clash
from zset_join.spark.rows.schemas import arrow_schema, spark_schema
from zset_join.spark.rows.user_functions import UserFunction, functions_in

__all__ = [
    "ZONE",
    "RowStep",
    "Transform",
    "class_name",
    "nodes_of",
    "row_step",
    "sequence",
    "template",
]

ZONE = "spark.sql.session.timeZone"
"""The setting by which expressions of times are analysed."""
_ZONED = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"
_PER_ROW = ("Project", "Filter")
_LEAVES = ("LogicalRDD", "LocalRelation")
_OF_THE_MOMENT = ("Now", "LocalTimestamp")
_CURES = {
    "Aggregate": "it is an aggregate; use groupBy(...).agg(...) or agg(...)",
    "Window": "it looks at other rows (a window function); aggregate, or compute it where the view is read",
    "Generate": "it makes several rows of one (explode and the like); do that where the view is read",
}

Transform = Callable[[DataFrame, Sequence[str]], DataFrame]
"""Takes rows, and the columns to keep beside those it chooses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowStep:
    """One call such as `where` or `select` on a view; made by `row_step`.

    Args:
        relation: the rows after it.
        title: what `explain` calls it.
        description: what a checkpoint remembers of it.
        zone: the time zone its expressions are evaluated in.
        transform: what the call does to a DataFrame.
        kept: per column before it that is there afterwards as it was, its name then.
        functions: the user's own functions in its expressions.
        reads: the columns before it that it reads; those it hands on are among them.
        is_selection: it chooses and computes columns, and keeps all rows.
        tree: what it does as a step of a plan, where it was made from one.
    """

    relation: Relation
    title: str
    description: tuple[str, ...]
    zone: str
    transform: Transform
    kept: Mapping[str, str]
    functions: tuple[UserFunction, ...] = ()
    reads: frozenset[str] = frozenset()
    is_selection: bool = False
    tree: WhereStep | SelectStep | None = None
    stage: ClassVar[None] = None

    def renamed(self, name: str) -> str | None:
        """Return what a column is called after it; None where it does not leave as it came."""
        return self.kept.get(name)

    def apply(self, rows: DataFrame, beside: Sequence[str] = (WEIGHT,)) -> DataFrame:
        """Return rows with their weights, after the step.

        Args:
            rows: the columns before it, and those beside them.
            beside: columns that pass by untouched, behind the others.
        """
        with job_settings(rows.sparkSession, {ZONE: self.zone}):
            transformed = self.transform(rows, beside)
            names = transformed.columns
            places = {name: at for at, name in enumerate(names)}  # the last ones: a star has brought others
            chosen = [at for at, name in enumerate(names) if name not in beside] + [places[name] for name in beside]
            numbered = transformed.toDF(*(f"c{at}" for at in range(len(names))))
            return numbered.select(*(F.col(f"c{at}").alias(names[at]) for at in chosen))


def row_step(session: SparkSession, before: Relation, call: str, transform: Transform, *, is_internal: bool = False) -> RowStep:
    """Describe a call, and check it.

    Args:
        session: analyses it.
        before: the rows before it.
        call: how the user wrote it, for messages.
        transform: what it does to a DataFrame.
        is_internal: its columns may have names that begin with two underscores.

    Raises:
        PlanError: Spark cannot make sense of it, it depends on more than the row, or its columns cannot be those of a view.
    """
    rows = template(session, before)
    try:
        transformed = transform(rows, [])
    except (AnalysisException, ParseException) as error:
        raise PlanError(
            f"{call}: Spark cannot make sense of it: {first_line(error)} The columns here are {before.schema.names}. Write "
            'expressions as text or with col("..."), not with a column of a certain DataFrame.',
            code="EXPRESSION",
            call=call,
        ) from error
    plan = _analysed(transformed)
    nodes = list(nodes_of(plan))
    _check_nodes(nodes, plan, call)
    _check_names(transformed.columns, call, is_internal=is_internal)
    zone = str(session.conf.get(ZONE))
    steps = [expression for node in nodes if class_name(node) in _PER_ROW for expression in sequence(node.expressions())]
    texts = [str(expression.sql()) for expression in steps]
    if any(_needs_zone(session, part) for expression in steps for part in _parts(expression)):
        texts.append(f"in {zone}")
    schema = arrow_schema(transformed.schema, relation=call)
    kept = _kept_columns(rows, plan, schema.names)
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
        title=_title(plan),
        description=(*texts, *(f"{field.name}: {field.type}" for field in schema)),
        zone=zone,
        transform=transform,
        kept=kept,
        functions=tuple(functions_in(transformed)),
        reads=_read_columns(rows, nodes),
        is_selection=all(class_name(node) != "Filter" for node in nodes),
    )


def template(session: SparkSession, relation: Relation) -> DataFrame:
    """Return a DataFrame with the columns of a relation, and no rows: what expressions are analysed with."""
    return session.createDataFrame([], spark_schema(relation.schema))


def nodes_of(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan of Spark, top first."""
    yield plan
    for child in sequence(plan.children()):
        yield from nodes_of(child)


def sequence(items: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [items.apply(at) for at in range(items.size())]


def _analysed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def class_name(node: Any) -> str:
    """Return the class of something of Spark's."""
    return str(node.getClass().getSimpleName())


def _parts(expression: Any) -> Iterator[Any]:
    yield expression
    for child in sequence(expression.children()):
        yield from _parts(child)


def _check_nodes(nodes: Sequence[Any], plan: Any, call: str) -> None:
    for node in nodes:
        kind = class_name(node)
        if kind not in _PER_ROW + _LEAVES:
            why = _CURES.get(kind, f"Spark makes a plan with {kind} of it, which looks at more than one row")
            raise PlanError(
                f"{call}: what stands here is applied to every changed row by itself, and {why}.",
                code="NOT_PER_ROW",
                call=call,
                found=kind,
            )
    if not plan.deterministic():
        raise PlanError(
            f"{call}: an expression is not deterministic (rand, uuid, monotonically_increasing_id, a function declared "
            "nondeterministic, ...). A retraction would not find the row that was inserted. Compute such values at the source.",
            code="NOT_DETERMINISTIC",
            call=call,
        )
    for expression in (one for node in nodes for one in sequence(node.expressions())):
        for part in _parts(expression):
            kind = class_name(part)
            if kind.startswith("Current") or kind in _OF_THE_MOMENT:
                raise PlanError(
                    f"{call}: {part.sql()} is another value in every epoch, so a retraction would not find the row that was "
                    "inserted. Compare with a literal, or with a column that the source fills.",
                    code="NOT_DETERMINISTIC",
                    call=call,
                    expression=str(part.sql()),
                )
            if "Subquery" in kind or kind in ("Exists", "ListQuery"):
                raise PlanError(
                    f"{call}: a subquery reads a table that may change without the view being told. Join that table as a "
                    "stream.",
                    code="NOT_PER_ROW",
                    call=call,
                    found=kind,
                )


def _check_names(columns: Sequence[str], call: str, *, is_internal: bool) -> None:
    clashing = names_clash(columns)
    if clashing or not columns:
        what = f"has the columns {clashing} more than once (case does not count)" if clashing else "has no column left"
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


def _needs_zone(session: SparkSession, expression: Any) -> bool:
    gateway = session.sparkContext._gateway
    if not is_instance_of(gateway, expression, _ZONED):
        return False
    return bool(expression.needsTimeZone()) if class_name(expression) == "Cast" else True


def _title(plan: Any) -> str:
    kind = class_name(plan)
    if kind == "Filter":
        return f"Where {plan.condition().sql()}"
    return "Select " + ", ".join(str(expression.sql()) for expression in sequence(plan.expressions()))


def _read_columns(rows: DataFrame, nodes: Sequence[Any]) -> frozenset[str]:
    """Return the columns before a step that its nodes name."""
    sources = {int(column.exprId().id()): str(column.name()) for column in sequence(_analysed(rows).output())}
    named = {int(one.exprId().id()) for node in nodes for one in sequence(node.references().toSeq())}
    return frozenset(name for number, name in sources.items() if number in named)


def _kept_columns(rows: DataFrame, plan: Any, names: Sequence[str]) -> dict[str, str]:
    """Return, per column before a step that is still there as it was, its name after it."""
    sources = {int(column.exprId().id()): column.name() for column in sequence(_analysed(rows).output())}
    chosen = sequence(plan.projectList()) if class_name(plan) == "Project" else sequence(plan.output())
    now: dict[str, str] = {}
    for name, expression in zip(names, chosen, strict=True):
        same = expression.child() if class_name(expression) == "Alias" else expression
        if class_name(same) == "AttributeReference":
            source = sources.get(int(same.exprId().id()))
            if source is not None:
                now.setdefault(source, name)
    return now
