"""CREATE TABLE t (...) WITH (...) LIKE s (...): a table with the columns and options of another one, and more.

    CREATE TABLE t (WATERMARK FOR at AS at - INTERVAL '5' SECOND) WITH ('topic' = 'new') LIKE s (EXCLUDING OPTIONS)

The columns of `s` come first, those in brackets behind them. INCLUDING, EXCLUDING or OVERWRITING with a
word choose what else is copied; as in Flink, INCLUDING ALL and OVERWRITING OPTIONS by default.

OPTIONS are those of WITH; DISTRIBUTION and PARTITIONS are nothing, as tables have none here.

Edge case: a clause that is given again replaces the copied one, with INCLUDING too.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from zset_join.core.errors import SqlError
from zset_join.sql.ddl.definitions import Model
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.catalog import PROCESSING_TIME_TYPE, ColumnDefinition, Table
from zset_join.sql_expressions.positions import near

__all__ = ["LikeClause", "find_like", "model_of"]

_PARTS = ("CONSTRAINTS", "DISTRIBUTION", "GENERATED", "METADATA", "OPTIONS", "PARTITIONS", "WATERMARKS")
_STRATEGIES = ("EXCLUDING", "INCLUDING", "OVERWRITING")


@dataclass(frozen=True)
class LikeClause:
    name: str
    name_index: int
    end: int  # the token behind the clause
    taken: frozenset[str]


def find_like(reader: Reader) -> LikeClause | None:
    """Return the LIKE clause of a declaration; None where it has none. The reader stays where it is."""
    depth = 0
    for index in range(reader.index, len(reader.tokens)):
        token = reader.tokens[index]
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0 and token.text.upper() == "LIKE" and token.token_type == TokenType.LIKE:
            return _clause(Reader(reader.statement, index + 1))
    return None


def _clause(reader: Reader) -> LikeClause:
    at = reader.index
    name = reader.name("the name of a table")
    taken = set(_PARTS)
    if reader.has("("):
        while not reader.has(")"):
            strategy = reader.word
            if strategy not in _STRATEGIES:
                reader.fail(f"expected {', '.join(_STRATEGIES)} or a closing bracket")
            reader.index += 1
            place = reader.statement.place(reader.index)
            part = reader.name("a part of a table").upper()
            if part not in {*_PARTS, "ALL"}:
                raise SqlError(f"a table has no {part}.{near(part, ('ALL', *_PARTS))}", code="SQL_SYNTAX", at=place)
            parts = set(_PARTS) if part == "ALL" else {part}
            taken = taken - parts if strategy == "EXCLUDING" else taken | parts
            reader.has(",")
    return LikeClause(name, at, reader.index, frozenset(taken))


def model_of(table: Table, clause: LikeClause) -> Model:
    times = [ColumnDefinition(name, PROCESSING_TIME_TYPE, is_processing_time=True) for name in table.processing_times]
    columns = tuple(column for column in (*table.columns, *times) if _is_taken(column, table, clause.taken))
    names = {column.name for column in columns}
    has_key = "CONSTRAINTS" in clause.taken and set(table.primary_key) <= names
    has_watermark = "WATERMARKS" in clause.taken and table.watermark is not None and table.watermark[0] in names
    return Model(
        columns=columns,
        primary_key=table.primary_key if has_key else (),
        watermark=table.watermark if has_watermark else None,
        options=dict(table.options) if "OPTIONS" in clause.taken else {},
        settings=dict(table.settings) if has_key else {},
        is_append_only=table.mode == "append",
        end=clause.end,
    )


def _is_taken(column: ColumnDefinition, table: Table, taken: frozenset[str]) -> bool:
    if column.name == table.delta_column:
        return False
    if column.metadata is not None:
        return "METADATA" in taken
    return "GENERATED" in taken or column.is_given
