"""Plans of a classic session, read from the JVM beside it.

Cost: a third of a millisecond for every call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from py4j.java_gateway import is_instance_of
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import StructType

from zset_join.runners.spark.frames.facts import AggregateFacts, FoundFunction, FrameReader, ReadExpression, StepFacts

__all__ = ["READER", "analysed", "sequence"]

_BETWEEN = "\x1f,\x1f"  # no SQL text holds it: quoted names come from columns, which would have to be called so
_ZONED = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"
_ZONE = "spark.sql.session.timeZone"
_PER_ROW = ("Project", "Filter")
_LEAVES = ("LogicalRDD", "LocalRelation")
_OF_THE_MOMENT = ("Now", "LocalTimestamp")


class _Classic:
    def select_text(self, rows: DataFrame, texts: Sequence[str]) -> DataFrame:
        if any(_BETWEEN in text for text in texts):
            return rows.selectExpr(*texts)
        gateway = _gateway(rows)
        split = gateway.jvm.java.util.regex.Pattern.compile(_BETWEEN).split(_BETWEEN.join(texts), -1)
        session: SparkSession = rows.sparkSession
        return type(rows)(cast("Any", rows)._jdf.selectExpr(split), session)

    def is_deterministic(self, rows: DataFrame) -> bool:
        return bool(analysed(rows).deterministic())

    def used_columns(self, rows: DataFrame, expression: Column) -> frozenset[str]:
        references = analysed(rows.select(expression.alias("__used"))).references().toSeq()
        return frozenset(str(one.name()) for one in sequence(references))

    def texts(self, rows: DataFrame, columns: Sequence[Column]) -> tuple[str, ...]:
        return tuple(str(one.sql()) for one in sequence(analysed(rows.select(*columns)).expressions()))

    def functions(self, rows: DataFrame) -> list[FoundFunction]:
        gateway = _gateway(rows)
        patterns = gateway.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        wanted = patterns.PYTHON_UDF(), patterns.SCALA_UDF()
        return [_function(gateway, one) for one in _holding(analysed(rows), wanted)]

    def step(self, rows: DataFrame, transformed: DataFrame) -> StepFacts:
        plan = analysed(transformed)
        nodes = list(nodes_of(plan))
        kinds = [class_name(node) for node in nodes]
        parts = [part for node in nodes for one in sequence(node.expressions()) for part in _parts(one)]
        named = [(class_name(part), part) for part in parts]
        per_row = [
            one for node, kind in zip(nodes, kinds, strict=True) if kind in _PER_ROW for one in sequence(node.expressions())
        ]
        with _literals_in_utc(rows):
            condition = str(plan.condition().sql()) if kinds[0] == "Filter" and len(kinds) == 2 else None
            selected = _selected(plan) if kinds[0] == "Project" and len(kinds) == 2 else None
        return StepFacts(
            foreign=next((kind for kind in kinds if kind not in _PER_ROW + _LEAVES), None),
            is_deterministic=bool(plan.deterministic()),
            momentary=next(
                (str(one.sql()) for kind, one in named if kind.startswith("Current") or kind in _OF_THE_MOMENT), None
            ),
            subquery=next((kind for kind, _ in named if "Subquery" in kind or kind in ("Exists", "ListQuery")), None),
            texts=tuple(str(one.sql()) for one in per_row),
            needs_zone=any(_needs_zone(rows, part) for one in per_row for part in _parts(one)),
            title=_title(plan),
            is_selection="Filter" not in kinds,
            kept=_kept_columns(rows, plan, transformed.columns),
            reads=_read_columns(rows, nodes),
            condition=condition,
            selected=selected,
        )

    def aggregate(self, rows: DataFrame, column: Column) -> AggregateFacts | None:
        plan = analysed(rows.groupBy().agg(column))
        nodes = [class_name(node) for node in nodes_of(plan)]
        named = sequence(plan.aggregateExpressions()) if nodes[0] == "Aggregate" and len(nodes) == 2 else []
        aggregate = named[0].child() if len(named) == 1 and class_name(named[0]) == "Alias" else None
        if aggregate is None or class_name(aggregate) != "AggregateExpression":
            return None
        function = aggregate.aggregateFunction()
        arguments = sequence(function.children())
        found = AggregateFacts(
            function=str(function.prettyName()),
            name=str(named[0].name()),
            type=str(named[0].dataType().simpleString()),
            is_constant=all(class_name(one) == "Literal" and one.value() is not None for one in arguments),
            is_distinct=bool(aggregate.isDistinct()),
        )
        if found.function == "count" and found.is_constant and not found.is_distinct:
            arguments = []
        filters = [aggregate.filter().get()] if aggregate.filter().isDefined() else []
        again: list[Column] = []
        for one in [*arguments, *filters]:
            taken = _again(rows, one)
            if taken is None:
                return replace(found, untaken=str(one.sql()))
            again.append(taken)
        return replace(found, arguments=tuple(again[: len(arguments)]), condition=again[-1] if filters else None)

    def batch_of_source(self, rows: DataFrame) -> DataFrame | None:
        return batch_of_source(rows)

    def type_of_json(self, texts: DataFrame) -> StructType:
        return type_of_json(texts)

    def expression(self, rows: DataFrame, column: Column) -> ReadExpression:
        read = only_expression(rows.select(column))
        if class_name(read) == "AttributeReference":
            return ReadExpression(str(read.name()), str(read.name()), _Meaning(read))
        return ReadExpression(None, str(read.sql()), _Meaning(read))

    def paths(self, rows: DataFrame) -> list[str] | None:
        if not rows.isStreaming:
            return rows.inputFiles() or None
        found: list[str] = []
        for leaf in sequence(analysed(rows).collectLeaves()):
            if class_name(leaf) != "StreamingRelation":
                return None
            source = leaf.dataSource()
            options = source.options()
            named = [str(options.apply("path"))] if options.contains("path") else []
            found += [*named, *map(str, sequence(source.paths()))]
        return found or None


class _Meaning:
    """Compare two analysed expressions as Spark does."""

    def __init__(self, expression: Any) -> None:
        self._expression = expression

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Meaning) and bool(self._expression.semanticEquals(other._expression))

    def __hash__(self) -> int:
        return int(self._expression.semanticHash())


def _again(rows: DataFrame, expression: Any) -> Column | None:
    """Return an analysed argument as a Column of its own; None where it cannot be written down and come back the same."""
    if class_name(expression) == "AttributeReference":
        return F.col("`" + str(expression.name()).replace("`", "``") + "`")
    try:
        parsed = F.expr(str(expression.sql()))
        is_same = only_expression(rows.select(parsed)).semanticEquals(expression)
    except (AnalysisException, ParseException):
        return None
    return parsed if is_same else None


READER: FrameReader = _Classic()


def analysed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def only_expression(rows: DataFrame) -> Any:
    """Return the expression of a selection of one column, without its name."""
    (expression,) = sequence(analysed(rows).expressions())
    return expression.child() if class_name(expression) == "Alias" else expression


def nodes_of(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan of Spark, top first."""
    yield plan
    for child in sequence(plan.children()):
        yield from nodes_of(child)


def sequence(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _gateway(rows: DataFrame) -> Any:
    return rows.sparkSession.sparkContext._gateway


def _parts(expression: Any) -> Iterator[Any]:
    yield expression
    for child in sequence(expression.children()):
        yield from _parts(child)


def _needs_zone(rows: DataFrame, expression: Any) -> bool:
    if not is_instance_of(_gateway(rows), expression, _ZONED):
        return False
    return bool(expression.needsTimeZone()) if class_name(expression) == "Cast" else True


@contextmanager
def _literals_in_utc(rows: DataFrame) -> Iterator[None]:
    """Let Spark write instants in UTC, as the texts of this library have them; it writes them in the zone of the session."""
    settings = rows.sparkSession.conf
    zone = str(settings.get(_ZONE))
    if zone == "UTC":
        yield
        return
    settings.set(_ZONE, "UTC")
    try:
        yield
    finally:
        settings.set(_ZONE, zone)


def _title(plan: Any) -> str:
    kind = class_name(plan)
    if kind == "Filter":
        return f"Where {plan.condition().sql()}"
    return "Select " + ", ".join(str(expression.sql()) for expression in sequence(plan.expressions()))


def _selected(plan: Any) -> tuple[tuple[str, str], ...]:
    named = [(str(one.name()), one.child() if class_name(one) == "Alias" else one) for one in sequence(plan.projectList())]
    return tuple((name, str(one.sql())) for name, one in named)


def _read_columns(rows: DataFrame, nodes: Sequence[Any]) -> frozenset[str]:
    sources = {int(column.exprId().id()): str(column.name()) for column in sequence(analysed(rows).output())}
    named = {int(one.exprId().id()) for node in nodes for one in sequence(node.references().toSeq())}
    return frozenset(name for number, name in sources.items() if number in named)


def _kept_columns(rows: DataFrame, plan: Any, names: Sequence[str]) -> dict[str, str]:
    sources = {int(column.exprId().id()): column.name() for column in sequence(analysed(rows).output())}
    chosen = sequence(plan.projectList()) if class_name(plan) == "Project" else sequence(plan.output())
    now: dict[str, str] = {}
    for name, expression in zip(names, chosen, strict=True):
        same = expression.child() if class_name(expression) == "Alias" else expression
        if class_name(same) == "AttributeReference":
            source = sources.get(int(same.exprId().id()))
            if source is not None:
                now.setdefault(source, name)
    return now


def _function(gateway: Any, expression: Any) -> FoundFunction:
    if class_name(expression) != "PythonUDF":
        return FoundFunction(str(expression.prettyName()), None)
    raw = expression.func().command().toArray(gateway.jvm.scala.reflect.ClassTag.Byte())
    return FoundFunction(str(expression.name()), bytes(raw))


def _holding(node: Any, patterns: Sequence[Any], *, is_plan: bool = True) -> Iterator[Any]:
    """Yield the function calls in a plan or an expression, by the marks that Spark keeps of what is below a node."""
    if not any(node.containsPattern(one) for one in patterns):
        return
    if not is_plan and class_name(node) in ("PythonUDF", "ScalaUDF"):
        yield node
    for child in sequence(node.children()):
        yield from _holding(child, patterns, is_plan=is_plan)
    for expression in sequence(node.expressions()) if is_plan else []:
        yield from _holding(expression, patterns, is_plan=False)


def batch_of_source(rows: DataFrame) -> DataFrame | None:
    """Return the only source of a stream as a batch; None where it has several, or none that can be read so."""
    leaves: Any = rows._jdf.queryExecution().analyzed().collectLeaves()
    leaf: Any = leaves.apply(0) if leaves.size() == 1 else None
    kind = None if leaf is None else str(leaf.getClass().getSimpleName())
    reader = rows.sparkSession.read
    if kind == "StreamingRelation":
        source = leaf.dataSource()
        reader = reader.format(str(source.className()))
        if source.userSpecifiedSchema().isDefined():
            reader = reader.schema(StructType.fromJson(json.loads(source.userSpecifiedSchema().get().json())))
        given = source.options()
    elif kind == "StreamingRelationV2":
        reader, given = reader.format(str(leaf.sourceName())), leaf.extraOptions().asCaseSensitiveMap()
    else:
        return None
    options = _pairs(rows, given)
    options |= {"startingOffsets": "earliest", "endingOffsets": "latest"} if "kafka" in str(options).lower() else {}
    return reader.options(**options).load()


def type_of_json(texts: DataFrame) -> StructType:
    """Return the type of JSON texts, as Spark infers it."""
    session: Any = texts.sparkSession
    typed = getattr(texts._jdf, "as")(session.sparkContext._gateway.jvm.org.apache.spark.sql.Encoders.STRING())
    parsed = session._jsparkSession.read().json(typed)
    return StructType.fromJson(json.loads(parsed.schema().json()))


def _pairs(rows: DataFrame, given: Any) -> dict[str, str]:
    """Return the entries of a map of Scala or Java."""
    gateway = cast("Any", rows).sparkSession.sparkContext._gateway
    if hasattr(given, "entrySet") and "scala" not in str(given.getClass().getName()):
        return {str(one.getKey()): str(one.getValue()) for one in given.entrySet()}
    options = gateway.jvm.scala.jdk.javaapi.CollectionConverters.asJava(given)
    return {str(name): str(value) for name, value in options.items()}
