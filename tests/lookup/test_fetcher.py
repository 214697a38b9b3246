"""Which calls are made at which time: every combination of sync and async, retry and none, ordered and unordered."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import LookupFailedError
from zset_join.core.relation import Relation
from zset_join.lookup.fetcher import Fetcher
from zset_join.lookup.options import Lookup
from zset_join.lookup.source import TransientLookupError
from zset_join.shapes.lookup import LookupShape
from zset_join.testing.lookups import FakeClock, ScriptedSource

CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string()})
ORDERS = Relation(name="orders", schema=pa.schema({"o": pa.int64(), "who": pa.int64()}), join_key=("who",))
SHAPE = LookupShape.of(ORDERS, Relation(name="customers", schema=CUSTOMERS, join_key=("id",)), "inner")
RETRY = {"retry_predicate": "lookup_miss", "retry_strategy": "fixed_delay", "fixed_delay": "10s", "max_attempts": 3}


def fetcher_of(source: ScriptedSource, *, is_insert_only: bool = True, **hint) -> Fetcher:
    settings = Lookup(**hint).resolved(source=source.name, modes=source.modes, how="left", is_insert_only=is_insert_only)
    return Fetcher(source, SHAPE, settings, clock=source.clock, seed=1)


def source_of(**options) -> ScriptedSource:
    return ScriptedSource("customers", CUSTOMERS, clock=FakeClock(), **options)


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(values, pa.int64())})


def requests_of(source: ScriptedSource) -> list[tuple[float, list[int]]]:
    return [(call.at, [key for (key,) in call.keys]) for call in source.calls]


def names(found: pa.Table) -> list[str]:
    return found.column("name").to_pylist()


@pytest.mark.parametrize("async_", [False, True])
@pytest.mark.parametrize("output_mode", ["ordered", "allow_unordered"])
class TestTheSupportMatrix:
    def test_without_retry_a_miss_is_final(self, async_, output_mode):
        source = source_of()
        source.put({"id": 1, "name": "Ada"})
        source.put({"id": 2, "name": "Bob"}, at=5)
        with fetcher_of(source, async_=async_, output_mode=output_mode) as fetcher:
            assert names(fetcher.fetch(keys(1, 2))) == ["Ada"]
        assert requests_of(source) == [(0.0, [1, 2])]

    def test_with_retry_only_the_miss_is_requested_again_each_delay_after_the_answer(self, async_, output_mode):
        source = source_of(latency=1.0)
        source.put({"id": 1, "name": "Ada"})
        source.put({"id": 2, "name": "Bob"}, at=12)
        with fetcher_of(source, async_=async_, output_mode=output_mode, **RETRY) as fetcher:
            assert names(fetcher.fetch(keys(1, 2, 3))) == ["Ada", "Bob"]
            assert (fetcher.counts.calls, fetcher.counts.retries, fetcher.counts.waited_us) == (4, 4, 30_000_000)
        assert requests_of(source) == [(0.0, [1, 2, 3]), (11.0, [2, 3]), (22.0, [3]), (33.0, [3])]

    def test_max_attempts_is_how_often_a_miss_is_requested_after_the_first_time(self, async_, output_mode):
        source = source_of()
        with fetcher_of(source, async_=async_, output_mode=output_mode, **{**RETRY, "max_attempts": 2}) as fetcher:
            assert fetcher.fetch(keys(9)).num_rows == 0
        assert [at for at, _ in requests_of(source)] == [0.0, 10.0, 20.0]

    def test_a_row_that_comes_with_the_last_attempt_counts(self, async_, output_mode):
        source = source_of()
        source.put({"id": 9, "name": "Zoe"}, at=30)
        with fetcher_of(source, async_=async_, output_mode=output_mode, **RETRY) as fetcher:
            assert names(fetcher.fetch(keys(9))) == ["Zoe"]

    def test_parked_misses_are_not_waited_for(self, async_, output_mode):
        source = source_of()
        with fetcher_of(source, async_=async_, output_mode=output_mode, park="epochs", **RETRY) as fetcher:
            assert fetcher.fetch(keys(9)).num_rows == 0
        assert requests_of(source) == [(0.0, [9])]

    def test_several_rows_of_one_key_are_all_taken_and_rows_of_other_keys_are_not(self, async_, output_mode):
        source = source_of()
        source.put({"id": 1, "name": "Ada"})
        source.put({"id": 1, "name": "Eve"})
        source.put({"id": 2, "name": "Bob"})
        with fetcher_of(source, async_=async_, output_mode=output_mode) as fetcher:
            assert names(fetcher.fetch(keys(1))) == ["Ada", "Eve"]

    def test_keys_travel_in_batches(self, async_, output_mode):
        source = source_of()
        with fetcher_of(source, async_=async_, output_mode=output_mode, batch_keys=2) as fetcher:
            fetcher.fetch(keys(1, 2, 3, 4, 5))
        assert [key for _, key in requests_of(source)] == [[1, 2], [3, 4], [5]]

    def test_a_transient_error_is_tried_again_after_a_growing_wait(self, async_, output_mode):
        source = source_of(failures=[TransientLookupError("reset"), TransientLookupError("reset")])
        source.put({"id": 1, "name": "Ada"})
        with fetcher_of(source, async_=async_, output_mode=output_mode, error_delay="1s") as fetcher:
            assert names(fetcher.fetch(keys(1))) == ["Ada"]
            first, second = (b - a for (a, _), (b, _) in zip(requests_of(source), requests_of(source)[1:], strict=False))
            assert 0.5 <= first <= 1.0 <= second <= 2.0
            assert fetcher.counts.transient_errors == 2

    def test_the_wait_of_the_source_is_respected(self, async_, output_mode):
        source = source_of(failures=[TransientLookupError("429", retry_after_seconds=7)])
        with fetcher_of(source, async_=async_, output_mode=output_mode) as fetcher:
            fetcher.fetch(keys(1))
        assert [at for at, _ in requests_of(source)] == [0.0, 7.0]

    def test_errors_that_stay_fail_the_epoch_and_open_the_circuit(self, async_, output_mode):
        source = source_of(failures=[TransientLookupError("refused")] * 100)
        with fetcher_of(source, async_=async_, output_mode=output_mode, error_attempts=3, circuit_open="5s") as fetcher:
            with pytest.raises(LookupFailedError, match=r'"customers".*failed 3 of 3 times.*1 key such as \(7,\).*refused'):
                fetcher.fetch(keys(7))
            with pytest.raises(LookupFailedError, match="is not called for another"):
                fetcher.fetch(keys(7))
            assert len(source.calls) == 3
            source.clock.sleep(5.0)
            with pytest.raises(LookupFailedError, match="failed 1 of 1 times"):
                fetcher.fetch(keys(7))
            assert len(source.calls) == 4
            source.clock.sleep(10.0)
            source.failures.clear()
            fetcher.fetch(keys(7))
            fetcher.fetch(keys(7))
            assert len(source.calls) == 6

    def test_an_error_that_is_not_transient_is_not_tried_again(self, async_, output_mode):
        source = source_of(failures=[ValueError("no such table")])
        with (
            fetcher_of(source, async_=async_, output_mode=output_mode) as fetcher,
            pytest.raises(LookupFailedError, match="no such table"),
        ):
            fetcher.fetch(keys(7))
        assert len(source.calls) == 1

    def test_a_client_is_opened_once_and_closed(self, async_, output_mode):
        source = source_of()
        with fetcher_of(source, async_=async_, output_mode=output_mode) as fetcher:
            fetcher.fetch(keys(1))
            fetcher.fetch(keys(2))
        assert (source.opened, source.closed) == (1, 1)


def test_ordered_answers_come_in_the_order_of_the_keys_and_block_at_the_head():
    slow_first = source_of(latency=lambda requests_of: 10.0 if requests_of[0][0] == 1 else 1.0)
    for key in range(1, 6):
        slow_first.put({"id": key, "name": f"n{key}"})
    with fetcher_of(slow_first, capacity=2, batch_keys=1) as fetcher:
        assert names(fetcher.fetch(keys(1, 2, 3, 4, 5))) == ["n1", "n2", "n3", "n4", "n5"]
    assert requests_of(slow_first) == [(0.0, [1]), (0.0, [2]), (10.0, [3]), (10.0, [4]), (11.0, [5])]


def test_unordered_answers_come_as_they_are_ready_and_free_their_place_at_once():
    slow_first = source_of(latency=lambda requests_of: 10.0 if requests_of[0][0] == 1 else 1.0)
    for key in range(1, 6):
        slow_first.put({"id": key, "name": f"n{key}"})
    with fetcher_of(slow_first, capacity=2, batch_keys=1, output_mode="allow_unordered") as fetcher:
        assert names(fetcher.fetch(keys(1, 2, 3, 4, 5))) == ["n2", "n3", "n4", "n5", "n1"]
    assert requests_of(slow_first) == [(0.0, [1]), (0.0, [2]), (1.0, [3]), (2.0, [4]), (3.0, [5])]


def test_unordered_is_a_permission_that_is_not_used_where_rows_may_be_retracted():
    settings = Lookup(output_mode="allow_unordered").resolved(
        source="c", modes=frozenset({"async"}), how="inner", is_insert_only=False
    )
    assert settings.is_ordered


def test_the_timeout_spans_all_attempts_of_a_call():
    source = source_of(latency=1.0)
    with (
        fetcher_of(source, timeout="25s", **RETRY) as fetcher,
        pytest.raises(LookupFailedError, match=r"timeout=25 s, 3 attempts included"),
    ):
        fetcher.fetch(keys(9))
    assert [at for at, _ in requests_of(source)] == [0.0, 11.0, 22.0]


def test_the_timeout_is_that_of_async_calls_only():
    source = source_of(latency=400.0)
    with fetcher_of(source, async_=False) as fetcher:
        fetcher.fetch(keys(9))
    assert len(source.calls) == 1


class TestThePartialCache:
    def test_a_row_is_believed_until_its_ttl_has_passed(self):
        source = source_of()
        source.put({"id": 1, "name": "Ada"}, until=30)
        with fetcher_of(source, cache="partial", cache_ttl="60s") as fetcher:
            assert names(fetcher.fetch(keys(1, 2))) == ["Ada"]
            source.clock.sleep(59.0)
            assert names(fetcher.fetch(keys(1))) == ["Ada"]
            source.clock.sleep(2.0)
            assert names(fetcher.fetch(keys(1))) == []
            assert (fetcher.counts.cache_hits, fetcher.counts.cache_misses) == (1, 3)

    def test_an_absent_row_is_requested_again_unless_it_may_be_cached(self):
        counts = []
        for missing in (False, True):
            source = source_of()
            with fetcher_of(source, cache="partial", cache_missing=missing) as fetcher:
                fetcher.fetch(keys(1))
                fetcher.fetch(keys(1))
            counts.append(len(source.calls))
        assert counts == [2, 1]

    def test_an_absent_row_is_not_cached_while_it_is_retried(self):
        source = source_of()
        source.put({"id": 1, "name": "Ada"}, at=15)
        with fetcher_of(source, cache="partial", cache_missing=True, **RETRY) as fetcher:
            assert names(fetcher.fetch(keys(1))) == ["Ada"]
        parked = source_of()
        with fetcher_of(parked, cache="partial", cache_missing=True, park="epochs", **RETRY) as fetcher:
            fetcher.fetch(keys(1))
            parked.put({"id": 1, "name": "Ada"})
            assert names(fetcher.fetch(keys(1))) == ["Ada"]

    def test_it_is_bounded_and_keeps_what_was_requested_lately(self):
        source = source_of()
        for key in range(100):
            source.put({"id": key, "name": f"n{key}"})
        with fetcher_of(source, cache="partial", cache_max_rows=10) as fetcher:
            for key in range(100):
                fetcher.fetch(keys(key))
                assert names(fetcher.fetch(keys(0))) == ["n0"]
            assert len(fetcher._partial) <= 10
        assert sum(key == 0 for call in source.calls for (key,) in call.keys) == 1


class TestTheFullCache:
    def test_keys_that_are_in_it_are_hits_and_others_misses(self):
        source = source_of()
        for name in ("Ada", "Eve"):
            source.put({"id": 1, "name": name})
        with fetcher_of(source, cache="full") as fetcher:
            fetcher.fetch(keys(1, 2, 3))
            fetcher.fetch(keys(1))
            assert (fetcher.counts.cache_hits, fetcher.counts.cache_misses, fetcher.counts.loads) == (2, 2, 1)


class TestAnswersThatCannotBeUsed:
    def test_a_missing_column_is_named(self):
        source = source_of()
        source.put({"id": 1, "name": "Ada"})
        broken = fetcher_of(source)
        broken._client = source.open(type("Opening", (), {"key": ("id",), "columns": ("id",)})())
        with broken, pytest.raises(LookupFailedError, match=r"no column \['name'\]"):
            broken.fetch(keys(1))

    def test_a_type_that_does_not_fit_is_named(self):
        source = ScriptedSource("customers", pa.schema({"id": pa.int64(), "name": pa.list_(pa.int64())}), clock=FakeClock())
        source.put({"id": 1, "name": [1]})
        with fetcher_of(source) as fetcher, pytest.raises(LookupFailedError, match='in column "name", which is string'):
            fetcher.fetch(keys(1))
