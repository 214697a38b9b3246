"""What holds for every sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.errors import SinkError
from zset_join.relation import Relation
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.sinks.sink import Sink, is_replay
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
OUTPUT = Relation(name="answer", schema=SCHEMA, mode="changelog")
ROWS = ZSet.of({"k": [1, 2], "v": ["a", "b"]}, schema=SCHEMA)


MAKERS: dict[str, Callable[[Path], Sink]] = {
    "duckdb": lambda directory: DuckDBViewSink(directory / "views.duckdb", "view"),
    "parquet": lambda directory: ParquetChangelogSink(directory / "changelog"),
}


@pytest.fixture(params=MAKERS)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sink]:
    made = MAKERS[request.param](tmp_path)
    yield made
    made.close()


def test_every_sink_fulfils_the_protocol(sink: Sink) -> None:
    assert isinstance(sink, Sink)


def test_a_new_sink_holds_no_epoch(sink: Sink) -> None:
    sink.open(OUTPUT, "query")

    assert sink.last_epoch() is None


def test_a_written_epoch_is_the_last_epoch(sink: Sink) -> None:
    sink.open(OUTPUT, "query")

    progress = sink.write(0, [ROWS])

    assert (progress.epoch, progress.rows, progress.retractions, sink.last_epoch()) == (0, 2, 0, 0)


def test_progress_counts_retractions(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])

    progress = sink.write(1, [-ROWS])

    assert (progress.rows, progress.retractions, progress.replayed) == (2, 2, False)


def test_an_empty_epoch_counts(sink: Sink) -> None:
    sink.open(OUTPUT, "query")

    sink.write(0, [])

    assert sink.last_epoch() == 0


def test_a_replayed_epoch_writes_nothing(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])

    again = sink.write(0, [ROWS])

    assert (again.rows, again.replayed, sink.last_epoch()) == (0, True, 0)


def test_a_sink_opened_again_knows_its_last_epoch(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])
    sink.write(1, [])
    sink.close()

    sink.open(OUTPUT, "query")

    assert sink.last_epoch() == 1


def test_another_query_is_refused(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.close()

    with pytest.raises(SinkError, match='belongs to query "query"') as caught:
        sink.open(OUTPUT, "another")

    assert caught.value.code == "SINK_QUERY_ID"


def test_other_columns_are_refused(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.close()
    other = Relation(name="answer", schema=SCHEMA.set(1, pa.field("v", pa.int64())), mode="changelog")

    with pytest.raises(SinkError, match="v: int64") as caught:
        sink.open(other, "query")

    assert caught.value.code == "SINK_SCHEMA"


def test_a_chunk_with_other_columns_is_refused_and_the_epoch_with_it(sink: Sink) -> None:
    sink.open(OUTPUT, "query")

    with pytest.raises(SinkError, match="epoch 0"):
        sink.write(0, [ROWS, ZSet.of({"k": [1], "other": ["a"]})])

    assert sink.last_epoch() is None


def test_chunks_that_fail_leave_the_sink_as_it_was(sink: Sink) -> None:
    def chunks() -> Iterator[ZSet]:
        yield ROWS
        raise RuntimeError("the operator failed")

    sink.open(OUTPUT, "query")

    with pytest.raises(RuntimeError, match="the operator failed"):
        sink.write(0, chunks())

    assert (sink.last_epoch(), sink.write(0, [ROWS]).rows) == (None, 2)


def test_a_hole_between_epochs_is_refused(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.write(0, [ROWS])

    with pytest.raises(SinkError, match="ends with epoch 0 and was given epoch 2") as caught:
        sink.write(2, [])

    assert caught.value.code == "SINK_EPOCH_GAP"


def test_a_new_sink_in_the_middle_of_a_query_is_refused(sink: Sink) -> None:
    sink.open(OUTPUT, "query")

    with pytest.raises(SinkError, match="holds no epoch yet and was given epoch 12"):
        sink.write(12, [ROWS])


def test_a_closed_sink_says_so(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.close()

    with pytest.raises(SinkError, match="call open first"):
        sink.write(0, [])


def test_closing_twice_is_allowed(sink: Sink) -> None:
    sink.open(OUTPUT, "query")
    sink.close()

    sink.close()


def test_upserts_without_whole_rows_are_refused(sink: Sink) -> None:
    upserts = Relation(name="orders", schema=SCHEMA, primary_key=("k",), mode="upsert")

    with pytest.raises(SinkError, match='relation "orders" in upsert mode'):
        sink.open(upserts, "query")


def test_an_epoch_below_the_last_one_is_a_replay() -> None:
    assert is_replay("view", 7, 3)
