"""Planted bugs of aggregates: classical mistakes, each with the law that must catch it.

A *switch* turns on one mistake inside `ReferenceAggregate`; a *wrapper* spoils the outside of the product's `Aggregate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from property_tests.aggregate_reference import build_reference_aggregate
from property_tests.aggregate_shapes import AggregateSpec, aggregate_specs, build_aggregate
from property_tests.mutants import (
    AddsZeroLines,
    HidesRejections,
    KeepsFirstChunkOnly,
    LosesARowOfEverySnapshot,
    Mutant,
    RemembersByEpoch,
    RestoresNothing,
    ReusesItsBuffer,
    TalksWhenQuiet,
    TurnsLinesAround,
    Wrapped,
)
from property_tests.registry import Build, Registered, hash_join_live_rows, reference_live_rows
from zset_join.zset.protocol import Operator

__all__ = ["AGGREGATE_MUTANTS"]

_BATCH, _TIDY, _UNDO = "incremental_is_batch", "answers_are_tidy", "undo_is_complete"
_RESTORE, _BOOKS, _ERROR = "snapshot_and_restore_are_invisible", "quarantine_keeps_the_books", "errors_apply_nothing"
_BUSY = ("int32", "bool", "float32")


def _switch(bug: str, caught_by: str, story: str, **drawn: Any) -> Mutant:
    build: Build = partial(build_reference_aggregate, bugs=(bug,))
    specs = aggregate_specs("changelog", **{"key_shapes": _BUSY, **drawn})
    return Mutant(f"aggregate_{bug}", story, caught_by, Registered("switch", specs, build, reference_live_rows))


@dataclass(frozen=True)
class _BuildWrapped:
    """Build an `Aggregate`, perhaps from a distorted spec or other options, and wrap it."""

    wrapper: Callable[[Any], Any] = Wrapped
    distort: Callable[[AggregateSpec], AggregateSpec] = field(default=lambda spec: spec)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        options = {"on_bad_input": on_bad_input, "directory": directory, **self.options}
        wrapped: Operator = self.wrapper(build_aggregate(self.distort(spec), **options))
        return wrapped


def _wrapper(name: str, caught_by: str, story: str, build: _BuildWrapped) -> Mutant:
    specs = aggregate_specs("changelog", key_shapes=_BUSY)
    return Mutant(f"aggregate_{name}", story, caught_by, Registered("wrapper", specs, build, hash_join_live_rows))


def _unfiltered(spec: AggregateSpec) -> AggregateSpec:
    return dataclasses.replace(spec, choices=tuple(dataclasses.replace(choice, filtered="") for choice in spec.choices))


def _population(spec: AggregateSpec) -> AggregateSpec:
    return dataclasses.replace(
        spec,
        choices=tuple(
            dataclasses.replace(one, function="var_pop") if one.function == "var_samp" else one for one in spec.choices
        ),
    )


AGGREGATE_MUTANTS: tuple[Mutant, ...] = (
    _switch("short_buffer", _BATCH, "max keeps the best two values and has no other when they leave"),
    _switch("extreme_never_retreats", _BATCH, "max is compared on insertion and never looked up again"),
    _switch(
        "naive_float_sum",
        _BATCH,
        "a running float sum keeps the rounding errors, NaN and infinities of rows that are gone",
        payloads=("extreme_float64", "tame_float64"),
        functions=("sum",),
    ),
    _switch("nulls_counted", _BATCH, "count(column) counts NULLs like values"),
    _switch("distinct_counts_copies", _BATCH, "count(DISTINCT x) counts copies"),
    _switch("copies_ignored", _BATCH, "two copies of a row are added once"),
    _switch("filter_ignored", _BATCH, "FILTER (WHERE ...) is lost"),
    _switch("sum_of_nothing_is_0", _BATCH, "the sum of NULLs is 0 instead of NULL", payloads=("int8",), functions=("sum",)),
    _switch(
        "average_rounds_down", _BATCH, "a decimal average is cut off, not rounded", payloads=("decimal",), functions=("avg",)
    ),
    _switch(
        "sample_of_one_is_0",
        _BATCH,
        "the variance of a single value is 0 instead of NULL",
        payloads=("int8", "tame_float64"),
        functions=("var_samp",),
    ),
    _switch(
        "nan_is_smallest",
        _BATCH,
        "NaN sorts below the numbers, as in IEEE minimum",
        payloads=("float64",),
        functions=("min", "max"),
    ),
    _switch("null_groups_dropped", _BATCH, "rows with a NULL key are left out, as in pandas"),
    _switch("zeros_make_two_groups", _BATCH, "0.0 and -0.0 are two groups, as in pyarrow", key_shapes=("float32", "float64")),
    _switch("empty_groups_shown", _BATCH, "a group without rows stays, with count 0"),
    _switch("empty_groups_kept", _UNDO, "the state of dead groups grows for ever"),
    _switch("global_row_leaves", _BATCH, "without rows a global aggregate has no row", is_global=True),
    _switch("first_row_waits", _BATCH, "the row of a global aggregate is emitted with the first input only", is_global=True),
    _switch("unchanged_groups_said", _TIDY, "a touched group that stays the same is retracted and inserted"),
    _switch("old_from_new_state", "legal_in_legal_out", "the retraction is computed from the new state"),
    _switch("insertions_first", _TIDY, "the new row comes before the old one is retracted"),
    _switch("snapshot_forgets_copies", _RESTORE, "a restored group holds each row once"),
    _switch("restore_adds", _RESTORE, "restoring adds the snapshot to what was there"),
    _switch("takes_what_is_not_there", _ERROR, "an impossible retraction is taken for good"),
    _wrapper("keeps_first_chunk_only", _BATCH, "a big answer is cut short", _BuildWrapped(KeepsFirstChunkOnly)),
    _wrapper("turns_lines_around", _TIDY, "insertions come before retractions", _BuildWrapped(TurnsLinesAround)),
    _wrapper("remembers_by_epoch", "answer_is_pure", "the first answer is kept", _BuildWrapped(RemembersByEpoch)),
    _wrapper("reuses_its_buffer", "answer_is_pure", "chunks share one buffer of weights", _BuildWrapped(ReusesItsBuffer)),
    _wrapper("adds_zero_lines", _TIDY, "lines of weight 0 leave", _BuildWrapped(AddsZeroLines)),
    _wrapper("talks_when_quiet", "quiet_on_quiet", "an empty chunk for an empty delta", _BuildWrapped(TalksWhenQuiet)),
    _wrapper("loses_a_row_of_every_snapshot", _RESTORE, "a snapshot short by a row", _BuildWrapped(LosesARowOfEverySnapshot)),
    _wrapper("restores_nothing", _RESTORE, "a restore that does nothing", _BuildWrapped(RestoresNothing)),
    _wrapper("hides_rejections", _BOOKS, "the dead-letter table stays empty", _BuildWrapped(HidesRejections)),
    _wrapper(
        "quarantines_by_default",
        _ERROR,
        "bad rows are left out although the policy is error",
        _BuildWrapped(options={"on_bad_input": "quarantine"}),
    ),
    _wrapper(
        "keeps_nothing_in_its_directory",
        "reopening_is_invisible",
        "the directory of the groups stays empty",
        _BuildWrapped(options={"directory": None}),
    ),
    _wrapper("unfiltered", _BATCH, "the filter is lost on the way to the engine", _BuildWrapped(distort=_unfiltered)),
    _wrapper("population", _BATCH, "the variance of a sample divides by n", _BuildWrapped(distort=_population)),
)
