"""A state much larger than memory: how much of the process does it take, and is the answer still right?

`python -m benchmarks.hybrid --rows 50000000 --budget 1024` loads so many orders and customers into a hybrid join, answering
every epoch of the load, changes them for some epochs, uniformly or by Zipf's law (`--keys zipf`), and prints CPU time and the
resident size of the process beyond what it had before the join was made, after the epochs and at its peak within one.

Checked against DuckDB's batch join of the final tables, in memory: the sum of the weights of all answers is the number of its
rows, and the answers about one customer in a hundred add up to exactly its rows.

At last the same epochs are put to DuckDB: both tables in a file, kept up to date by SQL with as much memory as the budget. Then
as many more, in turns: each epoch to both, in this process. All answers of both must weigh the same, epoch by epoch.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.baseline_duckdb import DuckdbJoin
from benchmarks.hybrid import MB, Memory, warm_up
from benchmarks.hybrid_epochs import Changes, drawn_apart
from benchmarks.machine import describe_machine, versions
from benchmarks.workloads import LEFT, RIGHT, Epoch, OrdersCustomers
from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

__all__ = ["report_large"]

_EPOCH_ROWS = 100_000
_CHANGES = (10_000, 100_000)
_CHANGES_IN_TURNS = (100, 1_000, *_CHANGES)
_ONE_IN = 100


def report_large(rows: int, max_hot_bytes: int, epochs: int, keys: str) -> Iterator[str]:
    """Yield the lines of the report, measuring on the way.

    Args:
        rows: of both tables together.
        max_hot_bytes: the budget.
        epochs: of 10,000 and of 100,000 changes each; as many of 100, 1,000, 10,000 and 100,000 in turns with DuckDB.
        keys: `zipf` or `uniform`.
    """
    given = {"rows": rows, "max_hot_bytes": max_hot_bytes, "epochs": epochs, "keys": keys}
    yield json.dumps({**describe_machine(), **versions(), **given})
    warm_up(_EPOCH_ROWS, hybrid=True)
    scale, relations = rows // 4, OrdersCustomers(1).relations
    with tempfile.TemporaryDirectory() as directory:
        memory = Memory()
        join = HashJoin(*relations, options=OperatorOptions(budget=HotBudget(max_hot_bytes=max_hot_bytes)))
        check = _Check(Path(directory))
        memory.forget_peak()
        started, wall = time.process_time(), time.perf_counter()
        for deltas in drawn_apart(scale, keys, first=_EPOCH_ROWS):
            _run(join, join.absorbed_epoch + 1, deltas, check, memory)
            del deltas
        yield _speeds(f"load, epochs of {_EPOCH_ROWS} rows, answered", rows, started, wall, join, memory)
        weights: dict[int, list[int]] = {}
        for changes in _CHANGES:
            memory.most = 0
            memory.forget_peak()
            started, wall, weights[changes] = time.process_time(), time.perf_counter(), []
            for deltas in drawn_apart(scale, keys, changes=changes, epochs=epochs):
                epoch = join.absorbed_epoch + 1
                weights[changes].append(_run(join, epoch, deltas, check, memory))
                del deltas
            yield _speeds(f"epochs of {changes} changes", changes * epochs, started, wall, join, memory)
        yield json.dumps({name: count for name, count in join.statistics().items() if "cold" in name or "hot" in name})
        workload = OrdersCustomers(scale)
        drawn = {changes: list(Changes(workload, keys, changes).epochs(2 * epochs)) for changes in _CHANGES_IN_TURNS}
        yield check.verdict(workload, [deltas for changes in _CHANGES for deltas in drawn[changes][:epochs]])
    yield from _duckdb_lines(workload, drawn, weights, join, max_hot_bytes)
    join.close()


def _run(join: HashJoin, epoch: int, deltas: Sequence[ZSet], check: _Check, memory: Memory) -> int:
    """Run one epoch, and return the sum of the weights of its answer."""
    weight = 0
    for chunk in join.answer(Tick(epoch), deltas):
        check.note(chunk)
        weight += int(chunk.weights.sum())
        del chunk
    join.absorb(Tick(epoch), deltas)
    memory.note(join.resident_bytes())
    return weight


def _duckdb_lines(
    workload: OrdersCustomers,
    drawn: Mapping[int, Sequence[Sequence[ZSet]]],
    weights: Mapping[int, Sequence[int]],
    join: HashJoin,
    memory_bytes: int,
) -> Iterator[str]:
    """Feed DuckDB the same epochs, and more of them to both in turns; print the speeds.

    Args:
        workload: whose tables are joined.
        drawn: changes per epoch to the epochs, in the order in which the hybrid join had the first ones.
        weights: what its answers to these weighed.
        join: that has absorbed them.
        memory_bytes: that DuckDB may take.

    Raises:
        ValueError: an answer weighs something else.
    """
    with tempfile.TemporaryDirectory() as directory:
        tables = DuckdbJoin(workload.relations, path=f"{directory}/join.duckdb", memory_bytes=memory_bytes)
        for side in (RIGHT, LEFT):
            for rows in workload.initial(side):
                tables.load(side, rows)
        for changes, known in weights.items():
            for deltas, expected in zip(drawn[changes], known, strict=False):
                _compare(expected, _step(tables, deltas, changes)[0])
        for changes, epochs in drawn.items():
            times = []
            for deltas in epochs[len(epochs) // 2 :]:
                started, weight = time.process_time(), 0
                tick = Tick(join.absorbed_epoch + 1)
                for chunk in join.answer(tick, deltas):
                    weight += int(chunk.weights.sum())
                    del chunk
                join.absorb(tick, deltas)
                spent = time.process_time() - started
                expected, theirs = _step(tables, deltas, changes)
                _compare(weight, expected)
                times.append((spent, theirs))
            ours, theirs = map(sum, zip(*times, strict=True))
            done = changes * len(times) / 1000
            yield (
                f"in turns with DuckDB, tables in a file, {memory_bytes / MB:.0f} MB, epochs of {changes} changes: "
                f"{done / ours:.1f} k and {done / theirs:.1f} k per CPU second, {theirs / ours:.1f} times as many, in the "
                f"median epoch {statistics.median(other / own for own, other in times):.1f}"
            )


def _step(tables: DuckdbJoin, deltas: Sequence[ZSet], changes: int) -> tuple[int, float]:
    """Put one epoch to DuckDB; return what its answer weighs, and the CPU seconds it took."""
    left, right = deltas
    prepared = tables.prepare(Epoch((left, right), changes, 0))
    started = time.process_time()
    answer = tables.step(prepared)
    spent = time.process_time() - started
    return tables.weight(answer), spent


def _compare(weight: int, expected: int) -> None:
    if weight != expected:
        raise ValueError(f"an answer weighs {weight}, that of DuckDB {expected}")


def _speeds(what: str, changes: int, started: float, wall: float, join: HashJoin, memory: Memory) -> str:
    cpu, seconds = time.process_time() - started, time.perf_counter() - wall
    return (
        f"{what}: {changes / cpu / 1000:.0f} k per CPU second, {seconds:.0f} s; resident after an epoch at most "
        f"{memory.most / MB:.0f} MB (counted {memory.counted / MB:.0f}, {join.working_bytes() / MB:.0f} of it working arrays), "
        f"peak {memory.peak() / MB:.0f} MB"
    )


class _Check:
    """Add up answers: the weights of all, and every row about one customer in a hundred, which go to a file.

    Args:
        directory: where the file lies.
    """

    def __init__(self, directory: Path) -> None:
        self._weight = 0
        self._path = directory / "answered.arrows"
        self._writer: pa.RecordBatchWriter | None = None

    def note(self, chunk: ZSet) -> None:
        """Take one chunk of an answer."""
        self._weight += int(chunk.weights.sum())
        customers = chunk.rows.column("customer_id").to_numpy()
        kept = np.flatnonzero(customers % _ONE_IN == 0)
        if not len(kept):
            return
        columns = [*chunk.rows.take(pa.array(kept)).columns, pa.array(chunk.weights[kept])]
        rows = pa.RecordBatch.from_arrays(columns, names=[*(f"c{at}" for at in range(len(columns) - 1)), "weight"])
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._path, rows.schema)
        self._writer.write_batch(rows)

    def verdict(self, workload: OrdersCustomers, epochs: Sequence[Sequence[ZSet]]) -> str:
        """Compare with DuckDB's join of the tables as these epochs leave them.

        Raises:
            ValueError: the answers do not add up to it.
        """
        if self._writer is None:
            raise ValueError("no answer holds a sampled row")
        self._writer.close()
        connection = duckdb.connect(":memory:")
        for side, name in ((LEFT, "orders"), (RIGHT, "customers")):
            self._fill(connection, workload, side, name, [deltas[side] for deltas in epochs])
        joined = "orders JOIN customers ON orders.customer_id = customers.id"
        expected: Any = connection.execute(f"SELECT count(*) FROM {joined}").fetchall()[0]
        if expected[0] != self._weight:
            raise ValueError(f"the answers weigh {self._weight}; DuckDB's join has {expected[0]} rows")
        with pa.ipc.open_stream(self._path) as reader:
            answered = reader.read_all()
        connection.register("answered", answered)
        columns = ", ".join(answered.column_names[:-1])
        sums = f"SELECT {columns}, sum(weight)::BIGINT AS weight FROM answered GROUP BY ALL HAVING sum(weight) <> 0"
        sampled = f"SELECT orders.*, customers.*, 1::BIGINT FROM {joined} WHERE customer_id % {_ONE_IN} = 0"
        differing: Any = connection.execute(
            f"SELECT count(*) FROM ((({sums}) EXCEPT ALL ({sampled})) UNION ALL (({sampled}) EXCEPT ALL ({sums})))"
        ).fetchall()[0]
        rows: Any = connection.execute(f"SELECT count(*) FROM ({sampled})").fetchall()[0]
        if differing[0] or not rows[0]:
            raise ValueError(f"{differing[0]} of {rows[0]} sampled rows differ from DuckDB's join")
        return f"equal to DuckDB's join: {expected[0]} rows by weight, {rows[0]} sampled rows one by one"

    @staticmethod
    def _fill(
        connection: duckdb.DuckDBPyConnection, workload: OrdersCustomers, side: int, name: str, deltas: Sequence[ZSet]
    ) -> None:
        """Make one table as it is in the end: the first rows that no change names, and the last change of each key."""
        key = workload.relations[side].primary_key[0]
        changes = pa.concat_tables(
            pa.Table.from_batches([delta.rows]).append_column("weight", pa.array(delta.weights)) for delta in deltas
        )
        arrivals = pa.array(np.arange(changes.num_rows))
        connection.register("changes", changes.append_column("arrival", arrivals))
        for number, batch in enumerate(workload.initial(side)):
            connection.register("batch", pa.Table.from_batches([batch]))
            target = f"CREATE TABLE {name} AS" if number == 0 else f"INSERT INTO {name}"
            connection.execute(f"{target} SELECT * FROM batch WHERE {key} NOT IN (SELECT {key} FROM changes)")
        connection.execute(
            f"INSERT INTO {name} SELECT * EXCLUDE (weight, arrival) FROM changes "
            f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY arrival DESC) = 1 AND weight > 0"
        )
        connection.unregister("changes")
