"""Planted bugs of the operators about time, each with the law that must catch it.

Some change the options of an operator, some a part of it, some its outer methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from property_tests.timed_histories import TimedCase
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.state.time.joined_pairs import Transitions
from zset_join.state.time.pending_rows import DueRows
from zset_join.zset.protocol import NOTHING_DUE

__all__ = ["TIMED_MUTANTS", "TimedMutant"]

_BATCH, _RESTORE = "incremental_is_batch", "snapshot_and_restore_are_invisible"


@dataclass(frozen=True)
class TimedMutant:
    """A planted bug.

    Args:
        name: of the bug.
        story: what goes wrong.
        caught_by: the law that must break.
        kind: the kind of case to search with.
        shape: spoils the options of the operator.
        part: spoils the operator.
    """

    name: str
    story: str
    caught_by: str
    kind: str
    shape: Callable[[VersionJoinShape], VersionJoinShape] = lambda shape: shape
    part: Callable[[Any], None] = lambda operator: None

    def make(self, case: TimedCase, directory: str | None = None) -> Any:
        """Build the spoiled operator."""
        operator = case.make(directory, self.shape)
        self.part(operator)
        return operator


def _with(**changes: Any) -> Callable[[VersionJoinShape], VersionJoinShape]:
    return lambda shape: replace(shape, **changes)


def _deletes_match(operator: Any) -> None:
    rows, prepare = operator._join.right, operator._join.right.prepare
    rows.prepare = lambda new, *given, **more: prepare(replace(new, deletes=None), *given, **more)


def _labels(**spoiled: Any) -> Callable[[Any], None]:
    """Return what replaces methods of the labels of times, where the operator has labels."""

    def spoil(operator: Any) -> None:
        labels = operator.join.labels
        for name, made in spoiled.items():
            if labels is not None:
                setattr(labels, name, made(labels))

    return spoil


def _counts_every_look(operator: Any) -> None:
    pairs, lines = operator._join.pairs, operator._join.pairs.lines

    def counting(transitions: Transitions) -> Any:
        yield from lines(transitions)
        pairs.corrections = int(transitions.weights[transitions.corrected].sum())

    pairs.lines = counting


def _shifted_release(by: int) -> Callable[[Any], None]:
    def spoil(operator: Any) -> None:
        times = operator._join.shape.times
        right = times.of_watermark
        times.of_watermark = lambda mark: None if mark is None else right(mark) + by

    return spoil


def _never_released(operator: Any) -> None:
    operator._join.left.release = lambda time, numbers: np.zeros(0, np.int64)


def _frees_the_valid(operator: Any) -> None:
    for one in operator._join._expiring:
        one._keeps_newest = False


def _frees_what_may_change(operator: Any) -> None:
    join, expire = operator._join, operator._join._expire

    def spoiled(*given: Any) -> Any:
        horizon, join.horizon = join.horizon, join.shape.times.of_watermark
        try:
            return expire(*given)
        finally:
            join.horizon = horizon

    join._expire = spoiled


def _no_corrections(operator: Any) -> None:
    join = operator._join
    join._corrections = lambda epoch: join._looked_up(epoch, join._rows_of_delta(epoch, np.flatnonzero(epoch.left.left > 0)))


def _condition_of_the_nearest_only(operator: Any) -> None:
    operator.join._nearest, operator.join.pairs._is_chosen = None, False


def _first_block_only(operator: Any) -> None:
    pairs, passing = operator.join.pairs, operator.join.pairs.passing
    pairs.passing = lambda refs, matches: passing(refs, matches if len(set(refs)) == len(refs) else 0 * matches)


def _touches_one_row_of_a_key(operator: Any) -> None:
    nearest = operator.join._nearest
    if nearest is None:
        return
    touched = nearest._touched

    def spoiled(epoch: Any, left: Any) -> Any:
        rows = touched(epoch, left)
        first = np.unique(rows.groups, return_index=True)[1]
        return DueRows(*(column[first] for column in (rows.refs, rows.keys, rows.groups, rows.weights)))

    nearest._touched = spoiled


def _weight_is_one(operator: Any) -> None:
    pairs, lines = operator._join.pairs, operator._join.pairs.lines
    pairs.lines = lambda reported: lines(
        Transitions(reported.refs, reported.befores, reported.afters, np.minimum(reported.weights, 1))
    )


def _answers(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    def spoil(operator: Any) -> None:
        answer = operator.answer
        operator.answer = lambda tick, deltas: iter(change(list(answer(tick, deltas))))

    return spoil


def _every_second_answer_is_turned(operator: Any) -> None:
    answer, answers = operator.answer, [0]

    def spoiled(tick: Any, deltas: Any) -> Any:
        answers[0] += 1
        chunks = list(answer(tick, deltas))
        return iter(chunks[::-1] if answers[0] % 2 else chunks)

    operator.answer = spoiled


def _snapshot_without(column: str, value: Any) -> Callable[[Any], None]:
    def spoil(operator: Any) -> None:
        snapshot = operator.snapshot

        def spoiled() -> Any:
            tables = dict(snapshot())
            for name, table in tables.items():
                place = table.schema.get_field_index(column)
                field = table.schema.field(place)
                import pyarrow as pa

                tables[name] = table.set_column(place, field, pa.array([value] * table.num_rows, field.type))
            return tables

        operator.snapshot = spoiled

    return spoil


def _saves_deletes_alone(operator: Any) -> None:
    right = operator.join.right
    restored = right.restored
    right.restored = lambda table: ((rows, weights, come, marks & 1) for rows, weights, come, marks in restored(table))


def _forgets_waiting(operator: Any) -> None:
    restore = operator.restore
    operator.restore = lambda tables: restore({**tables, "left": tables["left"].slice(0, 0)})


def _trims_what_may_show(operator: Any) -> None:
    rows, absorb = operator._rows, operator._rows.absorb
    rows.absorb = lambda prepared, groups, *, supersedes, limit: absorb(
        prepared, groups, supersedes=supersedes, limit=operator.n
    )


def _arrival_turned(operator: Any) -> None:
    rows = operator._rows if hasattr(operator, "_rows") else operator._join.right
    rows._latest_first = not rows._latest_first


def _forgets_to_wait(operator: Any) -> None:
    operator.next_due = lambda: NOTHING_DUE


def _keeps_its_own_dues(operator: Any) -> None:
    known: dict[int, Any] = {}
    next_due, absorb = operator.next_due, operator.absorb

    def absorbs(tick: Any, deltas: Any) -> None:
        absorb(tick, deltas)
        known[0] = next_due()

    operator.absorb, operator.next_due = absorbs, lambda: known[0] if known else next_due()


def _nothing_back(chunks: list[Any]) -> list[Any]:
    return [chunk for chunk in chunks if not (chunk.weights < 0).any()]


def _insertions_first(chunks: list[Any]) -> list[Any]:
    return chunks[::-1]


TIMED_MUTANTS: tuple[TimedMutant, ...] = (
    TimedMutant("a_delete_matches", "a DELETE is joined like a row", _BATCH, "on_watermark", part=_deletes_match),
    TimedMutant(
        "late_rows_vanish", "late rows are listed nowhere", "what_is_late_is_set_aside", "on_watermark", _with(late="drop")
    ),
    TimedMutant("valid_from_the_next", "a version is not yet valid at its own time", _BATCH, "eager", _with(is_strict=True)),
    TimedMutant("sequence_ignored", "of two versions at one time the later arrival wins", _BATCH, "once", _with(tie_by=())),
    TimedMutant("earlier_arrival_wins", "of two equal versions the first one stays", _BATCH, "eager", part=_arrival_turned),
    TimedMutant("rest_of_on_ignored", "the residual predicate is not evaluated", _BATCH, "on_watermark", _with(residual=None)),
    TimedMutant("released_too_early", "a row leaves before its watermark", _BATCH, "on_watermark", part=_shifted_release(1)),
    TimedMutant("released_too_late", "a row at the watermark stays", _BATCH, "on_watermark", part=_shifted_release(-1)),
    TimedMutant("released_twice", "an emitted row waits on", _BATCH, "on_watermark", part=_never_released),
    TimedMutant(
        "valid_version_freed", "the newest version before the watermark goes", _BATCH, "on_watermark", part=_frees_the_valid
    ),
    TimedMutant("late_changes_vanish", "a delete behind the watermark is late", _BATCH, "eager", _with(keep_probe_for=0)),
    TimedMutant("what_may_change_is_freed", "rows that may change go by time", _BATCH, "eager", part=_frees_what_may_change),
    TimedMutant("late_version_emits_nothing", "what eager has emitted is not corrected", _BATCH, "eager", part=_no_corrections),
    TimedMutant("copies_count_once", "three equal orders are joined as one", _BATCH, "once", part=_weight_is_one),
    TimedMutant("nothing_is_taken_back", "the new answer is beside the old", _BATCH, "as_of", part=_answers(_nothing_back)),
    TimedMutant("looks_back_always", "a comparison that looks forward looks back", _BATCH, "as_of", _with(is_mirrored=False)),
    TimedMutant("tolerance_forgotten", "the nearest row matches at any distance", _BATCH, "as_of", _with(reach=None)),
    TimedMutant(
        "condition_of_the_nearest_only",
        "where the nearest row fails the rest of ON no other is taken",
        _BATCH,
        "as_of",
        part=_condition_of_the_nearest_only,
    ),
    TimedMutant(
        "condition_ends_with_the_first_block",
        "a row further away than the first ones is not evaluated",
        _BATCH,
        "as_of",
        part=_first_block_only,
    ),
    TimedMutant(
        "nearest_left_row_only",
        "of the left rows behind a right row the next one is corrected",
        _BATCH,
        "as_of",
        part=_touches_one_row_of_a_key,
    ),
    TimedMutant("ties_by_arrival", "of quotes at one time the latest, not the smallest key", _BATCH, "as_of", _with(tie_by=())),
    TimedMutant("next_row_trimmed", "when the shown row goes no other one shows", _BATCH, "dedup", part=_trims_what_may_show),
    TimedMutant("dedup_arrival_turned", "of equal rows the wrong one shows", _BATCH, "dedup", part=_arrival_turned),
    TimedMutant("padding_lost", "LEFT drops what matches nothing", _BATCH, "eager", _with(how="inner")),
    TimedMutant(
        "chunks_turned_about",
        "the same question, another order",
        "answer_is_pure",
        "as_of",
        part=_every_second_answer_is_turned,
    ),
    TimedMutant(
        "insertions_come_first",
        "the new row before the old one goes",
        "answers_are_tidy",
        "as_of",
        part=_answers(_insertions_first),
    ),
    TimedMutant(
        "deletes_not_saved", "a restored DELETE is a row", _RESTORE, "eager", part=_snapshot_without("_zset_delete", 0)
    ),
    TimedMutant("freed_versions_not_saved", "a restored key has lost no version", _RESTORE, "once", part=_saves_deletes_alone),
    TimedMutant(
        "weights_not_saved", "restored copies count once", _RESTORE, "dedup", part=_snapshot_without("_zset_weight", 1)
    ),
    TimedMutant(
        "waiting_rows_not_restored", "who waits is forgotten by a restart", _RESTORE, "on_watermark", part=_forgets_waiting
    ),
    TimedMutant("nobody_waits", "rows wait and no time is due", "quiet_on_quiet", "on_watermark", part=_forgets_to_wait),
    TimedMutant(
        "eager_disagrees",
        "a late version is valid for on_watermark only",
        "eager_and_on_watermark_agree",
        "on_watermark",
        _with(is_strict=True),
    ),
    TimedMutant(
        "cut_matters",
        "ties depend on how the input was cut",
        "epochs_are_invisible",
        "dedup",
        part=lambda operator: setattr(operator._rows, "count_arrivals", lambda rows: None),
    ),
    TimedMutant(
        "every_look_is_counted",
        "a left row that is found again with what it had counts as corrected",
        "corrections_are_the_retracted_answers",
        "eager",
        part=_counts_every_look,
    ),
    TimedMutant(
        "own_dues",
        "who keeps files open does not see what others let wait",
        "taking_turns_is_invisible",
        "on_watermark",
        part=_keeps_its_own_dues,
    ),
    TimedMutant(
        "files_lose_arrivals",
        "arrivals begin again when files are opened",
        "reopening_is_invisible",
        "dedup",
        part=lambda operator: operator._rows.arena.header.__setitem__(40, 0),
    ),
    TimedMutant(
        "crowded_labels",
        "times without room between two labels get the labels of others",
        _BATCH,
        "as_of",
        part=_labels(_placed=lambda labels: lambda new: {time: len(labels) for time in new}),
    ),
    TimedMutant(
        "rows_keep_old_labels",
        "the state is not rewritten when labels move",
        _BATCH,
        "eager",
        part=_labels(on_crowded=lambda labels: lambda times: labels.spread(times | labels._label_of.keys())),
    ),
    TimedMutant(
        "unkept_times_are_first",
        "a left row that is not kept comes before every labelled time",
        _BATCH,
        "once",
        part=_labels(_number=lambda labels: lambda time: labels._label_of.get(time, -(1 << 62))),
    ),
    TimedMutant(
        "own_labels",
        "who keeps files open does not see the labels that others gave",
        "taking_turns_is_invisible",
        "eager",
        part=_labels(check=lambda labels: lambda epoch: None),
    ),
    TimedMutant(
        "files_lose_labels",
        "labels begin again when files are opened",
        "reopening_is_invisible",
        "as_of",
        part=_labels(load=lambda labels: lambda found: None),
    ),
)
