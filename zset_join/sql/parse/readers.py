"""Read the tokens of a statement that no parser of queries reads: words, names, options, up to an end.

`given_value`, `refuse_secrets`: secrets in options: a statement names a variable of the environment in place of the value.

    CREATE TABLE customers (...) WITH ('connector' = 'jdbc', ..., 'password' = '${ENV:CRM_PASSWORD}')

The law: what is secret is decided on parsed options, whatever their spelling: by the option of a connector, or by
`zset_join.core.hidden_settings`. The text of a statement, which a directory keeps, has the reference; the value is read when
the statement runs, and again when the directory is opened by a user who confirms the variable. A secret is in no file and no
message; what an option that is no secret takes from the environment, such as a host, is part of plans.

`read_type`: the type of a column, as a declaration writes it.

    INT    DECIMAL(10, 2)    VARCHAR(20)    TIMESTAMP(3) WITH LOCAL TIME ZONE    ARRAY<INT>    INT[]    DATETIME64(3, 'UTC')

Brackets hold whole numbers, at most as many as the type takes; a type that takes none refuses them. Lengths and precisions of
other types than DECIMAL are read and not enforced, as `zset_join.sql_expressions.types` documents.

`constant`, `default_of`: constants of statements, as values of columns: those of VALUES, and of DEFAULT.

INSERT INTO t VALUES (1, DATE '2026-11-01', upper('x'))         whatever can be computed without a row
ALTER TABLE t ADD COLUMN c DECIMAL(8, 2) DEFAULT -1.5           a literal: what a statement makes is the same whenever it is run

Hints of a SELECT: `/*+ LOOKUP('table'='dim', 'async'='true'), STATE_TTL('orders'='1d') */`.

A hint is a suggestion: one that is not known, or names no table of the query, warns and changes nothing.

`lookup_of`, `lookup_without_effect`: lookup options of a declared external table: `'lookup.*'` in WITH, by Flink's names and by
ours.

Any other `lookup.x` is our option `x`, as in a LOOKUP hint. The older `lookup.cache.max-rows` with `lookup.cache.ttl` request a
partial cache by themselves. A hint of a query wins over its table, the table over the settings of the session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from zset_join.connectors import tables
from zset_join.conversions import can_convert, convert_values
from zset_join.core.errors import OptionError, SqlError, ZsetJoinError
from zset_join.core.hidden_settings import STARS, HiddenText, holds_password, is_secret_name
from zset_join.expressions import Cast
from zset_join.expressions.rows import compute, value_type
from zset_join.expressions.type_rules import kind_of
from zset_join.expressions.zones import expression_in_zone, is_utc
from zset_join.lookup.options import LOOKUP_NAMES, Lookup
from zset_join.sql_expressions.consumed import Position, check_consumed, disregard, near
from zset_join.sql_expressions.dialects import Statement, check_quotes, dialect_named, parse_expression
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.sql_expressions.types import type_named

__all__ = [
    "Hints",
    "Reader",
    "constant",
    "default_of",
    "lookup_of",
    "lookup_without_effect",
    "read_hints",
    "read_type",
    "refuse_secrets",
    "with_environment",
]

_SHORT_NUMBER = 9  # as long as every INT is in range
_REFERENCE = re.compile(r"\$\{ENV:([A-Za-z_][A-Za-z0-9_]*)\}")
_OF_PAIRS = "jaas.config"
"""The end of options whose values are pairs, of which some are secret."""


def given_value(option: str, value: str, statement: Statement, at: Position) -> str:
    """Return the value of an option as a statement gives it, hidden where it is a secret."""
    literal = _REFERENCE.sub("", value)
    is_marked = any(option in table.by_name and table.by_name[option].is_secret for table in tables().values())
    is_named = is_marked or (is_secret_name(option) and not option.endswith(_OF_PAIRS))
    is_literal = bool(literal) if is_named else holds_password(literal)
    if is_literal and statement.is_kept:
        raise SqlError(
            f"the option '{option}' has a password or token, and the session keeps and shows the text of this statement. "
            "Write '${ENV:NAME}' in its place, and set the variable NAME in the environment.",
            code="SECRET_KEPT",
            at=at,
            name=option,
        )
    return HiddenText.of(value, STARS if is_literal else value, is_secret=True) if is_literal or is_named else value


def refuse_secrets(statement: Statement, begin: int, end: int) -> None:
    """Refuse literal secrets in a hint: the text of a query is shown."""
    statement = replace(statement, is_kept=True)
    at = Position(statement.text, begin)
    try:
        tokens = dialect_named(statement.dialect)().tokenize(statement.written[begin:end])
    except SqlglotError:
        given_value("password", statement.written[begin:end], statement, at)
        return
    for name, assigned, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if assigned.text == "=":
            given_value(name.text, value.text, statement, at)


def with_environment(option: str, value: str, statement: Statement, at: Position) -> str:
    """Return the value of an option with the variables of the environment that it refers to."""
    names = _REFERENCE.findall(value)
    if not names:
        return value
    refused = [name for name in names if statement.variables is not None and name not in statement.variables]
    if refused:
        raise SqlError(
            f"the option '{option}' refers to the variable {refused[0]} of the environment, which is not confirmed.",
            code="ENV_NOT_ALLOWED",
            at=at,
            name=refused[0],
        )
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SqlError(
            f"the option '{option}' refers to the variable {missing[0]} of the environment, which is not set. Set it before "
            "the process begins.",
            code="SECRET_MISSING",
            at=at,
            name=missing[0],
        )
    resolved = _REFERENCE.sub(lambda match: os.environ[match[1]], value)
    is_secret = isinstance(value, HiddenText) or is_secret_name(option) or holds_password(resolved)
    return HiddenText.of(resolved, value.written if isinstance(value, HiddenText) else value, is_secret=is_secret)


class Reader:
    """Read the tokens of one statement, one after the other."""

    def __init__(self, statement: Statement, index: int = 0) -> None:
        self.statement = statement
        self.tokens = statement.tokens
        self.index = index

    @property
    def word(self) -> str:
        """Return the current token in capitals; empty behind the last one."""
        return self.tokens[self.index].text.upper() if self.index < len(self.tokens) else ""

    @property
    def is_done(self) -> bool:
        return self.index >= len(self.tokens)

    def has(self, *words: str) -> bool:
        """Read these words if they come next, and return whether; a quoted name is no word."""
        index, left = self.index, list(words)
        while left:
            if index >= len(self.tokens) or self.tokens[index].token_type in {TokenType.IDENTIFIER, TokenType.STRING}:
                return False
            # Some words come in one token, such as PRIMARY KEY.
            parts = self.tokens[index].text.upper().split()
            if parts != left[: len(parts)]:
                return False
            left = left[len(parts) :]
            index += 1
        self.index = index
        return True

    def expect(self, *words: str) -> None:
        if not self.has(*words):
            self.fail(f"expected {' '.join(words)}")

    def end(self) -> None:
        """Refuse a tail of the statement."""
        if not self.is_done:
            self.fail("expected the end")

    def fail(self, what: str) -> None:
        here = f'"{self.statement.shown(self.index)}"' if not self.is_done else "the end"
        raise SqlError(f"{what}, found {here}.", code="SQL_SYNTAX", at=self.statement.place(self.index))

    def name(self, what: str = "a name") -> str:
        """Read a name, or the last part of one with dots."""
        part = self._part(what)
        while not self.is_done and self.tokens[self.index].token_type == TokenType.DOT:
            self.index += 1
            part = self._part(what)
        return part

    def _part(self, what: str) -> str:
        check_quotes(self.statement, self.tokens[self.index : self.index + 1])
        token = self.tokens[self.index] if not self.is_done else None
        is_word = token is not None and (token.text[:1].isalpha() or token.text[:1] == "_")
        if token is None or not (token.token_type == TokenType.IDENTIFIER or is_word) or token.token_type == TokenType.STRING:
            self.fail(f"expected {what}")
            return ""
        self.index += 1
        return token.text

    def names(self) -> tuple[str, ...]:
        self.expect("(")
        columns = [self.name("a column")]
        while self.has(","):
            columns.append(self.name("a column"))
        self.expect(")")
        return tuple(columns)

    def value(self) -> str:
        """Read a string, number, or word."""
        token = self.tokens[self.index] if not self.is_done else None
        is_word = token is not None and (token.text[:1].isalnum() or token.text[:1] in {"_", "."})
        if token is None or not (is_word or token.token_type in {TokenType.DASH, TokenType.IDENTIFIER, TokenType.STRING}):
            self.fail("expected a value")
            return ""
        self.index += 1
        if token.token_type == TokenType.DASH:
            return "-" + self.value()
        return token.text

    def string(self, what: str) -> str:
        if self.is_done or self.tokens[self.index].token_type != TokenType.STRING:
            self.fail(f"expected {what} in quotes")
        return self.value()

    def options(self, *, equals: str = "=") -> dict[str, str]:
        """Read `key = value, ...` as long as it continues."""
        options: dict[str, str] = {}
        while not self.is_done and self.word != ")":
            at = self.statement.place(self.index)
            key = self.key()
            self.expect(equals)
            if key in options:
                raise SqlError(f"'{key}' is given twice. Keep one.", code="SAID_TWICE", at=at, name=key)
            options[key] = given_value(key, self.value(), self.statement, at)
            if not self.has(","):
                break
            if self.word in {"", ")"}:
                self.fail("expected an option after the comma")
        return options

    def key(self) -> str:
        """Read the name of an option or setting, in quotes or without."""
        if not self.is_done and self.tokens[self.index].token_type == TokenType.STRING:
            return self.value()
        parts = [self._part("an option")]
        while self.has("."):
            parts.append(self._part("an option"))
        return ".".join(parts)

    def until(self, *ends: str) -> tuple[Token, ...]:
        """Read tokens up to a comma, a closing bracket or one of the words, outside of brackets."""
        begin, depth = self.index, 0
        while not self.is_done:
            if depth == 0 and (self.word in {",", ")"} or self.word in ends):
                break
            depth += {"(": 1, ")": -1}.get(self.word, 0)
            self.index += 1
        return tuple(self.tokens[begin : self.index])


_NUMBERS = {
    **dict.fromkeys(("DEC", "DECIMAL", "NUMERIC"), 2),
    **dict.fromkeys(("BINARY", "BYTES", "CHAR", "CHARACTER", "DATETIME64", "STRING", "TIMESTAMP", "TIMESTAMPTZ",
                     "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "VARBINARY", "VARCHAR"), 1),
}  # fmt: skip
"""How many numbers the brackets of a type hold at most."""
_MOST_DIGITS = 9
_NAMES = ("BIGINT", "BOOLEAN", "BYTES", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIMESTAMP")


def read_type(reader: Reader) -> pa.DataType:
    place = reader.statement.place(reader.index)
    word = reader.name("a type").upper()
    if word in {"NULLABLE", "LOW_CARDINALITY"} and reader.has("("):
        kind = read_type(reader)
        reader.expect(")")
        return kind
    if word == "ARRAY" and reader.word in {"<", "("}:
        end = {"<": ">", "(": ")"}[reader.word]
        reader.index += 1
        kind = pa.list_(read_type(reader))
        if not reader.has(end):
            reader.fail("expected the end of the array")
        return kind
    if word == "DOUBLE":
        reader.has("PRECISION")
    if word == "CHARACTER":
        reader.has("VARYING")
    if word in {"CHARACTER VARYING", "CHAR VARYING"}:
        word = "VARCHAR"
    if word == "DOUBLE PRECISION":
        word = "DOUBLE"
    if word in {"ROW", "STRUCT", "MAP", "TUPLE", "MULTISET", "JSONB", "JSON", "VARIANT"}:
        raise SqlError(
            f"columns of type {word} are not supported. Declare a column per field, or a STRING: JSON_VALUE(c, '$.a') gives "
            "its fields.",
            code="UNKNOWN_TYPE",
            at=place,
        )
    arguments = _arguments(reader, word) if reader.has("(") else ()
    if word == "TIMESTAMP" and (reader.has("WITH", "LOCAL", "TIME", "ZONE") or reader.has("WITH", "TIME", "ZONE")):
        word = "TIMESTAMPTZ"
    elif word == "TIMESTAMP" and reader.has("WITHOUT", "TIME", "ZONE"):
        word = "TIMESTAMP_NTZ"
    kind = type_named(word, arguments, dialect=reader.statement.dialect)
    if kind is None and word in {"DEC", "DECIMAL", "NUMERIC"}:
        raise SqlError(
            f"{word}({', '.join(map(str, arguments))}) is not a type: it has 1 to 38 digits, of which at most as many are "
            "behind the point.",
            code="UNKNOWN_TYPE",
            at=place,
        )
    if kind is None:
        raise SqlError(f'the type "{word}" is not known.{near(word, _NAMES)}', code="UNKNOWN_TYPE", at=place)
    if reader.has("["):
        reader.expect("]")
        return pa.list_(kind)
    return kind


def _arguments(reader: Reader, word: str) -> tuple[int, ...]:
    """Read the numbers of a type, from behind the opening bracket on; the zone of a DATETIME64 is a text behind its number."""
    most = _NUMBERS.get(word, 0)
    if most == 0 and type_named(word, (), dialect=reader.statement.dialect) is not None:
        reader.index -= 1
        reader.fail(f"{word} takes no arguments in brackets")
    numbers: list[int] = []
    while True:
        token = None if reader.is_done else reader.tokens[reader.index]
        if numbers and word == "DATETIME64" and token is not None and token.token_type == TokenType.STRING:
            reader.index += 1
            break
        is_number = token is not None and token.text.isdecimal() and token.token_type == TokenType.NUMBER
        if not is_number or len(numbers) == max(most, 1):
            reader.fail(f"expected {'a number' if not numbers else 'a closing bracket'} of {word}")
        numbers.append(int(reader.value()))
        if not reader.has(","):
            break
    at = reader.statement.place(reader.index)
    reader.expect(")")
    if word.startswith(("TIMESTAMP", "DATETIME")) and numbers[0] > _MOST_DIGITS:
        raise SqlError(f"a {word} has at most {_MOST_DIGITS} digits behind the second.", code="UNKNOWN_TYPE", at=at)
    return tuple(numbers)


_LITERALS = (exp.Literal, exp.Neg, exp.Paren, exp.Boolean, exp.Null, exp.Cast, exp.DataType, exp.DataTypeParam)


def default_of(statement: Statement, tokens: tuple[Token, ...], kind: pa.DataType, column: str) -> pa.Scalar | None:
    """Return the DEFAULT value of a column; None for NULL."""
    if not tokens:
        raise SqlError(f'DEFAULT of "{column}" has no value.', code="SQL_SYNTAX", at=statement.place(len(statement.tokens) - 1))
    if not all(isinstance(node, _LITERALS) for node in parse_expression(statement, tokens).walk()):
        raise SqlError(
            f"DEFAULT of \"{column}\" is a literal, as 0, 'none' or DATE '2026-01-01': existing rows get one value.",
            code="NOT_OFFERED",
            at=_place(statement, tokens),
        )
    value = constant(ScalarBinder.over(pa.schema([]), statement), statement, tokens, kind, f'DEFAULT of "{column}"')
    return None if value is None else pa.scalar(value, kind)


def _plain(token: Token, kind: pa.DataType) -> int | float | str | None:
    """Return the value of a literal of the same kind as its column; None for any other, which is parsed."""
    if token.token_type == TokenType.STRING:
        return token.text if pa.types.is_string(kind) else None
    if token.token_type != TokenType.NUMBER or not token.text.isascii() or len(token.text) > _SHORT_NUMBER:
        return None
    if pa.types.is_float64(kind) and token.text.replace(".", "", 1).isdecimal():
        return float(token.text)
    is_wide = pa.types.is_int32(kind) or pa.types.is_int64(kind)
    return int(token.text) if is_wide and token.text.isdecimal() else None


def constant(
    binder: ScalarBinder, statement: Statement, tokens: tuple[Token, ...], kind: pa.DataType, place: str, zone: str = "UTC"
) -> Any:
    check_quotes(statement, tokens)
    plain = _plain(tokens[0], kind) if len(tokens) == 1 else None
    if plain is not None:
        return plain
    node = parse_expression(statement, tokens)
    tree = binder.bind(node)
    check_consumed(node, statement.text, _place(statement, tokens))
    if not is_utc(zone):
        is_text = kind_of(kind) == "instant" and kind_of(binder.type_of(tree)) == "string"
        tree = expression_in_zone(Cast(tree, kind) if is_text else tree, {}, zone)
    value = compute(tree, {}, 1)
    if pa.types.is_null(value.type):
        return None
    try:
        if pa.types.is_nested(kind) and not can_convert(value.type, kind):  # a struct's members go by position
            cast = Cast(tree, kind)
            value_type(cast, pa.schema([]))
            value = compute(cast, {}, 1)
        converted = convert_values(value, kind)
        if converted.unfit is None:
            return converted.values[0].as_py()
    except ZsetJoinError as error:
        raise _unfit(statement, tokens, node, kind, place) from error
    raise _unfit(statement, tokens, node, kind, place)


def _unfit(statement: Statement, tokens: tuple[Token, ...], node: exp.Expr, kind: pa.DataType, place: str) -> SqlError:
    return SqlError(
        f"{place}: {node.sql(dialect='spark')} does not fit a column of type {kind}; a value converts only where the column "
        "holds it exactly. Correct it, or write a CAST.",
        code="LITERAL",
        at=_place(statement, tokens),
    )


def _place(statement: Statement, tokens: tuple[Token, ...]) -> Any:
    return Position(statement.text, tokens[0].start)


@dataclass
class Hints:
    lookups: dict[str, dict[str, str]] = field(default_factory=dict)
    state_ttls: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def lookup(self, *names: str) -> dict[str, str]:
        """Return the options of LOOKUP for a table, by the first of its names that a hint has."""
        name = next((one for one in names if one in self.lookups), None)
        if name is None:
            return {}
        self.used.add(name)
        return self.lookups[name]


def read_hints(node: exp.Select, warnings: list[str]) -> Hints:
    """Return the hints of a SELECT; those that are not known become warnings."""
    hints = Hints()
    given = node.args.get("hint")
    for one in given.expressions if given is not None else ():
        # What is wrong with a hint is warned of here, and its content is not used.
        disregard(one)
        if not isinstance(one, exp.Expr):
            warnings.append(f"the hints {one} cannot be read and change nothing.")
            continue
        name = one.name.upper()
        if name not in {"LOOKUP", "STATE_TTL"} or not isinstance(one, exp.Anonymous):
            warnings.append(f"the hint {name or one.sql()} is not known and changes nothing; LOOKUP and STATE_TTL are.")
            continue
        options = {
            pair.this.name: pair.expression.name
            for pair in one.expressions
            if isinstance(pair, exp.EQ) and isinstance(pair.this, exp.Literal) and isinstance(pair.expression, exp.Literal)
        }
        if name == "STATE_TTL":
            if len(options) != len(one.expressions):
                warnings.append("the hint STATE_TTL changes nothing: it takes pairs 'table'='duration', each table once.")
                continue
            for named, duration in options.items():
                if hints.state_ttls.setdefault(named, duration) != duration:
                    warnings.append(f"a second hint STATE_TTL of '{named}' changes nothing: {hints.state_ttls[named]} counts.")
            continue
        table = options.pop("table", None)
        if table is None or len(options) + 1 != len(one.expressions):
            warnings.append("the hint LOOKUP changes nothing: it takes 'key'='value' pairs, 'table' among them.")
            continue
        if hints.lookups.setdefault(table, options) is not options:
            warnings.append(f"a second hint LOOKUP of '{table}' changes nothing: the first counts. Write one with all options.")
    return hints


_PREFIX = "lookup."
_OF_FLINK = {
    "cache.caching-missing-key": "cache-missing",
    "cache.max-rows": "cache-max-rows",
    "cache.ttl": "cache-ttl",
    "full-cache.periodic-reload.interval": "reload-interval",
    "max-retries": "error-attempts",
    "partial-cache.cache-missing-key": "cache-missing",
    "partial-cache.expire-after-write": "cache-ttl",
    "partial-cache.max-rows": "cache-max-rows",
}
_OLDER = ("lookup.cache.max-rows", "lookup.cache.ttl")
_RELOADS = ("full-cache.reload-strategy", "full-cache.periodic-reload.schedule-mode")
_WITHOUT_EFFECT = ("partial-cache.expire-after-access",)


def lookup_of(options: Mapping[str, str], *, at: Position | None = None) -> Lookup:
    """Return how a declaration wants its table to be looked up."""
    given: dict[str, str] = {}
    named: dict[str, str] = {}
    for option, value in options.items():
        plain = option.removeprefix(_PREFIX)
        if not option.startswith(_PREFIX) or plain in _WITHOUT_EFFECT:
            continue
        if plain in _RELOADS:
            if value.upper() not in {"PERIODIC", "FIXED_DELAY"}:
                raise SqlError(
                    f"'{option}' = '{value}' is not supported: a full cache is loaded again after 'lookup.reload-interval'.",
                    code="NOT_OFFERED",
                    at=at,
                )
            continue
        own = _OF_FLINK.get(plain, plain)
        if own in named:
            raise SqlError(f"'{named[own]}' and '{option}' mean the same. Keep one.", code="SAID_TWICE", at=at)
        if own not in LOOKUP_NAMES:
            known = [_PREFIX + name for name in (*_OF_FLINK, *_RELOADS, *sorted(LOOKUP_NAMES))]
            raise SqlError(f"the option '{option}' is not known.{near(option, known)}", code="UNKNOWN_OPTION", at=at)
        # The first call counts among the attempts.
        counts_on = plain == "max-retries" and value.isdecimal()
        given[own], named[own] = str(int(value) + 1) if counts_on else value, option
    if "cache" not in given and all(one in options for one in _OLDER):
        given["cache"] = "partial"
    try:
        return Lookup.from_options(given)
    except OptionError as error:
        raise SqlError(error.message, code=error.code, at=at) from error


def lookup_without_effect(options: Mapping[str, str]) -> list[str]:
    """Return the warnings about options of a lookup that change nothing here."""
    lookup = lookup_of(options)
    lines = [
        f"the option '{_PREFIX}{name}' changes nothing here; 'lookup.cache-ttl' counts from when a row was read."
        for name in _WITHOUT_EFFECT
        if _PREFIX + name in options
    ]
    cache = lookup.cache or "none"
    needs = {"cache_ttl": "partial", "cache_max_rows": "partial", "cache_missing": "partial", "reload_interval": "full"}
    return lines + [
        f"the option of a lookup {name.replace('_', '-')} changes nothing without 'lookup.cache' = '{wanted}'."
        for name, wanted in needs.items()
        if name in lookup.given() and cache != wanted
    ]
