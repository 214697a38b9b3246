"""The tombstones of one side that are on disk, how they are found there, and how they come and go.

The law: a tombstone is in memory or here, never in both and never in neither, as a row is (`zset_join.state.cold.cold_side`);
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

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from spill.cold_store import ColdRows, Int64s
from spill.cold_stores import ColdStores
from spill.row_bytes import LINK_BYTES, UnpackedRows
from zset_join.kernels.values.columns import WEIGHT
from zset_join.state.cold.hot_rows import HotRows
from zset_join.state.rows.side import SideState

__all__ = ["ColdTombstones"]

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
