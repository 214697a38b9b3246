"""Check a share of a view: which rows are in the sample, chosen alike on every side of a comparison.

A sample is a condition over an output row: the hash of some of its columns falls below a share of all hashes. It is put on
what was emitted and on what the batch query gives, so every row in the sample is compared exactly, and no row by half.

Which columns, best first:
- a key that the view still shows (unchanged by expressions, a group key of every aggregate), by which inputs can be filtered
  before they are joined, which is what makes a sample cheap: the join key of one of the joins, or the primary key of a stream.
  Of several that by which most streams can be filtered, and of these the one that is nearest to the output;
- the group key of the last aggregate, as far as the view shows it: Spark filters before it aggregates, where it can;
- all columns but floats, which may differ in their last digits: only the comparison becomes smaller.

Whether a stream can be filtered is followed from the view down through its joins. A condition on the join key filters both
sides of a join. One on other columns filters the side they come from, unless the join pads that side: a NULL that stands for a
missing row says nothing about the rows that are there. Behind a union it is followed into every branch. Of a dedup, an as-of
or a temporal join only the key by which it chooses rows is followed, on every side: among fewer rows it would choose others.

The law: the difference found in a sample is the difference found without one, restricted to the rows of the sample. The hash
is another one than that of the buckets, so a sample has its share of every bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.errors import KeyTypeError, OptionError
from zset_join.key_types import common_key_type
from zset_join.plan import JoinNode
from zset_join.shapes.join import joined_schema
from zset_join.spark.planning.join_plan import JoinPlan
from zset_join.spark.planning.normalise import hashed_type
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.planning.stages import Step, name_after
from zset_join.spark.planning.view_plan import ViewPlan
from zset_join.spark.rows.names import column_named
from zset_join.stages import AsOfJoinStage, DeduplicateStage, Stage, TemporalJoinStage

__all__ = ["Sample", "sample_of"]

_HASHES = 1 << 62
_SIDES = ("left", "right")
_CHOOSING = (AsOfJoinStage, DeduplicateStage, TemporalJoinStage)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A share of the rows of a view.

    Args:
        share: of all hashes, above 0 and up to 1.
        columns: names of the output columns that are hashed.
        by_output: these columns as they are hashed, where the columns of a row are numbered.
        by_input: name of a stream to what is hashed of its rows, for the streams that can be filtered.
    """

    share: float
    columns: tuple[str, ...]
    by_output: tuple[Column, ...] = field(repr=False)
    by_input: Mapping[str, tuple[Column, ...]] = field(default_factory=dict, repr=False)

    def of_output(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the view that are in the sample; the columns are called c0, c1 and so on."""
        return rows.where(self._holds(self.by_output))

    def of_input(self, table: DataFrame, stream: str) -> DataFrame:
        """Return the rows of a stream's table that matter for the sample; all where that cannot be told."""
        return table.where(self._holds(self.by_input[stream])) if stream in self.by_input else table

    def _holds(self, columns: Sequence[Column]) -> Column:
        return F.pmod(F.xxhash64(*columns), F.lit(_HASHES)) < F.lit(max(1, int(self.share * _HASHES)))


def sample_of(joined: ViewPlan, share: Any) -> Sample:
    """Return a sample of a view.

    Args:
        joined: the view.
        share: how much of it.

    Raises:
        OptionError: `VERIFY_SAMPLE`: the share is no fraction above 0 and up to 1, or the view cannot be sampled.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(
            f"sample={share!r}: expected a fraction above 0 and up to 1, such as 0.01; leave it out to check every row.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    aggregates = [step.stage for step in joined.steps if step.stage is not None]
    if aggregates and aggregates[-1].begins_alone:
        raise OptionError(
            f"sample={share!r}: the view is made of the one row of all rows, so there is no share of it to check. Leave "
            "sample out.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    return _by_key(joined, share) or _by_columns(joined, share)


@dataclass(frozen=True, kw_only=True)
class _KeyPart:
    """One column of a key, as a view shows it.

    Args:
        names: the columns of the view that show it; the first that is not NULL counts.
        kind: the type it is hashed in.
    """

    names: tuple[str, ...]
    kind: pa.DataType


_Key = tuple[_KeyPart, ...]


def _by_key(view: ViewPlan, share: float) -> Sample | None:
    """Sample by the key by which most streams can be filtered; None where there is none."""
    best: tuple[_Key, dict[str, tuple[Column, ...]]] = ((), {})
    for key in _keys_of(view):
        filters = _filters(view, key)
        if len(filters) > len(best[1]):
            best = key, filters
    key, filters = best
    if not filters:
        return None
    return Sample(
        share=share,
        columns=tuple(name for part in key for name in part.names),
        by_output=tuple(_hashed([_numbered(view, name) for name in part.names], part.kind) for part in key),
        by_input=filters,
    )


def _hashed(columns: Sequence[Column], kind: pa.DataType) -> Column:
    return F.coalesce(*(column.cast(hashed_type(kind)) for column in columns))


def _keys_of(view: ViewPlan) -> Iterator[_Key]:
    """Yield the keys of joins and of streams that a view shows, those nearest to it first."""
    stage = view.stage_before_steps
    if isinstance(stage, _CHOOSING):
        kinds = stage.inputs[0].key_types
        parts = [_KeyPart(names=(name,), kind=kind) for name, kind in zip(stage.output_key.bucketed_by, kinds, strict=True)]
        yield from _behind([tuple(parts)], view.steps)
        return
    if not isinstance(view, JoinPlan):
        for branch in view.inputs if stage is None else ():
            if isinstance(branch, ViewPlan):
                yield from _behind(_keys_of(branch), view.steps)
        return
    shown = list(_shown_keys(view.node))
    # Of an inner join either side's columns show the key; otherwise it is the first of them that is not NULL.
    variants = [[[name] for name in names] for names in zip(*shown, strict=True)] if view.node.how == "inner" else [shown]
    kinds = view.node.stage.key_types
    own = [tuple(_KeyPart(names=tuple(names), kind=kind) for names, kind in zip(one, kinds, strict=True)) for one in variants]
    yield from _behind(own, view.steps)
    for side, source in enumerate(view.inputs):
        carried = {name: after for (at, name), after in _named(view.node).items() if at in (_SIDES[side], "both")}
        keys = _keys_of(source) if isinstance(source, ViewPlan) else _primary_key(source)
        yield from _behind((_renamed(key, carried) for key in keys), view.steps)


def _primary_key(stream: SourceStream) -> Iterator[_Key]:
    if stream.keys:
        yield tuple(_KeyPart(names=(name,), kind=stream.schema.field(name).type) for name in stream.keys)


def _behind(keys: Iterable[_Key | None], steps: Sequence[Step]) -> Iterator[_Key]:
    """Yield keys by the names of their columns behind some steps, those that are still shown."""
    for key in keys:
        if key is not None:
            kept = {name: after for part in key for name in part.names if (after := name_after(steps, name)) is not None}
            shown = _renamed(key, kept)
            if shown is not None:
                yield shown


def _renamed(key: _Key, names: Mapping[str, str]) -> _Key | None:
    """Return a key by other names of its columns; None where one has none."""
    if not all(name in names for part in key for name in part.names):
        return None
    return tuple(replace(part, names=tuple(names[name] for name in part.names)) for part in key)


def _filters(view: ViewPlan, key: _Key) -> dict[str, tuple[Column, ...]]:
    """Return what has to be hashed of the rows of streams so that the rows of a view that are in a sample are all there.

    Args:
        view: whose rows are sampled.
        key: what is hashed of its rows.
    """
    names = {name for part in key for name in part.names}
    before = {after: name for name in view.before_steps.schema.names if (after := name_after(view.steps, name)) in names}
    key_before = _renamed(key, before)
    if key_before is None:
        return {}
    stage = view.stage_before_steps
    if stage is None:
        branches = [branch for branch in view.inputs if isinstance(branch, ViewPlan)]
        return {name: filters for branch in branches for name, filters in _filters(branch, key_before).items()}
    filters: dict[str, tuple[Column, ...]] = {}
    for side, source in enumerate(view.inputs):
        of_side = _on_side(view.node, side, key_before) if isinstance(view, JoinPlan) else _chosen_by(stage, side, key_before)
        if of_side is None:
            continue
        if isinstance(source, ViewPlan):
            filters |= _filters(source, of_side)
        else:
            filters[source.name] = tuple(_hashed([column_named(name) for name in part.names], part.kind) for part in of_side)
    return filters


def _chosen_by(stage: Stage, side: int, key: _Key) -> _Key | None:
    """Return a key of the answer of a stage that chooses rows as one of an input; None where it is not what it chooses by."""
    if not isinstance(stage, _CHOOSING):
        return None
    given = stage.inputs[side]
    names = dict(zip(stage.output_key.bucketed_by, given.key, strict=True))
    parts: list[_KeyPart] = []
    for part in key:
        name = names.get(part.names[0]) if len(part.names) == 1 else None
        if name is None or not _is_wider(part.kind, given.relation.schema.field(name).type):
            return None
        parts.append(_KeyPart(names=(name,), kind=part.kind))
    return tuple(parts)


def _on_side(node: JoinNode, side: int, key: _Key) -> _Key | None:
    """Return a key of the rows of a join as one of the rows of a side; None where it does not say which of them matter."""
    relation = node.sides[side].relation
    joined_by = list(zip(map(set, _shown_keys(node)), node.key_pairs, strict=True))
    is_padded = node.how in (("right", "full"), ("left", "full"))[side]
    own = {} if is_padded else {shown: name for (at, name), shown in _named(node).items() if at == _SIDES[side]}
    parts: list[_KeyPart] = []
    for part in key:
        pair = next((pair for names, pair in joined_by if _shows(node, set(part.names), names)), None)
        name = own.get(part.names[0]) if len(part.names) == 1 else None
        name = pair[side] if pair is not None else name
        if name is None or not _is_wider(part.kind, relation.schema.field(name).type):
            return None
        parts.append(_KeyPart(names=(name,), kind=part.kind))
    return tuple(parts)


def _shows(node: JoinNode, names: set[str], key_names: set[str]) -> bool:
    """Say whether columns of a join show the value of a key column in every row."""
    return bool(names) and (names <= key_names if node.how == "inner" else names == key_names)


def _is_wider(kind: pa.DataType, column: pa.DataType) -> bool:
    """Say whether a column has the type a key is hashed in, or one that fits into it without loss."""
    try:
        return hashed_type(common_key_type(column, kind, left_column="column", right_column="key")) == hashed_type(kind)
    except KeyTypeError:
        return False


def _named(node: JoinNode) -> dict[tuple[str, str], str]:
    """Return (side, column) to the column of a join that shows it; side `both` is a key of either."""
    schema, sources = joined_schema(node.left.relation, node.right.relation, node.how, using=node.using, output_names=None)
    hidden = {(name, column) for name, side in zip(_SIDES, node.sides, strict=True) for column in side.hidden}
    return {source: name for source, name in zip(sources, schema.names, strict=True) if source not in hidden}


def _shown_keys(node: JoinNode) -> Iterator[list[str]]:
    """Yield, per key column, the columns of the join's output that show its value, the first that is not NULL."""
    named = _named(node)
    for left, right in node.key_pairs:
        of_left, of_right = named.get(("left", left)), named.get(("right", right))
        if node.how == "full" or node.how == "inner":
            candidates = [named.get(("both", left)), of_left, of_right]
        else:
            candidates = [of_right if node.how == "right" else of_left]
        yield [name for name in candidates if name is not None]


def _by_columns(joined: ViewPlan, share: float) -> Sample:
    """Sample by the group key of the last aggregate, or by whole rows.

    Raises:
        OptionError: no column can be hashed.
    """
    columns: list[str] = []
    for at, step in enumerate(joined.steps):
        if step.stage is not None:
            behind = joined.steps[at + 1 :]
            columns = [shown for name in step.stage.output_key.columns if (shown := name_after(behind, name)) is not None]
    columns = columns or [at.name for at in joined.output.schema if _is_exact(at.type)]
    if not columns:
        raise OptionError(
            f"sample={share!r}: the view shows neither its join key nor a group key, and of its columns {joined.columns} none "
            "is the same to the last digit whoever computes it. Leave sample out, or let the view show a key.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    return Sample(share=share, columns=tuple(columns), by_output=tuple(_numbered(joined, name) for name in columns))


def _numbered(joined: ViewPlan, name: str) -> Column:
    return F.col(f"c{joined.columns.index(name)}")


def _is_exact(kind: pa.DataType) -> bool:
    """Say whether a column can be hashed, and is the same whoever adds it up."""
    if pa.types.is_map(kind) or pa.types.is_floating(kind):
        return False
    return all(_is_exact(kind.field(at).type) for at in range(kind.num_fields))
