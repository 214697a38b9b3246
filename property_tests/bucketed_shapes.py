"""Operators in buckets under the laws that all operators obey: several threads are one operator.

Every epoch is worked on by three threads, however small it is. `lost_slice`, `double_slice`, `wrong_hash` and `forgets_movers`
are what goes wrong where rows are partitioned: `property_tests.mutants` plants them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from property_tests.aggregate_shapes import AggregateSpec, build_aggregate
from property_tests.shapes import JoinSpec
from zset_join.expressions import Expression
from zset_join.runners.common.bucketed import Bucketed
from zset_join.runners.common.workers import Workers
from zset_join.stages import AggregateStage, JoinStage, Stage
from zset_join.zset.protocol import DurableOperator

__all__ = [
    "BUCKETS",
    "Bug",
    "build_bucketed_aggregate",
    "build_bucketed_join",
    "double_slice",
    "forgets_movers",
    "lost_slice",
    "wrong_hash",
]

BUCKETS = 3
_WORKERS = Workers(BUCKETS)

Bug = Callable[[Bucketed], None]


def build_bucketed_join(
    spec: JoinSpec,
    *,
    inside: Callable[..., DurableOperator],
    residuals: Mapping[str, Expression],
    on_bad_input: str = "error",
    directory: str | None = None,
    bug: Bug | None = None,
) -> Bucketed:
    """Build a join in buckets.

    Args:
        spec: the join.
        inside: builds that of a bucket.
        residuals: conditions by their names.
        on_bad_input: as for the join.
        directory: where the buckets keep their state, each in a directory of its own.
        bug: spoils what was built.
    """
    stage = JoinStage(
        left=spec.left,
        right=spec.right,
        how=spec.how,
        null_safe=spec.null_safe,
        using=spec.using,
        residual=None if spec.residual is None else residuals[spec.residual.name],
        hidden=tuple(map(tuple, spec.hidden)),  # type: ignore[arg-type]
    )
    return _bucketed(stage, lambda place: inside(spec, on_bad_input=on_bad_input, directory=place), directory, bug)


def build_bucketed_aggregate(spec: AggregateSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Bucketed:
    """Build an aggregate by key in buckets."""
    stage = AggregateStage(source=spec.relation, group_by=spec.group_by, calls=tuple(spec.calls()))

    def inside(place: str | None) -> Any:
        return build_aggregate(spec, on_bad_input=on_bad_input, directory=place)

    return _bucketed(stage, inside, directory, None)


def _bucketed(stage: Stage, inside: Callable[[str | None], Any], directory: str | None, bug: Bug | None) -> Bucketed:
    places = [None if directory is None else str(Path(directory) / f"bucket{number}") for number in range(BUCKETS)]
    operators: list[Any] = []
    with contextlib.ExitStack() as opened:
        for place in places:
            operators.append(inside(place))
            opened.callback(operators[-1].close)
        opened.pop_all()
    built = Bucketed(stage, operators, _WORKERS, rows_apart=1)
    if bug is not None:
        bug(built)
    return built


def lost_slice(built: Bucketed) -> None:
    """Lose the second slice of the left rows: they are taken for those of a bucket that does not exist."""
    _spoil(built, 0, 1, lambda buckets: np.full(len(buckets), BUCKETS))


def wrong_hash(built: Bucketed) -> None:
    """Part one side by another hash than the other one."""
    for piece in range(BUCKETS):
        _spoil(built, 1, piece, lambda buckets: (buckets + 1) % BUCKETS)


def double_slice(built: Bucketed) -> None:
    """Give the rows of the first bucket to the second one as well."""
    take = built._take

    def twice(spread: Any, bucket: int) -> None:
        kept = spread.buckets
        if bucket == 1:
            spread.buckets = [np.where(one == 0, 1, one) for one in kept]
        take(spread, bucket)
        spread.buckets = kept

    built._take = twice  # type: ignore[method-assign]


def forgets_movers(built: Bucketed) -> None:
    """Believe that no row ever leaves its bucket."""
    for moving in built._moving.values():
        moving.keys.of = lambda hashes: np.zeros(len(hashes), np.uint8)  # type: ignore[method-assign]


def _spoil(built: Bucketed, number: int, piece: int, bug: Callable[[Any], Any]) -> None:
    original: Any = built._by_key[number][piece].of
    built._by_key[number][piece].of = lambda rows: bug(original(rows))  # type: ignore[method-assign]
