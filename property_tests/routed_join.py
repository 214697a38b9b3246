"""A join in buckets behind the exchanges of the product, as one operator under the laws.

An upsert side whose join key lies outside its primary key has a route; every change then goes to the bucket of its join key,
where a `HashJoin` of its own keeps that bucket's rows. The sum over the buckets must be the plain join: a key that moves
between buckets must leave the old one. A snapshot has the rows of all buckets, and is taken apart again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from property_tests.shapes import JoinSpec
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.operators.join import HashJoin
from zset_join.runners.common.exchange import Exchange, apart, together
from zset_join.stages import JoinStage, StageOptions
from zset_join.zset import ZSet

__all__ = ["BUCKETS", "RoutedJoin"]

BUCKETS = 3


class RoutedJoin:
    """Join two relations in `BUCKETS` buckets.

    Args:
        spec: the join.
        residual: its residual as an expression.
        on_bad_input: only "error" here: a quarantined row would be reported by whichever stage meets it first.
        directory: where the stages keep their state, each in a directory of its own.
    """

    def __init__(
        self, spec: JoinSpec, *, residual: Expression | None, on_bad_input: str = "error", directory: str | None = None
    ) -> None:
        self.spec = spec
        self.inputs: tuple[Relation, ...] = spec.inputs
        hidden: Any = spec.hidden
        self._stage = JoinStage(
            left=spec.left,
            right=spec.right,
            how=spec.how,
            null_safe=spec.null_safe,
            using=spec.using,
            residual=residual,
            hidden=hidden,
        )
        options = StageOptions(
            on_bad_input=on_bad_input,
            chunk_rows=spec.knobs.chunk_rows,
            tombstone_retention_seconds=spec.knobs.options(on_bad_input, None).tombstone_retention_seconds,
        )
        self._exchanges = {
            side: Exchange(given, BUCKETS, options, directory=_made(directory, f"route{side}"))
            for side, given in enumerate(self._stage.inputs)
        }
        self._joins = [
            HashJoin(
                spec.left,
                spec.right,
                spec.how,
                null_safe=spec.null_safe,
                using=spec.using,
                residual=residual,
                hidden=spec.hidden,
                options=spec.knobs.options(on_bad_input, _made(directory, f"bucket{bucket}")),
            )
            for bucket in range(BUCKETS)
        ]
        self.output = self._joins[0].output

    @property
    def absorbed_epoch(self) -> int:
        """Return the epoch that every stage is at."""
        return min(part.absorbed_epoch for part in self._stateful())

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield every bucket's answer, all retractions first."""
        chunks = [
            chunk
            for join, parts in zip(self._joins, self._parts(tick, deltas), strict=True)
            for chunk in join.answer(tick, parts)
        ]
        for sign in (-1, 1):
            for chunk in chunks:
                chosen = np.flatnonzero(chunk.weights * sign > 0)
                if len(chosen):
                    yield ZSet(chunk.rows.take(pa.array(chosen)), chunk.weights[chosen])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Fold the deltas into routes and buckets."""
        parts = self._parts(tick, deltas)
        for join, part in zip(self._joins, parts, strict=True):
            next(join.answer(tick, part), None)  # so that a refusal comes before anything is applied
        for side, exchange in self._exchanges.items():
            exchange.absorb(tick, deltas[side])
        for join, part in zip(self._joins, parts, strict=True):
            join.absorb(tick, part)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the rejections of the buckets; the rows are numbered within a bucket, see `on_bad_input`."""
        parts = self._parts(tick, deltas)
        return pa.concat_tables([join.rejections(tick, part) for join, part in zip(self._joins, parts, strict=True)])

    def resident_bytes(self) -> int:
        """Return the bytes of all stages."""
        return sum(part.resident_bytes() for part in self._stateful())

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the tables of all buckets, put together."""
        return together(self._stage, [one.snapshot() for one in self._joins], self._exchanges, epoch=self.absorbed_epoch)

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Restore every bucket, and the routes from the sides that they feed."""
        for join, part in zip(self._joins, apart(self._stage, tables, BUCKETS), strict=True):
            join.restore(part)
        for side, name in enumerate(("left", "right")):
            self._exchanges[side].restore(tables[name])

    def close(self) -> None:
        """Close every stage."""
        for part in self._stateful():
            part.close()

    def _stateful(self) -> list[Any]:
        return [*self._joins, *(one.route for one in self._exchanges.values() if one.route is not None)]

    def _parts(self, tick: Tick, deltas: Sequence[ZSet]) -> list[list[ZSet]]:
        """Return, per bucket, the parts of both deltas."""
        split = [self._exchanges[side].split(tick, delta) for side, delta in enumerate(deltas)]
        return [list(one) for one in zip(*split, strict=True)]


def _made(directory: str | None, name: str) -> str | None:
    """Return a directory inside another one, made."""
    if directory is None:
        return None
    path = Path(directory) / name
    path.mkdir(exist_ok=True)
    return str(path)
