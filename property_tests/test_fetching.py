"""Laws of the fetch step: which calls, how many, which rows, over all combinations of options; and of the journal behind it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from zset_join.core.relation import Relation
from zset_join.lookup.cache import FetchJournal
from zset_join.lookup.fetcher import Fetcher
from zset_join.lookup.options import Lookup
from zset_join.lookup.source import TransientLookupError
from zset_join.shapes.lookup import LookupShape, RetryPolicy
from zset_join.state.join.lookup_rows import fetched_rows
from zset_join.testing.lookups import FakeClock, ScriptedSource

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.int64()})
PROBE = Relation(name="orders", schema=pa.schema({"o": pa.int64(), "who": pa.int64()}), join_key=("who",))
SHAPE = LookupShape.of(PROBE, Relation(name="t", schema=SCHEMA, join_key=("id",)), "inner")
TTL, DELAY = 50, 10
RETRY = {"retry_predicate": "lookup_miss", "retry_strategy": "fixed_delay", "fixed_delay": DELAY}


def run_fetches(data: st.DataObject) -> None:
    """Fetch several epochs of keys, each twice through a journal, and compare calls and rows with what they must be."""
    is_async, parks = data.draw(st.booleans()), data.draw(st.sampled_from([False, False, True]))
    retries, batch = data.draw(st.sampled_from([0, 1, 2, 2])), data.draw(st.integers(1, 3))
    cached = data.draw(st.sampled_from(["none", "partial"]))
    missing = cached == "partial" and data.draw(st.booleans())
    times = st.sampled_from([0, 5, 15, 25, 60])
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), times), min_size=1, max_size=5))
    clock = FakeClock()
    source = ScriptedSource("t", SCHEMA, clock=clock)
    for key, value, since in rows:
        source.put({"id": key, "v": value}, at=since)
    retry: dict[str, Any] = {"max_attempts": retries, "park": "epochs" if parks else "none", **RETRY} if retries else {}
    hint = Lookup(
        async_=is_async,
        output_mode=data.draw(st.sampled_from(["ordered", "allow_unordered"])),
        capacity=data.draw(st.integers(1, 3)),
        batch_keys=batch,
        cache=cached,
        cache_ttl=TTL,
        cache_missing=missing,
        **retry,
    )
    settings = hint.resolved(source="t", modes=source.modes, how="inner", is_insert_only=True)
    journal = FetchJournal(None, stage="lookup-0", bucket=0)
    believed: dict[int, tuple[float, Counter[int]]] = {}
    blocks = 0 if parks else retries
    with Fetcher(source, SHAPE, settings, clock=clock) as fetcher:
        for epoch in range(data.draw(st.integers(1, 4))):
            keys = data.draw(st.lists(st.integers(0, 3), unique=True, max_size=4))
            clock.sleep(data.draw(st.sampled_from([0, 7, 60])))
            before, began, counts = len(source.calls), clock.now_us() / 1e6, fetcher.counts.to_json()
            wanted, calls = _expected(keys, rows, believed, began, blocks, missing and not (parks and retries), cached)
            failures = data.draw(st.integers(0, 2)) if calls else 0
            source.failures = [TransientLookupError("busy", retry_after_seconds=0.0)] * failures
            requested = pa.record_batch({"id": pa.array(keys, pa.int64())})

            def fetch(chosen: pa.RecordBatch) -> pa.RecordBatch:
                return fetched_rows(SHAPE, chosen, fetcher.fetch(chosen), RetryPolicy()).rows

            first = journal.fetched(epoch, requested, fetch)
            assert _found(first) == wanted, (keys, rows)
            assert all(len(call.keys) <= batch for call in source.calls)
            if not is_async or settings.capacity * batch >= len(keys):  # all begin at once
                made = [(call.at, key) for call in source.calls[before + failures :] for (key,) in call.keys]
                assert sorted(made) == sorted(calls)
                since = fetcher.counts.since(counts)
                assert (since["transient_errors"], since["retries"]) == (failures, sum(at > began for at, _ in calls))
            counted = len(source.calls)
            assert _found(journal.fetched(epoch, pa.record_batch({"id": pa.array(keys[::-1], pa.int64())}), fetch)) == wanted
            assert len(source.calls) == counted


def _expected(
    keys: list[int], rows: Any, believed: Any, began: float, retries: int, keeps_missing: bool, cached: str
) -> tuple[dict[int, Counter[int]], list[tuple[float, int]]]:
    """Return what each key finds, and the calls that sync lookups make for it, with nothing but dicts."""
    found: dict[int, Counter[int]] = {}
    calls: list[tuple[float, int]] = []
    waiting = []
    for key in keys:
        if cached == "partial" and key in believed and believed[key][0] > began:
            found[key] = believed[key][1]
        else:
            waiting.append(key)
    requested, now = list(waiting), began
    for attempt in range(retries + 1):
        if not waiting:
            break
        now = began + attempt * DELAY
        for key in waiting:
            calls.append((now, key))
            found[key] = Counter(value for own, value, since in rows if own == key and since <= now)
        waiting = [key for key in waiting if not found[key]]
    for key in requested:
        if found[key] or keeps_missing:
            believed[key] = (now + TTL, found[key])
        else:
            believed.pop(key, None)
    return found, calls


def _found(fetched: pa.RecordBatch) -> dict[int, Counter[int]]:
    made: dict[int, Counter[int]] = {}
    for row in fetched.to_pylist():
        own = made.setdefault(row["_zset_key_0"], Counter())
        if row["_zset_found"]:
            own[row["v"]] += 1
    return made


@given(data=st.data())
def test_calls_and_rows_are_those_of_the_script_and_a_replay_makes_no_call(data: st.DataObject) -> None:
    run_fetches(data)
