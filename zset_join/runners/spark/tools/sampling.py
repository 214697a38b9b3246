"""Samples of a view: the same rows on every side of a comparison.

A sample is a condition over an output row: the hash of some of its columns falls below a share of all hashes. It is put on
what was emitted and on what the batch query gives, so every row in the sample is compared exactly, and no row by half.

Which columns, best first:
- a key that the view still shows, by which inputs can be filtered before they are joined: the key of one of the joins, or the
  primary key of a stream. Of several that by which most streams can be filtered, then the one nearest to the output;
- the group key of the last aggregate, as far as the view shows it: Spark filters before it aggregates, where it can;
- all columns but floats, which may differ in their last digits: only the comparison becomes smaller.

Whether a stream can be filtered is followed from the view down through its stages. A condition on the join key filters both
sides of a join. One on other columns filters the side they come from, unless the join pads that side. Of a dedup, an as-of or
a temporal join only the key by which it chooses rows is followed: among fewer rows it would choose others. Joins whose rows end
and joins by processing time let no condition through. A stream that reaches the view in several places is filtered where all of
them request the same.

The law: the difference found in a sample is the difference found without one, restricted to the rows of the sample. The hash
is another one than that of the buckets, so a sample has its share of every bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import KeyTypeError, OptionError
from zset_join.core.key_types import common_key_type
from zset_join.plan.row_steps import name_after
from zset_join.runners.spark.planning.normalise import hashed_type
from zset_join.runners.spark.planning.placed import Placed, ends_of, feeding, kept_by, visible_columns_of
from zset_join.runners.spark.planning.stages import PlannedStage, Stream
from zset_join.runners.spark.rows.names import column_named
from zset_join.stages import Stage
from zset_join.stages.stage import EquiJoin

__all__ = ["Sample", "sample_of"]

_HASHES = 1 << 62
_SIDES = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A share of the rows of a view."""

    share: float
    columns: tuple[str, ...]
    by_output: tuple[Column, ...] = field(repr=False)
    by_input: Mapping[str, tuple[Column, ...]] = field(default_factory=dict, repr=False)

    def of_output(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the view that are in the sample; the columns are called c0, c1 and so on."""
        return rows.where(self._holds(self.by_output))

    def of_input(self, table: DataFrame, stream: str) -> DataFrame:
        """Return the rows of a stream's table that matter for the sample; all where that is unknown."""
        return table.where(self._holds(self.by_input[stream])) if stream in self.by_input else table

    def _holds(self, columns: Sequence[Column]) -> Column:
        return F.pmod(F.xxhash64(*columns), F.lit(_HASHES)) < F.lit(max(1, int(self.share * _HASHES)))


def sample_of(view: Placed, share: Any) -> Sample:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(
            f"sample={share!r}: expected a fraction above 0 and up to 1, such as 0.01; leave it out to check every row.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    last = ends_of(view.planned_stages)
    if len(last) == 1 and last[0].stage.emits_without_input:
        raise OptionError(
            f"sample={share!r}: the view is made of the one row of all rows, so there is no share of it to check. Leave "
            "sample out.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    return _by_key(view, share) or _by_columns(view, share)


@dataclass(frozen=True, kw_only=True)
class _KeyPart:
    """One column of a key, as a view shows it."""

    names: tuple[str, ...]
    kind: pa.DataType


_Key = tuple[_KeyPart, ...]
_Place = tuple[int, int]
"""The number of a stage, and which of its inputs."""


def _by_key(view: Placed, share: float) -> Sample | None:
    """Sample by the key by which most streams can be filtered; None where there is none."""
    stages, ends = view.planned_stages, ends_of(view.planned_stages)
    best: tuple[_Key, dict[str, _Key]] = ((), {})
    for key in (key for end in ends for key in _keys_behind(stages, end)):
        filters = _of_streams(stages, _filters(stages, ends, key))
        if len(filters) > len(best[1]):
            best = key, filters
    key, filters = best
    if not filters:
        return None
    return Sample(
        share=share,
        columns=tuple(name for part in key for name in part.names),
        by_output=tuple(_hashed([_numbered(view, name) for name in part.names], part.kind) for part in key),
        by_input={
            name: tuple(_hashed([column_named(column) for column in part.names], part.kind) for part in at)
            for name, at in filters.items()
        },
    )


def _hashed(columns: Sequence[Column], kind: pa.DataType) -> Column:
    return F.coalesce(*(column.cast(hashed_type(kind)) for column in columns))


def _keys_behind(stages: Sequence[PlannedStage], one: PlannedStage) -> Iterator[_Key]:
    """Yield the keys of joins and of streams that the rows behind a stage show, those nearest to it first."""
    for key in _keys_of(stages, one):
        kept = {name: after for part in key for name in part.names if (after := name_after(one.steps, name)) is not None}
        yield from _renamed(key, kept)


def _keys_of(stages: Sequence[PlannedStage], one: PlannedStage) -> Iterator[_Key]:
    stage = one.stage
    if stage.chooses_by_key:
        kinds = stage.inputs[0].key_types
        yield tuple(_KeyPart(names=(name,), kind=kind) for name, kind in zip(stage.output_key.bucketed_by, kinds, strict=True))
        return
    if stage.equi_join is not None:
        yield from _join_keys(stage.equi_join)
        named = _named(stage.equi_join)
        carried = [{name: shown for (at, name), shown in named.items() if at in (side, "both")} for side in _SIDES]
    else:
        carried = [dict(kept_by(stage))] if len(stage.inputs) == 1 else []
    for side, names in enumerate(carried):
        for key in _primary_key(one.streams[side]) if side in one.streams else ():
            yield from _renamed(key, names)
        for before in feeding(stages, one.number, side):
            for key in _keys_behind(stages, before):
                yield from _renamed(key, names)


def _primary_key(stream: Stream) -> Iterator[_Key]:
    keys = stream.relation(()).primary_key
    if keys:
        yield tuple(_KeyPart(names=(name,), kind=stream.schema.field(name).type) for name in keys)


def _join_keys(stage: EquiJoin) -> Iterator[_Key]:
    shown = list(_shown_keys(stage))
    # Of an inner join either side's columns show the key; otherwise it is the first of them that is not NULL.
    variants = [[[name] for name in names] for names in zip(*shown, strict=False)] if stage.how == "inner" else [shown]
    for one in variants:
        if all(one):  # a column that was computed for the join is not shown
            yield tuple(_KeyPart(names=tuple(names), kind=kind) for names, kind in zip(one, stage.key_types, strict=True))


def _renamed(key: _Key, names: Mapping[str, str]) -> Iterator[_Key]:
    """Yield a key by other names of its columns; nothing where one has none."""
    if all(name in names for part in key for name in part.names):
        yield tuple(replace(part, names=tuple(names[name] for name in part.names)) for part in key)


def _filters(stages: Sequence[PlannedStage], rows: Sequence[PlannedStage], key: _Key) -> dict[_Place, _Key]:
    """Return the columns of the streams to hash, so that a sample contains all partners of its rows."""
    names = {name for part in key for name in part.names}
    filters: dict[_Place, _Key] = {}
    for one in rows:
        before = {after: name for name in one.before.schema.names if (after := name_after(one.steps, name)) in names}
        for key_before in _renamed(key, before):
            for side in range(len(one.stage.inputs)):
                of_side = _on_side(one.stage, side, key_before)
                if of_side is not None:
                    filters |= {(one.number, side): of_side} if side in one.streams else {}
                    filters |= _filters(stages, feeding(stages, one.number, side), of_side)
    return filters


def _of_streams(stages: Sequence[PlannedStage], filters: Mapping[_Place, _Key]) -> dict[str, _Key]:
    """Return, by stream, what is hashed of its rows, where that is the same in all places that it reaches."""
    wanted: dict[str, set[_Key | None]] = {}
    for one in stages:
        for side, stream in one.streams.items():
            key = filters.get((one.number, side))
            is_visible = key is not None and {name for part in key for name in part.names} <= set(visible_columns_of(stream))
            wanted.setdefault(stream.name, set()).add(key if is_visible else None)
    return {name: key for name, keys in wanted.items() if len(keys) == 1 for key in keys if key is not None}


def _on_side(stage: Stage, side: int, key: _Key) -> _Key | None:
    """Return a key of the answer of a stage as one of the rows of an input; None where it decides nothing about them."""
    if stage.equi_join is not None:
        return _on_side_of_join(stage.equi_join, side, key)
    if stage.chooses_by_key:
        return _chosen_by(stage, side, key)
    if len(stage.inputs) > 1 or not {name for part in key for name in part.names} <= kept_by(stage).keys():
        return None
    return key


def _chosen_by(stage: Stage, side: int, key: _Key) -> _Key | None:
    """Return a key of the answer of a stage that chooses rows as one of an input; None where it is not what it chooses by."""
    given = stage.inputs[side]
    names = dict(zip(stage.output_key.bucketed_by, given.key, strict=True))
    parts: list[_KeyPart] = []
    for part in key:
        name = names.get(part.names[0]) if len(part.names) == 1 else None
        if name is None or not _is_wider(part.kind, given.relation.schema.field(name).type):
            return None
        parts.append(_KeyPart(names=(name,), kind=part.kind))
    return tuple(parts)


def _on_side_of_join(stage: EquiJoin, side: int, key: _Key) -> _Key | None:
    relation = stage.relations[side]
    joined_by = list(zip(map(set, _shown_keys(stage)), stage.key_pairs, strict=True))
    is_padded = stage.how in (("right", "full"), ("left", "full"))[side]
    own = {} if is_padded else {shown: name for (at, name), shown in _named(stage).items() if at == _SIDES[side]}
    parts: list[_KeyPart] = []
    for part in key:
        pair = next((pair for names, pair in joined_by if _shows(stage, set(part.names), names)), None)
        name = own.get(part.names[0]) if len(part.names) == 1 else None
        name = pair[side] if pair is not None else name
        if name is None or not _is_wider(part.kind, relation.schema.field(name).type):
            return None
        parts.append(_KeyPart(names=(name,), kind=part.kind))
    return tuple(parts)


def _shows(stage: EquiJoin, names: set[str], key_names: set[str]) -> bool:
    """Return whether columns of a join show the value of a key column in every row."""
    return bool(names) and (names <= key_names if stage.how == "inner" else names == key_names)


def _is_wider(kind: pa.DataType, column: pa.DataType) -> bool:
    """Return whether a column has the type a key is hashed in, or one that fits into it without loss."""
    try:
        return hashed_type(common_key_type(column, kind, left_column="column", right_column="key")) == hashed_type(kind)
    except KeyTypeError:
        return False


def _named(stage: EquiJoin) -> dict[tuple[str, str], str]:
    """Return (side, column) to the column of a join that shows it; side `both` is a key of either."""
    return dict(zip(stage.shape.sources, stage.output.schema.names, strict=True))


def _shown_keys(stage: EquiJoin) -> Iterator[list[str]]:
    """Yield, per key column, the columns of the join's output that show its value, the first that is not NULL."""
    named = _named(stage)
    for left, right in stage.key_pairs:
        of_left, of_right = named.get(("left", left)), named.get(("right", right))
        if stage.how == "full" or stage.how == "inner":
            candidates = [named.get(("both", left)), of_left, of_right]
        else:
            candidates = [of_right if stage.how == "right" else of_left]
        yield [name for name in candidates if name is not None]


def _by_columns(view: Placed, share: float) -> Sample:
    """Sample by the key of the last stage of one input, or by whole rows."""
    columns: list[str] = []
    last = ends_of(view.planned_stages)
    if len(last) == 1 and len(last[0].stage.inputs) == 1:
        columns = [shown for name in last[0].stage.output_key.columns if (shown := name_after(last[0].steps, name)) is not None]
    columns = columns or [at.name for at in view.output.schema if _is_exact(at.type)]
    if not columns:
        raise OptionError(
            f"sample={share!r}: the view shows neither its join key nor a group key, and of its columns "
            f"{view.output.schema.names} none is the same to the last digit on every machine. Leave sample out, or let the "
            "view show a key.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    return Sample(share=share, columns=tuple(columns), by_output=tuple(_numbered(view, name) for name in columns))


def _numbered(view: Placed, name: str) -> Column:
    return F.col(f"c{view.output.schema.names.index(name)}")


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether a column can be hashed, and is the same in whatever order it is added up."""
    if pa.types.is_map(kind) or pa.types.is_floating(kind):
        return False
    return all(_is_exact(kind.field(at).type) for at in range(kind.num_fields))
