"""Random histories of state that ends by time, with what must be answered: dicts and lists, no engine code.

An input's rows are (k, v, t). A case is a number: it decides the operator (a join, a count per k, or the first rows per k),
by which clock rows end, what begins their time again, whether they are retracted or forgotten, the rows of every epoch and its
times. First rows are ordered by t and v, so that only equal rows are tied and arrival does not matter.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.deduplicate import Deduplicate
from zset_join.operators.expiring import Expiring, ExpiringInput, TimeToLive
from zset_join.operators.join import HashJoin
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

__all__ = ["AFTER", "TtlCase", "TtlOracle", "TtlStep"]

AFTER = 10
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "t": pa.int64()})
Row = tuple[Any, ...]
Change = tuple[Row, int]


@dataclass(frozen=True)
class TtlStep:
    """One epoch: its times, and the changes of every input."""

    tick: Tick
    changes: tuple[tuple[Change, ...], ...]


@dataclass
class TtlCase:
    """A history, made of its number."""

    seed: int
    steps: list[TtlStep] = field(init=False)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.is_join = draw.random() < 0.6
        self.is_dedup = not self.is_join and draw.random() < 0.5
        self.keep, self.first_rows = draw.choice(["first", "last"]), draw.choice([1, 1, 2])
        self.how = draw.choice(["inner", "left", "full", "left_semi", "left_anti"]) if self.is_join else ""
        self.mode = draw.choice(["append", "changelog"])
        self.by_event = draw.random() < 0.5
        self.reads = self.is_join and draw.random() < 0.4
        self.by_key = draw.random() < (0.3 if self.is_join else 0.7)
        self.forgets = self.how != "full" and draw.random() < 0.4
        left_only = (True,) if not self.is_join else (True, False)
        both = (True,) * len(left_only)
        self.ends = left_only if self.forgets and self.how not in ("inner", "") else draw.choice([both, left_only])
        self.hash_bits = draw.choice([32, 1])
        self.steps = list(self._steps(draw))

    def _steps(self, draw: random.Random) -> Iterator[TtlStep]:
        now, mark = 0, None
        there: tuple[Counter[Row], ...] = tuple(Counter() for _ in self.ends)
        for epoch in range(draw.randrange(3, 12)):
            now += draw.randrange(0, 7)
            before = mark
            if draw.random() < 0.8:
                mark = max(mark or 0, now - draw.randrange(0, 4))
            changes = tuple(tuple(self._changes(draw, now, number, there[number])) for number in range(len(self.ends)))
            yield TtlStep(Tick(epoch, now, before, mark), changes)

    def _changes(self, draw: random.Random, now: int, number: int, there: Counter[Row]) -> Iterator[Change]:
        for _ in range(draw.randrange(0, 5)):
            row = (draw.choice([0, 1, None]), draw.choice([0, 1]), draw.choice([None, now, now - 3, now - 8, now - 12]))
            takes = self.mode == "changelog" and draw.random() < 0.4
            if takes and not self.ends[number] and not there[row]:
                continue  # of rows that do not end, only the present content may be retracted
            weight = -1 if takes else 1
            there[row] += weight
            yield row, weight

    def make(self, directory: str | None = None, ttl: TimeToLive | None = None) -> Expiring:
        """Build the operator."""
        ttl = self.ttl() if ttl is None else ttl
        names = ("l", "r") if self.is_join else ("l",)
        sources = [Relation(name=name, schema=SCHEMA, join_key=("k",), mode=self.mode, event_time="t") for name in names]  # type: ignore[arg-type]
        changing = [Relation(name=name, schema=SCHEMA, join_key=("k",), mode="changelog") for name in names]
        inside: Any
        if self.is_join:
            inside = HashJoin(changing[0], changing[1], self.how, options=OperatorOptions(directory=directory))
        elif self.is_dedup:
            order = {"order_by": ["t", "v"], "keep": self.keep, "n": self.first_rows}
            inside = Deduplicate(changing[0], keys=["k"], options=OperatorOptions(directory=directory), **order)
        else:
            inside = Aggregate(
                changing[0], ("k",), (AggregateCall("count", (), name="n"),), options=OperatorOptions(directory=directory)
            )
        inputs = [
            ExpiringInput(
                relation=source, key=("k",), key_types=(pa.int64(),), null_safe=(not self.is_join,), ttl=ttl if ends else None
            )
            for source, ends in zip(sources, self.ends, strict=True)
        ]
        return Expiring(inside, inputs, directory=directory, hash_bits=self.hash_bits)

    def ttl(self) -> TimeToLive:
        """Return how long rows live."""
        return TimeToLive(after=AFTER, by_event_time=self.by_event, by_key=self.by_key, reads=self.reads, forgets=self.forgets)

    def deltas(self, changes: Sequence[Sequence[Change]]) -> list[ZSet]:
        """Return changes as the operator takes them."""
        return [ZSet.from_rows([row for row, _ in one], SCHEMA, weights=[weight for _, weight in one]) for one in changes]

    def batch(self, rows: Sequence[Counter[Row]]) -> Counter[Row]:
        """Return the plain query."""
        answer: Counter[Row] = Counter()
        if self.is_dedup:
            for key in {row[0] for row in rows[0]}:
                of_key = sorted((row for row in rows[0].elements() if row[0] == key), key=_order, reverse=self.keep == "last")
                answer.update(of_key[: self.first_rows])
            return answer
        if not self.is_join:
            groups: Counter[Any] = Counter()
            for row, copies in rows[0].items():
                groups[row[0]] += copies
            return Counter({group: 1 for group in groups.items() if group[1]})
        left, right = rows
        met: tuple[Counter[Row], Counter[Row]] = (Counter(), Counter())
        for one, copies in left.items():
            for other, more in right.items():
                if one[0] is not None and one[0] == other[0]:
                    answer[one + other] += copies * more
                    met[0][one] += 1
                    met[1][other] += 1
        if self.how in ("left_semi", "left_anti"):
            return Counter({one: copies for one, copies in left.items() if bool(met[0][one]) == (self.how == "left_semi")})
        nothing: Row = (None, None, None)
        if self.how in ("left", "full"):
            answer.update({one + nothing: copies for one, copies in left.items() if not met[0][one]})
        if self.how == "full":
            answer.update({nothing + other: copies for other, copies in right.items() if not met[1][other]})
        return answer


def _order(row: Row) -> tuple[float, int]:
    return -inf if row[2] is None else row[2], row[1]


class TtlOracle:
    """Set what is alive after each epoch, and its answer."""

    def __init__(self, case: TtlCase) -> None:
        self._case = case
        self._alive: list[list[list[Any]]] = [[] for _ in range(2 if case.is_join else 1)]
        self._until: list[dict[Any, float]] = [{} for _ in self._alive]
        self.held: Counter[Row] = Counter()

    def step(self, step: TtlStep) -> Counter[Row]:
        """Return the answer of an epoch."""
        case, tick = self._case, step.tick
        now = tick.watermark_us if case.by_event else tick.processing_time_us
        before = tick.watermark_before_us if case.by_event else None
        was = self._rows(self._alive)
        for number, changes in enumerate(step.changes):
            self._touch(number, step, now)
            self._change(self._alive[number], self._until[number], changes, now)
        emitted = [
            [one for one in rows if not one[2] or self._ends(number, one) > (-inf if before is None else before)]
            for number, rows in enumerate(self._alive)
        ]
        after = [
            [one for one in rows if self._ends(number, one) > (-inf if now is None else now)]
            for number, rows in enumerate(self._alive)
        ]
        answer = Counter(case.batch(self._rows(emitted if case.forgets else after)))
        answer.subtract(case.batch(was))
        self._alive = [[[row, ends, False] for row, ends, _ in rows] for rows in after]
        self.held = case.batch(self._rows(self._alive))
        return Counter({row: weight for row, weight in answer.items() if weight})

    def _touch(self, number: int, step: TtlStep, now: int | None) -> None:
        if self._case.reads and now is not None:
            for row, _ in step.changes[1 - number]:
                if row[0] is not None:
                    known = self._until[number]
                    known[row[0]] = max(known.get(row[0], -inf), now + AFTER)

    def _change(self, rows: list[list[Any]], until: dict[Any, float], changes: Sequence[Change], now: int | None) -> None:
        added: Counter[Row] = Counter()
        taken: Counter[Row] = Counter()
        for row, weight in changes:
            (added if weight > 0 else taken)[row] += 1
        for row in {**added, **taken}:
            there = sum(one[0] == row for one in rows)
            gone = min(taken[row], there + added[row])
            net = added[row] - gone
            for _ in range(-net):
                rows.remove(next(one for one in rows if one[0] == row))
            if net <= 0:
                continue
            ends = self._written(row, now)
            if self._case.mode == "changelog" and not self._case.by_event:
                for one in rows:
                    if one[0] == row:
                        one[1] = ends
            rows.extend([row, ends, True] for _ in range(net))
            if self._case.by_key and (row[0] is not None or not self._case.is_join):
                until[row[0]] = max(until.get(row[0], -inf), ends)

    def _written(self, row: Row, now: int | None) -> float:
        if self._case.by_event:
            return inf if row[2] is None else row[2] + AFTER
        return inf if now is None else now + AFTER

    def _ends(self, number: int, one: list[Any]) -> float:
        if not self._case.ends[number]:
            return inf
        known: float = self._until[number].get(one[0][0], -inf)
        return max(float(one[1]), known)

    @staticmethod
    def _rows(alive: Sequence[Sequence[list[Any]]]) -> list[Counter[Row]]:
        return [Counter(one[0] for one in rows) for rows in alive]
