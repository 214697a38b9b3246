"""Random plans over random changes, compared with DuckDB: `python -m property_tests.random_plans --minutes 10`.

A plan is a tree of joins (of every type, with and without residual predicates), filters, projections, DISTINCT, UNION and
aggregates over two to four changing inputs. After every epoch the sum of its answers is compared, row by row and weight by
weight, with the query that DuckDB computes from the live inputs. Some joins keep few or no rows in memory, and now and then all
operators are restored from their own snapshots on the way.

A round is named by its seed: `--seed S --plans 1` repeats it. Events, epochs, plans and compared rows are counted and held
against floors, so that a run which compared nothing does not pass.

Cost: 53 microseconds of a core per event in a run of a million, most of it DuckDB's: 18 minutes for 20 million events.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from property_tests.plan_nodes import (
    AggregateNode,
    DistinctNode,
    JoinNode,
    Node,
    SelectNode,
    SourceNode,
    UnionNode,
    WhereNode,
    conditions_on,
    residuals_between,
)
from property_tests.plan_sources import SOURCE_MODES, Column, Source, make_source, quoted
from property_tests.shapes import HOWS
from zset_join.core.epochs import Tick
from zset_join.core.errors import ZsetJoinError
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["SIZES", "PlanDiffersError", "Size", "Tally", "held_against_floors", "main", "run_plan"]


class Size(NamedTuple):
    """How large a plan's inputs are.

    Args:
        events: changes per epoch, about.
        epochs: how many epochs.
        identifiers: values of an identifier.
        keys: values of a join key.
    """

    events: int
    epochs: int
    identifiers: int
    keys: int


SIZES = (Size(30, 12, 20, 8), Size(300, 12, 150, 60), Size(2_000, 16, 2_000, 700), Size(5_000, 16, 5_000, 2_000))
_MOST_ROWS = 400_000
_EVENTS_PER_ROW, _EVENTS_PER_EPOCH, _EVENTS_PER_PLAN = 10, 10_000, 200_000
_EVENTS_PER_MINUTE = 60_000
_RESTORED = 0.05
_HYBRID = 0.15


class PlanDiffersError(AssertionError):
    """A plan's answer differs from DuckDB's, or it refused legal input; the message holds plan, epoch and rows."""


@dataclass
class Tally:
    """What has been compared so far."""

    plans: int = 0
    events: int = 0
    epochs: int = 0
    rows: int = 0
    restores: int = 0
    cut_short: int = 0
    nodes: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = [f"{getattr(self, one.name):,} {one.name.replace('_', ' ')}" for one in fields(self) if one.name != "nodes"]
        return ", ".join(counts) + " | " + ", ".join(f"{count:,} {name}" for name, count in sorted(self.nodes.items()))


class _Planner:
    """Draw a plan."""

    def __init__(self, rng: np.random.Generator, sources: Sequence[Source], make_join: Callable[..., Operator]) -> None:
        self._rng = rng
        self._left = [SourceNode(source) for source in sources]
        self._make_join = make_join
        self._aggregates = 0
        self.kinds: list[str] = []

    def draw(self) -> Node:
        """Return a plan over all sources; its first step is a join, because only a join takes upserts."""
        node = self._join(self._left.pop(), self._left.pop())
        while True:
            node = self._decorated(node)
            if not self._left:
                return node
            node = self._combined(node)

    def _one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _combined(self, node: Node) -> Node:
        other = self._left.pop()
        shared = _alike(node.columns, other.columns)
        can_unite = bool(shared) and other.relation.mode != "upsert"
        if any(column.is_key for column in node.columns) and (not can_unite or self._rng.random() < 0.7):
            return self._join(node, other) if self._rng.random() < 0.5 else self._join(other, node)
        if not can_unite:
            return node
        self.kinds.append("union")
        parts = (
            SelectNode((node,), tuple(a for a, _ in shared)),
            SelectNode((other,), tuple(b for _, b in shared)),
        )
        return UnionNode(parts)

    def _join(self, one: Node, two: Node) -> Node:
        pairs = [(a.name, b.name) for a in one.columns for b in two.columns if a.is_key and b.is_key and a.kind == b.kind]
        chosen = [self._one_of(pairs)]
        if self._rng.random() < 0.2:
            more = [pair for pair in pairs if pair[0] != chosen[0][0] and pair[1] != chosen[0][1]]
            chosen += [self._one_of(more)] if more else []
        residuals = residuals_between(one.columns, two.columns)
        residual = self._one_of(residuals) if residuals and self._rng.random() < 0.3 else None
        how = self._one_of(HOWS)
        self.kinds.append(how if residual is None else f"{how} with residual")
        options = {
            "hash_bits": self._one_of((32, 32, 32, 16)),
            "chunk_rows": self._one_of((65_536, 1_000)),
            "part_changes": self._one_of((16_384, 100)),
        }
        if self._rng.random() < _HYBRID:
            self.kinds.append("hybrid")
            options |= {"max_hot_keys": self._one_of((0, 50, 1_000))}
        safe = tuple(bool(self._rng.random() < 0.3) for _ in chosen)
        return JoinNode((one, two), how, tuple(chosen), safe, residual, options, self._make_join)

    def _decorated(self, node: Node) -> Node:
        """Put filters, projections, DISTINCT or an aggregate on top, or nothing."""
        if self._rng.random() < 0.35:
            self.kinds.append("where")
            node = WhereNode((node,), self._one_of(conditions_on(node.columns)))
        turn = self._rng.random()
        if turn < 0.2:
            self.kinds.append("distinct")
            count = int(self._rng.integers(1, min(4, len(node.columns)) + 1))
            places = sorted(self._rng.choice(len(node.columns), count, replace=False))
            node = DistinctNode((SelectNode((node,), tuple(node.columns[at] for at in places)),))
        elif turn < 0.5:
            node = self._aggregate(node)
        return node

    def _aggregate(self, node: Node) -> Node:
        self._aggregates += 1
        is_global = not self._left and self._rng.random() < 0.2
        keys = [column for column in node.columns if column.is_key or str(column.kind) == "string"] or list(node.columns)
        places = self._rng.choice(len(keys), min(len(keys), int(self._rng.integers(1, 3))), replace=False)
        chosen = () if is_global else tuple(keys[at] for at in places)
        numbers = [column for column in node.columns if str(column.kind) == "int64"]
        calls: list[tuple[str, str | None, pa.DataType]] = [("count_all", None, pa.int64())]
        for function in ("sum", "avg", "count", "count_distinct"):
            if numbers and self._rng.random() < 0.5:
                kind = pa.float64() if function == "avg" else pa.int64()
                calls.append((function, self._one_of(numbers).name, kind))
        for function in ("min", "max"):
            if self._rng.random() < 0.6:
                column = self._one_of(node.columns)
                calls.append((function, column.name, column.kind))
        named = tuple(
            (function, column, Column(f"a{self._aggregates}_{at}", kind)) for at, (function, column, kind) in enumerate(calls)
        )
        self.kinds.append("aggregate over all" if is_global else "aggregate")
        return AggregateNode((node,), chosen, named)


def _alike(one: Sequence[Column], two: Sequence[Column]) -> list[tuple[Column, Column]]:
    """Return pairs of columns of the same type, each column at most once."""
    rest, found = list(two), list[tuple[Column, Column]]()
    for column in one:
        match = next((other for other in rest if other.kind == column.kind), None)
        if match is not None:
            rest.remove(match)
            found.append((column, match))
    return found


def run_plan(seed: int, tally: Tally, *, sizes: Sequence[Size] = SIZES, make_join: Callable[..., Operator] = HashJoin) -> None:
    """Run one plan through its epochs and add to the tally.

    Args:
        seed: names the plan and its events.
        tally: what to add to.
        sizes: what sizes there are to choose from.
        make_join: builds the joins; another one plants a bug.

    Raises:
        PlanDiffersError: an answer that is not the change of DuckDB's query.
    """
    rng = np.random.default_rng(seed)
    size = sizes[int(rng.integers(len(sizes)))]
    with ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect(config={"threads": 1}))
        sources = [
            make_source(
                number,
                SOURCE_MODES[int(rng.integers(len(SOURCE_MODES)))],
                rng,
                connection,
                keys=size.keys,
                identifiers=size.identifiers,
            )
            for number in range(int(rng.integers(2, 5)))
        ]
        planner = _Planner(rng, sources, make_join)
        plan = planner.draw()
        checker = _Checker(connection, plan)
        stack.callback(plan.close)
        for epoch in range(size.epochs):
            deltas = {source.number: source.changes(_share(rng, size.events, len(sources))) for source in sources}
            if rng.random() < _RESTORED:
                plan.restore()
                tally.restores += 1
            try:
                answer = plan.step(Tick(epoch), deltas)
            except ZsetJoinError as error:
                raise PlanDiffersError(f"seed {seed}, epoch {epoch}: legal input was refused: {error}\n{plan!r}") from error
            checker.take(answer)
            rows = checker.compare(f"seed {seed}, epoch {epoch}")
            tally.events += sum(len(delta) for delta in deltas.values())
            tally.epochs += 1
            tally.rows += rows
            if rows > _MOST_ROWS:
                tally.cut_short += 1
                break
    for kind in planner.kinds:
        tally.nodes[kind] = tally.nodes.get(kind, 0) + 1
    tally.plans += 1


def _share(rng: np.random.Generator, events: int, sources: int) -> int:
    """Return how many of an epoch's events one source has; now and then none."""
    return 0 if rng.random() < 0.1 else max(1, int(rng.integers(events)) * 2 // sources)


class _Checker:
    """The sum of a plan's answers against DuckDB's query."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, plan: Node) -> None:
        self._connection = connection
        self._plan = plan
        self._names = quoted(plan.names)
        empty = pa.schema([*plan.relation.schema, pa.field("w", pa.int64())]).empty_table()
        connection.register("answer", empty)
        connection.execute("CREATE TABLE emitted AS SELECT * FROM answer")
        connection.unregister("answer")

    def take(self, answer: ZSet) -> None:
        """Add an answer."""
        table = pa.Table.from_batches([answer.rows]).append_column("w", pa.array(answer.weights))
        self._connection.register("answer", table)
        self._connection.execute(
            f"CREATE OR REPLACE TABLE emitted AS SELECT {self._names}, sum(w)::BIGINT AS w "
            "FROM (SELECT * FROM emitted UNION ALL SELECT * FROM answer) GROUP BY ALL HAVING sum(w) <> 0"
        )
        self._connection.unregister("answer")

    def compare(self, moment: str) -> int:
        """Compare the sum with the query; return how many rows it has.

        Raises:
            PlanDiffersError: they differ.
        """
        different = (
            f"SELECT {self._names}, sum(expected)::BIGINT AS expected, sum(actual)::BIGINT AS actual FROM ("
            f"SELECT {self._names}, w AS expected, 0 AS actual FROM ({self._plan.sql()}) "
            f"UNION ALL SELECT {self._names}, 0, w FROM emitted) GROUP BY ALL HAVING sum(expected) <> sum(actual)"
        )
        found = self._connection.execute(f"{different} LIMIT 20").fetchall()
        if found:
            lines = "\n".join(f"    {row[:-2]}: expected {row[-2]}, actual {row[-1]}" for row in found)
            raise PlanDiffersError(f"{moment}, row: expected weight, actual weight\n{lines}\n{self._plan!r}")
        (count,) = self._connection.execute("SELECT count(*) FROM emitted").fetchall()
        return int(count[0])


def held_against_floors(tally: Tally, events: int) -> int:
    """Return 0 when enough was compared for so many events, else print what is missing and return 1."""
    wanted = {
        "events": events,
        "plans": events // _EVENTS_PER_PLAN,
        "epochs": events // _EVENTS_PER_EPOCH,
        "rows": events // _EVENTS_PER_ROW,
    }
    missed = {name: floor for name, floor in wanted.items() if getattr(tally, name) < floor}
    for name, floor in missed.items():
        sys.stdout.write(f"only {getattr(tally, name):,} {name}; the floor is {floor:,}\n")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run plans; return 0 when every comparison held and there were enough of them."""
    parser = argparse.ArgumentParser(prog="property_tests.random_plans", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=None, help="how long")
    parser.add_argument("--events", type=int, default=None, help="how many events (default 200000, when no minutes are given)")
    parser.add_argument("--plans", type=int, default=None, help="stop after so many plans")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first plan (default: from the clock)")
    options = parser.parse_args(arguments)
    events = options.events or (200_000 if options.minutes is None and options.plans is None else None)
    first = options.seed if options.seed is not None else time.time_ns() % 1_000_000_000
    tally, begin, reported, seed = Tally(), time.monotonic(), 0.0, first
    busy_before = time.process_time()
    while not _is_done(tally, events, options.plans, options.minutes, time.monotonic() - begin):
        try:
            run_plan(seed, tally)
        except AssertionError as error:
            sys.stdout.write(f"{error}\nrepeat: python -m property_tests.random_plans --seed {seed} --plans 1\n")
            return 1
        seed += 1
        if time.monotonic() - begin - reported > 30:
            reported = time.monotonic() - begin
            sys.stdout.write(f"{reported:6.0f} s  {tally}\n")
            sys.stdout.flush()
    seconds, busy = time.monotonic() - begin, time.process_time() - busy_before
    rates = f"{tally.events / seconds:,.0f} events/s, {tally.events / busy:,.0f} per CPU second"
    sys.stdout.write(f"seeds {first}..{seed - 1}, {seconds:.0f} s, {rates}: {tally}\n")
    if options.plans is not None:
        return 0
    return held_against_floors(tally, events or int(_EVENTS_PER_MINUTE * (options.minutes or 0)))


def _is_done(tally: Tally, events: int | None, plans: int | None, minutes: float | None, seconds: float) -> bool:
    reached = [
        events is not None and tally.events >= events,
        plans is not None and tally.plans >= plans,
        minutes is not None and seconds >= 60 * minutes,
    ]
    return any(reached)


if __name__ == "__main__":
    raise SystemExit(main())
