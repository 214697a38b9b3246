"""Planted bugs of first loads in parts, and of answers of few rows as one message, each with the law that must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from property_tests.mutants import Mutant
from property_tests.registry import build_hash_join, build_loaded_join, hash_join_live_rows, registered_join
from property_tests.shapes import JoinSpec
from zset_join.core.tick import Tick
from zset_join.operators.first_load import LoadedJoin
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

__all__ = ["FAST_PATH_MUTANTS"]

_BUSY = ("int32", "bool", "float32")  # key shapes with few values, so that rows meet


class _LosesPart(LoadedJoin):
    def _parts(self, deltas: Sequence[ZSet]) -> Iterator[list[ZSet]]:
        yield from list(super()._parts(deltas))[:-1]


class _KeepsTheLoad(LoadedJoin):
    """Whatever was loaded last is taken over, though another epoch is absorbed."""

    def _loaded_with(self, tick: Tick, deltas: Sequence[ZSet]) -> HashJoin | None:
        return super()._loaded_with(tick, deltas) if self._loaded is None else self._loaded


def _loaded(kind: type[LoadedJoin], story: str, law: str = "incremental_is_batch") -> Mutant:
    build = partial(build_loaded_join, kind=kind)
    entry = registered_join(
        "loaded", "full", ("upsert", "upsert"), build=build, live_rows=hash_join_live_rows, key_shapes=_BUSY
    )
    return Mutant(f"loaded{kind.__name__}", story, law, entry)


def _no_nulls(message: Any) -> None:
    write = message.write
    message.write = lambda rows, nulls, body_bytes: write(rows, [0] * len(nulls), body_bytes)


def _row_short(message: Any) -> None:
    write = message.write
    message.write = lambda rows, nulls, body_bytes: write(rows - (rows > 2), nulls, body_bytes)


def _message(bug: Callable[[Any], None], story: str) -> Mutant:
    def build(spec: JoinSpec, **options: Any) -> HashJoin:
        join = build_hash_join(spec, **options)
        if join._joined._few is not None:
            bug(join._joined._few._message)
        return join

    entry = registered_join("join", "full", ("upsert", "upsert"), build=build, live_rows=hash_join_live_rows, key_shapes=_BUSY)
    return Mutant(f"message{bug.__name__}", story, "incremental_is_batch", entry)


FAST_PATH_MUTANTS: tuple[Mutant, ...] = (
    _loaded(_LosesPart, "the last part of a first load is in no state and no answer"),
    _loaded(_KeepsTheLoad, "a first load that was answered stays, though another epoch is absorbed", "answer_is_pure"),
    _message(_no_nulls, "NULLs of an answer of few rows are the bytes that lie there"),
    _message(_row_short, "an answer of few rows lacks its last row"),
)
