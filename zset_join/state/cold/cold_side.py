"""The rows of one side that are on disk, how they are found there, and how they come and go.

The law: a row is in memory or in the cold store, never in both and never in neither, after every call, also one that raises a
`ZsetJoinError`. Moving changes neither a row nor what it remembers (weight, sequence, degree).

Rows lie by the hash of their join key and, below it, that of their identity. Where a delta names a row by a primary key
that does not contain the join key, a second store (`keys`, of pairs) holds the hash of the join key by that of the primary
key. It has an entry for the hashes of every cold row. An entry stays when its row is read into memory, and is present when the
row goes again under the same join key; entries of rows that moved or were deleted are only looked up in vain, and when half as
many as there are rows have gathered, the store is written again. Both hashes have 32 bits and are not verified here: a stranger
of the same hash comes into memory and does no harm.

Remembers on disk the rows, and 10 to 15 bytes for each with `keys`; in memory 4.5 bytes per cold row, and 2.1 to 3.2 more with
`keys`. What cold rows count for at the limit of an append-only join (`SideState.live_bytes`) is in the header of the side.

`ColdTombstones`: the tombstones of one side that are on disk, how they are found there, and how they come and go.

The law: a tombstone is in memory or here, never in both and never in neither, as a row is;
and it is remembered exactly as long as one in memory. One that expired is not brought in any more; it goes from the disk when
half of all are expired.

They lie by the hash of their identity, which is not verified here: a stranger of the same hash comes into memory and does no
harm. The oldest go to disk first, and one that returns takes its place in the queue.

Remembers on disk the record of each; in memory 4.5 bytes, and for each piece that was spilled how many there were and when
the last of them was left, 16 bytes, of 1,024 pieces at most.

Known limits. Opening the state again loses the age of each one: what expired before goes from the disk later, when
the newest that was present then has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows, Int64s
from spill.cold_stores import ColdStores
from spill.pair_store import PairStore
from spill.row_bytes import LINK_BYTES, UnpackedRows, pack_rows
from spill.run_store import RunStore
from zset_join.kernels.rows import side as s
from zset_join.kernels.values.keys import FLAG_ARRANGED, FLAGS, WEIGHT
from zset_join.state.cold.hot_rows import NOWHERE, HotRows
from zset_join.state.rows.side import PreparedSide, SideState

__all__ = ["ColdSide", "matchable_codes", "matchable_rows"]

_MOST_PIECES = 1 << 10
SPARE_TOMBSTONES = 1024
"""How many that expired are no reason to look for them on disk."""
_PACKED_BYTES = 1 << 20


class ColdTombstones:
    def __init__(self, side: SideState, hot: HotRows, stores: ColdStores, owner: Mapping[str, str | int]) -> None:
        self._side = side
        self._hot = hot
        self.store = stores.rows(f"{side.name}.tombstones", owner=owner, with_subcodes=False)
        self._pieces: list[tuple[int, int]] = []  # watermark of the newest, how many
        if self.store.row_count():
            self._pieces.append((side.watermark, self.store.row_count()))
        self._expired = 0
        self.counts = {"fetched_tombstones": 0, "spilled_tombstones": 0}

    def __len__(self) -> int:
        return self.store.row_count()

    def find(self, identity_codes: Int64s) -> Iterator[ColdRows]:
        """Yield those of some identities, by hash; `RunStore.fetch_parts` describes how."""
        if len(self) and len(identity_codes):
            yield from self.store.fetch_parts(identity_codes)

    def take(self, cold_rows: ColdRows, stamp: int) -> None:
        """Move tombstones that were found into memory, and forget those of them that expired."""
        # Until the store is marked as changed, anything may fail; then nothing.
        remembered = self._remembered(cold_rows)
        unpacked = self._hot.unpack(remembered)
        self._hot.make_room(unpacked)
        self.store.begin_change()
        self.store.remove(cold_rows.places)
        self._hot.insert_tombstones(unpacked, remembered.codes, stamp)
        self.counts["fetched_tombstones"] += len(remembered)

    def spill(self, count: int, piece_bytes: int, below_stamp: int | None) -> int:
        """Move the oldest tombstones out of memory, but none that an epoch from `below_stamp` on names; return how many."""
        numbers = self._hot.oldest_tombstones(count, below_stamp)
        size = max(1, piece_bytes // self._hot.bytes_per_row())
        for begin in range(0, len(numbers), size):
            piece = numbers[begin : begin + size]
            _, codes = self._hot.hashes(piece)
            newest = int(self._side.weights(piece).max())
            self.store.put_parts(self._packed(piece, codes))
            self._hot.drop_tombstones(piece, codes)
            self._note_piece(newest, len(piece))
        self.counts["spilled_tombstones"] += len(numbers)
        return len(numbers)

    def _packed(self, numbers: Int64s, codes: Int64s) -> Iterator[ColdRows]:
        """Yield tombstones as the store takes them and in its order, some at a time."""
        order = self.store.in_order(codes, codes)
        rows = max(1, _PACKED_BYTES // self._hot.bytes_per_row())
        for begin in range(0, len(order), rows):
            some = order[begin : begin + rows]
            yield self._hot.pack(numbers[some], codes[some], codes[some])

    def _note_piece(self, newest: int, count: int) -> None:
        self._pieces.append((newest, count))
        if len(self._pieces) > _MOST_PIECES:
            pairs = zip(self._pieces[::2], self._pieces[1::2], strict=False)
            odd = self._pieces[len(self._pieces) // 2 * 2 :]
            self._pieces = [(max(a, b), more + others) for (a, more), (b, others) in pairs] + odd

    def tidy(self) -> None:
        """Remove expired rows from disk when they are half of all, and merge runs. Cost: amortised O(1) each."""
        horizon = self._side.horizon
        if horizon is not None:
            self._expired += sum(count for newest, count in self._pieces if newest <= horizon)
            self._pieces = [piece for piece in self._pieces if piece[0] > horizon]
        if self._expired > SPARE_TOMBSTONES and 2 * self._expired >= len(self):
            for rows in self.store.scan():
                self.store.remove(rows.places[~self._is_remembered(rows)])
            self._expired = 0
        self.store.tidy()

    def scan(self) -> Iterator[UnpackedRows]:
        """Yield those that did not expire as records, about a MB at a time."""
        for rows in self.store.scan():
            yield self._hot.unpack(self._remembered(rows))

    def clear(self) -> None:
        self.store.clear()
        self._pieces, self._expired = [], 0

    def _remembered(self, rows: ColdRows) -> ColdRows:
        return rows.chosen(self._is_remembered(rows))

    def _is_remembered(self, rows: ColdRows) -> npt.NDArray[np.bool_]:
        """Return which have not expired by the watermark of the last epoch."""
        horizon = self._side.horizon
        if horizon is None:
            return np.ones(len(rows), np.bool_)
        offsets, content = rows.buffers()
        begins = offsets[:-1] + (WEIGHT - LINK_BYTES)
        left_at = content[begins[:, None] + np.arange(8)].view(np.int64)[:, 0] if len(rows) else np.empty(0, np.int64)
        return left_at > horizon


_MOST_ENTRIES = 1.5  # per row; those beyond one per row are of rows that moved or are gone
_ENTRIES_AT_ONCE = 1 << 18
SPARE_ENTRIES = 1024
"""How many outdated entries are no reason to write `keys` again."""
_NO_PLACES = np.empty(0, np.int64)


def matchable_codes(rows: ColdRows) -> Int64s:
    codes: Int64s = rows.codes[_can_match(rows)]
    return codes


def _can_match(rows: ColdRows) -> npt.NDArray[np.bool_]:
    offsets, content = rows.buffers()
    matchable: npt.NDArray[np.bool_] = (content[offsets[:-1] + (FLAGS - LINK_BYTES)] & FLAG_ARRANGED) != 0
    return matchable


def matchable_rows(rows: ColdRows) -> ColdRows:
    return rows.chosen(_can_match(rows))


class ColdSide:
    """Own the cold stores of one side."""

    def __init__(self, side: SideState, stores: ColdStores) -> None:
        self.side = side
        has_keys = side.relation.mode == "upsert" and not set(side.relation.join_key) <= set(side.relation.primary_key)
        self.hot = HotRows(side, has_entries=has_keys)
        owner: dict[str, str | int] = {"relation": side.relation.name, "layout": int(side.header[s.H_FINGERPRINT])}
        self._rows = stores.rows(f"{side.name}.rows", owner=owner, with_subcodes=side.has_identity)
        self._keys = stores.pairs(f"{side.name}.keys", owner=owner) if has_keys else None
        self._tombstones = ColdTombstones(side, self.hot, stores, owner) if side.keeps_tombstones else None
        self.taken_rows = 0
        self._counts = {"fetched_rows": 0, "spilled_rows": 0, "restored_rows": 0, "streamed_rows": 0, "rewritten_rows": 0}

    @property
    def _stores(self) -> list[RunStore | PairStore]:
        keys = [] if self._keys is None else [self._keys]
        tombstones = [] if self._tombstones is None else [self._tombstones.store]
        return [self._rows, *keys, *tombstones]

    def row_count(self) -> int:
        return self._rows.row_count()

    def tombstone_count(self) -> int:
        """Return the number of cold tombstones, with those that expired and are still on disk."""
        return 0 if self._tombstones is None else len(self._tombstones)

    # ---------------------------------------------------------------- finding

    def find_named(self, prepared: PreparedSide, missing: Int64s) -> Iterator[ColdRows]:
        """Yield the cold rows that some rows of a delta name, by position in the delta, as `RunStore.fetch_parts`."""
        identities = prepared.identity_codes[missing]
        if self._keys is None:
            return self._rows.fetch_parts(prepared.join_codes[missing], identities)
        named, codes = self._keys.find(identities)
        return self._rows.fetch_parts(codes, named)

    def find_tombstones(self, prepared: PreparedSide, missing: Int64s) -> Iterator[ColdRows]:
        return iter(()) if self._tombstones is None else self._tombstones.find(prepared.identity_codes[missing])

    def find_keys(self, codes: Int64s) -> Iterator[ColdRows]:
        """Yield the cold rows whose join key has one of these hashes."""
        return self._rows.fetch_parts(codes)

    def find_some(self, codes: Callable[[], Int64s]) -> Iterator[ColdRows]:
        """Yield at least one cold row of each of these hashes that has any; `RunStore.fetch_some` describes how."""
        return self._rows.fetch_some(codes)

    # ---------------------------------------------------------------- moving

    def expect_rows(self) -> None:
        """Make room for as many rows as came since this was called last: tables that grow step by step are written often."""
        self.hot.reserve(self.taken_rows)
        self.taken_rows = 0

    def compact(self) -> None:
        """Compact the live entries; tables keep room for the rows that will be expected."""
        self.side.compact(more_rows=self.taken_rows)

    def take(self, cold_rows: ColdRows, stamp: int, clock: float) -> Int64s:
        """Move rows that were found into memory; return their numbers there."""
        # Until the store is marked as changed, anything may fail; then nothing.
        if not len(cold_rows):
            return _NO_PLACES
        unpacked = self.hot.unpack(cold_rows)
        self.hot.make_room(unpacked)
        self._rows.begin_change()
        self._rows.remove(cold_rows.places)
        held_bytes = self.side.held_bytes
        numbers = self.hot.insert(unpacked, cold_rows, stamp, clock)
        self._keep_held(held_bytes)
        self.taken_rows += len(cold_rows)
        self._counts["fetched_rows"] += len(cold_rows)
        return numbers

    def take_tombstones(self, cold_rows: ColdRows, stamp: int) -> None:
        if self._tombstones is not None and len(cold_rows):
            self._tombstones.take(cold_rows, stamp)

    def spill_tombstones(self, count: int, piece_bytes: int, below_stamp: int | None) -> int:
        """Move the oldest tombstones out of memory; return how many. As `ColdTombstones.spill`."""
        return self._tombstones.spill(count, piece_bytes, below_stamp) if self._tombstones is not None and count else 0

    def spill(self, numbers: Int64s) -> None:
        """Move rows out of memory, those first that still lie where they were."""
        codes, subcodes = self.hot.hashes(numbers)
        self._put_keys(numbers, codes, subcodes)
        places = self.hot.places(numbers)
        left = places == NOWHERE
        if not left.all():
            back = ~left
            left[back] = ~self._rows.restore(places[back])
            self._drop(numbers[~left], subcodes[~left])
        if left.any():
            self._rows.put_parts(self._packed(numbers[left], codes[left], subcodes[left]))
            self._drop(numbers[left], subcodes[left])
        self._counts["spilled_rows"] += len(numbers)
        self._counts["restored_rows"] += len(numbers) - int(left.sum())

    def revise(self, codes: Int64s, revised: Callable[[ColdRows, UnpackedRows], npt.NDArray[np.bool_]]) -> None:
        """Write some rows of some join hashes, whose key can match, as they will be; until `exchange` they stay as they are."""
        # `revised` changes records, though neither keys nor sizes, and returns which.
        layout = self.side.layout

        def packed(old_rows: ColdRows) -> ColdRows:
            rows = matchable_rows(old_rows)
            if not len(rows):  # strangers of the same hash, all of them with a NULL in their key
                return rows
            records = self.hot.unpack(rows)
            kept = revised(rows, records)
            content = pack_rows(records.refs(layout.stride)[kept], stride=layout.stride, variables=self.side.variables_address)
            self._counts["rewritten_rows"] += len(content)
            return ColdRows(rows.codes[kept], rows.subcodes[kept], content, rows.places[kept])

        self._rows.revise(codes, packed)

    def exchange(self) -> None:
        self._rows.exchange()

    def forget_revised(self) -> None:
        self._rows.forget_revised()

    def _packed(self, numbers: Int64s, codes: Int64s, subcodes: Int64s) -> Iterator[ColdRows]:
        """Yield rows as the store takes them and in its order, some at a time."""
        order = self._rows.in_order(codes, subcodes)
        rows = max(1, _PACKED_BYTES // self.hot.bytes_per_row())
        for begin in range(0, len(order), rows):
            some = order[begin : begin + rows]
            yield self.hot.pack(numbers[some], codes[some], subcodes[some])

    def _drop(self, numbers: Int64s, subcodes: Int64s) -> None:
        held_bytes = self.side.held_bytes
        self.hot.drop(numbers, subcodes)
        self._keep_held(held_bytes)

    def _keep_held(self, held_bytes: int) -> None:
        """Account for the bytes that a move took."""
        self.side.header[s.H_COLD_BYTES] += held_bytes - self.side.held_bytes

    def _put_keys(self, numbers: Int64s, codes: Int64s, subcodes: Int64s) -> None:
        """Note where rows will lie, if it is not noted; an entry whose row then does not come is harmless."""
        if self._keys is None:
            return
        unknown = ~self.hot.have_entries(numbers, codes, subcodes)
        if unknown.any():
            self._keys.put(subcodes[unknown], codes[unknown])

    def tidy(self) -> None:
        self._rows.tidy()
        if self._keys is not None:
            if self._keys.row_count() > _MOST_ENTRIES * (self.row_count() + self.hot.live_rows) + SPARE_ENTRIES:
                self.hot.forget_entries()
                self._keys.replace(self._every_entry())
            self._keys.tidy()
        if self._tombstones is not None:
            self._tombstones.tidy()

    def _every_entry(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield an entry for each cold row: the hashes of its identity and of its join key."""
        held: list[ColdRows] = []
        for rows in self._rows.scan():
            held.append(rows)
            if sum(map(len, held)) >= _ENTRIES_AT_ONCE:
                yield _entries_of(held)
                held = []
        if held:
            yield _entries_of(held)

    def keep_index(self, keep: bool, window: int) -> None:
        """Set whether the index of cold rows may stay in this process; else release it, and `window` bytes are in at a time."""
        for store in self._stores:
            store.keep_index, store.index_window = keep, window
            if not keep:
                store.release()

    def commit(self, epoch: int) -> None:
        for store in self._stores:
            store.commit(epoch)

    def is_current(self) -> bool:
        return all(store.is_current() for store in self._stores)

    def clear(self) -> None:
        self.hot.forget_entries()
        for cold in [self._rows, self._keys, self._tombstones]:
            if cold is not None:
                cold.clear()

    # ---------------------------------------------------------------- numbers

    @property
    def epochs(self) -> set[int]:
        return {store.epoch for store in self._stores}

    def scan(self) -> Iterator[UnpackedRows]:
        """Yield all cold rows as records, about a MB at a time."""
        for rows in self._rows.scan():
            yield self.hot.unpack(rows)

    def scan_tombstones(self) -> Iterator[UnpackedRows]:
        return iter(()) if self._tombstones is None else self._tombstones.scan()

    def scan_codes(self) -> Iterator[tuple[Int64s, UnpackedRows]]:
        """Yield all cold rows whose key can match, as records and with their join hashes, about a MB at a time."""
        for rows in self._rows.scan():
            kept = matchable_rows(rows)
            yield kept.codes, self.hot.unpack(kept)

    def stream(self, code: int, chunk_bytes: int = 1 << 20) -> Iterator[tuple[ColdRows, UnpackedRows]]:
        """Yield the cold rows whose key can match and has one hash: as they lie there, and as records."""
        for rows in self._rows.stream(code, chunk_bytes):
            kept = matchable_rows(rows)
            self._counts["streamed_rows"] += len(kept)
            yield kept, self.hot.unpack(kept)

    def pass_through(self, codes: Int64s) -> Iterator[tuple[ColdRows, UnpackedRows]]:
        """Yield the cold rows whose key can match and has one of some hashes: as they lie there, and as records."""
        for rows in self.find_keys(codes):
            kept = matchable_rows(rows)
            self._counts["streamed_rows"] += len(kept)
            if len(kept):
                yield kept, self.hot.unpack(kept)

    @property
    def streamed_rows(self) -> int:
        """Return how many rows passed through memory or were streamed so far."""
        return self._counts["streamed_rows"]

    def oversized_keys(self, codes: Int64s, least_bytes: int) -> tuple[Int64s, Int64s]:
        """Return those of some join hashes whose cold rows take at least so many bytes on disk, ascending, and these bytes."""
        return self._rows.long_among(codes, least_bytes)

    def index_bytes(self) -> int:
        return sum(store.resident_bytes() for store in self._stores)

    def staying_bytes(self) -> int:
        """Return its bytes in memory after the index is released."""
        return sum(store.staying_bytes() for store in self._stores)

    def lingering_bytes(self) -> int:
        """Return its further bytes in memory because of later reads."""
        return sum(store.lingering_bytes() for store in self._stores)

    def statistics(self) -> dict[str, int]:
        rows = self._rows.statistics()
        counts = {
            "rows": self.hot.live_rows + self.row_count(),
            "hot_rows": self.hot.live_rows,
            "cold_rows": self.row_count(),
            "tombstones": self.hot.tombstones + self.tombstone_count(),
            "hot_tombstones": self.hot.tombstones,
            "cold_tombstones": self.tombstone_count(),
            "cold_disk_bytes": sum(store.disk_bytes() for store in self._stores),
            "cold_index_bytes": self.index_bytes(),
            "pages_read": rows["pages_read"],
            "bytes_read": rows["bytes_read"],
            "merged_rows": rows["rows_merged"],
            **self._counts,
            **({} if self._tombstones is None else self._tombstones.counts),
        }
        return {f"{self.side.name}_{name}": value for name, value in counts.items()}

    def close(self) -> None:
        for store in self._stores:
            store.close()


def _entries_of(parts: list[ColdRows]) -> tuple[Int64s, Int64s]:
    """Return the entries of rows in `keys`: the hash of the identity, and that of the join key."""
    return np.concatenate([part.subcodes for part in parts]), np.concatenate([part.codes for part in parts])
