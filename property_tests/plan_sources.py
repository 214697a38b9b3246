"""Inputs of random plans: changes made by the thousand, and the tables they lead to, kept by DuckDB.

A source has columns of plain types with few values, so that rows meet: NULL, NaN, both zeros, the empty string among them. Its
mode decides what a change may be. What is live after an epoch is worked out by DuckDB alone: the newest change per primary key,
or the sum of the weights of each row.

Cost: making a change takes about a tenth of a microsecond; the table is rewritten by DuckDB in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = ["SOURCE_MODES", "Column", "Source", "SourceMode", "make_source", "quoted"]

SourceMode = Literal["append", "upsert", "sequenced", "changelog"]
SOURCE_MODES: tuple[SourceMode, ...] = ("append", "upsert", "sequenced", "changelog")

_LONG = "a text that is longer than twelve bytes, number "
_FLOATS = (0.0, -0.0, float("nan"), None, 1.5, -2.25)
_TEXTS = ("", None, "a", "a ", _LONG + "1", _LONG + "2")
_NUMBERS = (0, None, 1, 2, -3, 7)
_RETRACTED = 0.4
_DELETED = 0.2
_NULL_KEYS = 0.03


@dataclass(frozen=True)
class Column:
    """One column of a relation in a plan; `is_key`: it has many values, so that joining on it is cheap."""

    name: str
    kind: pa.DataType
    is_key: bool = False


def quoted(names: Sequence[str], prefix: str = "") -> str:
    """Return column names as a list in SQL."""
    return ", ".join(f'{prefix}"{name}"' for name in names)


@dataclass
class Source:
    """One input of a plan.

    Args:
        number: which one; its columns are named after it.
        mode: what a change may be.
        columns: its columns, the identifier first.
        pools: values of each column; None for a sequence, which has a number of its own for every change.
        rng: where changes come from.
        connection: where the table is kept.
    """

    number: int
    mode: SourceMode
    columns: tuple[Column, ...]
    pools: tuple[pa.Array | None, ...]
    rng: np.random.Generator
    connection: duckdb.DuckDBPyConnection
    _arrived: int = 0
    _live: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def __post_init__(self) -> None:
        self._live = np.zeros((0, len(self.columns)), np.int64)
        empty = self._table(np.zeros((0, len(self.columns)), np.int64), np.zeros(0, np.int64))
        self._store(empty, is_new=True)

    @property
    def name(self) -> str:
        """Return the name of its relation, and of its table."""
        return f"s{self.number}"

    def relation(self, join_key: Sequence[str] = ()) -> Relation:
        """Return the relation, to be joined on some columns."""
        names = [column.name for column in self.columns]
        return Relation(
            name=self.name,
            schema=pa.schema([(column.name, column.kind) for column in self.columns]),
            join_key=tuple(join_key),
            primary_key=(names[0],) if self.mode in ("upsert", "sequenced") else (),
            sequence_by=(names[-1],) if self.mode == "sequenced" else (),
            mode="upsert" if self.mode in ("upsert", "sequenced") else self.mode,
        )

    def sql(self) -> str:
        """Return the query of its live rows, with their weight as `w`."""
        alive = "WHERE w > 0" if self.mode in ("upsert", "sequenced") else ""
        return f"SELECT {quoted([column.name for column in self.columns])}, w FROM {self.name} {alive}"

    def changes(self, count: int) -> ZSet:
        """Return the delta of an epoch, and let DuckDB work out what is live after it."""
        codes, weights = self._drawn(count)
        table = self._table(codes, weights)
        self._store(table, is_new=False)
        rows = table.select([column.name for column in self.columns]).combine_chunks()
        schema = self.relation().schema
        arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in rows.columns]
        return ZSet(pa.RecordBatch.from_arrays(arrays, schema=schema), weights)

    def _drawn(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the rows of a delta as positions in the pools, and their weights."""
        codes = np.column_stack([self.rng.integers(0, 1 if pool is None else len(pool), count) for pool in self.pools])
        for at, column in enumerate(self.columns):
            if column.is_key and at:
                codes[self.rng.random(count) < _NULL_KEYS, at] = 0  # the first value of a join key is NULL
        weights = np.ones(count, np.int64)
        if self.mode in ("upsert", "sequenced"):
            weights[self.rng.random(count) < _DELETED] = -1
        if self.mode == "sequenced":  # late by up to thirty places, in ties of four
            places = self._arrived + np.arange(count) - self.rng.integers(0, 30, count)
            codes[:, -1] = np.maximum(places, 0) // 4
        if self.mode == "changelog":
            codes, weights = self._with_retractions(codes, weights)
        return codes, weights

    def _with_retractions(
        self, codes: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Turn some rows into retractions of rows that were live before the epoch, each of one copy."""
        gone = np.flatnonzero(self.rng.random(len(self._live)) < _RETRACTED * len(codes) / max(len(self._live), 1))
        gone = gone[: len(codes)]
        codes[: len(gone)], weights[: len(gone)] = self._live[gone], -1
        self._live = np.concatenate([np.delete(self._live, gone, axis=0), codes[len(gone) :]])
        order = self.rng.permutation(len(codes))
        return codes[order], weights[order]

    def _table(self, codes: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> pa.Table:
        columns = [
            pa.array(codes[:, at]) if pool is None else pool.take(pa.array(codes[:, at])) for at, pool in enumerate(self.pools)
        ]
        arrived = np.arange(self._arrived, self._arrived + len(codes))
        self._arrived += len(codes)
        names = [column.name for column in self.columns]
        return pa.table([*columns, pa.array(weights), pa.array(arrived)], names=[*names, "w", "arrived"])

    def _store(self, table: pa.Table, *, is_new: bool) -> None:
        """Replace the table by what is live, and for upserts what was deleted, after a delta."""
        names = [column.name for column in self.columns]
        self.connection.register("arriving", table)
        before = "" if is_new else f"SELECT * FROM {self.name} UNION ALL "
        both = f"({before}SELECT * FROM arriving)"
        if self.mode in ("upsert", "sequenced"):
            newest = f'"{names[-1]}" DESC, arrived DESC' if self.mode == "sequenced" else "arrived DESC"
            query = f'SELECT * FROM {both} QUALIFY row_number() OVER (PARTITION BY "{names[0]}" ORDER BY {newest}) = 1'
        else:
            query = (
                f"SELECT {quoted(names)}, sum(w)::BIGINT AS w, 0::BIGINT AS arrived FROM {both} GROUP BY ALL HAVING sum(w) <> 0"
            )
        self.connection.execute(f"CREATE OR REPLACE TABLE {self.name} AS {query}")
        self.connection.unregister("arriving")


def make_source(
    number: int,
    mode: SourceMode,
    rng: np.random.Generator,
    connection: duckdb.DuckDBPyConnection,
    *,
    keys: int,
    identifiers: int,
) -> Source:
    """Return a source with random columns.

    Args:
        number: which one.
        mode: its mode.
        rng: where everything comes from.
        connection: where its table is kept.
        keys: how many values its join keys have.
        identifiers: how many values its identifier has.
    """
    prefix = f"s{number}_"
    columns: list[tuple[Column, Any]] = [
        (Column(f"{prefix}id", pa.int64(), is_key=True), list(range(identifiers))),
        (Column(f"{prefix}k", pa.int64(), is_key=True), [None, *range(keys)]),
        (Column(f"{prefix}t", pa.string(), is_key=True), [None, "", *(_text(at) for at in range(keys))]),
        (Column(f"{prefix}x", pa.int64()), list(_NUMBERS)),
        (Column(f"{prefix}f", pa.float64()), list(_FLOATS)),
        (Column(f"{prefix}v", pa.string()), list(_TEXTS)),
    ]
    if mode == "sequenced":
        columns.append((Column(f"{prefix}s", pa.int64()), None))
    pools = tuple(None if pool is None else pa.array(pool, column.kind) for column, pool in columns)
    return Source(number, mode, tuple(column for column, _ in columns), pools, rng, connection)


def _text(number: int) -> Any:
    return f"key {number}" if number % 3 else f"{_LONG}{number}"
