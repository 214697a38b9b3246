"""All streams of a query as one: every row with its side, its weight and its bucket.

The bucket of a row is `pmod(hash(join key in its common type), N)`. Spark's hash agrees with its equality: NaN, 0.0 and -0.0,
decimals in one scale. A row whose key can never match (NULL under `=`) goes by its primary key, or by its whole row: such
rows spread out, and a later change of the row still finds it. An input that is routed first goes by its primary key.

In a chain of joins every row also says which join it is for. All go through the first shuffle together, because a batch that is
looked at twice reads its sources twice; the first shuffle of an epoch is made once and read once per join.

Limits: maps and variants have no hash in Spark; a row without a primary key that consists of nothing else goes to one
bucket when its join key is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import DataType

from zset_join.key_types import common_key_type
from zset_join.plan import JoinNode, RouteNode
from zset_join.relation import Relation
from zset_join.spark.baseline import union
from zset_join.spark.layout import NOTE_FLAG, REJECTED, TARGET, SlotLayout, assign_slots, make_layout
from zset_join.spark.names import quoted
from zset_join.spark.row_reading import RAW, REJECT, WEIGHT
from zset_join.spark.schemas import spark_type
from zset_join.spark.streams import ChangeStream
from zset_join.spark.text_select import select_text

__all__ = [
    "JoinInputs",
    "TaggedJoin",
    "TaggedStreams",
    "common_key_types",
    "common_types",
    "hashed_type",
    "join_bucket",
    "key_bucket",
    "tag",
]

_MOST_DECIMAL_DIGITS = 38


@dataclass(frozen=True, kw_only=True)
class JoinInputs:
    """Name what a join is given.

    Args:
        number: of the join.
        node: the join.
        streams: per side its stream; None where an earlier view is the input.
    """

    number: int
    node: JoinNode
    streams: tuple[ChangeStream | None, ChangeStream | None]


@dataclass(frozen=True, kw_only=True)
class TaggedJoin:
    """Say how rows travel to one join.

    Args:
        layout: how its sides use the slots.
        is_routed: its streams go through a route stage first.
    """

    layout: SlotLayout
    is_routed: bool


@dataclass(frozen=True, kw_only=True)
class TaggedStreams:
    """The union of all streams, ready for the first shuffle.

    Args:
        dataframe: columns target (if there are several), flag, weight, raw (if the layouts have it), the slots, bucket.
        baseline: the rows that come before them, with the same columns; None when no stream has a baseline.
        joins: number of every join to how rows travel to it.
        fed: the numbers of those that streams go to.
        types: of the slots that streams need; every layout begins with them.
    """

    dataframe: DataFrame
    baseline: DataFrame | None
    joins: Mapping[int, TaggedJoin]
    fed: tuple[int, ...]
    types: tuple[pa.DataType, ...]

    def rows_of(self, shuffled: DataFrame, numbers: Sequence[int]) -> DataFrame:
        """Return the rows that streams have for some joins.

        Args:
            shuffled: the rows of an epoch behind the first shuffle.
            numbers: of the joins.
        """
        if set(numbers) == set(self.fed):
            return shuffled
        # Not deterministic, so that Spark leaves it behind the shuffle, which all joins share then.
        return shuffled.where(F.when(F.monotonically_increasing_id() >= 0, F.col(TARGET).isin(*numbers)))


class NamedColumns:
    """Columns by the names of a relation, made when they are asked for.

    Args:
        names: to the names in the DataFrame, where those are others.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Column:
        return F.col(self.text(name))

    def text(self, name: str) -> str:
        """Return a column as SQL text."""
        return quoted(name if self._names is None else self._names[name])


def tag(joins: Sequence[JoinInputs], buckets: int) -> TaggedStreams:
    """Build the union of all streams.

    Args:
        joins: the joins of the query.
        buckets: N.
    """
    streams = [stream for join in joins for stream in join.streams if stream is not None]
    has_raw = any(stream.may_reject for stream in streams)
    # The rows of streams carry the slots that streams need; what a view needs besides comes behind them.
    types: list[pa.DataType] = []
    for stream in streams:
        assign_slots(types, stream.schema)
    layouts = {
        join.number: make_layout(join.node.left.relation.schema, join.node.right.relation.schema, has_raw=has_raw, types=types)
        for join in joins
    }
    fed = tuple(join.number for join in joins if any(stream is not None for stream in join.streams))
    tagged: list[DataFrame] = []
    baselines: list[DataFrame] = []
    for join in joins:
        for side, source in enumerate(join.streams):
            if source is None:
                continue
            for rows, found in ((source.prepared, tagged), (source.baseline, baselines)):
                if rows is not None:
                    made = _tag_side(source, rows, layouts[join.number], types, join.node, side, buckets)
                    found.append(made if len(fed) == 1 else made.select(F.lit(join.number).alias(TARGET), "*"))
    whole = union(tagged)
    if whole is None:
        raise TypeError("a query without a stream")
    return TaggedStreams(
        dataframe=whole,
        baseline=union(baselines),
        joins={
            join.number: TaggedJoin(
                layout=layouts[join.number],
                is_routed=any(isinstance(side, RouteNode) for side in join.node.sides),
            )
            for join in joins
        },
        fed=fed,
        types=tuple(types),
    )


def _tag_side(
    stream: ChangeStream,
    rows: DataFrame,
    layout: SlotLayout,
    types: Sequence[pa.DataType],  # of the slots that streams use; others of the layout are not there yet
    node: JoinNode,
    side: int,
    buckets: int,
) -> DataFrame:
    names = stream.schema.names
    flag = F.lit(side).cast("byte")
    if stream.may_reject:
        flag = F.when(F.col(REJECT).isNotNull(), F.lit(side + REJECTED)).otherwise(F.lit(side)).cast("byte")
    plain = {at.name: F.col(quoted(at.name)).cast(spark_type(at.type)) for at in stream.schema if at.metadata}
    if plain:
        rows = rows.withColumns(plain)
    by_slot = {slot: quoted(name) for slot, name in zip(layout.slots[side], names, strict=True)}
    empty = {kind: f"__null{at}" for at, kind in enumerate({kind for slot, kind in enumerate(types) if slot not in by_slot})}
    slots = [
        f"{by_slot.get(slot) or empty[kind]} AS {name}"
        for slot, (name, kind) in enumerate(zip(layout.names, types, strict=False))
    ]
    # NULL where the row is fine, the code alone where there was nothing to read, else "code:text".
    told = F.when(F.col(REJECT).isNotNull(), F.concat_ws(":", F.col(REJECT), F.col(RAW)))
    raw = {"__raw_told": told} if layout.has_raw else {}
    nulls = {name: F.lit(None).cast(spark_type(kind)) for kind, name in empty.items()}
    bucket = _first_bucket(node, side, NamedColumns(), buckets)
    made = rows.withColumns({"__flag": flag, **raw, **nulls, "__bucket": bucket})
    shown = ["__flag AS flag", f"{WEIGHT} AS weight", *(["__raw_told AS raw"] if raw else [])]
    return select_text(made, [*shown, *slots, "__bucket AS bucket"])


def _first_bucket(node: JoinNode, side: int, columns: NamedColumns, buckets: int) -> Column:
    source = node.sides[side]
    if isinstance(source, RouteNode):
        return hash_bucket([columns[name] for name in source.relation.primary_key], buckets)
    return _join_bucket(node, side, columns, buckets)


def join_bucket(layout: SlotLayout, node: JoinNode, buckets: int) -> Column:
    """Return the bucket of the join key of rows in slots; notes go to bucket 0.

    Args:
        layout: how the sides use the slots; columns that are none of the relation's are passed over.
        node: the join.
        buckets: N.
    """
    found = F.when(F.col("flag") == NOTE_FLAG, F.lit(0))
    for side in (0, 1):
        names = layout.schemas[side].names
        columns = NamedColumns({name: f"s{slot}" for slot, name in zip(layout.slots[side], names, strict=True)})
        found = found.when(F.col("flag") == side, _join_bucket(node, side, columns, buckets))
    return found.cast("int").alias("bucket")


def key_bucket(layout: SlotLayout, key: Sequence[str], buckets: int) -> Column:
    """Return the bucket by some key columns of rows in slots that are all of one side; notes go to bucket 0."""
    slots = dict(zip(layout.schemas[0].names, layout.slots[0], strict=True))
    by_key = hash_bucket([F.col(f"s{slots[name]}") for name in key], buckets)
    return F.when(F.col("flag") == NOTE_FLAG, F.lit(0)).otherwise(by_key).cast("int").alias("bucket")


def _join_bucket(node: JoinNode, side: int, columns: NamedColumns, buckets: int) -> Column:
    relation = node.sides[side].relation
    key = [columns[pair[side]].cast(kind) for pair, kind in zip(node.key_pairs, common_types(node), strict=True)]
    by_key = hash_bucket(key, buckets)
    equal = [columns[pair[side]] for pair, safe in zip(node.key_pairs, node.null_safe, strict=True) if not safe]
    if not equal:
        return by_key
    cannot_match = reduce(lambda found, column: found | column, [column.isNull() for column in equal])
    return F.when(cannot_match, _identity_bucket(relation, columns, buckets)).otherwise(by_key).cast("int")


def _identity_bucket(relation: Relation, columns: NamedColumns, buckets: int) -> Column:
    """Return the bucket by the columns that tell rows apart, as far as Spark can hash them; as text, for there may be many."""
    hashable = [field.name for field in relation.schema if not _holds_map(field.type)]
    told = [columns.text(name) for name in relation.primary_key or hashable]
    return F.expr(f"CAST(pmod(hash({', '.join(told) or '0'}), {buckets}) AS INT)")


def common_types(node: JoinNode) -> list[DataType | str]:
    """Return, per key column, the Spark type both sides are hashed in."""
    return [hashed_type(kind) for kind in common_key_types(node)]


def common_key_types(node: JoinNode) -> list[pa.DataType]:
    """Return, per key column, the type both sides are compared in."""
    left, right = node.left.relation, node.right.relation
    return [
        common_key_type(left.schema.field(a).type, right.schema.field(b).type, left_column=a, right_column=b)
        for a, b in node.key_pairs
    ]


def hashed_type(kind: pa.DataType) -> DataType | str:
    """Return the Spark type in which values of a type are hashed."""
    too_wide = pa.types.is_decimal(kind) and kind.precision > _MOST_DECIMAL_DIGITS
    return "double" if too_wide else spark_type(kind)


def hash_bucket(columns: Sequence[Column], buckets: int) -> Column:
    """Return the bucket of what is equal in some columns."""
    return F.pmod(F.hash(*columns), F.lit(buckets)).cast("int")


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_holds_map(kind.field(position).type) for position in range(kind.num_fields))
