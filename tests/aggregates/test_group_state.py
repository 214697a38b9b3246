"""Groups in files: opened where they were left, refused where they do not belong, and no larger than what lives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from zset_join.aggregates.group_state import GroupState
from zset_join.core.errors import StateError
from zset_join.kernels.rows import side as s
from zset_join.state.rows.hash_seed import HashTables

SCHEMA = pa.schema({"k": pa.string()})


def state(directory: Path | None = None, *, meaning: str = "counts", hash_bits: int = 32) -> GroupState:
    """Give a state of groups that only count rows."""
    place = None if directory is None else str(directory)
    return GroupState(
        "t",
        SCHEMA,
        [],
        fingerprint=meaning,
        tables=HashTables(directory=place, hash_bits=hash_bits, hash_seed=0),
        name="groups",
    )


def add(groups: GroupState, keys: list[str | None], rows: int, epoch: int) -> None:
    """Give each of some groups more rows (or fewer)."""
    lines = groups.load(pa.record_batch({"k": pa.array(keys, pa.string())}), len(keys))
    lines.after[:, 0] += rows
    groups.begin()
    groups.store(lines)
    groups.end(epoch)


def counts(groups: GroupState) -> dict[str | None, int]:
    """Return the row count of every group."""
    refs, lines = groups.live_lines()
    return dict(zip(groups.gather_keys(refs)[0].to_pylist(), lines[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("hash_bits", [32, 1])
def test_groups_are_found_again_by_their_key(hash_bits: int) -> None:
    groups = state(hash_bits=hash_bits)
    add(groups, ["a", None, "a key that does not fit its slot"], 1, 0)
    add(groups, ["a key that does not fit its slot", "b"], 2, 1)

    assert counts(groups) == {"a": 1, None: 1, "a key that does not fit its slot": 3, "b": 2}


def test_a_group_without_rows_gives_everything_back() -> None:
    groups = state()
    add(groups, ["a key that does not fit its slot"], 1, 0)
    add(groups, ["a key that does not fit its slot"], -1, 1)

    header = groups._arena.header
    assert (counts(groups), groups.groups) == ({}, 0)
    assert (int(header[s.H_HEAP_USED]), int(header[s.H_JOIN_COUNT])) == (0, 0)


def test_loading_changes_nothing() -> None:
    groups = state()
    add(groups, ["a"], 1, 0)

    groups.load(pa.record_batch({"k": ["a", "b"]}), 2).after[:, 0] += 5

    assert counts(groups) == {"a": 1}


def test_a_directory_is_opened_where_it_was_left(tmp_path: Path) -> None:
    first = state(tmp_path)
    add(first, ["a", "b"], 2, 4)
    first.close()

    second = state(tmp_path)

    assert (counts(second), second.absorbed_epoch) == ({"a": 2, "b": 2}, 4)


def test_a_directory_of_other_words_is_refused(tmp_path: Path) -> None:
    state(tmp_path).close()

    with pytest.raises(StateError, match="written for another aggregate") as caught:
        state(tmp_path, meaning="sums")

    assert caught.value.code == "STATE_FINGERPRINT"


def test_a_directory_that_was_being_written_is_refused(tmp_path: Path) -> None:
    dying = state(tmp_path)
    dying.begin()
    dying.close()

    with pytest.raises(StateError, match="was being written when its process died") as caught:
        state(tmp_path)

    assert caught.value.code == "STATE_HALF_WRITTEN"


def test_a_state_whose_groups_have_gone_is_rewritten(tmp_path: Path) -> None:
    groups = state(tmp_path)
    keys = [f"group {number} with a long name" for number in range(70_000)]
    add(groups, keys, 1, 0)
    full = groups.resident_bytes()

    add(groups, keys[10:], -1, 1)
    groups.close()

    reopened = state(tmp_path)
    assert counts(reopened) == dict.fromkeys(keys[:10], 1)
    assert reopened.resident_bytes() * 2 < full
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(
        f"groups.{kind}" for kind in ("header", "heap", "lock", "rows", f"join.slots{reopened._table.bits}")
    )


def test_clearing_forgets_everything() -> None:
    groups = state()
    add(groups, ["a"], 1, 0)

    groups.clear()

    assert (counts(groups), groups.absorbed_epoch) == ({}, -1)


def test_a_global_group_has_a_line_even_without_rows() -> None:
    groups = GroupState("t", pa.schema([]), [], fingerprint="", tables=HashTables(hash_seed=0), name="all")

    lines = groups.load(pa.record_batch({"x": pa.array([], pa.int64())}), 0)

    assert lines.entries == 1
    assert np.array_equal(lines.after, [[0]])
