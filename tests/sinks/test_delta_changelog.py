"""The changelog as a Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.delta_view import DeltaChangelogSink
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
OUTPUT = Relation(name="answer", schema=SCHEMA, primary_key=("k",), mode="changelog")
OLD = ZSet.of({"k": [1], "v": ["old"]}, schema=SCHEMA)
NEW = ZSet.of({"k": [1], "v": ["new"]}, schema=SCHEMA)


def opened(place: Path, form: Any = "weight") -> DeltaChangelogSink:
    sink = DeltaChangelogSink(place / "table", form)
    sink.open(OUTPUT, "query")
    return sink


def seen_by_others(place: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return what a reader of Delta tables sees."""
    found = DeltaTable(place / "table").to_pyarrow_table().select(["_epoch", *columns])
    return sorted(tuple(line.values()) for line in found.to_pylist())


def test_every_line_carries_its_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path)

    sink.write(0, [OLD])
    sink.write(1, [-OLD, NEW])

    assert seen_by_others(tmp_path, "v", "_weight") == [(0, "old", 1), (1, "new", 1), (1, "old", -1)]


def test_an_update_that_comes_in_two_chunks_is_one_update(tmp_path: Path) -> None:
    sink = opened(tmp_path, "row_kind")

    sink.write(0, [-OLD, NEW])

    assert seen_by_others(tmp_path, "v", "_row_kind") == [(0, "new", "+U"), (0, "old", "-U")]


def test_the_feed_has_type_version_and_time(tmp_path: Path) -> None:
    sink = opened(tmp_path, "change_data_feed")

    sink.write(0, [OLD])

    (line,) = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert (line["_change_type"], line["_commit_version"], line["_commit_timestamp"].year) >= ("insert", 0, 2025)


def test_the_history_of_the_table_names_the_epochs(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(0, [OLD])
    sink.write(1, [])

    reported = [commit.get("userMetadata") for commit in DeltaTable(tmp_path / "table").history()]

    assert reported == ["zset_join epoch 1", "zset_join epoch 0", None]


def test_the_log_lists_the_files_of_an_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(0, [OLD])
    sink.write(1, [NEW])

    bounds = [(file.least["_epoch"], file.most["_epoch"]) for file in sink.log.files()]

    assert sorted(bounds) == [(0, 0), (1, 1)]


def test_others_may_commit_while_an_epoch_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    sink.write(0, [OLD])
    write = sink.log.commit
    meddled = iter(
        [lambda: DeltaTable(tmp_path / "table").alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})]
    )
    monkeypatch.setattr(sink.log, "commit", lambda *epoch, **link: (next(meddled, int)(), write(*epoch, **link))[1])

    sink.write(1, [NEW])

    assert seen_by_others(tmp_path, "v") == [(0, "old"), (1, "new")]


def test_a_table_that_changes_all_the_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    write = sink.log.commit

    def meddle(*epoch: Any, **link: Any) -> bool:
        DeltaTable(tmp_path / "table").alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        return write(*epoch, **link)

    monkeypatch.setattr(sink.log, "commit", meddle)

    with pytest.raises(SinkError, match="15 attempts") as caught:
        sink.write(0, [OLD])

    assert (caught.value.code, seen_by_others(tmp_path)) == ("SINK_CONFLICT", [])


def test_a_column_named_like_the_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match='adds the column "_epoch"') as caught:
        DeltaChangelogSink(tmp_path / "table").open(
            Relation(name="answer", schema=pa.schema({"_epoch": pa.int64()}), mode="changelog"), "query"
        )

    assert caught.value.code == "DUPLICATE_COLUMN"


def test_another_form_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)

    with pytest.raises(SinkError, match="form='weight'") as caught:
        opened(tmp_path, "row_kind")

    assert caught.value.code == "SINK_SCHEMA"


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'rows' is unknown"):
        opened(tmp_path, "rows")
