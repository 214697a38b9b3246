"""Planted bugs: classical mistakes of incremental joins, each with the law that must catch it.

Two kinds. A *switch* turns on one mistake inside `ReferenceJoin`, where it can sit as deep as it does in real engines. A
*wrapper* spoils the outside of any operator, `HashJoin` included: what it answers, keeps, restores or reports.

A mutant that no law catches means that a law has lost its teeth; mend the law, never the list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.registry import (
    Build,
    Registered,
    build_hash_join,
    build_reference_join,
    hash_join_live_rows,
    reference_live_rows,
    registered_join,
)
from property_tests.shapes import JoinSpec, Mode
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.kernels.rows.delta import D_COMPARED_COLUMNS
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = ["SWITCHES", "WRAPPERS", "Mutant"]

_BAGS: tuple[Mode, Mode] = ("changelog", "changelog")
_UPSERTS: tuple[Mode, Mode] = ("upsert", "upsert")
_SEQUENCED: tuple[Mode, Mode] = ("sequenced", "sequenced")
_BUSY = ("int32", "bool", "float32")  # key shapes with few values, so that rows meet


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Args:
        name: of the bug.
        story: what goes wrong, and where it has been seen.
        caught_by: the law that must break.
        entry: the registry entry to search with.
    """

    name: str
    story: str
    caught_by: str
    entry: Registered


def _switch(
    bug: str,
    caught_by: str,
    story: str,
    how: str = "inner",
    modes: tuple[Mode, Mode] = _UPSERTS,
    key_shapes: Sequence[str] = _BUSY,
) -> Mutant:
    build: Build = partial(build_reference_join, bugs=(bug,))
    entry = registered_join("switch", how, modes, build=build, live_rows=reference_live_rows, key_shapes=key_shapes)
    return Mutant(bug, story, caught_by, entry)


_BATCH, _TIDY, _UNDO = "incremental_is_batch", "answers_are_tidy", "undo_is_complete"
_RESTORE, _BOOKS, _ERROR = "snapshot_and_restore_are_invisible", "quarantine_keeps_the_books", "errors_apply_nothing"

SWITCHES: tuple[Mutant, ...] = (
    _switch(
        "cross_term_missing", _BATCH, "both sides joined against `before`: rows that arrive together never meet", modes=_BAGS
    ),
    _switch(
        "after_used_twice", "epochs_are_invisible", "both sides joined against `after`: rows that arrive together meet twice"
    ),
    _switch("degree_counts_messages", _BATCH, "the replacing upsert counted as one more match (an open Flink bug)", "left"),
    _switch("upsert_not_retracted", _BATCH, "an upsert inserts the new row and leaves the old one"),
    _switch("key_move_loses_old_key", _BATCH, "the join key moves and the old key is not updated"),
    _switch("delete_payload_trusted", _BATCH, "a tombstone's NULL payload is retracted instead of the stored row"),
    _switch("stale_sequence_accepted", _BATCH, "a late change overwrites a newer one", modes=_SEQUENCED),
    _switch("late_delete_accepted", _BATCH, "a late delete removes a newer row", modes=_SEQUENCED),
    _switch("tombstone_forgotten", _BATCH, "a late upsert brings a deleted row back", modes=_SEQUENCED),
    _switch("tie_goes_to_the_earlier", _BATCH, "of two equal sequences the earlier arrival stays", modes=_SEQUENCED),
    _switch("first_sequence_column_only", _BATCH, "only the first of two sequence columns is compared", modes=_SEQUENCED),
    _switch("null_matches", _BATCH, "NULL equals NULL under `=`, as in a dict"),
    _switch("null_safe_ignored", _BATCH, "`<=>` treated as `=`"),
    _switch("null_keys_dropped", _BATCH, "a preserved row with a NULL key is dropped instead of padded", "left"),
    _switch("zeros_differ", _BATCH, "0.0 and -0.0 are two keys, as in pyarrow's join", key_shapes=("float32", "list")),
    _switch("nans_differ", _BATCH, "NaN joins nothing, as in IEEE 754", key_shapes=("float32", "list")),
    _switch(
        "first_key_column_only",
        _BATCH,
        "a composite key compared by its first column",
        key_shapes=("int64+string", "float64+bool"),
    ),
    _switch("hash_trusted", _BATCH, "equal hashes taken for equal keys", key_shapes=("int64", "string")),
    _switch("retraction_compares_bits", _BATCH, "a retraction of 0.0 does not find the stored -0.0", modes=_BAGS),
    _switch("weight_is_one", _BATCH, "two copies times three copies give one row", modes=_BAGS),
    _switch("pad_ignores_weight", _BATCH, "three unmatched copies are padded once", "left", modes=_BAGS),
    _switch("degree_ignores_residual", _BATCH, "a row whose only match fails the residual is not padded", "full"),
    _switch("residual_null_matches", _BATCH, "an ON condition that is NULL counts as true"),
    _switch("semi_never_leaves", _UNDO, "SEMI emits at the first match and forgets to retract at the last", "left_semi"),
    _switch("anti_swapped_at_transition", "legal_in_legal_out", "ANTI inserts where it should retract", "left_anti"),
    _switch("absorbs_in_answer", "answer_is_pure", "answering changes the state"),
    _switch("order_changes_between_asks", "answer_is_pure", "the same question, another order of lines"),
    _switch("second_chunk_dropped", _BATCH, "only the first chunk of a big answer arrives", modes=_BAGS),
    _switch("insertions_first", _TIDY, "the new row is inserted before the old one is retracted", "left"),
    _switch("answer_not_consolidated", _TIDY, "the raw terms of the join formula leave uncancelled"),
    _switch("zero_weights", _TIDY, "lines that cancelled out are sent with weight 0", "left"),
    _switch(
        "identical_upsert_churns",
        "duplicate_delivery_is_invisible",
        "an upsert equal to the stored row retracts and inserts it",
    ),
    _switch("tombstones_never_expire", _UNDO, "the state of deleted keys grows for ever", modes=_SEQUENCED),
    _switch("dead_rows_kept", _UNDO, "rows of weight 0 stay in the state for ever", modes=_BAGS),
    _switch(
        "snapshot_forgets_tombstones",
        _RESTORE,
        "a restored operator lets a late upsert bring a deleted row back",
        modes=_SEQUENCED,
    ),
    _switch("snapshot_forgets_weights", _RESTORE, "a restored operator holds each row once", modes=_BAGS),
    _switch("restore_keeps_old_rows", _RESTORE, "restoring adds the snapshot to what was there", modes=_BAGS),
    _switch("reopening_forgets_an_epoch", "reopening_is_invisible", "a reopened directory is one epoch behind"),
    _switch("quarantine_is_silent", _BOOKS, "bad lines vanish without a report"),
    _switch("quarantine_drops_the_epoch", _BOOKS, "one bad line takes its neighbours with it"),
    _switch("absent_retraction_accepted", _BOOKS, "a retraction of an absent row is taken for good", modes=_BAGS),
    _switch("error_applies_half", _ERROR, "the good side of a bad epoch is applied before the error"),
    _switch("message_without_epoch", _ERROR, "the error does not name the epoch that failed"),
    _switch("message_without_key", _ERROR, "the error does not name the bad key"),
    _switch("no_tombstone_for_unknown", _BATCH, "a delete that overtakes its upsert leaves no trace", modes=_SEQUENCED),
)


class Wrapped:
    """An operator with one planted bug; every method passes through unless a subclass overrides it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.inputs: tuple[Relation, ...] = inner.inputs
        self.output: Relation = inner.output

    @property
    def absorbed_epoch(self) -> int:
        """Return the inner operator's."""
        return int(self.inner.absorbed_epoch)

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Pass through."""
        return iter(self.inner.answer(tick, deltas))

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Pass through."""
        self.inner.absorb(tick, deltas)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Pass through."""
        return self.inner.rejections(tick, deltas)

    def resident_bytes(self) -> int:
        """Pass through."""
        return int(self.inner.resident_bytes())

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Pass through."""
        tables: Mapping[str, pa.Table] = self.inner.snapshot()
        return tables

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Pass through."""
        self.inner.restore(tables)

    def close(self) -> None:
        """Pass through."""
        self.inner.close()


class AbsorbsWhileAnswering(Wrapped):
    """Fold the delta when it is answered."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer, then absorb at once."""
        answer = list(self.inner.answer(tick, deltas))
        if tick.epoch > self.absorbed_epoch:
            self.inner.absorb(tick, deltas)
        return iter(answer)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Do nothing: it is done."""


class KeepsFirstChunkOnly(Wrapped):
    """Lose every chunk but the first."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer one chunk."""
        yield from list(self.inner.answer(tick, deltas))[:1]


class TurnsLinesAround(Wrapped):
    """Answer the last line first."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Reverse chunks and lines."""
        for chunk in reversed(list(self.inner.answer(tick, deltas))):
            backwards = np.arange(len(chunk))[::-1]
            yield ZSet(chunk.rows.take(pa.array(backwards)), np.ascontiguousarray(chunk.weights[::-1]))


class IsOneEpochLate(Wrapped):
    """Answer each epoch with the answer of the one before."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._waiting: dict[int, list[ZSet]] = {}

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer the delta of the last epoch."""
        self._waiting[tick.epoch] = list(self.inner.answer(tick, deltas))
        yield from self._waiting.get(tick.epoch - 1, [])


class AddsZeroLines(Wrapped):
    """Send every line again with weight 0."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer twice as much."""
        for chunk in self.inner.answer(tick, deltas):
            yield chunk
            yield ZSet(chunk.rows, np.zeros_like(chunk.weights))


class TalksWhenQuiet(Wrapped):
    """Yield an empty chunk for an empty answer."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer, or clear the throat."""
        answer = list(self.inner.answer(tick, deltas))
        yield from answer or [ZSet.empty(self.output.schema)]


class RemembersByEpoch(Wrapped):
    """Keep the answer of an epoch and return it again, for any delta."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._given: dict[int, list[ZSet]] = {}

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer from memory."""
        if tick.epoch not in self._given:
            self._given[tick.epoch] = list(self.inner.answer(tick, deltas))
        yield from self._given[tick.epoch]


class AnswersWhenRead(Wrapped):
    """Request the answer only when it is read, of whatever state there is by then."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer late."""
        yield from self.inner.answer(tick, deltas)


class ReusesItsBuffer(Wrapped):
    """Give weights out of one buffer that the next chunk overwrites."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._buffer = np.zeros(4096, np.int64)

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer, lending the buffer."""
        for chunk in self.inner.answer(tick, deltas):
            self._buffer[: len(chunk)] = chunk.weights
            yield ZSet(chunk.rows, self._buffer[: len(chunk)])


class IgnoresTheRightWhenBothChange(Wrapped):
    """Drop the right delta of an epoch in which both sides change."""

    @staticmethod
    def _first_only(deltas: Sequence[ZSet]) -> Sequence[ZSet]:
        left, right = deltas
        return (left, ZSet.empty(right.schema)) if len(left) and len(right) else deltas

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer half."""
        return iter(self.inner.answer(tick, self._first_only(deltas)))

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb half."""
        self.inner.absorb(tick, self._first_only(deltas))


class LosesARowOfEverySnapshot(Wrapped):
    """Leave the last row of each table out."""

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Cut each table short."""
        return {name: table.slice(0, max(table.num_rows - 1, 0)) for name, table in self.inner.snapshot().items()}


class RestoresNothing(Wrapped):
    """Ignore the snapshot."""

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Do nothing."""


class HidesRejections(Wrapped):
    """Report no bad line."""

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return an empty table."""
        return self.inner.rejections(tick, deltas).slice(0, 0)


class RaisesWithoutFacts(Wrapped):
    """Raise without stream, key or epoch."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Answer, or raise something useless."""
        try:
            yield from self.inner.answer(tick, deltas)
        except BadInputError as error:
            raise BadInputError("bad input") from error


@dataclass(frozen=True)
class _BuildWrapped:
    """Build a `HashJoin`, perhaps from a distorted spec or other options, and wrap it."""

    wrapper: Callable[[Any], Any] = Wrapped
    distort: Callable[[JoinSpec], JoinSpec] = field(default=lambda spec: spec)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        options = {"on_bad_input": on_bad_input, "directory": directory, **self.options}
        wrapped: Operator = self.wrapper(build_hash_join(self.distort(spec), **options))
        return wrapped


def _wrapper(
    name: str,
    caught_by: str,
    story: str,
    build: _BuildWrapped,
    how: str = "left",
    modes: tuple[Mode, Mode] = _UPSERTS,
    **drawn: Any,
) -> Mutant:
    entry = registered_join("wrapper", how, modes, build=build, live_rows=hash_join_live_rows, key_shapes=_BUSY, **drawn)
    return Mutant(name, story, caught_by, entry)


def _null_safe_nowhere(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(spec, null_safe=(False,) * len(spec.null_safe))


def _without_residual(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(spec, residual=None)


def _shows_hidden_changes(join: Any) -> Any:
    """Let every column count where an upsert is compared with the live row."""
    for side in join._sides:
        columns = side.layout.columns(side.relation.schema.names)
        side._compared_columns = columns
        side._arrays.words[D_COMPARED_COLUMNS] = columns.address
    return join


def _unsequenced(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(
        spec, left=dataclasses.replace(spec.left, sequence_by=()), right=dataclasses.replace(spec.right, sequence_by=())
    )


WRAPPERS: tuple[Mutant, ...] = (
    _wrapper(
        "absorbs_while_answering",
        "replay_after_crash_is_invisible",
        "answering changes the state",
        _BuildWrapped(AbsorbsWhileAnswering),
    ),
    _wrapper("keeps_first_chunk_only", _BATCH, "a big answer is cut short", _BuildWrapped(KeepsFirstChunkOnly)),
    _wrapper("turns_lines_around", _TIDY, "insertions come before retractions", _BuildWrapped(TurnsLinesAround)),
    _wrapper("is_one_epoch_late", _BATCH, "right in the end, wrong after every epoch", _BuildWrapped(IsOneEpochLate)),
    _wrapper("remembers_by_epoch", "answer_is_pure", "the first answer of an epoch is kept", _BuildWrapped(RemembersByEpoch)),
    _wrapper(
        "asks_when_read", "late_reading_is_refused", "an answer read after its epoch is empty", _BuildWrapped(AnswersWhenRead)
    ),
    _wrapper("reuses_its_buffer", "answer_is_pure", "chunks share one buffer of weights", _BuildWrapped(ReusesItsBuffer)),
    _wrapper("adds_zero_lines", _TIDY, "lines of weight 0", _BuildWrapped(AddsZeroLines)),
    _wrapper("talks_when_quiet", "quiet_on_quiet", "an empty chunk for an empty delta", _BuildWrapped(TalksWhenQuiet)),
    _wrapper(
        "ignores_the_right_when_both_change",
        "epochs_are_invisible",
        "one of two deltas of an epoch is lost",
        _BuildWrapped(IgnoresTheRightWhenBothChange),
    ),
    _wrapper("loses_a_row_of_every_snapshot", _RESTORE, "a snapshot short by one row", _BuildWrapped(LosesARowOfEverySnapshot)),
    _wrapper("restores_nothing", _RESTORE, "a restore that does nothing", _BuildWrapped(RestoresNothing)),
    _wrapper("hides_rejections", _BOOKS, "the dead-letter table stays empty", _BuildWrapped(HidesRejections)),
    _wrapper("says_only_that_it_failed", _ERROR, "an error without stream and epoch", _BuildWrapped(RaisesWithoutFacts)),
    _wrapper(
        "quarantines_by_default",
        _ERROR,
        "bad lines are left out although the policy is error",
        _BuildWrapped(options={"on_bad_input": "quarantine"}),
    ),
    _wrapper(
        "keeps_nothing_in_its_directory",
        "reopening_is_invisible",
        "the directory stays empty",
        _BuildWrapped(options={"directory": None}),
    ),
    _wrapper(
        "shows_hidden_changes",
        _TIDY,
        "a row whose hidden sequence alone moved is retracted and inserted",
        _BuildWrapped(_shows_hidden_changes),
        modes=_SEQUENCED,
        hides=(True,),
    ),
    _wrapper("null_safe_nowhere", _BATCH, "`<=>` built as `=`", _BuildWrapped(distort=_null_safe_nowhere)),
    _wrapper(
        "without_residual", _BATCH, "the residual is lost on the way to the engine", _BuildWrapped(distort=_without_residual)
    ),
    _wrapper(
        "unsequenced",
        _BATCH,
        "sequence_by is lost on the way to the engine",
        _BuildWrapped(distort=_unsequenced),
        modes=_SEQUENCED,
    ),
)
