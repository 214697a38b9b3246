"""Rows per key in order: the versions of a table, the rows an as-of join looks among, the rows a dedup chooses from.

Each row has *order words*: what orders it (time, then whatever breaks ties), and at last its arrival, so that no two are
equal. The rows of a key are in a run sorted by them (`zset_join.kernels.time.runs`). What a retraction retracts is found
by its order words and compared by value; among equal rows the oldest goes first.

The law: `prepare` reads and changes nothing; `absorb` does what it found. The rows after an epoch do not depend on how the same
changes were cut into epochs.

In `append` and `changelog` mode every row is kept; in `upsert` mode a row takes the place of one of the same key and first
word, and weight -1 is a row too: a DELETE.

Files: `<name>.header`, `.rows`, `.heap`. Bytes per row: `layout.stride`, long strings, 16 to 24 for its entry in the run.

`ExpiringRuns`: when the runs of one input may lose rows, and losing them. Kernels in `zset_join.kernels.time.expiry`.

Files: `<name>.due`, `<name>.forget`. Bytes: 16 per key with more than one version, and per DELETE that is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.kernels.join.absorb import heap_bytes_needed
from zset_join.kernels.rows import changes as ch
from zset_join.kernels.time import expiry as e
from zset_join.kernels.time import groups as g
from zset_join.kernels.time import runs as r
from zset_join.kernels.time.runs import NEVER
from zset_join.state.time.expiries import DueHeap
from zset_join.state.time.key_runs import KeyGroups, KeyRuns, RowStore

__all__ = ["ExpiringRuns", "NewRows", "PreparedRows", "VersionedRows"]

_Words = npt.NDArray[np.int64]
_Marks = npt.NDArray[np.bool_]


@dataclass(slots=True)
class PreparedRows:
    """Effect of the rows of an epoch on one `VersionedRows`."""

    count: int
    address: int  # of the records
    weights: _Words
    status: npt.NDArray[np.uint8]
    deletes: npt.NDArray[np.uint8]
    left: _Words  # weight of each new row after what this epoch retracted of it; 0 for other rows
    begin: _Words  # where the new rows of each group begin in `order`
    order: _Words  # the new rows, by group and in order
    removed_begin: _Words  # where the list of what is taken off the entries of each group's run begins
    removed_at: _Words  # positions in the run
    removed_weight: _Words
    group_of: _Words
    owners: list[Any]

    @property
    def rejected(self) -> int:
        return int((self.status > ch.LAST_HARMLESS).sum())


@dataclass(frozen=True, slots=True)
class NewRows:
    rows: pa.RecordBatch
    order: Sequence[_Words]  # the order words of each row, without the arrival
    weights: _Words  # below 0 a retraction
    status: npt.NDArray[np.uint8]  # rows that are not OK are omitted; retractions of what is not there are marked in it
    deletes: npt.NDArray[np.uint8] | None = None  # which rows are DELETEs; None: none is
    arrivals: _Words | None = None  # of each row; None: they come now


class VersionedRows(RowStore):
    def __init__(
        self,
        schema: pa.Schema,
        keys: KeyRuns,
        *,
        run: int,
        words: int,
        name: str,
        latest_first: bool = False,
        facts: Sequence[object] = (),
    ) -> None:
        super().__init__(schema, keys, words=words, name=name, latest_first=latest_first, facts=facts)
        self.place = keys.run_place(run)

    # ---------------------------------------------------------------- reading

    def prepare(
        self,
        new: NewRows,
        groups: KeyGroups,
        which: int,
        *,
        retracts: bool,
    ) -> PreparedRows:
        """Find out what the rows of an epoch change. Cost: the rows, and what shares their key and order."""
        rows, weights, status = new.rows, new.weights, new.status
        count = rows.num_rows
        group_of = groups.group_of[which]
        arrivals = self.next_arrivals(count) if new.arrivals is None else new.arrivals
        records = np.empty(count * self.layout.stride, np.uint8)
        encoded = self.layout.encode(rows, [*new.order, arrivals], records, int(records.ctypes.data))
        usable = (status == ch.OK) & (group_of >= 0)
        is_new = usable & (weights > 0) if retracts else usable
        marks = np.zeros(count, np.uint8) if new.deletes is None else new.deletes
        begin, places, scratch = np.empty(groups.count + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
        at = self.layout.sequence_offset
        shape = (encoded.address, self.layout.stride, at, self.words, group_of)
        g.order_groups(*shape, is_new, count, groups.count, begin, places, scratch)
        left = np.where(is_new, np.abs(weights), 0)
        removed_begin = np.zeros(groups.count + 1, np.int64)
        removed_at = removed_weight = np.zeros(0, np.int64)
        is_back = usable & (weights < 0) if retracts else None
        if is_back is not None and is_back.any():
            back_begin, back = np.empty(groups.count + 1, np.int64), np.empty(count, np.int64)
            g.order_groups(*shape, is_back, count, groups.count, back_begin, back, scratch)
            most = int(is_back.sum()) + min(self.live_rows, -int(np.maximum(weights[is_back], -(1 << 40)).sum()))
            removed_at, removed_weight = np.empty(most, np.int64), np.empty(most, np.int64)
            r.retract_rows(
                self.keys.view,
                self.place,
                self.view,
                self.columns.address,
                encoded.address,
                weights,
                groups.numbers,
                groups.count,
                begin,
                places,
                back_begin,
                back,
                left,
                status,
                ch.ABSENT_ROW,
                removed_begin,
                removed_at,
                removed_weight,
                self._latest_first,
            )
        return PreparedRows(
            count,
            encoded.address,
            weights,
            status,
            marks,
            left,
            begin,
            places,
            removed_begin,
            removed_at,
            removed_weight,
            group_of,
            [encoded, rows],
        )

    # ---------------------------------------------------------------- writing

    def wanted(self, prepared: PreparedRows) -> _Marks:
        return prepared.begin[1:] > prepared.begin[:-1]

    def run_bytes(self, prepared: PreparedRows, groups: KeyGroups) -> int:
        """Return the bytes by which the blocks of the runs may grow."""
        return int(r.run_bytes_needed(self.keys.view, self.place, groups.numbers, groups.count, prepared.begin))

    def absorb(self, prepared: PreparedRows, groups: KeyGroups, *, supersedes: bool, limit: int = 0) -> None:
        """Apply the result of `prepare`; the keys have their numbers, and room for their runs. Cost: the changes, amortised."""
        heap_bytes = 0
        if len(self.variables):
            heap_bytes = heap_bytes_needed(prepared.address, self.layout.stride, prepared.count, self.variables.address)
        self.make_room(prepared.count, int(heap_bytes))
        r.merge_groups(
            self.keys.view,
            self.place,
            self.view,
            self.variables.address,
            prepared.address,
            prepared.left,
            prepared.deletes,
            groups.numbers,
            groups.count,
            prepared.begin,
            prepared.order,
            prepared.removed_begin,
            prepared.removed_at,
            prepared.removed_weight,
            supersedes,
            limit,
        )


_LEAST_KEYS, _LEAST_ROWS = 4096, 8192


class ExpiringRuns:
    def __init__(
        self, rows: VersionedRows, keys: KeyRuns, *, keeps_newest: bool, first_word: int, directory: str | None
    ) -> None:
        self.rows, self._keys, self._keeps_newest = rows, keys, keeps_newest
        self._first_word, self._directory = first_word, directory
        self._open()

    def _open(self) -> None:
        header, name = self._keys.header, self.rows.name
        self._due = DueHeap(header, self._first_word, directory=self._directory, name=name)
        self._forget = DueHeap(header, self._first_word + 1, directory=self._directory, name=f"{name}.forget")

    def expire(
        self, touched: _Words, horizon: int | None, *, now: int | None, retention: int, changes: int
    ) -> tuple[int, _Words]:
        """Let keys wait whose rows have changed, then free what is past; return how many rows, and the keys they were of."""
        past = -NEVER if horizon is None else horizon
        view, place, side = self._keys.view, self.rows.place, self.rows.view
        self._due.make_room(len(touched))
        self._due.length = int(
            e.schedule(view, place, side, self._keeps_newest, touched, self._due.address, self._due.length, past)
        )
        if horizon is None:
            return 0, np.zeros(0, np.int64)
        most = min(max(_LEAST_KEYS, changes + changes // 4), self._due.length)
        dues, keys, forgetting = (np.empty(most, np.int64) for _ in range(3))
        forget_time = NEVER if now is None else now + retention
        forget_place, variables = self._keys.forget_place, self.rows.variables.address
        self._due.make_room(1)
        length, freed, count, forgets = e.expire(
            view,
            place,
            forget_place,
            side,
            variables,
            self._keeps_newest,
            self._due.address,
            self._due.length,
            past,
            most,
            max(_LEAST_ROWS, 4 * changes),
            forget_time,
            dues,
            keys,
            forgetting,
        )
        self._due.length = int(length)
        self._forget.push(forget_time, forgetting[: int(forgets)])
        if now is None or self._forget.length == 0:
            return int(freed), keys[: int(count)]
        most = min(max(_LEAST_KEYS, changes + changes // 4), self._forget.length)
        forgotten = np.empty(most, np.int64)
        length, dropped, newest = e.forget_deletes(
            view, place, forget_place, side, variables, self._forget.address, self._forget.length, now, past, most, forgotten
        )
        self._forget.length = int(length)
        self._keys.forgotten_until = max(self._keys.forgotten_until, int(newest))
        return int(freed + dropped), np.concatenate([keys[: int(count)], forgotten[: int(dropped)]])

    def resident_bytes(self) -> int:
        return self._due.resident_bytes() + self._forget.resident_bytes()

    def is_current(self) -> bool:
        return self._due.is_current() and self._forget.is_current()

    def reopen(self) -> None:
        """Forget everything, after the keys have been."""
        self.close(remove=True)
        self._open()

    def close(self, *, remove: bool = False) -> None:
        self._due.close(remove=remove)
        self._forget.close(remove=remove)
