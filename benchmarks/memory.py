"""How many bytes does a row of state take?

Loads orders/customers with 4 M rows, then runs epochs of updates, inserts and deletes, and compares at both moments
what the join holds with the Arrow size of its live rows. Both tables of a side (rows by join key, and by primary key)
are counted together. `python -m benchmarks.memory` prints the table; the measuring itself runs in a process of its
own.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from benchmarks.contestant import build_contestant
from benchmarks.measure import peak_resident_bytes, reset_peak, resident_bytes, run_apart
from benchmarks.report import Goal
from benchmarks.workloads import LEFT, RIGHT, OrdersCustomers

if TYPE_CHECKING:
    from benchmarks.engine_zset_join import ZsetJoinEngine

__all__ = ["Footprint", "footprint_goals", "footprint_lines", "measure_footprints"]

SCALE = 1_000_000
EPOCHS = 40
EPOCH_CHANGES = 10_000
ALLOWED_ARROW_SHARE = 1.5
ALLOWED_BYTES_PER_ROW = 100


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The size of the state at one moment."""

    moment: str
    live_rows: int
    arrow_bytes: int
    state_bytes: int
    resident_growth_bytes: int
    peak_growth_bytes: int

    @property
    def allowed_bytes(self) -> int:
        """Return the bound: a share of the Arrow size plus a constant per row."""
        return int(ALLOWED_ARROW_SHARE * self.arrow_bytes + ALLOWED_BYTES_PER_ROW * self.live_rows)


def measure_footprints(scale: int = SCALE) -> list[Footprint]:
    """Measure in a process of its own.

    Raises:
        CellError: that process failed.
    """
    return [Footprint(**one) for one in json.loads(run_apart("benchmarks.memory", f"--scale={scale}"))]


def footprint_lines(footprints: list[Footprint]) -> list[str]:
    """Return the printed table."""
    header = (
        f"{'moment':<28}{'live rows':>12}{'Arrow B/row':>13}{'state B/row':>13}{'allowed B/row':>15}"
        f"{'RSS B/row':>11}{'peak B/row':>12}"
    )
    lines = ["", "memory, orders_customers", header]
    for one in footprints:
        rows = one.live_rows
        lines.append(
            f"{one.moment:<28}{rows:>12,}{one.arrow_bytes / rows:>13.1f}{one.state_bytes / rows:>13.1f}"
            f"{one.allowed_bytes / rows:>15.1f}{one.resident_growth_bytes / rows:>11.1f}"
            f"{one.peak_growth_bytes / rows:>12.1f}"
        )
    return lines


def footprint_goals(footprints: list[Footprint]) -> list[Goal]:
    """Return the memory goal at each moment, in bytes per row; it is set for 4 M rows and not decided below."""
    return [
        Goal(
            sentence=f"bytes of state per row, orders_customers, {one.live_rows:,} rows, {one.moment}",
            measured=one.state_bytes / one.live_rows,
            bound=one.allowed_bytes / one.live_rows,
            at_least=False,
        )
        for one in footprints
        if one.live_rows >= 4 * SCALE
    ]


def _footprints_here(scale: int) -> list[Footprint]:
    workload = OrdersCustomers(scale)
    epochs = workload.epochs(EPOCHS, EPOCH_CHANGES)
    _warm_up()
    engine = _build(workload)
    before = resident_bytes()
    reset_peak()
    for side in (RIGHT, LEFT):
        for rows in workload.initial(side):
            engine.load(side, rows)
    footprints = [_footprint("after the load", engine, before)]
    reset_peak()
    for epoch in epochs:
        engine.step(epoch.deltas)
    footprints.append(_footprint(f"after {EPOCHS} epochs of {EPOCH_CHANGES:,}", engine, before))
    return footprints


def _footprint(moment: str, engine: ZsetJoinEngine, resident_before: int) -> Footprint:
    pa.default_memory_pool().release_unused()
    resident, peak, state = resident_bytes(), peak_resident_bytes(), engine.join.resident_bytes()
    snapshot = engine.join.snapshot()
    live = [snapshot[name].select(side.schema.names) for name, side in zip(("left", "right"), engine.join.inputs, strict=True)]
    return Footprint(
        moment=moment,
        live_rows=sum(table.num_rows for table in live),
        arrow_bytes=sum(table.nbytes for table in live),
        state_bytes=state,
        resident_growth_bytes=resident - resident_before,
        peak_growth_bytes=peak - resident_before,
    )


def _build(workload: OrdersCustomers) -> ZsetJoinEngine:
    return cast("ZsetJoinEngine", build_contestant("zset_join", workload.relations))


def _warm_up() -> None:
    """Load the compiled kernels, so that they are not taken for state."""
    small = OrdersCustomers(1_000)
    engine = _build(small)
    for side in (RIGHT, LEFT):
        for rows in small.initial(side):
            engine.load(side, rows)
    for epoch in small.epochs(2, 200):
        engine.step(epoch.deltas)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--scale="):
        print(json.dumps([asdict(one) for one in _footprints_here(int(sys.argv[1].removeprefix("--scale=")))]))
    else:
        print("\n".join(footprint_lines(measure_footprints())))
