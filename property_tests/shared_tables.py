"""Random plans whose joins look up in one table, each answered twice: with one copy shared, and with a copy for every join.

The law: sharing is invisible. In every epoch the answers, the rejected rows and the times that are waited for are the same,
also when the state is saved and loaded between epochs; and the table is kept once.

A case is drawn from one number. Its joins are temporal ones by event time in all three modes, beside each other and in chains,
over versions in any mode, or joins by processing time over latest rows by a key or a part of it. Rows arrive late and are taken
back; bad rows are set aside.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from property_tests.laws import LawBrokenError
from zset_join.expressions import col, left, lit, right
from zset_join.pipeline import PROCESSING_TIME, appends, changes
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.reading import readings_of
from zset_join.query.view import View
from zset_join.runners.common.rejected import Rejected
from zset_join.runners.local.engine import AnsweredEpoch, Engine, MemoryStates
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import earliest

__all__ = ["SharedCase", "sharing_is_invisible"]

KEYS = ("a", "b", "c", "a key that is longer than twelve letters", None)
ORDERS = {"id": pa.int64(), "k": pa.string(), "k2": pa.string(), "g": pa.int64(), "t": pa.int64()}
TABLE = {"k": pa.string(), "g": pa.int64(), "v": pa.string(), "at": pa.int64(), "w": pa.int64()}

Line = tuple[dict[str, Any], int]


@dataclass(frozen=True)
class SharedCase:
    """One plan with its history.

    Args:
        seed: what everything is drawn from.
        by_event_time: the joins are by event time, or by processing time.
    """

    seed: int
    by_event_time: bool

    def view(self) -> tuple[View, int]:
        """Return the view, and how many joins look up in the table."""
        draw = random.Random(f"plan{self.by_event_time}{self.seed}")
        orders = appends("orders", ORDERS, watermark=("t", draw.choice([0, 2])))
        if not self.by_event_time and draw.random() < 0.5:
            orders = changes("orders", ORDERS, keys="id")
        others = appends("others", ORDERS, watermark=("t", 5))
        table = self.table(draw)
        parts, count = [], draw.choice([2, 2, 3, 4])
        done = 0
        while done < count:
            rows = draw.choice([orders, orders, orders.where(col("id") % 2 == 0), others])
            joined = self._joined(draw, rows, table, "k").select("id", "k2", "g", "t", v1=col("v"))
            done += 1
            # Only what is appended, or corrected by both signs, may be on the left of another one.
            if draw.random() < 0.4 and self.by_event_time:
                emit = "eager" if joined.node.relation.mode != "append" else None
                joined = self._joined(draw, joined, table, "k2", emit=emit).select("id", "t", "v1", v2=col("v"))
                done += 1
            else:
                joined = joined.select("id", "t", "v1", v2=col("k2"))
            parts.append(joined.select("id", "t", "v1", "v2", part=lit(len(parts))))
        view = parts[0]
        for part in parts[1:]:
            view = view.union(part)
        return view, done

    def table(self, draw: random.Random) -> View:
        """Return what is looked up in."""
        more = {"watermark": ("at", draw.choice([0, 1]))} if self.by_event_time else {}
        keys = "k" if self.by_event_time else draw.choice([["k", "g"], ["k"]])
        mode = draw.choice(["append", "upsert", "changelog"])
        if mode == "append":
            table = appends("table", TABLE, keys=keys, **more)
        elif mode == "upsert":
            table = changes("table", TABLE, keys=keys, apply_as_deletes=col("w") < 0, **more)
        else:
            table = changes("table", TABLE, keys=keys, weight_column="w", **more)
        return table.create_index("k", name="by_k") if draw.random() < 0.5 or not self.by_event_time else table

    def _joined(self, draw: random.Random, rows: View, table: View, key: str, emit: str | None = None) -> View:
        how = draw.choice(["inner", "left"])
        has_rest = draw.random() < 0.3
        if self.by_event_time:
            emitted: Any = emit or draw.choice(["once", "on_watermark", "eager"])
            named = self._named(draw, table)
            keep = draw.choice([None, None, 3])
            late: Any = draw.choice(["side_output", "drop", "join"])
            return rows.temporal_join(
                named,
                on=[(key, named.columns[0])],
                how=how,
                as_of="t",
                emit=emitted,
                late=late,
                keep_probe_for=keep,
                condition=left("id") < right(named.columns[1]) * 3 if has_rest else None,
                is_change_time=True,
            ).withColumnRenamed(named.columns[2], "v")
        named = self._named(draw, table)
        on: Any = draw.choice([[(key, named.columns[0])], [(key, named.columns[0]), ("g", named.columns[1])]])
        moment = draw.choice(["current", "previous"])
        rest = left("id") < right(named.columns[1]) * 3 if has_rest else None
        joined = rows.temporal_join(named, on=on, how=how, as_of=PROCESSING_TIME, snapshot=moment, condition=rest)
        return joined.withColumnRenamed(named.columns[2], "v")

    @staticmethod
    def _named(draw: random.Random, table: View) -> View:
        """Return the table, perhaps under another name, or with other names of its columns."""
        if draw.random() < 0.3:
            return table.alias(f"table{draw.random()}")
        if draw.random() < 0.3:
            letter = draw.choice(["x", "y"])
            called = table.select({f"{letter}.{name}": col(name) for name in table.columns})
            return called.create_index(called.columns[0], name="by_k") if table.indexes else called
        return table

    def epochs(self) -> list[dict[str, ZSet]]:
        """Return the deltas of every epoch by source."""
        draw = random.Random(f"rows{self.by_event_time}{self.seed}")
        view, _ = self.view()
        readings = readings_of(view.bindings)
        time, number, epochs, given = 0, 0, [], []
        for _ in range(draw.choice([3, 6])):
            rows: dict[str, list[dict[str, Any]]] = {"orders": [], "others": [], "table": []}
            for _ in range(draw.choice([0, 1, 4])):
                number += 1
                name = draw.choice(["orders", "orders", "others"])
                k, k2 = draw.choice(KEYS), draw.choice(KEYS)
                at = None if draw.random() < 0.05 else time + draw.randint(-3, 4)
                rows[name].append({"id": draw.randint(1, number), "k": k, "k2": k2, "g": draw.randint(0, 2), "t": at})
            for _ in range(draw.choice([0, 1, 4])):
                at = None if draw.random() < 0.05 else time + draw.randint(-5, 4)
                row = {"k": draw.choice(KEYS), "g": draw.randint(0, 2), "v": f"version {draw.randint(0, 3)} of many", "at": at}
                if draw.random() < 0.3 and given:  # retracts an earlier row
                    rows["table"].append({**draw.choice(given), "w": -1})
                else:
                    rows["table"].append({**row, "w": 1})
                    given.append(row)
            time += draw.choice([0, 1, 4])
            epochs.append(
                {
                    name: readings[name].delta(pa.Table.from_pylist(lines, self._schema(name)))
                    for name, lines in rows.items()
                    if lines and name in readings
                }
            )
        return epochs

    @staticmethod
    def _schema(name: str) -> pa.Schema:
        return pa.schema(list((TABLE if name == "table" else ORDERS).items()))


class _Run:
    """A plan at work."""

    def __init__(self, plan: QueryPlan) -> None:
        self.plan = plan
        self.engine = Engine(plan, Watermarks(plan), quarantines=True)
        self.states = MemoryStates(plan, StageOptions(on_bad_input="quarantine"))

    def step(self, epoch: int, deltas: dict[str, ZSet]) -> AnsweredEpoch:
        answered = self.engine.answer(self.states, epoch, deltas, epoch * 1000)
        self.states.absorb(answered.requested)
        self.engine.take(answered)
        return answered

    def restore(self) -> None:
        fresh = MemoryStates(self.plan, StageOptions(on_bad_input="quarantine"))
        for number, state in self.states.states.items():
            fresh.states[number].restore(state.snapshot())
        self.states.close()
        self.states = fresh

    def table_rows(self) -> int:
        """Return the rows of the right sides of all states."""
        return sum(
            table.num_rows
            for state in self.states.states.values()
            for name, table in state.snapshot().items()
            if name == "right"
        )


def _rows_and_codes(rejected: Rejected) -> Iterator[tuple[Any, str]]:
    return zip((row for piece in rejected.rows for row in piece.to_pylist()), rejected.codes, strict=True)


def _compared(answered: AnsweredEpoch) -> list[Any]:
    rows = sorted(answered.delta.consolidated().to_pylist() if len(answered.delta) else [], key=repr)
    lines = {(repr(row), code) for one in answered.rejected for row, code in _rows_and_codes(one.rejected)}
    return [rows, sorted(lines)]  # joins that share a table list its late versions once, for all of them


def sharing_is_invisible(case: SharedCase, planned: Callable[[View], QueryPlan] = lambda view: view.plan()) -> bool:
    """Compare a plan with the same plan whose joins have copies of their own.

    Returns:
        Whether rows were emitted at all, and one copy was kept where there would have been several.

    Raises:
        LawBrokenError: an answer differs.
    """
    view, _ = case.view()
    plan = planned(view)
    shared, alone = _Run(plan), _Run(replace(plan, shared=(), copies=()))
    emitted = 0
    try:
        for epoch, deltas in enumerate(case.epochs()):
            answers = [_compared(run.step(epoch, deltas)) for run in (shared, alone)]
            if answers[0] != answers[1]:
                raise LawBrokenError(f"epoch {epoch}: shared {answers[0]}, alone {answers[1]}\n{case!r}")
            dues = [earliest(run.states.next_due(node.number) for node in plan.nodes) for run in (shared, alone)]
            if dues[0] != dues[1]:
                raise LawBrokenError(f"epoch {epoch}: shared waits for {dues[0]}, alone for {dues[1]}\n{case!r}")
            emitted += len(answers[0][0])
            if epoch == 2:
                shared.restore()
        return bool(emitted and plan.shared and shared.table_rows() < alone.table_rows())
    finally:
        shared.states.close()
        alone.states.close()
