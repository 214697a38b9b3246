"""Expressions of Spark Connect: read from the protocol's messages, without a server.

A client sends expressions unresolved: names, functions by name, literals, SQL texts. Texts are parsed by sqlglot.

The law: two messages of one meaning are written alike by `sql_of`, in every process; a name that is not known to depend on the
row alone is never called deterministic.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zset_join.core.errors import PlanError
from zset_join.core.extras import needed_for
from zset_join.runners.spark.frames.facts import FoundFunction

with needed_for("Spark Connect"):
    import sqlglot
    from sqlglot import expressions as sql

__all__ = [
    "call_in_text",
    "called",
    "columns_of",
    "constant_kind",
    "functions_of",
    "has_nondeterministic_function",
    "is_zoned",
    "name_parts",
    "parts",
    "plain_name",
    "sql_of",
    "sql_tree",
    "subqueries",
]

_OPERATORS = {
    "and", "or", "=", "==", "!=", "<>", "<=>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%",
    "&", "|", "^", "||", "like", "rlike", "ilike", "div",
}  # fmt: skip
_PREFIXES = {"not", "~", "!"}
_ZONED_TYPES = ("date", "timestamp")
_ZONED = (
    "timestamp", "hour", "minute", "second", "date_trunc", "date_format", "from_unixtime", "to_date", "unix_timestamp",
    "from_utc", "to_utc", "months_between", "to_json",
    "from_json", "to_csv", "from_csv", "window", "make_timestamp", "convert_timezone", "current_date", "curdate",
)  # fmt: skip


def parts(expression: Any) -> Iterator[Any]:
    """Yield an expression and all inside it, the outermost first."""
    yield expression
    for child in _children(expression):
        yield from parts(child)


def sql_of(expression: Any) -> str:
    kind = expression.WhichOneof("expr_type")
    match kind:
        case "unresolved_attribute":
            return ".".join(f"`{one}`" for one in name_parts(expression.unresolved_attribute.unparsed_identifier))
        case "literal":
            return _literal(expression.literal)
        case "expression_string":
            return f"({sql_tree(expression.expression_string.expression).sql('spark')})"
        case "alias":
            names = ", ".join(f"`{one}`" for one in expression.alias.name)
            return f"{sql_of(expression.alias.expr)} AS {names}"
        case "cast":
            to = expression.cast.type_str or _type(expression.cast.type)
            word = "TRY_CAST" if expression.cast.eval_mode == expression.cast.EVAL_MODE_TRY else "CAST"
            return f"{word}({sql_of(expression.cast.expr)} AS {to.upper()})"
        case "unresolved_star":
            return f"{expression.unresolved_star.unparsed_target}*"
        case "unresolved_function":
            call = expression.unresolved_function
            return _call(call.function_name, [sql_of(one) for one in call.arguments], is_distinct=call.is_distinct)
        case "call_function":
            return _call(expression.call_function.function_name, [sql_of(one) for one in expression.call_function.arguments])
        case "common_inline_user_defined_function":
            call = expression.common_inline_user_defined_function
            return _call(call.function_name, [sql_of(one) for one in call.arguments])
        case "unresolved_extract_value":
            inside = expression.unresolved_extract_value
            return f"{sql_of(inside.child)}[{sql_of(inside.extraction)}]"
        case _:
            written = expression.SerializeToString(deterministic=True)
            return f"{kind}:{hashlib.blake2b(written, digest_size=8).hexdigest()}"


def columns_of(expression: Any) -> set[str]:
    """Return the names of the columns that an expression reads, "*" for all; of `a.b` both `a` and `a.b`."""
    found: set[str] = set()
    for part in parts(expression):
        kind = part.WhichOneof("expr_type")
        if kind == "unresolved_attribute":
            found |= _prefixes(name_parts(part.unresolved_attribute.unparsed_identifier))
        elif kind in ("unresolved_star", "unresolved_regex"):
            found.add("*")
        elif kind == "expression_string":
            for column in sql_tree(part.expression_string.expression).find_all(sql.Column, sql.Star):
                found |= {"*"} if isinstance(column, sql.Star) else _prefixes([one.name for one in column.parts])
    return found


def called(expression: Any) -> set[str]:
    """Return the functions that an expression calls, in lower case; the user's own are not among them."""
    found: set[str] = set()
    for part in parts(expression):
        kind = part.WhichOneof("expr_type")
        if kind == "unresolved_function":
            found.add(part.unresolved_function.function_name.lower())
        elif kind == "call_function":
            found.add(part.call_function.function_name.lower())
        elif kind == "window":
            found.add("window")
        elif kind == "expression_string":
            for one in sql_tree(part.expression_string.expression).walk():
                if isinstance(one, sql.Anonymous):
                    found.add(one.name.lower())
                elif isinstance(one, sql.Func):
                    found |= {name.lower() for name in one.sql_names()}
                elif isinstance(one, sql.Window):
                    found.add("window")
    return found


def functions_of(expression: Any) -> Iterator[FoundFunction]:
    """Yield the calls of the user's functions."""
    for part in parts(expression):
        if part.WhichOneof("expr_type") == "common_inline_user_defined_function":
            call = part.common_inline_user_defined_function
            is_python = call.WhichOneof("function") == "python_udf"
            yield FoundFunction(call.function_name, call.python_udf.command if is_python else None)


def has_nondeterministic_function(expression: Any) -> bool:
    """Return whether a function of the user's is declared nondeterministic."""
    return any(
        part.WhichOneof("expr_type") == "common_inline_user_defined_function"
        and not part.common_inline_user_defined_function.deterministic
        for part in parts(expression)
    )


def subqueries(expression: Any) -> bool:
    return any(
        part.WhichOneof("expr_type") == "subquery_expression"
        or (
            part.WhichOneof("expr_type") == "expression_string"
            and sql_tree(part.expression_string.expression).find(sql.Subquery, sql.Exists, sql.Select) is not None
        )
        for part in parts(expression)
    )


def is_zoned(expression: Any) -> bool:
    """Return whether the session's time zone may matter; where it is not known, it may."""
    text = sql_of(expression).lower()
    return any(f" as {kind}" in text for kind in _ZONED_TYPES) or any(
        name.startswith(_ZONED) or "timestamp" in name for name in called(expression)
    )


def plain_name(expression: Any) -> tuple[str, str] | None:
    """Return the column that an expression passes on as it is, and its name after it; None where it computes."""
    name = None
    if expression.WhichOneof("expr_type") == "alias":
        if len(expression.alias.name) != 1:
            return None
        name, expression = expression.alias.name[0], expression.alias.expr
    kind = expression.WhichOneof("expr_type")
    if kind == "unresolved_attribute":
        names = name_parts(expression.unresolved_attribute.unparsed_identifier)
    elif kind == "expression_string":
        parsed = sql_tree(expression.expression_string.expression)
        if isinstance(parsed, sql.Alias):
            name, parsed = name or parsed.alias, parsed.this
        if not isinstance(parsed, sql.Column):
            return None
        names = [one.name for one in parsed.parts]
    else:
        return None
    return (names[0], name or names[0]) if len(names) == 1 else None


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def name_parts(identifier: str) -> list[str]:
    """Return the parts of a name as Spark writes it, such as "`a.b`.c".

    >>> name_parts("`a.b`.c")
    ['a.b', 'c']
    """
    found, text, at = [""], identifier, 0
    while at < len(text):
        if text[at] == "`":
            end = at + 1
            while end < len(text) and not (text[end] == "`" and text[end + 1 : end + 2] != "`"):
                end += 2 if text[end] == "`" else 1
            found[-1] += text[at + 1 : end].replace("``", "`")
            at = end + 1
        elif text[at] == ".":
            found.append("")
            at += 1
        else:
            found[-1] += text[at]
            at += 1
    return found


@dataclass(frozen=True)
class CallInText:
    name: str
    arguments: tuple[str, ...]
    is_distinct: bool
    condition: str | None


def call_in_text(text: str) -> CallInText | None:
    """Return the one call that a SQL text is; None where it is something else.

    >>> call_in_text("sum(DISTINCT a + 1) FILTER (WHERE b) AS s")
    CallInText(name='sum', arguments=('a + 1',), is_distinct=True, condition='b')
    """
    tree, condition = sql_tree(text), None
    if isinstance(tree, sql.Alias):
        tree = tree.this
    if isinstance(tree, sql.Filter):
        tree, condition = tree.this, tree.expression.this.sql("spark")
    name = re.match(r"(\w+)\(", tree.sql("spark"))
    if not isinstance(tree, sql.Func) or name is None:
        return None
    arguments = list(tree.iter_expressions())
    is_distinct = bool(arguments) and isinstance(arguments[0], sql.Distinct)
    if is_distinct:
        arguments = arguments[0].expressions
    return CallInText(name[1].lower(), tuple(one.sql("spark") for one in arguments), is_distinct, condition)


def constant_kind(expression: Any) -> str | None:
    """Return "star" or "literal" of what is one; None of NULL, and of anything that depends on a row."""
    match expression.WhichOneof("expr_type"):
        case "unresolved_star":
            return "star"
        case "literal":
            return None if expression.literal.HasField("null") else "literal"
        case "expression_string":
            parsed = sql_tree(expression.expression_string.expression)
            if isinstance(parsed, sql.Star):
                return "star"
            return "literal" if isinstance(parsed, sql.Literal | sql.Boolean) else None
        case _:
            return None


@lru_cache(maxsize=4096)
def sql_tree(text: str) -> Any:
    try:
        return sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        raise PlanError(
            f"the expression {text!r} cannot be parsed: {error}. Over Spark Connect expressions are read by the client; write "
            "it with functions of pyspark.sql.functions or of zset_join.spark.functions.",
            code="EXPRESSION",
            expression=text,
        ) from error


def _children(expression: Any) -> list[Any]:
    kind = expression.WhichOneof("expr_type")
    match kind:
        case "alias" | "cast":
            return [getattr(expression, kind).expr]
        case "unresolved_function" | "call_function" | "common_inline_user_defined_function":
            return list(getattr(expression, kind).arguments)
        case "unresolved_extract_value":
            return [expression.unresolved_extract_value.child, expression.unresolved_extract_value.extraction]
        case "update_fields":
            fields = expression.update_fields
            return [fields.struct_expression, *([fields.value_expression] if fields.HasField("value_expression") else [])]
        case "lambda_function":
            return [expression.lambda_function.function]
        case "sort_order":
            return [expression.sort_order.child]
        case "named_argument_expression":
            return [expression.named_argument_expression.value]
        case "window":
            return [expression.window.window_function, *expression.window.partition_spec]
        case _:
            return []


def _prefixes(names: list[str]) -> set[str]:
    return {names[0], ".".join(names)}


def _call(name: str, arguments: list[str], *, is_distinct: bool = False) -> str:
    if name.lower() in _OPERATORS and len(arguments) == 2:
        return f"({arguments[0]} {name.upper()} {arguments[1]})"
    if name.lower() in _PREFIXES and len(arguments) == 1:
        return f"({name.upper()} {arguments[0]})"
    if name == "when":
        pairs = [f"WHEN {arguments[at]} THEN {arguments[at + 1]}" for at in range(0, len(arguments) - 1, 2)]
        other = [f"ELSE {arguments[-1]}"] if len(arguments) % 2 else []
        return " ".join(["CASE", *pairs, *other, "END"])
    if name in ("isNull", "isnull") and len(arguments) == 1:
        return f"({arguments[0]} IS NULL)"
    if name in ("isNotNull", "isnotnull") and len(arguments) == 1:
        return f"({arguments[0]} IS NOT NULL)"
    if name == "in" and arguments:
        return f"({arguments[0]} IN ({', '.join(arguments[1:])}))"
    distinct = "DISTINCT " if is_distinct else ""
    return f"{name}({distinct}{', '.join(arguments)})"


def _literal(literal: Any) -> str:
    kind = literal.WhichOneof("literal_type")
    value = getattr(literal, kind)
    match kind:
        case "null":
            return "NULL"
        case "string":
            return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
        case "boolean":
            return "true" if value else "false"
        case "integer":
            return str(value)
        case "long" | "short" | "byte":
            return f"{value}{ {'long': 'L', 'short': 'S', 'byte': 'Y'}[kind] }"
        case "double":
            return f"{value!r}D"
        case "float":
            return f"CAST({value!r}D AS FLOAT)"
        case "decimal":
            return f"CAST('{value.value}' AS DECIMAL({value.precision},{value.scale}))"
        case _:
            written = literal.SerializeToString(deterministic=True)
            return f"{kind}:{hashlib.blake2b(written, digest_size=8).hexdigest()}"


def _type(given: Any) -> str:
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    return str(proto_schema_to_pyspark_data_type(given).simpleString())
