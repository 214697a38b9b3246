"""Planted bugs: classical mistakes of incremental operators, each with the law that must find it. One row is one bug.

A row has its name, the law, what goes wrong (and where it has been seen), and what is put in the place of what: a switch inside
the reference join or aggregate, where a mistake can sit as deep as in real engines; a wrapper around an operator; a part of it
that is spoiled; or a method that is replaced (`planted_bugs`, `planted_bugs_of_time`).

A bug that no law finds means that a law has lost its teeth; mend the law, never the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from property_tests import planted_bugs as bugs
from property_tests import planted_bugs_of_time as timed
from property_tests.aggregate_reference import build_reference_aggregate
from property_tests.aggregate_shapes import aggregate_specs, build_aggregate
from property_tests.append_buffer_laws import BUFFER_LAWS, Mutate, buffer_cases
from property_tests.bucketed_shapes import Bug, build_bucketed_join, double_slice, forgets_movers, lost_slice, wrong_hash
from property_tests.laws import LAWS, Law, LawBrokenError
from property_tests.plans_in_buckets import plans_in_buckets_are_one
from property_tests.profiles import HUNT
from property_tests.registry import (
    RESIDUAL_EXPRESSIONS,
    Build,
    Registered,
    build_hash_join,
    build_loaded_join,
    build_reference_join,
    build_route,
    hash_join_live_rows,
    reference_live_rows,
    registered_join,
)
from property_tests.shapes import Mode
from property_tests.strategies import histories, route_specs
from property_tests.test_enrichment import SECOND, draw_histories, draw_right_changes, run_lookups, run_process_time
from property_tests.test_fetching import run_fetches
from property_tests.timed_histories import TimedCase
from property_tests.timed_laws import TIMED_LAWS
from zset_join.core.errors import ZsetJoinError
from zset_join.lookup import cache, fetcher
from zset_join.operators import lookup_join
from zset_join.operators.first_load import LoadedJoin
from zset_join.runners.common import exchange
from zset_join.shapes import lookup as lookup_shape
from zset_join.shapes.timed_join import VersionJoinShape
from zset_join.state.join import lookup_rows
from zset_join.state.rows import side_changes

__all__ = ["LATE", "MODELS", "MUTANTS", "Mutant"]

_BAGS: tuple[Mode, Mode] = ("changelog", "changelog")
_UPSERTS: tuple[Mode, Mode] = ("upsert", "upsert")
_SEQUENCED: tuple[Mode, Mode] = ("sequenced", "sequenced")
_BUSY = ("int32", "bool", "float32")  # key shapes with few values, so that rows meet
_SEEDS = 400  # of cases of an operator about time
_BATCH, _TIDY, _UNDO, _PURE = "incremental_is_batch", "answers_are_tidy", "undo_is_complete", "answer_is_pure"
_RESTORE, _BOOKS, _ERROR = "snapshot_and_restore_are_invisible", "quarantine_keeps_the_books", "errors_apply_nothing"
_BUDGET = "budget_is_invisible"


@dataclass(frozen=True)
class Mutant:
    """A planted bug, the law that must break, what goes wrong, and the search for it; `broken` is what the search raises."""

    name: str
    law: Callable[..., None]
    story: str
    search: Callable[[], None]
    broken: tuple[type[Exception], ...] = (LawBrokenError,)


# ---------------------------------------------------------------- joins and aggregates


def hunt(entry: Registered, law: Law) -> None:
    """Search for a history that breaks the law; return quietly when there is none."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        subject = data.draw(entry.subjects())
        law.check(subject, data.draw(histories(subject.spec, max_changes=18, with_bad_lines=law.with_bad_lines)))

    search()


def _found(name: str, law: str, story: str, entry: Registered) -> Mutant:
    assert law not in entry.exemptions, name
    return Mutant(name, LAWS[law].check, story, partial(hunt, entry, LAWS[law]))


def _joined(
    name: str, law: str, story: str, build: Build, how: str = "inner", modes: tuple[Mode, Mode] = _UPSERTS, **drawn: Any
) -> Mutant:
    narrowed = {"key_shapes": _BUSY, **drawn}
    entry = registered_join("planted", how, modes, build=build, live_rows=hash_join_live_rows, **narrowed)
    return _found(name, law, story, entry)


def _grouped(name: str, law: str, story: str, build: Build) -> Mutant:
    specs = aggregate_specs("changelog", key_shapes=_BUSY)
    return _found(name, law, story, Registered("planted", specs, build, hash_join_live_rows))


def _switch(
    bug: str, law: str, story: str, how: str = "inner", modes: tuple[Mode, Mode] = _UPSERTS, key_shapes: Sequence[str] = _BUSY
) -> Mutant:
    build: Build = partial(build_reference_join, bugs=(bug,))
    entry = registered_join("switch", how, modes, build=build, live_rows=reference_live_rows, key_shapes=key_shapes)
    return _found(bug, law, story, entry)


def _aggregate_switch(bug: str, law: str, story: str, **drawn: Any) -> Mutant:
    build: Build = partial(build_reference_aggregate, bugs=(bug,))
    specs = aggregate_specs("changelog", **{"key_shapes": _BUSY, **drawn})
    return _found(f"aggregate_{bug}", law, story, Registered("switch", specs, build, reference_live_rows))


def _wrapper(name: str, law: str, story: str, *given: Any, modes: tuple[Mode, Mode] = _UPSERTS, **options: Any) -> Mutant:
    drawn = {key: options.pop(key) for key in ("hides",) if key in options}
    return _joined(name, law, story, bugs.build_wrapped(build_hash_join, *given, **options), "left", modes, **drawn)


def _aggregate_wrapper(name: str, law: str, story: str, *given: Any, **options: Any) -> Mutant:
    return _grouped(f"aggregate_{name}", law, story, bugs.build_wrapped(build_aggregate, *given, **options))


def _mutant(
    name: str,
    story: str,
    spoil: Callable[[Any], None],
    how: str = "inner",
    modes: tuple[Mode, Mode] = _UPSERTS,
    law: str = _BUDGET,
    parts: Callable[[Any], Any] = bugs.hybrid_state,
    **drawn: Any,
) -> Mutant:
    return _joined(name, law, story, bugs.BuildSpoiled(build_hash_join, parts, spoil), how, modes, **drawn)


def _pair_mutant(name: str, story: str, spoil: Callable[[Any], None]) -> Mutant:
    residuals = ("x_less", "f_at_most")
    return _mutant(name, story, spoil, "left", _BAGS, parts=bugs.pairs_with_a_residual, residuals=residuals)


def _route_mutant(name: str, story: str, spoil: Callable[[Any], None]) -> Mutant:
    build = bugs.BuildSpoiled(build_route, bugs.cold_sides, spoil)
    return _found(name, _BUDGET, story, Registered("planted", route_specs("upsert"), build, hash_join_live_rows))


def _group_mutant(name: str, story: str, spoil: Callable[[Any], None]) -> Mutant:
    return _grouped(name, _BUDGET, story, bugs.BuildSpoiled(build_aggregate, bugs.hybrid_groups, spoil))


def _bucketed(bug: Bug, story: str, modes: tuple[Mode, Mode] = _BAGS) -> Mutant:
    build = partial(build_bucketed_join, inside=build_hash_join, residuals=RESIDUAL_EXPRESSIONS, bug=bug)
    return _joined(f"bucketed_{bug.__name__}", _BATCH, story, build, modes=modes)


def _loaded(kind: type[LoadedJoin], story: str, law: str = _BATCH) -> Mutant:
    return _joined(f"loaded_{kind.__name__}", law, story, partial(build_loaded_join, kind=kind), "full")


def _message(bug: Callable[[Any], None], story: str) -> Mutant:
    return _mutant(f"message_{bug.__name__}", story, bug, "full", law=_BATCH, parts=bugs.messages_of_few)


_OF_BOTH: tuple[tuple[Any, ...], ...] = (
    ("keeps_first_chunk_only", _BATCH, "a big answer is cut short", bugs.KeepsFirstChunkOnly),
    ("turns_lines_around", _TIDY, "insertions come before retractions", bugs.TurnsLinesAround),
    ("remembers_by_epoch", _PURE, "the first answer of an epoch is kept", bugs.RemembersByEpoch),
    ("reuses_its_buffer", _PURE, "chunks share one buffer of weights", bugs.ReusesItsBuffer),
    ("adds_zero_lines", _TIDY, "lines of weight 0 leave", bugs.AddsZeroLines),
    ("talks_when_quiet", "quiet_on_quiet", "an empty chunk for an empty delta", bugs.TalksWhenQuiet),
    ("loses_a_row_of_every_snapshot", _RESTORE, "a snapshot short by one row", bugs.LosesARowOfEverySnapshot),
    ("restores_nothing", _RESTORE, "a restore that does nothing", bugs.RestoresNothing),
    ("hides_rejections", _BOOKS, "the dead-letter table stays empty", bugs.HidesRejections),
)
_QUARANTINES: Any = {"options": {"on_bad_input": "quarantine"}}
_KEEPS_NOTHING: Any = {"options": {"directory": None}}

_JOINS_AND_AGGREGATES: tuple[Mutant, ...] = (
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
    *(_wrapper(*row) for row in _OF_BOTH),
    _wrapper(
        "absorbs_while_answering", "replay_after_crash_is_invisible", "answering changes the state", bugs.AbsorbsWhileAnswering
    ),
    _wrapper("is_one_epoch_late", _BATCH, "right in the end, wrong after every epoch", bugs.IsOneEpochLate),
    _wrapper("asks_when_read", "late_reading_is_refused", "an answer read after its epoch is empty", bugs.AnswersWhenRead),
    _wrapper(
        "ignores_the_right_when_both_change",
        "epochs_are_invisible",
        "one of two deltas of an epoch is lost",
        bugs.IgnoresTheRightWhenBothChange,
    ),
    _wrapper("says_only_that_it_failed", _ERROR, "an error without stream and epoch", bugs.RaisesWithoutFacts),
    _wrapper("quarantines_by_default", _ERROR, "bad lines are left out although the policy is error", **_QUARANTINES),
    _wrapper("keeps_nothing_in_its_directory", "reopening_is_invisible", "the directory stays empty", **_KEEPS_NOTHING),
    _wrapper(
        "shows_hidden_changes",
        _TIDY,
        "a row whose hidden sequence alone moved is retracted and inserted",
        bugs.shows_hidden_changes,
        modes=_SEQUENCED,
        hides=(True,),
    ),
    _wrapper("null_safe_nowhere", _BATCH, "`<=>` built as `=`", distort=bugs.null_safe_nowhere),
    _wrapper("without_residual", _BATCH, "the residual is lost on the way to the engine", distort=bugs.without_residual),
    _wrapper("unsequenced", _BATCH, "sequence_by is lost on the way to the engine", distort=bugs.unsequenced, modes=_SEQUENCED),
    _aggregate_switch("short_buffer", _BATCH, "max keeps the best two values and has no other when they leave"),
    _aggregate_switch("extreme_never_retreats", _BATCH, "max is compared on insertion and never looked up again"),
    _aggregate_switch(
        "naive_float_sum",
        _BATCH,
        "a running float sum keeps the rounding errors, NaN and infinities of rows that are gone",
        payloads=("extreme_float64", "tame_float64"),
        functions=("sum",),
    ),
    _aggregate_switch("nulls_counted", _BATCH, "count(column) counts NULLs like values"),
    _aggregate_switch("distinct_counts_copies", _BATCH, "count(DISTINCT x) counts copies"),
    _aggregate_switch("copies_ignored", _BATCH, "two copies of a row are added once"),
    _aggregate_switch("filter_ignored", _BATCH, "FILTER (WHERE ...) is lost"),
    _aggregate_switch(
        "sum_of_nothing_is_0", _BATCH, "the sum of NULLs is 0 instead of NULL", payloads=("int8",), functions=("sum",)
    ),
    _aggregate_switch(
        "average_rounds_down", _BATCH, "a decimal average is cut off, not rounded", payloads=("decimal",), functions=("avg",)
    ),
    _aggregate_switch(
        "sample_of_one_is_0",
        _BATCH,
        "the variance of a single value is 0 instead of NULL",
        payloads=("int8", "tame_float64"),
        functions=("var_samp",),
    ),
    _aggregate_switch(
        "nan_is_smallest",
        _BATCH,
        "NaN sorts below the numbers, as in IEEE minimum",
        payloads=("float64",),
        functions=("min", "max"),
    ),
    _aggregate_switch("null_groups_dropped", _BATCH, "rows with a NULL key are left out, as in pandas"),
    _aggregate_switch(
        "zeros_make_two_groups", _BATCH, "0.0 and -0.0 are two groups, as in pyarrow", key_shapes=("float32", "float64")
    ),
    _aggregate_switch("empty_groups_shown", _BATCH, "a group without rows stays, with count 0"),
    _aggregate_switch("empty_groups_kept", _UNDO, "the state of dead groups grows for ever"),
    _aggregate_switch("global_row_leaves", _BATCH, "without rows a global aggregate has no row", is_global=True),
    _aggregate_switch(
        "first_row_waits", _BATCH, "the row of a global aggregate is emitted with the first input only", is_global=True
    ),
    _aggregate_switch("unchanged_groups_said", _TIDY, "a touched group that stays the same is retracted and inserted"),
    _aggregate_switch("old_from_new_state", "legal_in_legal_out", "the retraction is computed from the new state"),
    _aggregate_switch("insertions_first", _TIDY, "the new row comes before the old one is retracted"),
    _aggregate_switch("snapshot_forgets_copies", _RESTORE, "a restored group holds each row once"),
    _aggregate_switch("restore_adds", _RESTORE, "restoring adds the snapshot to what was there"),
    _aggregate_switch("takes_what_is_not_there", _ERROR, "an impossible retraction is taken for good"),
    *(_aggregate_wrapper(*row) for row in _OF_BOTH),
    _aggregate_wrapper("quarantines_by_default", _ERROR, "bad rows are left out although the policy is error", **_QUARANTINES),
    _aggregate_wrapper(
        "keeps_nothing_in_its_directory", "reopening_is_invisible", "the directory of the groups stays empty", **_KEEPS_NOTHING
    ),
    _aggregate_wrapper("unfiltered", _BATCH, "the filter is lost on the way to the engine", distort=bugs.unfiltered),
    _aggregate_wrapper("population", _BATCH, "the variance of a sample divides by n", distort=bugs.population),
    _loaded(bugs.LosesPart, "the last part of a first load is in no state and no answer"),
    _loaded(bugs.KeepsTheLoad, "a first load that was answered stays, though another epoch is absorbed", _PURE),
    _message(bugs.no_nulls, "NULLs of an answer of few rows are the bytes that lie there"),
    _message(bugs.row_short, "an answer of few rows lacks its last row"),
    _bucketed(wrong_hash, "two sides are parted by two hashes, so that equal keys do not meet"),
    _bucketed(lost_slice, "one of the slices that are hashed at the same time reaches no bucket"),
    _bucketed(double_slice, "the rows of one bucket reach another one as well"),
    _bucketed(forgets_movers, "the old row of a key that moves stays in the bucket it was in", _UPSERTS),
    _mutant("fetches_no_partners", "a cold partner is not found by join key", bugs.fetches_no_partners, parts=bugs.cold_sides),
    _mutant(
        "fetches_no_named_rows", "the cold row that an upsert replaces stays", bugs.fetches_no_named_rows, parts=bugs.cold_sides
    ),
    _mutant(
        "fetches_no_tombstones",
        "an upsert that is older than the delete of its key is taken, for the tombstone is on disk",
        bugs.fetches_no_tombstones,
        modes=_SEQUENCED,
        parts=bugs.cold_sides,
    ),
    _mutant(
        "leaves_tombstones_on_disk",
        "a tombstone that came into memory stays on disk, and there are two of it",
        bugs.leaves_tombstones_on_disk,
        modes=_SEQUENCED,
        parts=bugs.cold_sides,
    ),
    _route_mutant(
        "routes_from_nowhere",
        "a cold key is not found, so its row never leaves the bucket of its old join key",
        bugs.fetches_no_named_rows,
    ),
    _mutant(
        "restores_outdated_rows",
        "a row that changed in memory is taken to lie on disk as it was",
        bugs.restores_outdated_rows,
        parts=bugs.cold_sides,
    ),
    _mutant(
        "forgets_primary_keys", "a cold row is not found by its primary key", bugs.forgets_primary_keys, parts=bugs.cold_sides
    ),
    _mutant("forgets_old_keys", "the cold partners of the join key a row leaves are not updated", bugs.forgets_old_keys),
    _mutant(
        "asks_nobody_twice",
        "a preserved row's last match is cold, and so it is padded too early",
        bugs.fetches_nothing_twice,
        "left",
        _BAGS,
    ),
    _mutant("streams_nothing", "the rows of long keys are not in the answer", bugs.streams_nothing),
    _mutant("passes_nothing", "rows that have no room are not in the answer", bugs.passes_nothing),
    _mutant(
        "lets_nothing_stand", "a preserved row is padded although its key has rows on disk", bugs.keeps_no_rows, "left", _BAGS
    ),
    _mutant(
        "lets_changed_rows_stand",
        "a preserved row is padded when the one row of its key that was in memory goes, though others are on disk",
        bugs.keeps_changed_rows,
        "left",
        _BAGS,
    ),
    _mutant(
        "keeps_no_witness_of_oversized_keys",
        "a preserved row is padded although its key has rows on disk",
        bugs.keeps_no_witness_of_oversized_keys,
        "left",
        _BAGS,
    ),
    _mutant(
        "forgets_unchanged_rows",
        "answered again, one row more of a long key comes into memory, and the answer in other chunks",
        bugs.forgets_unchanged_rows,
        "left",
        ("append", "append"),
        law=_PURE,
    ),
    _mutant(
        "keeps_old_degrees",
        "a row of a long key forgets which matches it gained or lost on disk",
        bugs.keeps_old_degrees,
        "left",
        _BAGS,
        parts=bugs.cold_sides,
    ),
    _pair_mutant(
        "forgets_streamed_degrees",
        "a row that passed forgets which matches it gained or lost on disk",
        bugs.forgets_streamed_degrees,
    ),
    _pair_mutant(
        "counts_nothing_that_passes",
        "a row that changes is padded although a row that passes matches",
        bugs.counts_nothing_that_passes,
    ),
    _mutant("never_spills", "the budget is not kept", bugs.never_spills),
    _group_mutant("fetches_no_groups", "a group on disk is begun again in memory", bugs.fetches_no_groups),
    _group_mutant("leaves_groups_on_disk", "a fetched group stays on disk and comes back twice", bugs.leaves_groups_on_disk),
    _group_mutant("leaves_groups_in_memory", "a spilled group stays in memory too", bugs.leaves_groups_in_memory),
    _group_mutant("forgets_values", "a group comes back without its values", bugs.forgets_values),
    _group_mutant("keeps_all_groups", "the budget of groups is not kept", bugs.never_spills),
)

# ---------------------------------------------------------------- operators about time


def _timed(
    name: str,
    story: str,
    law: str,
    kind: str,
    shape: Callable[[VersionJoinShape], VersionJoinShape] = lambda shape: shape,
    part: Callable[[Any], None] = lambda operator: None,
) -> Mutant:
    """Spoil the options of an operator, or the operator."""

    def make(case: TimedCase, directory: str | None = None) -> Any:
        operator = case.make(directory, shape)
        part(operator)
        return operator

    def search() -> None:
        for seed in range(_SEEDS):
            TIMED_LAWS[law](TimedCase(kind, seed), make)

    return Mutant(f"timed_{name}", TIMED_LAWS[law], story, search)


def _with(**changes: Any) -> Callable[[VersionJoinShape], VersionJoinShape]:
    return lambda shape: replace(shape, **changes)


_OF_TIME: tuple[Mutant, ...] = (
    _timed("a_delete_matches", "a DELETE is joined like a row", _BATCH, "on_watermark", part=timed.deletes_match),
    _timed("late_rows_vanish", "late rows are listed nowhere", "what_is_late_is_set_aside", "on_watermark", _with(late="drop")),
    _timed("valid_from_the_next", "a version is not yet valid at its own time", _BATCH, "eager", _with(is_strict=True)),
    _timed("sequence_ignored", "of two versions at one time the later arrival wins", _BATCH, "once", _with(tie_by=())),
    _timed("earlier_arrival_wins", "of two equal versions the first one stays", _BATCH, "eager", part=timed.arrival_turned),
    _timed("rest_of_on_ignored", "the residual predicate is not evaluated", _BATCH, "on_watermark", _with(residual=None)),
    _timed("released_too_early", "a row leaves before its watermark", _BATCH, "on_watermark", part=timed.shifted_release(1)),
    _timed("released_too_late", "a row at the watermark stays", _BATCH, "on_watermark", part=timed.shifted_release(-1)),
    _timed("released_twice", "an emitted row waits on", _BATCH, "on_watermark", part=timed.never_released),
    _timed(
        "valid_version_freed",
        "the newest version before the watermark goes",
        _BATCH,
        "on_watermark",
        part=timed.frees_the_valid,
    ),
    _timed("late_changes_vanish", "a delete behind the watermark is late", _BATCH, "eager", _with(keep_probe_for=0)),
    _timed("what_may_change_is_freed", "rows that may change go by time", _BATCH, "eager", part=timed.frees_what_may_change),
    _timed("late_version_emits_nothing", "what eager has emitted is not corrected", _BATCH, "eager", part=timed.no_corrections),
    _timed("copies_count_once", "three equal orders are joined as one", _BATCH, "once", part=timed.weight_is_one),
    _timed(
        "nothing_is_taken_back", "the new answer is beside the old", _BATCH, "as_of", part=timed.answers(timed.nothing_back)
    ),
    _timed("looks_back_always", "a comparison that looks forward looks back", _BATCH, "as_of", _with(is_mirrored=False)),
    _timed("tolerance_forgotten", "the nearest row matches at any distance", _BATCH, "as_of", _with(reach=None)),
    _timed(
        "condition_of_the_nearest_only",
        "where the nearest row fails the rest of ON no other is taken",
        _BATCH,
        "as_of",
        part=timed.condition_of_the_nearest_only,
    ),
    _timed(
        "condition_ends_with_the_first_block",
        "a row further away than the first ones is not evaluated",
        _BATCH,
        "as_of",
        part=timed.first_block_only,
    ),
    _timed(
        "nearest_left_row_only",
        "of the left rows behind a right row the next one is corrected",
        _BATCH,
        "as_of",
        part=timed.touches_one_row_of_a_key,
    ),
    _timed("ties_by_arrival", "of quotes at one time the latest, not the smallest key", _BATCH, "as_of", _with(tie_by=())),
    _timed("next_row_trimmed", "when the shown row goes no other one shows", _BATCH, "dedup", part=timed.trims_what_may_show),
    _timed("dedup_arrival_turned", "of equal rows the wrong one shows", _BATCH, "dedup", part=timed.arrival_turned),
    _timed("padding_lost", "LEFT drops what matches nothing", _BATCH, "eager", _with(how="inner")),
    _timed(
        "chunks_turned_about",
        "the same question, another order",
        "answer_is_pure",
        "as_of",
        part=timed.every_second_answer_is_turned,
    ),
    _timed(
        "insertions_come_first",
        "the new row before the old one goes",
        "answers_are_tidy",
        "as_of",
        part=timed.answers(timed.insertions_first),
    ),
    _timed(
        "deletes_not_saved", "a restored DELETE is a row", _RESTORE, "eager", part=timed.snapshot_without("_zset_delete", 0)
    ),
    _timed("freed_versions_not_saved", "a restored key has lost no version", _RESTORE, "once", part=timed.saves_deletes_alone),
    _timed(
        "weights_not_saved", "restored copies count once", _RESTORE, "dedup", part=timed.snapshot_without("_zset_weight", 1)
    ),
    _timed(
        "waiting_rows_not_restored", "who waits is forgotten by a restart", _RESTORE, "on_watermark", part=timed.forgets_waiting
    ),
    _timed("nobody_waits", "rows wait and no time is due", "quiet_on_quiet", "on_watermark", part=timed.forgets_to_wait),
    _timed(
        "eager_disagrees",
        "a late version is valid for on_watermark only",
        "eager_and_on_watermark_agree",
        "on_watermark",
        _with(is_strict=True),
    ),
    _timed(
        "cut_matters",
        "ties depend on how the input was cut",
        "epochs_are_invisible",
        "dedup",
        part=lambda operator: setattr(operator._rows, "count_arrivals", lambda rows: None),
    ),
    _timed(
        "every_look_is_counted",
        "a left row that is found again with what it had counts as corrected",
        "corrections_are_the_retracted_answers",
        "eager",
        part=timed.counts_every_look,
    ),
    _timed(
        "own_dues",
        "who keeps files open does not see what others let wait",
        "taking_turns_is_invisible",
        "on_watermark",
        part=timed.keeps_its_own_dues,
    ),
    _timed(
        "files_lose_arrivals",
        "arrivals begin again when files are opened",
        "reopening_is_invisible",
        "dedup",
        part=lambda operator: operator._rows.arena.header.__setitem__(40, 0),
    ),
    _timed(
        "crowded_labels",
        "times without room between two labels get the labels of others",
        _BATCH,
        "as_of",
        part=timed.labels(_placed=lambda labels: lambda new: {time: len(labels) for time in new}),
    ),
    _timed(
        "rows_keep_old_labels",
        "the state is not rewritten when labels move",
        _BATCH,
        "eager",
        part=timed.labels(on_crowded=lambda labels: lambda times: labels.spread(times | labels._label_of.keys())),
    ),
    _timed(
        "unkept_times_are_first",
        "a left row that is not kept comes before every labelled time",
        _BATCH,
        "once",
        part=timed.labels(_number=lambda labels: lambda time: labels._label_of.get(time, -(1 << 62))),
    ),
    _timed(
        "own_labels",
        "who keeps files open does not see the labels that others gave",
        "taking_turns_is_invisible",
        "eager",
        part=timed.labels(check=lambda labels: lambda epoch: None),
    ),
    _timed(
        "files_lose_labels",
        "labels begin again when files are opened",
        "reopening_is_invisible",
        "as_of",
        part=timed.labels(load=lambda labels: lambda found: None),
    ),
)

# ---------------------------------------------------------------- an append-only join at its limit


def _limited(name: str, story: str, law: str, how: str, mode: str, mutate: Mutate) -> Mutant:
    found = BUFFER_LAWS[law][1]

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        case = data.draw(buffer_cases(how, mode, mutate))
        found(case, data.draw(histories(case.spec, max_changes=18)))

    return Mutant(name, found, story, search)


_ABORT, _KEPT = "abort_leaves_everything_as_it_was", "the_answers_are_those_of_what_is_kept"
_SURVIVES = "what_is_kept_survives"
_AT_THE_LIMIT: tuple[Mutant, ...] = (
    _limited(
        "limit_refuses_past_the_limit",
        "the limit itself is let through",
        _ABORT,
        "full",
        "abort",
        bugs.with_buffer(bugs.RefusesPastTheLimit),
    ),
    _limited(
        "limit_counts_what_is_in_memory",
        "rows on disk are free",
        _ABORT,
        "full",
        "abort",
        bugs.with_buffer(bugs.CountsWhatIsInMemory),
    ),
    _limited("limit_loses_count", "opened again, rows on disk are free", _SURVIVES, "full", "spill", bugs.loses_count),
    _limited("limit_never_spills", "memory grows", _KEPT, "left", "spill", bugs.keeps_all_in_memory),
    _limited("limit_absorbs_anyway", "only the answer is refused", _ABORT, "inner", "abort", bugs.absorbs_anyway),
    _limited(
        "limit_counts_what_it_was_given",
        "long values and dropped rows are miscounted",
        _ABORT,
        "inner",
        "abort",
        bugs.with_buffer(bugs.CountsWhatItWasGiven),
    ),
    _limited(
        "limit_counts_what_is_allocated",
        "tables count too",
        "bytes_do_not_depend_on_buckets",
        "inner",
        "abort",
        bugs.with_buffer(bugs.CountsWhatIsAllocated),
    ),
)

# ---------------------------------------------------------------- lookups


def lookups_equal_their_model() -> None:
    """Search for a history on which a lookup join and its model differ."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from(["append", "upsert", "changelog"]))
        how = data.draw(st.sampled_from(["inner", "left"]))
        run_lookups(
            mode,
            how,
            data.draw(draw_histories(mode)),
            residual=data.draw(st.booleans()),
            reload=data.draw(st.sampled_from(["never", "snapshot", "turns"])),
            max_retries=data.draw(st.integers(0, 2)),
            delay=data.draw(st.sampled_from([0, 1, 3])) * SECOND,
            padded_first=how == "left" and data.draw(st.booleans()),
        )

    search()


def joins_by_processing_time_equal_their_model() -> None:
    """Search for a history on which a join by processing time and its model differ."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        left_mode, right_mode = (data.draw(st.sampled_from(["append", "upsert", "changelog"])) for _ in range(2))
        epochs = data.draw(draw_histories(left_mode))
        held: dict = {}
        run_process_time(
            left_mode,
            right_mode,
            data.draw(st.sampled_from(["inner", "left"])),
            epochs,
            [data.draw(draw_right_changes(right_mode, held)) for _ in epochs],
            snapshot=data.draw(st.sampled_from(["current", "previous"])),
            residual=data.draw(st.booleans()),
            reload=data.draw(st.sampled_from(["never", "snapshot"])),
        )

    search()


def fetches_equal_their_model() -> None:
    """Search for a script on which the fetch step makes other calls, or finds other rows, than it should."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        run_fetches(data)

    search()


MODELS = (
    lookups_equal_their_model,
    joins_by_processing_time_equal_their_model,
    fetches_equal_their_model,
    plans_in_buckets_are_one,
)


def _patched(story: str, model: Callable[[], None], owner: object, name: str, bug: object) -> Mutant:
    def search() -> None:
        with mock.patch.object(owner, name, bug):
            model()

    return Mutant(story.replace(" ", "_"), model, story, search, (AssertionError, ZsetJoinError))


_OF_LOOKUPS: tuple[Mutant, ...] = (
    _patched(
        "a retraction retracts the newest arrival", lookups_equal_their_model, lookup_rows.MatchMemo, "word", timed.newest_first
    ),
    _patched(
        "copies that were retracted are due all the same",
        lookups_equal_their_model,
        lookup_rows.Retracted,
        "copies_of",
        timed.first_copies,
    ),
    _patched(
        "one attempt too many", lookups_equal_their_model, lookup_join.LookupShape, "policy_of", staticmethod(timed.policy_of)
    ),
    _patched(
        "a row waits a moment too long",
        lookups_equal_their_model,
        lookup_join.LookupShape,
        "policy_of",
        staticmethod(timed.keeps_time),
    ),
    _patched(
        "the residual predicate is not evaluated",
        lookups_equal_their_model,
        lookup_shape.LookupShape,
        "passing_pairs",
        timed.all_pass,
    ),
    _patched(
        "the padded row stays beside its partner",
        lookups_equal_their_model,
        lookup_join.LookupJoin,
        "_withdrawn",
        timed.no_withdrawal,
    ),
    _patched("a row that is due now is not due", lookups_equal_their_model, lookup_rows.MatchMemo, "due", timed.not_due),
    _patched(
        "who was overtaken by another process goes on",
        lookups_equal_their_model,
        lookup_rows.MatchMemo,
        "is_current",
        timed.believes_itself,
    ),
    _patched("a snapshot loses its last line", lookups_equal_their_model, lookup_rows.MatchMemo, "restore", timed.forgets),
    _patched(
        "an updated right row is met as it was and as it is",
        joins_by_processing_time_equal_their_model,
        side_changes.SideChanges,
        "resolve",
        timed.touches_nothing,
    ),
    _patched(
        "copies of a new right row count once",
        joins_by_processing_time_equal_their_model,
        side_changes.SideChanges,
        "resolve",
        timed.comes_once,
    ),
    _patched("the cache believes a row for ever", fetches_equal_their_model, cache.PartialCache, "find", timed.always_fresh),
    _patched(
        "the cache keeps that a key is absent unasked",
        fetches_equal_their_model,
        cache.PartialCache,
        "remember",
        timed.keeps_absent,
    ),
    _patched("a miss is given up", fetches_equal_their_model, fetcher.Fetcher, "_judged", timed.judges_generously),
    _patched(
        "keys that were found are requested again",
        fetches_equal_their_model,
        fetcher.Fetcher,
        "_judged",
        timed.fetches_all_again,
    ),
    _patched("the journal is not read", fetches_equal_their_model, cache.FetchJournal, "_kept", timed.forgetful),
)

_OF_EXCHANGES: tuple[Mutant, ...] = (
    _patched("a route forgets a key", plans_in_buckets_are_one, exchange.Exchange, "absorb", bugs.forgets_a_key),
    _patched("a NULL key moves", plans_in_buckets_are_one, exchange.RowBuckets, "of", bugs.nulls_go_by_place),
    _patched(
        "a delete has not the sequence of the change that moved the row",
        plans_in_buckets_are_one,
        exchange.Exchange,
        "routed",
        bugs.deletes_with_an_old_sequence,
    ),
    _patched("an exchange reorders two changes of one key", plans_in_buckets_are_one, exchange, "_taken", bugs.taken_backwards),
    _patched(
        "tombstones of all buckets stay", plans_in_buckets_are_one, exchange.Exchange, "settled", lambda _, parts: list(parts)
    ),
)

MUTANTS = (*_JOINS_AND_AGGREGATES, *_OF_TIME, *_AT_THE_LIMIT, *_OF_LOOKUPS, *_OF_EXCHANGES)
LATE = frozenset(
    (
        "lets_changed_rows_stand",
        "forgets_unchanged_rows",
        "forgets_old_keys",
        "a_retraction_retracts_the_newest_arrival",
        "copies_of_a_new_right_row_count_once",
        "the_padded_row_stays_beside_its_partner",
        "loaded_KeepsTheLoad",
    )
)
"""A history that shows them is rare, so that they take half of the time of all: `make soak` hunts them."""
