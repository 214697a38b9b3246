"""Planted bugs of stages in buckets: rows lost, doubled or parted on their way, each with the law that must catch it."""

from __future__ import annotations

from functools import partial

from property_tests.bucketed_shapes import Bug, build_bucketed_join, double_slice, forgets_movers, lost_slice, wrong_hash
from property_tests.mutants import Mutant
from property_tests.registry import RESIDUAL_EXPRESSIONS, build_hash_join, hash_join_live_rows, registered_join
from property_tests.shapes import Mode

__all__ = ["BUCKET_MUTANTS"]


def _bucketed(bug: Bug, story: str, modes: tuple[Mode, Mode] = ("changelog", "changelog")) -> Mutant:
    build = partial(build_bucketed_join, inside=build_hash_join, residuals=RESIDUAL_EXPRESSIONS, bug=bug)
    entry = registered_join(
        "bucketed", "inner", modes, build=build, live_rows=hash_join_live_rows, key_shapes=("int32", "bool", "float32")
    )
    return Mutant(f"bucketed_{bug.__name__}", story, "incremental_is_batch", entry)


BUCKET_MUTANTS: tuple[Mutant, ...] = (
    _bucketed(wrong_hash, "two sides are parted by two hashes, so that equal keys do not meet"),
    _bucketed(lost_slice, "one of the slices that are hashed at the same time reaches no bucket"),
    _bucketed(double_slice, "the rows of one bucket reach another one as well"),
    _bucketed(forgets_movers, "the old row of a key that moves stays in the bucket it was in", ("upsert", "upsert")),
)
