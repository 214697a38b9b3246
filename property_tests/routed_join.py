"""The Spark plan in miniature: routes, buckets and one join per bucket, as one operator under the laws.

An upsert side whose join key lies outside its primary key goes through a `Route`; every change then goes to the bucket of
its join key, where a `HashJoin` of its own keeps that bucket's rows. The sum over the buckets must be the plain join: a key
that moves between buckets must leave the old one.

A row whose key can never match goes to a bucket chosen by its whole identity, as in the product. Buckets are chosen here by
a checksum of the key's identity; the product lets Spark hash. The law needs only that equal keys meet.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from property_tests.shapes import JoinSpec
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.expressions import Expression
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Route
from zset_join.testing.reference import row_identity
from zset_join.zset import ZSet

__all__ = ["BUCKETS", "RoutedJoin", "needs_route"]

BUCKETS = 3


def needs_route(relation: Relation) -> bool:
    """Return whether the join key of a live row can move without its old place being named."""
    return relation.mode == "upsert" and not set(relation.join_key) <= set(relation.primary_key)


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
        knobs = spec.knobs
        self._routes = [
            Route(
                relation,
                options=knobs.options(on_bad_input, _made(directory, f"route{side}")),
            )
            if needs_route(relation)
            else None
            for side, relation in enumerate(self.inputs)
        ]
        self._behind: list[Relation] = [
            relation if route is None else route.output for relation, route in zip(self.inputs, self._routes, strict=True)
        ]
        self._joins = [
            HashJoin(
                self._behind[0],
                self._behind[1],
                spec.how,
                null_safe=spec.null_safe,
                using=spec.using,
                residual=residual,
                options=knobs.options(on_bad_input, _made(directory, f"bucket{bucket}")),
            )
            for bucket in range(BUCKETS)
        ]
        self.output = self._joins[0].output

    @property
    def absorbed_epoch(self) -> int:
        """Return the epoch that every stage is at."""
        epochs = {stage.absorbed_epoch for _, stage in self._stages()}
        return min(epochs)

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
        for route, delta in zip(self._routes, deltas, strict=True):
            if route is not None:
                route.absorb(tick, [delta])
        for join, part in zip(self._joins, parts, strict=True):
            join.absorb(tick, part)

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
        """Return the rejections of the buckets; the rows are numbered within a bucket, see `on_bad_input`."""
        parts = self._parts(tick, deltas)
        return pa.concat_tables([join.rejections(tick, part) for join, part in zip(self._joins, parts, strict=True)])

    def resident_bytes(self) -> int:
        """Return the bytes of all stages."""
        return sum(stage.resident_bytes() for _, stage in self._stages())

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the tables of all stages, each under the name of its stage."""
        return {f"{name}/{key}": table for name, stage in self._stages() for key, table in stage.snapshot().items()}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Restore every stage."""
        for name, stage in self._stages():
            prefix = f"{name}/"
            stage.restore({key.removeprefix(prefix): table for key, table in tables.items() if key.startswith(prefix)})

    def close(self) -> None:
        """Close every stage."""
        for _, stage in self._stages():
            stage.close()

    def _stages(self) -> list[tuple[str, HashJoin | Route]]:
        stages: list[tuple[str, HashJoin | Route]] = [(f"bucket{number}", join) for number, join in enumerate(self._joins)]
        return stages + [(f"route{side}", route) for side, route in enumerate(self._routes) if route is not None]

    def _parts(self, tick: Tick, deltas: Sequence[ZSet]) -> list[list[ZSet]]:
        """Return, per bucket, both sides' share of the routed deltas."""
        parts: list[list[ZSet]] = [[] for _ in range(BUCKETS)]
        for side, (route, delta) in enumerate(zip(self._routes, deltas, strict=True)):
            relation = self._behind[side]
            routed = delta if route is None else ZSet.concat(route.answer(tick, [delta]), schema=relation.schema)
            buckets = np.array([self._bucket(relation, row) for row, _ in routed.to_pylist()], dtype=np.int64)
            for bucket in range(BUCKETS):
                chosen = np.flatnonzero(buckets == bucket)
                parts[bucket].append(ZSet(routed.rows.take(pa.array(chosen)), routed.weights[chosen]))
        return parts

    def _bucket(self, relation: Relation, row: Sequence[object]) -> int:
        key = row_identity(row[place] for place in relation.field_indices(relation.join_key))
        lost = any(value is None and not safe for value, safe in zip(key, self.spec.null_safe, strict=True))
        if lost and relation.mode == "upsert":
            key = row_identity(row[place] for place in relation.field_indices(relation.primary_key))
        elif lost:
            key = row_identity(row)
        return crc32(repr([_in_one_way(value) for value in key]).encode()) % BUCKETS


def _in_one_way(value: object) -> object:
    """Write equal values of different types alike: decimals of any scale, instants of any zone."""
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def _made(directory: str | None, name: str) -> str | None:
    """Return a directory inside another one, made."""
    if directory is None:
        return None
    path = Path(directory) / name
    path.mkdir(exist_ok=True)
    return str(path)
