"""Plans of Spark Connect, read from the messages that the client sends; the server is requested schemas alone.

Limits: a temporary view, a table or `spark.sql(...)` is a leaf: what it computes is known to the server only, so it is taken
for deterministic, and functions inside it are not found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql.connect.column import Column as ConnectColumn
from pyspark.sql.connect.expressions import ColumnAlias, SQLExpression, UnresolvedFunction
from pyspark.sql.types import StructType

from zset_join.runners.spark.frames import connect_expressions as read
from zset_join.runners.spark.frames.connect_zones import has_zone, instants_in
from zset_join.runners.spark.frames.facts import AggregateFacts, FoundFunction, FrameReader, ReadExpression, StepFacts

__all__ = ["READER"]

_MOMENTARY = {
    "now", "current_date", "curdate", "current_timestamp", "localtimestamp", "current_time", "current_user", "user",
    "session_user", "current_catalog", "current_database", "current_schema", "current_timezone",
}  # fmt: skip
_RANDOM = {
    "rand", "random", "randn", "randstr", "uuid", "monotonically_increasing_id", "shuffle", "spark_partition_id", "uniform",
    "input_file_name", "input_file_block_start", "input_file_block_length", "reflect", "java_method", "try_reflect", "sample",
}  # fmt: skip
_AGGREGATES = {
    "sum", "avg", "mean", "count", "min", "max", "count_if", "collect_list", "collect_set", "first", "last", "first_value",
    "last_value", "approx_count_distinct", "stddev", "variance", "array_agg", "listagg", "string_agg", "any_value", "mode",
    "median", "percentile", "every", "some", "bool_and", "bool_or", "min_by", "max_by",
}  # fmt: skip
_SAME_AGGREGATES = {"mean": "avg", "std": "stddev", "array_agg": "collect_list", "some": "bool_or", "every": "bool_and"}
_GENERATORS = {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack"}
_PER_ROW = ("project", "filter", "with_columns", "with_columns_renamed", "drop", "to_df", "subquery_alias", "hint", "to_schema")
_LEAVES = ("local_relation", "cached_local_relation", "chunked_cached_local_relation", "read", "sql", "range")


class _Connect:
    def select_text(self, rows: DataFrame, texts: Sequence[str]) -> DataFrame:
        return rows.selectExpr(*texts)

    def is_deterministic(self, rows: DataFrame) -> bool:
        return all(_is_deterministic(one) for node in _nodes(_plan(rows)) for one in _expressions(node))

    def used_columns(self, rows: DataFrame, expression: Column) -> frozenset[str]:
        named = {name.lower() for name in read.columns_of(_message(rows, expression))}
        return frozenset(name for name in rows.columns if "*" in named or name.lower() in named)

    def texts(self, rows: DataFrame, columns: Sequence[Column]) -> tuple[str, ...]:
        rows.select(*columns).schema  # noqa: B018 - the server refuses what it cannot make sense of
        return tuple(read.sql_of(_message(rows, one)) for one in columns)

    def functions(self, rows: DataFrame) -> list[FoundFunction]:
        return [found for node in _nodes(_plan(rows)) for one in _expressions(node) for found in read.functions_of(one)]

    def step(self, rows: DataFrame, transformed: DataFrame) -> StepFacts:
        names = transformed.columns  # the server refuses what it cannot make sense of
        before = rows.columns
        done = list(_done(_plan(rows), _plan(transformed)))
        expressions = [one for node in done for one in _expressions(node)]
        momentary = next((one for one in expressions if read.called(one) & _MOMENTARY), None)
        kinds = [node.WhichOneof("rel_type") for node in done]
        texts = tuple(read.sql_of(one) for one in expressions)
        named = {name.lower() for one in expressions for name in read.columns_of(one)}
        kept = _kept(done, before, names)
        is_all = "*" in named or all(
            kind in ("filter", "with_columns", "drop", "with_columns_renamed", "to_df") for kind in kinds
        )
        return StepFacts(
            foreign=_foreign(kinds, expressions),
            is_deterministic=all(map(_is_deterministic, expressions)),
            momentary=None if momentary is None else read.sql_of(momentary),
            subquery="SubqueryExpression" if any(map(read.subqueries, expressions)) else None,
            texts=texts,
            needs_zone=has_zone(
                expressions,
                instants_in(rows.schema),
                may_rename=len(kinds) > 1 and not {*kinds}.isdisjoint({"with_columns_renamed", "to_df"}),
            ),
            title=("Where " if kinds and kinds[0] == "filter" else "Select ") + ", ".join(texts or names),
            is_selection="filter" not in kinds,
            kept=kept,
            reads=frozenset(name for name in before if is_all or name.lower() in named or name in kept),
            condition=texts[0] if kinds == ["filter"] else None,
            selected=_selected(done[0], before) if len(done) == 1 else None,
        )

    def aggregate(self, rows: DataFrame, column: Column) -> AggregateFacts | None:
        (field,) = rows.groupBy().agg(column).schema.fields  # the server refuses what it cannot make sense of
        inside: Any = cast("Any", column)._expr
        while isinstance(inside, ColumnAlias):
            inside = inside._child
        call = _call_of(inside)
        if call is None or call.name not in _AGGREGATES:
            return None
        constants = [read.constant_kind(_message(rows, cast("Any", one))) for one in call.arguments]
        return AggregateFacts(
            function=_SAME_AGGREGATES.get(call.name, call.name),
            name=field.name,
            type=field.dataType.simpleString(),
            arguments=() if "star" in constants else cast("Any", call.arguments),
            is_constant=None not in constants,
            condition=cast("Any", call.condition),
            is_distinct=call.is_distinct,
        )

    def batch_of_source(self, rows: DataFrame) -> DataFrame | None:
        leaves = [node for node in _nodes(_plan(rows)) if not _inputs(node)]
        source = leaves[0].read.data_source if len(leaves) == 1 and leaves[0].HasField("read") else None
        if source is None or not source.HasField("format"):
            return None
        reader = rows.sparkSession.read.format(source.format)
        if source.schema:
            reader = reader.schema(StructType.fromJson(json.loads(source.schema)) if source.schema[0] == "{" else source.schema)
        options = dict(source.options)
        options |= {"startingOffsets": "earliest", "endingOffsets": "latest"} if source.format.lower() == "kafka" else {}
        return reader.options(**options).load(list(source.paths) or None)

    def type_of_json(self, texts: DataFrame) -> StructType:
        return texts.sparkSession.read.json(cast("Any", texts)).schema

    def expression(self, rows: DataFrame, column: Column) -> ReadExpression:
        message = _message(rows, column)
        plain = read.plain_name(message)
        if plain is not None and plain[0] in rows.columns:
            return ReadExpression(plain[0], plain[0], ("column", plain[0]))
        text = read.sql_of(message)
        return ReadExpression(None, text, ("expression", text))

    def paths(self, rows: DataFrame) -> list[str] | None:  # noqa: ARG002 - the files are the server's
        return None


READER: FrameReader = _Connect()


class _Call(NamedTuple):
    name: str
    arguments: tuple[ConnectColumn, ...]
    is_distinct: bool
    condition: ConnectColumn | None


def _call_of(expression: Any) -> _Call | None:
    """Return the call of a function by its name in lower case; None of anything else."""
    if isinstance(expression, UnresolvedFunction):
        arguments = tuple(ConnectColumn(one) for one in expression._args)
        return _Call(expression._name.lower(), arguments, bool(expression._is_distinct), None)
    text = read.call_in_text(expression._expr) if isinstance(expression, SQLExpression) else None
    if text is None:
        return None
    arguments = tuple(ConnectColumn(SQLExpression(one)) for one in text.arguments)
    condition = None if text.condition is None else ConnectColumn(SQLExpression(text.condition))
    return _Call(text.name, arguments, text.is_distinct, condition)


def _client(rows: DataFrame) -> Any:
    return cast("Any", rows.sparkSession).client


def _plan(rows: DataFrame) -> Any:
    return cast("Any", rows)._plan.to_proto(_client(rows)).root


def _message(rows: DataFrame, column: Column) -> Any:
    return cast("Any", column).to_plan(_client(rows))


def _inputs(node: Any) -> list[Any]:
    inside = getattr(node, node.WhichOneof("rel_type"))
    fields = {field.name for field in inside.DESCRIPTOR.fields}
    found = [getattr(inside, name) for name in ("input", "left_input", "right_input", "left", "right") if name in fields]
    return [one for one in found if one.WhichOneof("rel_type") is not None]


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _inputs(node):
        yield from _nodes(child)


def _expressions(node: Any) -> list[Any]:
    kind = node.WhichOneof("rel_type")
    inside = getattr(node, kind)
    match kind:
        case "project":
            return list(inside.expressions)
        case "filter":
            return [inside.condition]
        case "with_columns":
            return [_aliased(one) for one in inside.aliases]
        case "aggregate":
            return [*inside.grouping_expressions, *inside.aggregate_expressions]
        case "join":
            return [inside.join_condition] if inside.HasField("join_condition") else []
        case _:
            return []


def _aliased(alias: Any) -> Any:
    from pyspark.sql.connect.proto import Expression

    return Expression(alias=alias)


def _is_deterministic(expression: Any) -> bool:
    return not read.called(expression) & _RANDOM and not read.has_nondeterministic_function(expression)


def _foreign(kinds: Sequence[str], expressions: Sequence[Any]) -> str | None:
    """Return the class that Spark would give a node which looks at more than one row."""
    for kind in kinds:
        if kind not in _PER_ROW + _LEAVES:
            return {"aggregate": "Aggregate"}.get(kind, kind)
    names = {name for one in expressions for name in read.called(one)}
    for found, wanted in (("Window", {"window"}), ("Generate", _GENERATORS), ("Aggregate", _AGGREGATES)):
        if names & wanted:
            return found
    return None


def _done(before: Any, after: Any) -> Iterator[Any]:
    """Yield the operations on rows, the last one first: the nodes above theirs."""
    node = after
    while node.common.plan_id != before.common.plan_id:
        yield node
        inputs = _inputs(node)
        if len(inputs) != 1:
            return
        node = inputs[0]


def _selected(node: Any, before: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    """Return the columns after a selection, each as SQL over those before it; None where a node is none, or one has no name."""
    kind = node.WhichOneof("rel_type")
    inside = getattr(node, kind)
    found: list[tuple[str, str]] = []
    if kind == "with_columns":
        computed = {one.name[0]: read.sql_of(one.expr) for one in inside.aliases}
        found = [(name, computed.pop(name) if name in computed else read.quoted(name)) for name in before]
        return (*found, *computed.items())
    if kind != "project":
        return None
    for one in inside.expressions:
        if one.WhichOneof("expr_type") == "unresolved_star":
            found += [(name, read.quoted(name)) for name in before]
            continue
        plain = read.plain_name(one)
        if plain is not None:
            found.append((plain[1], read.quoted(plain[0])))
        elif one.WhichOneof("expr_type") == "alias" and len(one.alias.name) == 1:
            found.append((one.alias.name[0], read.sql_of(one.alias.expr)))
        else:
            return None
    return tuple(found)


def _kept(done: Sequence[Any], before: Sequence[str], after: Sequence[str]) -> dict[str, str]:
    """Return, per column before that is still there as it was, its name after; by the nodes, the first done first."""
    now: list[tuple[str, str | None]] = [(name, name) for name in before]
    for node in reversed(done):
        now = _after(node, now)
    if [name for name, _ in now] != list(after):
        return {}
    kept: dict[str, str] = {}
    for name, source in now:
        if source is not None:
            kept.setdefault(source, name)
    return kept


def _after(node: Any, now: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Return the columns after a node: the name of each, and the first column that it is as it was."""
    kind = node.WhichOneof("rel_type")
    inside = getattr(node, kind)
    match kind:
        case "project":
            chosen: list[tuple[str, str | None]] = []
            for one in inside.expressions:
                if one.WhichOneof("expr_type") == "unresolved_star":
                    chosen += now
                    continue
                plain = read.plain_name(one)
                chosen.append(("", None) if plain is None else (plain[1], dict(now).get(plain[0])))
                if plain is None and one.WhichOneof("expr_type") == "alias":
                    chosen[-1] = (one.alias.name[0], None)
            return chosen
        case "with_columns":
            computed = {one.name[0]: read.plain_name(_aliased(one)) for one in inside.aliases}
            sources = dict(now)
            new = {name: None if plain is None else sources.get(plain[0]) for name, plain in computed.items()}
            kept = [(name, new.pop(name) if name in new else source) for name, source in now]
            return [*kept, *new.items()]
        case "with_columns_renamed":
            renamed = {one.col_name: one.new_col_name for one in inside.renames} | dict(inside.rename_columns_map)
            return [(renamed.get(name, name), source) for name, source in now]
        case "drop":
            gone = set(inside.column_names) | {name for one in inside.columns for name in read.columns_of(one)}
            return [(name, source) for name, source in now if name not in gone]
        case "to_df":
            return [(name, source) for name, (_, source) in zip(inside.column_names, now, strict=True)]
        case _:
            return now
