"""The rows of one input that end by time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.time.expiring_rows import ExpiringRows, TimeToLive
from zset_join.zset import ZSet

EVENTS = pa.schema({"k": pa.int64(), "at": pa.int64()})


def events(**ttl: Any) -> ExpiringRows:
    relation = Relation(name="events", schema=EVENTS, mode="append", event_time="at", watermark_delay=0)
    return ExpiringRows(
        relation,
        TimeToLive(after=10, by_event_time=True, **ttl),
        key=("k",),
        key_types=(pa.int64(),),
        null_safe=(True,),
        name="ttl_0",
        tables=HashTables(),
    )


def take(rows: ExpiringRows, epoch: int, before: int | None, mark: int, *given: tuple[int, int | None]) -> tuple[Any, Any]:
    tick = Tick(epoch, watermark_before_us=before, watermark_us=mark)
    found = rows.resolve(tick, ZSet.from_rows(list(given), EVENTS), None)
    emitted, stored = found.answered.to_pylist(), found.stored.to_pylist()
    rows.absorb(tick, found)
    rows.side.end_absorb(epoch)
    return emitted, stored


def test_a_row_past_its_time_at_arrival_is_never_emitted_and_counted_as_late() -> None:
    rows = events()
    take(rows, 0, None, 20, (1, 20))

    assert take(rows, 1, 20, 20, (2, 10), (3, 11)) == ([((3, 11), 1)], [((3, 11), 1)])
    assert rows.statistics() == {"ttl_0_rows": 2, "ttl_0_expired": 0, "ttl_0_late": 1, "ttl_0_already_gone": 0}


def test_a_row_without_time_stays() -> None:
    rows = events()
    take(rows, 0, None, 1, (1, None))

    assert take(rows, 1, 1, 1 << 40) == ([], [])
    assert rows.first_due() is None


def test_what_is_forgotten_leaves_the_state_and_not_the_answer() -> None:
    rows = events(forgets=True)
    take(rows, 0, None, 1, (1, 1))

    assert take(rows, 1, 1, 11) == ([], [((1, 1), -1)])


def test_a_key_keeps_its_rows_together() -> None:
    rows = events(by_key=True)
    take(rows, 0, None, 1, (1, 1), (1, 5))

    assert take(rows, 1, 1, 14) == ([], [])
    assert take(rows, 2, 14, 15)[0] == [((1, 1), -1), ((1, 5), -1)]
