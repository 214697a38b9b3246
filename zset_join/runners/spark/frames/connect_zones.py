"""Whether an expression of Spark Connect depends on the session's time zone, where only its analysed form has the casts.

The law: what depends on the zone in a classic session does here. An expression that computes with an instant depends on it, but
for what leaves instants alone: comparisons with other instants, tests for NULL, choices among instants. More may be found than
there is: `concat(at, '!')` has a cast to text, which most functions of text with an instant have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from zset_join.core.extras import needed_for
from zset_join.runners.spark.frames import connect_expressions as read

with needed_for("Spark Connect", "sqlglot"):
    from sqlglot import expressions as sql

__all__ = ["has_zone", "instants_in"]

_INSTANT, _NULL, _OTHER, _ZONED = "instant", "null", "other", "zoned"
_COMPARED = {"=", "==", "!=", "<>", "<=>", "<", "<=", ">", ">=", "in", "between"}
_TESTED = {"isnull", "isnotnull", "count"}
_CHOSEN = {"coalesce", "ifnull", "nvl", "greatest", "least", "min", "max", "first", "last", "any_value", "when", "if"}
_LOGICAL = {"and", "or", "not", "!"}


def instants_in(schema: StructType) -> frozenset[str]:
    """Return the columns and fields that are instants, or hold some, in lower case, as Spark compares names.

    >>> from pyspark.sql.types import DateType, StructType, TimestampType
    >>> more = StructType().add("a", DateType()).add("b", TimestampType())
    >>> sorted(instants_in(StructType().add("At", TimestampType()).add("day", DateType()).add("more", more)))
    ['at', 'more', 'more.b']
    """
    return frozenset(name.lower() for name in _instants(schema, ""))


def has_zone(expressions: Sequence[Any], instants: frozenset[str], *, may_rename: bool) -> bool:
    """Return whether one of the expressions depends on the time zone; where that is not known, it does."""
    if any(map(read.is_zoned, expressions)):
        return True
    if not instants:
        return False
    computed = [one for one in expressions if read.plain_name(one) is None and not _is_star(one)]
    if may_rename:
        return bool(computed)
    known = instants
    for _ in expressions:
        found = known | {name for one in expressions for name in _named(one) if _kind(one, known) == _INSTANT}
        if found == known:
            break
        known = found
    return any(_kind(one, known) == _ZONED for one in computed)


def _instants(schema: StructType, before: str) -> Iterable[str]:
    for field in schema.fields:
        if _holds(field.dataType):
            yield before + field.name
            if isinstance(field.dataType, StructType):
                yield from _instants(field.dataType, f"{before}{field.name}.")


def _holds(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_holds(field.dataType) for field in kind.fields)
        case ArrayType():
            return _holds(kind.elementType)
        case MapType():
            return _holds(kind.keyType) or _holds(kind.valueType)
        case _:
            return isinstance(kind, TimestampType)


def _is_star(expression: Any) -> bool:
    return expression.WhichOneof("expr_type") in ("unresolved_star", "unresolved_regex")


def _named(expression: Any) -> list[str]:
    plain = read.plain_name(expression)
    if plain is not None:
        return [plain[1].lower()]
    return [name.lower() for name in expression.alias.name] if expression.WhichOneof("expr_type") == "alias" else []


def _kind(expression: Any, instants: frozenset[str]) -> str:
    """Return the kind of an expression: an instant, NULL, something else, or something that the zone changes."""
    kind = expression.WhichOneof("expr_type")
    match kind:
        case "unresolved_attribute":
            return _of_column(read.name_parts(expression.unresolved_attribute.unparsed_identifier), instants)
        case "literal":
            what = expression.literal.WhichOneof("literal_type")
            return {"null": _NULL, "timestamp": _INSTANT}.get(what, _OTHER)
        case "alias":
            return _kind(expression.alias.expr, instants)
        case "unresolved_function" | "call_function":
            call = getattr(expression, kind)
            return _of_call(call.function_name.lower(), [_kind(one, instants) for one in call.arguments])
        case "common_inline_user_defined_function":
            return _OTHER
        case "expression_string":
            return _kind_in_text(read.sql_tree(expression.expression_string.expression), instants)
        case _:
            return _ZONED if {name.lower() for name in read.columns_of(expression)} & instants else _OTHER


def _of_call(name: str, kinds: Sequence[str]) -> str:
    if _ZONED in kinds:
        return _ZONED
    if name == "when":  # conditions and values by turns, then what else there is
        kinds = [one for at, one in enumerate(kinds) if at % 2 or (at == len(kinds) - 1 and len(kinds) % 2)]
    elif name == "if":
        kinds = kinds[1:]
    if _INSTANT not in kinds or name in _TESTED or name in _LOGICAL:
        return _OTHER
    if not {*kinds} <= {_INSTANT, _NULL}:
        return _ZONED
    return _OTHER if name in _COMPARED else _INSTANT if name in _CHOSEN else _ZONED


_CALLS: dict[type[Any], str] = {sql.Coalesce: "coalesce", sql.Greatest: "greatest", sql.Least: "least"}


def _kind_in_text(tree: Any, instants: frozenset[str]) -> str:
    match tree:
        case sql.Column():
            return _of_column([part.name for part in tree.parts], instants)
        case sql.Null():
            return _NULL
        case sql.Alias() | sql.Paren():
            return _kind_in_text(tree.this, instants)
        case sql.Is():
            return _of_call("isnull", [_kind_in_text(tree.this, instants)])
        case sql.Not() | sql.And() | sql.Or():
            return _of_call("and", [_kind_in_text(one, instants) for one in tree.iter_expressions()])
        case sql.EQ() | sql.NEQ() | sql.NullSafeEQ() | sql.GT() | sql.GTE() | sql.LT() | sql.LTE() | sql.In() | sql.Between():
            return _of_call("=", [_kind_in_text(one, instants) for one in tree.iter_expressions()])
        case sql.Coalesce() | sql.Greatest() | sql.Least():
            return _of_call(_CALLS[type(tree)], [_kind_in_text(one, instants) for one in tree.iter_expressions()])
        case _:
            columns = [[part.name for part in column.parts] for column in tree.find_all(sql.Column)]
            return _ZONED if any(_of_column(parts, instants) == _INSTANT for parts in columns) else _OTHER


def _of_column(parts: Sequence[str], instants: frozenset[str]) -> str:
    return _INSTANT if ".".join(parts).lower() in instants else _OTHER
