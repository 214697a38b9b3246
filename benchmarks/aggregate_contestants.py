"""Contestants that maintain an aggregate: the operator, plain dicts, and DuckDB with a query over its whole table.

All get the same rows `(k, x)` with weights. The operator takes and gives Arrow; the dicts take ready-made tuples and give a
list of `(row, weight)`; DuckDB takes Arrow into its table and gives the whole aggregate as Arrow, which is less than the
change.

The dicts are written as fast as plain Python allows. For min and max there are two: a dict of values per group, whose extremes
are looked for among all values of a touched group, and a `SortedDict` per group; the faster one of a cell is the baseline.
"""

from __future__ import annotations

import gc
from typing import Any, Protocol

import pyarrow as pa
from sortedcontainers import SortedDict

from zset_join.aggregates import AggregateCall
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.zset import ZSet

__all__ = ["CALLS", "CONTESTANTS", "SCHEMA", "Contestant", "build_contestant"]

SCHEMA = pa.schema({"k": pa.int64(), "x": pa.int64()})
CALLS = {"sums": ("count", "sum", "avg"), "extremes": ("min", "max")}
CONTESTANTS = {
    "sums": ("zset_join", "dict", "duckdb"),
    "extremes": ("zset_join", "dict", "sorted_dict", "duckdb"),
}
Group = list[Any]


class Contestant(Protocol):
    """An aggregate by k that is kept up to date epoch by epoch."""

    def prepare(self, delta: ZSet) -> Any:
        """Turn a delta into this contestant's own form of input; not measured."""
        ...

    def load(self, delta: ZSet) -> None:
        """Take first rows; not measured."""
        ...

    def loaded(self) -> None:
        """Hear that the first rows are complete."""
        ...

    def step(self, prepared: Any) -> Any:
        """Apply one epoch and return the change of the groups; this is what is measured."""
        ...

    def groups(self) -> dict[int, tuple[Any, ...]]:
        """Return all groups; for the check of equality."""
        ...


class OperatorContestant:
    """`zset_join.operators.aggregate.Aggregate`."""

    def __init__(self, calls: tuple[str, ...]) -> None:
        relation = Relation(name="t", schema=SCHEMA, mode="changelog")
        made = [AggregateCall(call, () if call == "count" else "x") for call in calls]
        self._aggregate = Aggregate(relation, ["k"], made)
        self._epoch = 0
        self._shown: dict[int, tuple[Any, ...]] = {}
        self._answers: list[ZSet] = []

    def prepare(self, delta: ZSet) -> ZSet:
        return delta

    def load(self, delta: ZSet) -> None:
        self._aggregate.absorb(Tick(self._epoch), [delta])
        self._epoch += 1

    def loaded(self) -> None:
        """Do nothing."""

    def step(self, prepared: ZSet) -> list[ZSet]:
        answer = list(self._aggregate.answer(Tick(self._epoch), [prepared]))
        self._aggregate.absorb(Tick(self._epoch), [prepared])
        self._epoch += 1
        return answer

    def groups(self) -> dict[int, tuple[Any, ...]]:
        empty = Aggregate(self._aggregate.inputs[0], ["k"], self._aggregate.calls)
        tables = self._aggregate.snapshot()
        whole = {name: table.replace_schema_metadata(None) for name, table in tables.items()}
        empty.restore(whole)
        nothing = {row[0]: row for row in _rows_of_state(empty)}
        return {key: row[1:] for key, row in nothing.items()}


def _rows_of_state(aggregate: Aggregate) -> list[tuple[Any, ...]]:
    """Return what a state shows: retract and insert one more row of each group, and look at the retractions."""
    keys = aggregate.snapshot()["groups"].column("k").combine_chunks()
    touched = ZSet.of(pa.RecordBatch.from_arrays([keys, pa.array([10**15] * len(keys), pa.int64())], schema=SCHEMA))
    chunks = aggregate.answer(Tick(0), [touched])
    return [row for chunk in chunks for row, weight in chunk.to_pylist() if weight < 0]


class DictSums:
    """Count, sum and average with a dict of lists."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    def prepare(self, delta: ZSet) -> list[tuple[tuple[int, int], int]]:
        columns = [column.to_pylist() for column in delta.rows.columns]
        return list(zip(zip(*columns, strict=True), delta.weights.tolist(), strict=True))

    def load(self, delta: ZSet) -> None:
        gc.disable()
        self.step(self.prepare(delta))

    def loaded(self) -> None:
        gc.freeze()
        gc.enable()

    def step(self, prepared: list[tuple[tuple[int, int], int]]) -> list[tuple[tuple[Any, ...], int]]:
        groups = self._groups
        find = groups.get
        touched: dict[int, tuple[Any, ...] | None] = {}
        for (key, value), weight in prepared:
            group = find(key)
            if group is None:
                touched.setdefault(key, None)
                groups[key] = [weight, value * weight]
                continue
            if key not in touched:
                count, total = group
                touched[key] = (key, count, total, total / count)
            group[0] += weight
            group[1] += value * weight
        retracted, inserted = [], []
        for key, old in touched.items():
            count, total = groups[key]
            if count:
                row = (key, count, total, total / count)
                if row == old:
                    continue
                inserted.append((row, 1))
            else:
                del groups[key]
            if old is not None:
                retracted.append((old, -1))
        return retracted + inserted  # type: ignore[operator]

    def groups(self) -> dict[int, tuple[Any, ...]]:
        return {key: (count, total, total / count) for key, (count, total) in self._groups.items()}


class DictExtremes(DictSums):
    """Minimum and maximum with a dict of values per group."""

    def step(self, prepared: list[tuple[tuple[int, int], int]]) -> list[tuple[tuple[Any, ...], int]]:
        groups: dict[int, Any] = self._groups
        find, make, ends = groups.get, self._make, self._ends
        touched: dict[int, tuple[Any, ...] | None] = {}
        for (key, value), weight in prepared:
            values = find(key)
            if values is None:
                values = groups[key] = make()
                touched.setdefault(key, None)
            elif key not in touched:
                touched[key] = (key, *ends(values))
            copies = values.get(value, 0) + weight
            if copies:
                values[value] = copies
            else:
                del values[value]
        retracted, inserted = [], []
        for key, old in touched.items():
            values = groups[key]
            if values:
                row = (key, *ends(values))
                if row == old:
                    continue
                inserted.append((row, 1))
            else:
                del groups[key]
            if old is not None:
                retracted.append((old, -1))
        return retracted + inserted  # type: ignore[operator]

    _make: Any = dict

    @staticmethod
    def _ends(values: Any) -> tuple[int, int]:
        return min(values), max(values)

    def groups(self) -> dict[int, tuple[Any, ...]]:
        return {key: self._ends(values) for key, values in self._groups.items()}


class SortedDictExtremes(DictExtremes):
    """Minimum and maximum with a `SortedDict` of values per group."""

    _make = SortedDict

    @staticmethod
    def _ends(values: Any) -> tuple[int, int]:
        keys = values.keys()
        return keys[0], keys[-1]


class DuckdbRecompute:
    """A table of weighted rows in memory, and the whole query again after every epoch."""

    def __init__(self, calls: tuple[str, ...]) -> None:
        import duckdb

        self._connection = duckdb.connect()
        self._connection.execute("SET threads = 1")
        self._connection.execute("CREATE TABLE t (k BIGINT, x BIGINT, w BIGINT)")
        if "sum" in calls:
            self._query = (
                "SELECT k, sum(w)::BIGINT, sum(w * x)::BIGINT, sum(w * x) / sum(w) FROM t GROUP BY k HAVING sum(w) > 0"
            )
        else:
            live = "SELECT k, x FROM t GROUP BY k, x HAVING sum(w) > 0"
            self._query = f"SELECT k, min(x), max(x) FROM ({live}) GROUP BY k"

    def prepare(self, delta: ZSet) -> pa.Table:
        return pa.table([*delta.rows.columns, pa.array(delta.weights)], names=["k", "x", "w"])

    def load(self, delta: ZSet) -> None:
        self._insert(self.prepare(delta))

    def loaded(self) -> None:
        """Do nothing."""

    def _insert(self, rows: pa.Table) -> None:
        self._connection.register("delta", rows)
        self._connection.execute("INSERT INTO t SELECT * FROM delta")
        self._connection.unregister("delta")

    def step(self, prepared: pa.Table) -> pa.Table:
        self._insert(prepared)
        return self._connection.sql(self._query).to_arrow_table()

    def groups(self) -> dict[int, tuple[Any, ...]]:
        return {row[0]: tuple(row[1:]) for row in self._connection.sql(self._query).fetchall()}


def build_contestant(workload: str, name: str) -> Contestant:
    """Build a contestant for the aggregates of a workload."""
    calls = CALLS["sums" if workload == "sums" else "extremes"]
    if name == "zset_join":
        return OperatorContestant(calls)
    if name == "duckdb":
        return DuckdbRecompute(calls)
    if name == "sorted_dict":
        return SortedDictExtremes()
    return DictSums() if workload == "sums" else DictExtremes()
