"""Which input changes made and unmade an output row, from the log that the checkpoint keeps.

The rows requested are found on the side whose columns are named; the join keys they ever had select the logged rows that
matter. Those are replayed, epoch by epoch, through an operator that is built empty, so what is reported is what the engine
answers, not a second opinion about it.

Memory: the matching rows of one epoch and the state of their join keys. Cost: two passes over snapshot and log of the
stage, three where a row of an upsert stream may change its join key. Limits: what happened before a bucket's snapshot is
reported as the rows that were live then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.errors import KeyTypeError, OptionError
from zset_join.core.key_types import common_key_type, storage_type
from zset_join.core.notebook import MOST_ROWS, html_table
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted, shown_rows
from zset_join.core.tick import Tick
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import DurableOperator, due_of

__all__ = ["InputChange", "Row", "RowEvent", "RowHistory", "RowQuestion", "have_values", "requested_values", "together"]

_SIDES = ("left", "right")
_ENDED = "rows expired (state_ttl): their time had passed"
Row = dict[str, Any]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class InputChange:
    """Hold one change of an input."""

    stream: str
    row: Row
    weight: int
    causes: tuple[InputChange, ...] = ()
    missing_reason: str = ""

    @property
    def sources(self) -> tuple[InputChange, ...]:
        """Return the changes of streams that it goes back to, each once: of a stream this one."""
        if not self.causes and not self.missing_reason:
            return (self,)
        return _each_once(source for cause in self.causes for source in cause.sources)

    def _lines(self, indent: str) -> Iterator[str]:
        yield f"{indent}because {self.stream} {self.weight:+d} {self.row}" + (
            f" ({self.missing_reason})" if self.missing_reason else ""
        )
        for cause in self.causes:
            yield from cause._lines(f"{indent}  ")


@dataclass(frozen=True, slots=True)
class RowEvent:
    """Hold what one epoch did to the rows requested."""

    epoch: int
    emitted: tuple[tuple[Row, int], ...]
    changes: tuple[InputChange, ...]
    is_snapshot: bool = False
    time: str = ""

    @property
    def sources(self) -> tuple[InputChange, ...]:
        """Return the changes of streams that the changes go back to, through all joins of a chain, each once."""
        return _each_once(source for change in self.changes for source in change.sources)


@dataclass(slots=True)
class _Selection:
    """Name the logged rows that matter: by join key, and per side by primary key where a row may change its join key.

    Each is one array of values per key column, None for a column that does not narrow. More rows than needed do no harm.
    `named_keys` are, per upsert side, the primary keys of the rows that have the values requested.
    """

    join_keys: list[pa.Array | None]
    primary_keys: list[list[pa.Array | None] | None]
    named_keys: dict[int, list[pa.Array | None]]


@dataclass(frozen=True, repr=False)
class RowHistory:
    """How some rows of an output came and went."""

    question: Mapping[str, Any]
    events: Sequence[RowEvent] = field(default_factory=tuple)
    is_complete: bool = True
    is_group: bool = False

    @property
    def live_rows(self) -> tuple[tuple[Row, int], ...]:
        """Return the rows that are present after the last epoch, as (row, weight): of a group, the rows that are in it."""
        total: dict[str, tuple[Row, int]] = {}
        for event in self.events:
            for row, weight in event.emitted:
                total[repr(row)] = row, weight + total.get(repr(row), (row, 0))[1]
        return tuple((row, weight) for row, weight in total.values() if weight)

    def __repr__(self) -> str:
        """Return the request and how much was found; `str` has all of it."""
        return f"RowHistory({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return the events as a table for a notebook: what changed in the inputs, and the rows that went and came."""
        rows: list[list[Any]] = []
        signs: list[int] = []
        for event in self.events:
            shown = [(change.stream, change.row, change.weight) for change in event.changes]
            shown += [("view", row, weight) for row, weight in event.emitted]
            for name, row, weight in shown:
                values = ", ".join(f"{column}={value!r}" for column, value in row.items())
                rows.append([event.epoch, name, f"{weight:+d}", values])
                signs.append(-1 if weight < 0 else 1)
        few = rows[:MOST_ROWS]
        return html_table(["epoch", "where", "weight", "row"], few, caption=str(self).splitlines()[0], signs=signs)

    def __str__(self) -> str:
        named = ", ".join(f"{name}={value!r}" for name, value in self.question.items())
        since = "since the first epoch" if self.is_complete else "since the beginning of the log"
        what = "the rows of its groups" if self.is_group else "it"
        lines = [f"{named}: {counted(len(self.events), 'epoch')} touched {what} {since}"]
        for event in self.events:
            lines.append(f"epoch {event.epoch}" + (" (from a snapshot)" if event.is_snapshot else ""))
            lines += [f"  {weight:+d} {row}" for row, weight in event.emitted] or ["  nothing changed in the output"]
            lines += [line for change in event.changes for line in change._lines("    ")]
            lines += [f"    because {event.time}"] if event.time else []
        return "\n".join(lines)


class RowQuestion:
    """Request the history of output rows with given values."""

    def __init__(
        self,
        build: Callable[[str | None], DurableOperator],
        shown: pa.Schema,
        sources: Sequence[tuple[str, str]],
        row: Mapping[str, Any],
        *,
        values: Mapping[str, pa.Array] | None = None,
        most_rows: int = 1_000,
        epochs: Collection[int] | None = None,
        has_all_causes: bool = False,
    ) -> None:
        self._build = build
        self._epochs_asked = epochs
        self._has_all_causes = has_all_causes
        self._shown = shown
        self._row = dict(row)
        self._most_rows = most_rows
        self._rows = 0
        operator = build(None)
        try:
            self._inputs = operator.inputs
            names = operator.output.schema.names
        finally:
            operator.close()
        self._values = requested_values(shown, self._row) if values is None else dict(values)
        source_of = dict(zip(names, sources, strict=True))
        pairs = list(zip(*(relation.join_key for relation in self._inputs), strict=True))
        self._key_types = [_common_type(self._inputs, *pair) for pair in pairs]
        self._key_names = [
            [name for name, source in source_of.items() if source in {("left", left), ("both", left), ("right", right)}]
            for left, right in pairs
        ]
        self._wanted: tuple[dict[str, pa.Array], ...] = ({}, {})
        for name, wanted in self._values.items():
            if wanted.null_count < len(wanted):
                side, source = source_of[name]
                for position in (0, 1) if side == "both" else (_SIDES.index(side),):
                    self._wanted[position][source] = wanted
        self._narrowing = tuple(dict(wanted) for wanted in self._wanted)
        for pair in pairs:
            for position, name in enumerate(pair):
                if name in self._wanted[position]:
                    self._narrowing[1 - position].setdefault(pair[1 - position], self._wanted[position][name])

    def find_history(self, files: CheckpointFiles, histories: Sequence[BucketHistory]) -> RowHistory:
        """Return the history of the rows, from what all buckets of the join stage keep."""
        self._rows = 0
        events: dict[int, RowEvent] = {}
        for history in histories:
            for event in self._of_bucket(files, history):
                before = events.get(event.epoch)
                events[event.epoch] = event if before is None else together(before, event)
        is_complete = all(history.snapshot is None for history in histories)
        return RowHistory(self._row, tuple(events[epoch] for epoch in sorted(events)), is_complete)

    def _of_bucket(self, files: CheckpointFiles, history: BucketHistory) -> Iterator[RowEvent]:
        selection = self._select(files, history)
        if selection is None:
            return
        operator = self._build(None)
        try:
            if history.snapshot is not None:
                tables = dict(read_snapshot(files, history.snapshot))
                for position, side in enumerate(_SIDES):
                    for name in (side, f"ttl_{position}"):  # rows that end by time are there a second time, with it
                        if name in tables:
                            tables[name] = tables[name].filter(pa.array(self._is_selected(tables[name], position, selection)))
                operator.restore(tables)
                live = self._emitted(self._live_at(tables))[0] if self._epochs_asked is None else ()
                if live:
                    yield RowEvent(history.snapshot.through_epoch, live, (), is_snapshot=True)
            for tick, deltas in self._epochs(files, history, operator.absorbed_epoch):
                kept = tuple(_filtered(delta, self._is_selected(delta.rows, at, selection)) for at, delta in enumerate(deltas))
                due = due_of(operator)
                is_due = due.is_due(watermark_us=tick.watermark_us, processing_time_us=tick.processing_time_us)
                if not is_due and not any(len(delta) for delta in kept):
                    continue
                if self._epochs_asked is None or tick.epoch in self._epochs_asked:
                    emitted, keys = self._emitted(operator.answer(tick, kept))
                    changes = tuple(self._changes(kept, bool(emitted), keys, selection))
                    if emitted or changes:
                        yield RowEvent(tick.epoch, emitted, changes, time="" if changes or not is_due else _ENDED)
                operator.absorb(tick, kept)
        finally:
            operator.close()

    def _epochs(self, files: CheckpointFiles, history: BucketHistory, after: int) -> Iterator[tuple[Tick, tuple[ZSet, ...]]]:
        schemas = [relation.schema for relation in self._inputs]
        for log in history.logs:
            for logged in read_log(files, log, schemas=schemas):
                if logged.tick.epoch > after:
                    yield logged.tick, logged.deltas

    def _tables(self, files: CheckpointFiles, history: BucketHistory) -> Iterator[tuple[int, Any]]:
        """Yield (input, rows) of the snapshot and of every logged epoch."""
        if history.snapshot is not None:
            tables = read_snapshot(files, history.snapshot)
            yield from ((at, _with_columns_of(tables[side], self._inputs[at].schema)) for at, side in enumerate(_SIDES))
        for _, deltas in self._epochs(files, history, -1):
            yield from ((position, delta.rows) for position, delta in enumerate(deltas))

    def _select(self, files: CheckpointFiles, history: BucketHistory) -> _Selection | None:
        """Return which rows of a bucket matter; None when there are none."""
        selected: list[list[pa.Array]] = [[] for _ in self._inputs[0].join_key]
        named: dict[int, list[list[pa.Array]]] = {
            at: [[] for _ in side.primary_key] for at, side in enumerate(self._inputs) if side.mode == "upsert"
        }
        rows = 0
        for position, table in self._tables(files, history):
            mask = self._matches(table, position)
            if mask.any():
                rows += int(mask.sum())
                for at, values in enumerate(self._join_key(table, position)):
                    if values is not None:
                        selected[at].append(values.filter(pa.array(mask)))
                if position in named and self._wanted[position]:
                    for at, values in enumerate(self._primary_key(table, position)):
                        if values is not None:
                            named[position][at].append(values.filter(pa.array(mask)))
        if not rows:
            return None
        named_keys = {position: _distinct(columns) for position, columns in named.items() if any(columns)}
        selection = _Selection(_distinct(selected), [None, None], named_keys)
        movers = [at for at, side in enumerate(self._inputs) if side.mode == "upsert" and not _is_inside(side)]
        moved: dict[int, list[list[pa.Array]]] = {at: [[] for _ in self._inputs[at].primary_key] for at in movers}
        if movers:
            for position, table in self._tables(files, history):
                if position in moved:
                    mask = self._is_selected(table, position, selection)
                    for at, values in enumerate(self._primary_key(table, position)):
                        if values is not None:
                            moved[position][at].append(values.filter(pa.array(mask)))
        for position, columns in moved.items():
            selection.primary_keys[position] = _distinct(columns)
        return selection

    def _join_key(self, table: Any, position: int) -> list[pa.Array | None]:
        """Return the join key columns in the types both sides share."""
        names = self._inputs[position].join_key
        return [_comparable(table.column(name), kind) for name, kind in zip(names, self._key_types, strict=True)]

    def _primary_key(self, table: Any, position: int) -> list[pa.Array | None]:
        relation = self._inputs[position]
        return [
            _comparable(table.column(name), storage_type(relation.schema.field(name).type)) for name in relation.primary_key
        ]

    def _is_selected(self, table: Any, position: int, selection: _Selection) -> Flags:
        mask = _is_among(self._join_key(table, position), selection.join_keys, table.num_rows)
        primary_keys = selection.primary_keys[position]
        if primary_keys is not None:
            mask |= _is_among(self._primary_key(table, position), primary_keys, table.num_rows)
        return mask

    def _matches(self, table: Any, position: int) -> Flags:
        """Return which rows of an input have the values requested; none where nothing of this side is requested."""
        # A value of a join key narrows both sides: what meets on it has it in common.
        wanted = self._narrowing[position]
        mask = np.full(table.num_rows, bool(wanted))
        for name, values in wanted.items():
            mask &= _is_one_of(table.column(name), values)
        return mask

    def _live_at(self, tables: Mapping[str, pa.Table]) -> Iterator[ZSet]:
        """Yield what the join of the rows in a snapshot is."""
        operator = self._build(None)
        try:
            deltas = []
            for side, relation in zip(_SIDES, self._inputs, strict=True):
                weights = np.asarray(tables[side].column(SNAPSHOT_WEIGHT), dtype=np.int64)
                rows = tables[side].select(relation.schema.names).cast(relation.schema)
                deltas.append(_filtered(ZSet(single_batch(rows), weights), weights > 0))
            yield from operator.answer(Tick(0), deltas)
        finally:
            operator.close()

    def _emitted(self, answer: Iterator[ZSet]) -> tuple[tuple[tuple[Row, int], ...], list[pa.Array | None]]:
        """Return the rows of an answer that were requested, and the values of their join keys."""
        kept = []
        keys: list[list[pa.Array]] = [[] for _ in self._key_names]
        for chunk in answer:
            requested = _filtered(chunk, have_values(chunk.rows, self._values))
            self._count(len(requested))
            kept.append(ZSet(requested.rows.select(self._shown.names), requested.weights))
            for at, (names, kind) in enumerate(zip(self._key_names, self._key_types, strict=True)):
                columns = [column for name in names if (column := _comparable(requested.rows.column(name), kind)) is not None]
                keys[at] += [pc.coalesce(*columns)] if columns else []
        rows = ZSet.concat(kept, schema=self._shown)
        rows = rows if self._has_all_causes else rows.consolidated()
        pairs = list(zip(shown_rows(rows.rows), rows.weights.tolist(), strict=True))
        return tuple(sorted(pairs, key=lambda pair: pair[1] > 0)), _distinct(keys)

    def _changes(
        self, deltas: Sequence[ZSet], met: bool, keys: Sequence[pa.Array | None], selection: _Selection
    ) -> Iterator[InputChange]:
        """Yield the changes that name the rows requested, and, if any were emitted, those of the other side with their keys."""
        # An upsert that takes a value requested away does not name it any more: it is known by its primary key.
        for position, (relation, delta) in enumerate(zip(self._inputs, deltas, strict=True)):
            if not len(delta):
                continue
            if self._has_all_causes:
                mask = np.full(len(delta), met)
            elif self._wanted[position]:
                mask = self._names_row(relation, delta, position)
                if met and position in selection.named_keys:
                    mask |= _is_among(self._primary_key(delta.rows, position), selection.named_keys[position], len(delta))
            elif met:
                mask = _is_among(self._join_key(delta.rows, position), keys, len(delta))
            else:
                continue
            kept = _filtered(delta, mask)
            self._count(len(kept))
            for row, weight in zip(shown_rows(kept.rows), kept.weights.tolist(), strict=True):
                yield InputChange(relation.name, row, weight)

    def _names_row(self, relation: Relation, delta: ZSet, position: int) -> Flags:
        """Return which changes have the values requested; a delete by key needs no other column."""
        mask = np.ones(len(delta), np.bool_)
        by_key = (delta.weights < 0) & (relation.mode == "upsert")
        for name, values in self._wanted[position].items():
            is_key = name in relation.primary_key or name in relation.join_key
            mask &= _is_one_of(delta.rows.column(name), values) | (by_key & (not is_key))
        return mask

    def _count(self, rows: int) -> None:
        self._rows += rows
        if self._rows > self._most_rows:
            raise OptionError(
                f"explain_row({self._row!r}) touches more than {counted(self._most_rows, 'row')}; name more "
                "columns, best the output key, or raise most_rows.",
                code="ROW_QUESTION",
                row=self._row,
                most_rows=self._most_rows,
            )


def _each_once(changes: Iterator[InputChange]) -> tuple[InputChange, ...]:
    """Leave out repeated reports; two lines of a log with the same content are two changes."""
    return tuple({id(change): change for change in changes}.values())


def requested_values(shown: pa.Schema, row: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Return the values that rows requested have, as arrays of one."""
    values = {name: pa.repeat(_value(shown, name, value), 1) for name, value in row.items()}
    if all(array.null_count for array in values.values()):
        raise OptionError(
            f"explain_row({dict(row)!r}) has no value; give at least one column of {shown.names} and its value.",
            code="ROW_QUESTION",
            row=dict(row),
        )
    return values


def have_values(rows: Any, values: Mapping[str, pa.Array]) -> Flags:
    """Return which rows have, in every column that is requested, one of its values."""
    mask = np.ones(rows.num_rows, np.bool_)
    for name, wanted in values.items():
        mask &= _is_one_of(rows.column(name), wanted)
    return mask


def _value(shown: pa.Schema, name: str, value: Any) -> pa.Scalar:
    if name not in shown.names:
        raise OptionError(
            f'the output has no column "{name}"; its columns are {shown.names}.', code="ROW_QUESTION", column=name
        )
    kind = shown.field(name).type
    if pt.is_nested(kind):
        raise OptionError(
            f'explain_row compares plain columns, and "{name}" is {kind}; name another column.',
            code="ROW_QUESTION",
            column=name,
        )
    try:
        scalar = pa.scalar(value, kind)
        if value is not None and pt.is_integer(kind) and scalar.as_py() != value:
            raise pa.ArrowInvalid("it is not a whole number")
        if isinstance(value, datetime) and pt.is_date(kind):
            raise pa.ArrowInvalid("a date has no time of day; give value.date()")
        return scalar
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise OptionError(
            f'{value!r} is not a value of the column "{name}" ({kind}): {error}', code="ROW_QUESTION", column=name, value=value
        ) from error


def _common_type(inputs: Sequence[Relation], left: str, right: str) -> pa.DataType:
    kinds = [relation.schema.field(name).type for relation, name in zip(inputs, (left, right), strict=True)]
    return common_key_type(*kinds, left_column=left, right_column=right)


def _is_inside(relation: Relation) -> bool:
    """Return whether a row keeps its join key for as long as it keeps its primary key."""
    return set(relation.join_key) <= set(relation.primary_key)


def _comparable(column: Any, kind: pa.DataType) -> pa.Array | None:
    """Return a key column as a type that can be looked up, with one zero; None for nested ones."""
    if pt.is_nested(kind):
        return None
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = values.cast(kind)
    return pc.add(values, pa.scalar(0.0, kind)) if pt.is_floating(kind) else values


def _distinct(columns: Sequence[Sequence[pa.Array]]) -> list[pa.Array | None]:
    return [pc.unique(pa.chunked_array(values)) if values else None for values in columns]


def _is_among(columns: Sequence[pa.Array | None], values: Sequence[pa.Array | None], rows: int) -> Flags:
    """Return which rows have, in every column that narrows, one of the values; NULL is a value."""
    mask = np.ones(rows, np.bool_)
    for column, known in zip(columns, values, strict=True):
        if column is not None and known is not None:
            mask &= _flags(pc.is_in(column, value_set=known))
    return mask


def _is_one_of(column: Any, values: pa.Array) -> Flags:
    """Return which values of a column are among some, as `_equals` compares."""
    if len(values) == 1:
        return _equals(column, values[0])
    mask = _flags(column.is_null()) if values.null_count else np.zeros(len(column), np.bool_)
    compared, known = (_comparable(each, _compared_type(column.type, values.type)) for each in (column, pc.drop_null(values)))
    return mask | _flags(pc.is_in(compared, value_set=known))


def _compared_type(column: pa.DataType, value: pa.DataType) -> pa.DataType:
    try:
        kind = common_key_type(column, value, left_column="column", right_column="value")
    except KeyTypeError:
        kind = value
    return storage_type(kind)


def _equals(column: Any, value: pa.Scalar) -> Flags:
    """Return which values equal one; NULL equals NULL, NaN equals NaN; a value too wide for the column equals none."""
    if not value.is_valid:
        return _flags(column.is_null())
    if pt.is_floating(value.type) and np.isnan(value.as_py()):
        return _flags(pc.is_nan(column.cast(pa.float64())))
    kind = _compared_type(column.type, value.type)
    return _flags(pc.equal(column.cast(kind), value.cast(kind)))


def _flags(values: Any) -> Flags:
    filled = pc.fill_null(values, False)
    return np.asarray(filled, dtype=np.bool_)


def _filtered(delta: ZSet, mask: Flags) -> ZSet:
    return delta if mask.all() else ZSet(delta.rows.filter(pa.array(mask)), delta.weights[mask])


def together(first: RowEvent, second: RowEvent) -> RowEvent:
    """Join what two buckets, or two branches of a union, did in one epoch; retractions and deletes come first."""
    emitted = sorted((*first.emitted, *second.emitted), key=lambda pair: pair[1] > 0)
    changes = sorted((*first.changes, *second.changes), key=lambda change: change.weight > 0)
    return RowEvent(first.epoch, tuple(emitted), tuple(changes), first.is_snapshot or second.is_snapshot)


def _with_columns_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a snapshot with the columns that were added since, NULL in them."""
    for added in schema:
        if added.name not in table.column_names:
            table = table.append_column(added, pa.nulls(table.num_rows, added.type))
    return table
