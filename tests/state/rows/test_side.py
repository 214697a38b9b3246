"""The state of one side holds and reports what a book in plain Python does, whatever happens to it between epochs.

Random deltas, good and bad, go to a `SideState` and to a `Book`. Between epochs the side is compacted, opened again, restored
from its snapshot, or has rows and tombstones taken out of memory and put back; `anatomy` checks that its parts fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.epochs import Change, delete, delta_of, insert, upsert
from tests.state.side_anatomy import absorb, anatomy, changes_of, make_side, pieces
from zset_join.core.errors import StateError
from zset_join.core.relation import ChangelogMode
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.rows import side as s
from zset_join.state.cold.hot_rows import HotRows
from zset_join.state.rows.side import DeltaArrays, SideState, table_bits
from zset_join.state.rows.side_changes import SideChanges
from zset_join.state.rows.side_snapshot import restore_side, side_reader

LONG = "a text that is longer than twelve bytes"
TEXTS = (None, "", "short", "x" * 12, "x" * 13, LONG, LONG * 9)
KEYS = (None, "", "a", "a ", "the same first twelve bytes, A", "the same first twelve bytes, B")
MOST = 2**63 - 1
RETENTION = 10  # of `make_side`
NULLS = {0: ch.NULL_PRIMARY_KEY, 3: ch.NULL_SEQUENCE}


class Book:
    """What a side holds: rows by identity with weight and sequence, and tombstones with sequence and watermark."""

    def __init__(self, kind: str, *, keeps_unmatchable: bool) -> None:
        self.kind, self.drops = kind, not keeps_unmatchable and kind != "sequenced"
        self.rows: dict[Any, tuple[Any, int, int]] = {}
        self.dead: dict[Any, tuple[int, int]] = {}
        self.watermark = -(1 << 62)
        self.appended = 0

    def identity(self, row: tuple[Any, ...]) -> Any:
        return row[0] if self.kind in ("upsert", "sequenced") else row

    def status(self, row: tuple[Any, ...], weight: int) -> int:
        """Return what a row of a delta gets before it is looked up."""
        if weight == 0:
            return ch.ZERO_WEIGHT
        if self.kind == "append" and weight < 0:
            return ch.RETRACTION_IN_APPEND
        if self.kind in ("upsert", "sequenced"):
            return next((bad for at, bad in NULLS.items() if at < len(row) and row[at] is None), ch.OK)
        return ch.NOTHING if self.drops and row[1] is None else ch.OK

    def take(self, changes: Sequence[Change], watermark: int | None) -> tuple[list[int], list[Any], tuple[int, int]]:
        """Apply an epoch; return the status of every row, the changes, and how many rows were stale or deleted nothing."""
        status = [self.status(*change) for change in changes]
        self.watermark = max(self.watermark, self.watermark if watermark is None else watermark)
        entries: dict[Any, list[int]] = {}
        for at, (row, _) in enumerate(changes):
            if status[at] == ch.OK:
                entries.setdefault(self.identity(row) if self.kind != "append" else at, []).append(at)
        found, counts = [], [0, 0]
        for identity, places in entries.items():
            some = [changes[at] for at in places]
            if self.kind == "append":
                self.rows[self.appended] = (*some[0], 0)
                self.appended += 1
                found.append((None, some[0][0], 0, some[0][1]))
            elif self.kind == "changelog":
                found += self._weigh(identity, changes, places, status)
            else:
                found += self._replace(identity, some, counts)
        for identity, (_, left_at) in [*self.dead.items()]:
            if left_at + RETENTION <= self.watermark:
                del self.dead[identity]
        return status, found, (counts[0], counts[1])

    def _weigh(self, row: Any, changes: Sequence[Change], places: list[int], status: list[int]) -> list[Any]:
        before = after = self.rows.get(row, (row, 0, 0))[1]
        for at in sorted(places, key=lambda at: changes[at][1] < 0):  # insertions count first
            weight = changes[at][1]
            if 0 <= after + weight <= MOST:
                after += weight
            else:
                status[at] = ch.WEIGHT_OVERFLOW if weight > 0 else ch.ABSENT_ROW
        self.rows.pop(row, None)
        if after:
            self.rows[row] = (row, after, 0)
        return [] if before == after else [(row if before else None, row, before, after)]

    def _replace(self, identity: Any, some: list[Change], counts: list[int]) -> list[Any]:
        (row, weight), *later = some
        for another, its_weight in later:
            if another[3:] < row[3:]:
                counts[0] += 1
            else:
                row, weight = another, its_weight
        sequence = row[3] if self.kind == "sequenced" else 0
        old = self.rows.get(identity)
        newest = old[2] if old else self.dead.get(identity, (sequence, 0))[0]
        if sequence < newest:
            counts[0] += 1
            return []
        is_deleted = weight < 0
        counts[1] += is_deleted and old is None
        self.rows.pop(identity, None)
        self.dead.pop(identity, None)
        if is_deleted and self.kind == "sequenced":
            self.dead[identity] = sequence, self.watermark
        kept = not is_deleted and not (self.drops and row[1] is None)
        if kept:
            self.rows[identity] = row, 1, sequence
        if old and kept and old[0] == row:
            return []
        return ([(old[0], old[0], 1, 0)] if old else []) + ([(None, row, 0, 1)] if kept else [])


class Life:
    """A side and its book, with what may happen to both."""

    def __init__(
        self, kind: str, directory: Path | None = None, *, seed: int = 0, keeps_unmatchable: bool = True, **options: Any
    ):
        mode: ChangelogMode = "upsert" if kind == "sequenced" else kind  # type: ignore[assignment]
        place = None if directory is None else str(directory)
        self.make: Callable[..., SideState] = lambda place=place: make_side(
            mode,
            sequenced=kind == "sequenced",
            directory=place,
            keeps_unmatchable=keeps_unmatchable,
            has_degree=kind == "upsert",
            **options,
        )
        self.kind, self.random, self.side = kind, Random(seed), self.make()
        self.book = Book(kind, keeps_unmatchable=keeps_unmatchable)
        self.epoch = self.watermark = 0

    def changes(self, count: int, identities: int, keys: int) -> list[Change]:
        """Return random changes, one in fifteen of them bad; `keys` join keys beside those of `KEYS`."""
        draw, held = self.random, [row for row, *_ in self.book.rows.values()]
        made: list[Change] = []
        for _ in range(count):
            key = draw.choice(KEYS) if draw.randrange(3) else f"k{draw.randrange(keys)}"
            row: tuple[Any, ...] = (draw.randrange(identities), key, draw.choice(TEXTS))
            if held and draw.randrange(3) == 0:
                row = draw.choice(held)[:3]
            weight = draw.choice((1, 1, 1, 1, -1, -1, draw.choice((0, 3, -2, 3 if self.book.drops else MOST))))
            if self.kind in ("upsert", "sequenced") and draw.randrange(25) == 0:
                row = (None, *row[1:])
            elif self.kind == "append" and draw.randrange(15):
                weight = abs(weight)
            if self.kind == "sequenced":
                row = (*row, None if draw.randrange(25) == 0 else self.epoch + draw.randrange(-3, 2))
            made.append((row, weight))
        return made

    def take(self, changes: list[Change]) -> None:
        """Let both take an epoch, and compare what they report and hold."""
        watermark = self.random.choice((None, self.watermark, self.watermark - 3, self.watermark + 4))
        self.watermark = max(self.watermark, watermark or 0)
        header = self.side.header.tolist()
        prepared, listed = changes_of(self.side, changes)
        assert self.side.header.tolist() == header
        shown = [(pieces(self.side, [number])[0] if number else None, *line) for number, *line in listed]
        status, expected, counts = self.book.take(changes, watermark)
        assert prepared.status[: len(changes)].tolist() == status
        assert shown == [(old, was, now, int(row[1] is not None)) for old, row, was, now in expected]
        assert prepared.rejected == sum(one > ch.LAST_HARMLESS for one in status)
        assert (prepared.stale, prepared.unknown_deletes) == counts
        self.side.begin_absorb()
        self.side.absorb(prepared, watermark)
        self.side.end_absorb(self.epoch)
        self.epoch += 1
        if self.kind == "upsert":
            live = np.array(anatomy(self.side).live, np.int64)
            self.side.store_degrees(live, np.array([row[0] * 7 for row in pieces(self.side, live.tolist())], np.int64))
        self.check()

    def check(self) -> None:
        """Compare what both hold."""
        found = anatomy(self.side)
        weights = self.side.weights(np.array(found.live, np.int64)).tolist()
        rows = pieces(self.side, found.live)
        held = sorted((repr(row), weight) for row, weight, _ in self.book.rows.values())
        assert sorted(zip(map(repr, rows), weights, strict=True)) == held
        keys = [{row[1] for row in pieces(self.side, chain)} for chain in found.chains]
        assert sorted(key for (key,) in keys) == sorted({row[1] for row in rows if row[1] is not None})
        left = self.side.weights(np.array(found.tombstones, np.int64)).tolist()
        queue = list(zip((row[0] for row in pieces(self.side, found.tombstones)), left, strict=True))
        assert sorted(queue) == sorted((identity, left_at) for identity, (_, left_at) in self.book.dead.items())
        assert [left_at for _, left_at in queue] == sorted(left_at for _, left_at in queue)
        if self.kind == "upsert":
            assert self.side.degrees(np.array(found.live, np.int64)).tolist() == [row[0] * 7 for row in rows]

    def compact(self) -> None:
        self.side.compact()
        assert anatomy(self.side).free == []
        assert self.side.header[s.H_HEAP_USED] == self.side.header[s.H_HEAP_END]

    def open_again(self) -> None:
        if self.side.directory is not None:
            self.side.close()
            self.side = self.make()
        assert self.side.absorbed_epoch == self.epoch - 1

    def restore(self) -> None:
        table = side_reader(self.side).read_all()
        other = self.make(None)
        restore_side(other, table)
        other.end_absorb(self.epoch - 1)
        assert side_reader(other).read_all().equals(table, check_metadata=True)
        self.side.take_over(other)

    def leave_and_come_back(self) -> None:
        """Take some rows and tombstones out of memory, and put them back."""
        found, hot = anatomy(self.side), HotRows(self.side)
        hot.follow()
        gone = np.array(self.random.sample(found.live, len(found.live) // 2), np.int64)
        codes, subcodes = hot.hashes(gone)
        packed = hot.pack(gone, codes, subcodes)
        hot.drop(gone, subcodes)
        dead = np.array(self.random.sample(found.tombstones, len(found.tombstones) // 2), np.int64)
        dead_codes = hot.hashes(dead)[1]
        dead_rows = hot.unpack(hot.pack(dead, dead_codes, dead_codes))
        hot.drop_tombstones(dead, dead_codes)
        assert sorted(anatomy(self.side).live) == sorted({*found.live} - {*gone.tolist()})
        unpacked = hot.unpack(packed)
        hot.make_room(unpacked)
        hot.insert(unpacked, packed, 2, 0.0)
        hot.reserve(len(dead))
        hot.insert_tombstones(dead_rows, dead_codes, 2)
        self.side.on_compacting = None

    def evict(self) -> None:
        """Drop rows of an append-only side for good."""
        if self.kind == "append":
            numbers = self.random.sample(anatomy(self.side).live, len(self.book.rows) // 3)
            for gone, weight in zip(
                pieces(self.side, numbers), self.side.weights(np.array(numbers, int)).tolist(), strict=True
            ):
                del self.book.rows[next(at for at, row in self.book.rows.items() if row == (gone, weight, 0))]
            self.side.evict(np.array(numbers, np.int64))

    def live(self, epochs: int, changes: int, identities: int, keys: int) -> None:
        acts = (self.compact, self.open_again, self.restore, self.leave_and_come_back, self.evict, lambda: None)
        for _ in range(epochs):
            self.take(self.changes(self.random.randrange(changes), identities, keys))
            self.random.choice(acts)()
            self.check()


KINDS = ("append", "upsert", "sequenced", "changelog")


@pytest.mark.parametrize("keeps_unmatchable", [True, False])
@pytest.mark.parametrize("hash_bits", [32, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_side_holds_what_its_book_does(kind: str, hash_bits: int, keeps_unmatchable: bool, tmp_path: Path) -> None:
    directory = tmp_path if hash_bits == 3 else None

    Life(kind, directory, seed=5, hash_bits=hash_bits, keeps_unmatchable=keeps_unmatchable).live(30, 40, 40, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_side_of_many_rows_and_keys_holds_what_its_book_does(kind: str) -> None:
    Life(kind, seed=6).live(8, 1500, 1200, 900)


@pytest.mark.parametrize("count", [1, 23, 24, 25, 26])
@pytest.mark.parametrize("kind", KINDS)
def test_looking_up_ahead_reaches_the_last_row_and_not_beyond(kind: str, count: int) -> None:
    life = Life(kind)
    for text in ("old", "new"):
        life.take([((number, f"k{number}", text, *([1] if kind == "sequenced" else [])), 1) for number in range(count)])


# ---------------------------------------------------------------- what a row costs


@pytest.mark.parametrize(("text", "block"), [(None, 0), ("x" * 12, 0), ("x" * 13, 16), ("x" * 100, 112), ("x" * 300, 320)])
def test_a_row_counts_its_record_and_the_block_of_a_long_value(text: str | None, block: int) -> None:
    side = make_side("append")

    absorb(side, insert((1, "a", text)))

    assert side.live_bytes == side.layout.stride + block
    assert side.sizes_of(side.refs_of(np.array([1], np.int64))).tolist() == [side.layout.stride + block]


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_a_table_that_is_updated_for_ever_does_not_grow(mode: ChangelogMode) -> None:
    side, rows = make_side(mode), [(number, "a", LONG) for number in range(50)]
    absorb(side, insert(*rows))
    full = side.header[[s.H_ROWS_END, s.H_HEAP_END, s.H_HEAP_USED]].tolist()

    for changes in [delete(*rows), insert(*rows)] * 3:
        absorb(side, changes)

    assert side.header[[s.H_ROWS_END, s.H_HEAP_END, s.H_HEAP_USED]].tolist() == full


def test_a_table_grows_with_its_keys_and_not_with_its_rows() -> None:
    one_key, many_keys = make_side(), make_side()

    absorb(one_key, upsert(*[(number, "a", None) for number in range(600)]))
    absorb(many_keys, upsert(*[(number, f"k{number}", None) for number in range(600)]))
    absorb(one_key, [])

    assert (one_key.arrangement.count, many_keys.arrangement.count) == (1, 600)
    assert many_keys.arrangement.bits == 10


def test_compacting_takes_no_memory_and_gives_that_of_the_dead_back() -> None:
    side = make_side()
    side.compact()  # whatever a first time loads
    absorb(side, upsert(*[(number, f"k{number % 70}", f"{LONG} {number:09}") for number in range(60_000)]))
    side.header[s.H_DIRTY] = 1
    prepared, _ = changes_of(side, delete(*[(number, None, None) for number in range(60_000) if number % 10 > 2]))
    side.absorb(prepared, None)
    held = side.arena.record_bytes() + side.arena.heap_bytes()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status_bytes("VmRSS")

    side.compact()

    assert status_bytes("VmHWM") - before < held / 10
    assert before - status_bytes("VmRSS") > held / 2
    assert len(anatomy(side).live) == 18_000


def status_bytes(name: str) -> int:
    """Return a size of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def test_working_arrays_double_are_kept_and_count_as_far_as_they_are_used() -> None:
    arrays, small = DeltaArrays(stride=64), DeltaArrays(stride=64)
    arrays.make_room(1000)
    before = arrays.words.copy()
    arrays.make_room(10)
    assert arrays.words.tolist() == before.tolist()
    arrays.make_room(1001)
    assert len(arrays.line(s.D_FIRST_OF)) == 2000

    arrays.make_room(10_000)
    full = arrays.resident_bytes()
    arrays.shrink(900)
    for each in (arrays, small):
        each.make_room(900)

    assert full == 10_000 * (10 * 8 + 3 + 64) + (8 << table_bits(10_000))
    assert arrays.resident_bytes() == small.resident_bytes() == 900 * 147 + (8 << table_bits(900))


# ---------------------------------------------------------------- files


def test_a_side_in_files_has_these(tmp_path: Path) -> None:
    make_side(directory=str(tmp_path), name="left").close()

    kinds = ("header", "heap", "identity.slots9", "join.slots9", "lock", "rows")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"left.{kind}" for kind in kinds]


@pytest.mark.parametrize(
    "other",
    [
        {"mode": "changelog"},
        {"sequenced": True},
        {"hash_bits": 31},
        {"null_safe": [True]},
        {"has_degree": True},
        {"key_types": [pa.large_string()]},
    ],
)
def test_a_side_of_another_layout_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    make_side(directory=str(tmp_path)).close()

    with pytest.raises(StateError, match="was written for another relation") as caught:
        make_side(directory=str(tmp_path), **other)

    assert caught.value.code == "STATE_FINGERPRINT"


# ---------------------------------------------------------------- changes of a delta, as rows


def test_copies_are_listed_beside_the_rows_that_gain_and_lose_them() -> None:
    side = make_side("changelog")
    absorb(side, insert((1, "a", "x"), (3, "a", "x")) + insert((2, "a", "x"), copies=3))
    then = insert((1, "a", "x"), (4, "a", "x")) + insert((5, "a", "x"), copies=2) + delete((2, "a", "x"), (3, "a", "x"))

    changes = SideChanges(side, stores=True)
    net = changes.resolve(delta_of(side.relation, then))

    assert counted(net.new, net.new_copies) == [(1, 1), (4, 1), (5, 2)]
    assert counted(net.lost, net.lost_copies) == [(2, 1), (3, 1)]
    assert sorted(zip(net.touched.tolist(), net.touched_copies.tolist(), net.touched_gains.tolist(), strict=True)) == [
        (1, 2, True),
        (2, 0, False),
        (3, 2, False),
    ]
    assert counted(changes.rows_of(net.after_refs), net.after_copies) == [(1, 2), (2, 2), (4, 1), (5, 2)]


def counted(rows: pa.RecordBatch, copies: Any) -> list[tuple[Any, int]]:
    """Return the first column of rows with the copies of each, ascending."""
    return sorted(zip(rows.column(0).to_pylist(), copies.tolist(), strict=True))
