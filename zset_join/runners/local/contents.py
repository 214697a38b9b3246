"""What a view holds: the sum of its deltas, and as little of it in memory as its readers need.

The law: rows that are read are the sum of all deltas that were added before the moment that is read.

Where the state of the stages can list a view (`Listing`), a view that nobody reads keeps nothing: its rows are listed when they
are read. From then on the deltas are kept beside them, until they have more rows than the view. A view of a directory begins
with stored rows, and after the last epoch a view keeps what lists it, until it is read.

A moment that a reader holds without reading it (`HeldRows`) keeps the deltas after it alive: its rows are those of a later
moment, less these deltas. A reader waits for the end of the step that runs, at most.

Cost: adding a delta is O(1). Reading costs the rows since the last reading, or a listing. Memory: at most twice the rows of the
view, and those of the newest deltas, or `_LEAST_ROWS`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError, OptionError
from zset_join.core.row_conversion import repeated_positions
from zset_join.core.shown_values import counted, shown_key
from zset_join.zset import ZSet

__all__ = ["Contents", "HeldRows", "Listing", "repeated", "view_not_kept"]

_LEAST_ROWS = 4096
_WAIT_SECONDS = 0.005


@dataclass(frozen=True)
class Listing:
    """List a view from the state of its stages."""

    rows: Callable[[], ZSet]
    lock: threading.RLock  # held while an epoch is folded into the state, and while it is read
    check: Callable[[], None]  # raises where the state cannot be read


class _Moment:
    """Hold the place between two deltas; it keeps the moments after it alive, never those before."""

    __slots__ = ("__weakref__", "delta", "following", "rows")

    def __init__(self) -> None:
        self.rows: ZSet | None = None
        self.delta: ZSet | None = None
        self.following: _Moment | None = None


class HeldRows:
    """Contents of a view at one moment; nothing is copied, and any thread may read them."""

    def __init__(self, read: Callable[[], ZSet]) -> None:
        self._read: Callable[[], ZSet] | None = read
        self._rows: ZSet | None = None

    def rows(self) -> ZSet:
        """Return every distinct row with its weight."""
        read = self._read
        if read is not None:
            self._rows = read()
            self._read = None  # releases the deltas
        assert self._rows is not None  # noqa: S101 - set before `_read` is cleared
        return self._rows


class Contents:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._listing: Listing | None = None
        self._stored: Callable[[], ZSet] | None = None
        self._has_ended = False
        self._consolidated: ZSet | None = ZSet.empty(schema)
        self._pending: list[ZSet] = []
        self._rows_since = 0  # of deltas since the rows were read, or dropped
        self._newest = _Moment()
        self._mark: Callable[[], _Moment | None] = _nothing
        self._most_rows = _LEAST_ROWS
        self._is_wanted = False

    def add(self, delta: ZSet) -> None:
        """Add a delta; where a listing is in use, under its lock."""
        self._stored = None  # the epoch counts, and its files may replace those
        if not len(delta):
            return
        self._rows_since += len(delta)
        if self._consolidated is None:
            self._go_on(delta)
            return
        self._pending.append(delta)
        if self._rows_since > max(_LEAST_ROWS, len(self._consolidated)):
            if self._listing is None:
                self._consolidate()
                return
            self._most_rows = max(_LEAST_ROWS, len(self._consolidated))
            self._consolidated, self._pending, self._rows_since = None, [], 0

    def rows(self) -> ZSet:
        """Return every distinct row with its weight."""
        listing = self._listing
        if listing is None:
            return self._consolidate()
        with listing.lock:
            if listing is not self._listing:  # another pipeline has taken the view over
                return self.rows()
            if self._consolidated is None:
                listing.check()
            return self._consolidate()

    def held(self) -> HeldRows:
        """Return what is held now, in O(1); later deltas do not change it."""
        if self._consolidated is None:
            return HeldRows(partial(self._rows_at, self._newest))
        return HeldRows(partial(_summed_first, self._schema, self._consolidated, self._pending, len(self._pending)))

    def begin_with(self, stored: Callable[[], ZSet]) -> None:
        """Hold rows that are read only where they are needed before the first delta; call `list_by` before that."""
        self._consolidated, self._stored = None, stored

    def replace(self, rows: ZSet) -> None:
        """Hold other rows, each once."""
        self._consolidated, self._pending, self._rows_since, self._stored = rows, [], 0, None
        self._newest, self._mark = _Moment(), _nothing
        self._most_rows, self._is_wanted = _LEAST_ROWS, False

    def list_by(self, listing: Listing | None) -> None:
        """Change what lists the rows; None: deltas are summed from now on. Under the locks of both, while both can."""
        if listing is None:
            self.keep()
        self._listing = listing

    def end(self, rows: Callable[[], ZSet] | None = None) -> bool:
        """Add nothing any more, under the lock of the listing; return whether the rows are listed once, when they are read."""
        listing, self._has_ended = self._listing, True
        if listing is None or self._consolidated is not None:
            self._listing = None
            return False
        self._listing, self._stored = replace(listing, rows=listing.rows if rows is None else rows, check=_nothing), None
        return True

    def settle(self) -> None:
        """Read the rows of moments that are held, since the state is about to go; under the lock of the listing."""
        newest = weakref.ref(self._newest)
        self._newest = _Moment()
        if (held := newest()) is not None and self._consolidated is None:
            self._newest = held
            self.keep()

    def _go_on(self, delta: ZSet) -> None:
        """Follow the newest moment by another one; list the view where a moment is held that is too many deltas behind."""
        before, self._newest = self._newest, _Moment()
        before.delta, before.following = delta, self._newest
        if self._is_wanted:  # by a thread that waits for the lock
            self.keep()
            return
        if self._rows_since <= self._most_rows or (mark := self._mark()) is before:  # the last epoch is held until this counts
            return
        if mark is not None:
            self.keep()
        else:
            self._mark, self._rows_since = weakref.ref(self._newest), 0

    def keep(self) -> None:
        """Bring the rows into memory, where they are not; under the lock of the listing."""
        if self._consolidated is None:
            read = self._stored
            if read is None:
                assert self._listing is not None  # noqa: S101 - else they are never dropped
                read = self._listing.rows
            newest, rows = self._newest, read()
            self.replace(rows)
            newest.rows = rows
            if self._has_ended:
                self._listing = None  # releases the state

    def _consolidate(self) -> ZSet:
        self.keep()
        assert self._consolidated is not None  # noqa: S101 - listed
        if self._pending:
            self._consolidated = _summed(self._schema, [self._consolidated, *self._pending])
            self._pending, self._rows_since = [], 0
        return self._consolidated

    def _rows_at(self, moment: _Moment) -> ZSet:
        """Return the rows of a moment: those of a later one, less the deltas between them."""
        while (listing := self._listing) is not None and _from(moment)[0] is None:
            self._is_wanted = True
            if listing.lock.acquire(timeout=_WAIT_SECONDS):  # a writer that steps on and on takes it again at once
                try:
                    if listing is self._listing and _from(moment)[0] is None:
                        listing.check()
                        self.keep()
                finally:
                    listing.lock.release()
        rows, deltas = _from(moment)
        assert rows is not None  # noqa: S101 - what took the listing away has listed them
        return _summed(self._schema, [rows, *(-delta for delta in deltas)]) if deltas else rows


def _nothing() -> None:
    """Hold no moment, or check nothing."""


def _from(moment: _Moment) -> tuple[ZSet | None, list[ZSet]]:
    """Return the rows of the first moment from this one on that has some, and the deltas up to there; None where none has."""
    deltas = list[ZSet]()
    while moment.rows is None and moment.following is not None:
        assert moment.delta is not None  # noqa: S101 - set before `following` is
        deltas.append(moment.delta)
        moment = moment.following
    return moment.rows, deltas


def _summed_first(schema: pa.Schema, consolidated: ZSet, pending: Sequence[ZSet], count: int) -> ZSet:
    return _summed(schema, [consolidated, *pending[:count]]) if count else consolidated


def _summed(schema: pa.Schema, parts: Sequence[ZSet]) -> ZSet:
    return ZSet.concat([_of_schema(part, schema) for part in parts], schema=schema).consolidated()


def _of_schema(part: ZSet, schema: pa.Schema) -> ZSet:
    """Return the rows under fields that may differ in what is never NULL."""
    if part.schema.equals(schema):
        return part
    return ZSet(pa.RecordBatch.from_arrays(part.rows.columns, schema=schema), part.weights)


def repeated(rows: ZSet, schema: pa.Schema) -> pa.Table:
    """Return the contents of a view as a table: a row is present as often as its weight."""
    if len(rows) and rows.weights.min() < 0:
        first = int(np.flatnonzero(rows.weights < 0)[0])
        row, weight = shown_key(rows.rows.columns, first), int(rows.weights[first])
        raise BadInputError(
            f"the view holds the row {row} {counted(weight, 'time')}: a source that goes through no stage has retracted an "
            f"absent row. Correct the source.",
            code="ABSENT_ROW",
            row=row,
            weight=weight,
        )
    if (rows.weights == 1).all():
        return pa.Table.from_batches([rows.rows], schema)
    return pa.Table.from_batches([rows.rows.take(pa.array(repeated_positions(rows.weights)))], schema)


def view_not_kept() -> OptionError:
    return OptionError(
        "this pipeline was made with keep_view=False and keeps only what it needs; sum its deltas, or remove the option.",
        code="VIEW_NOT_KEPT",
    )
