"""All streams of a query as one: every row with the input it is for, its weight and its bucket.

The bucket of a row is `pmod(hash(key in its common type), N)`. Spark's hash agrees with its equality: NaN, 0.0 and -0.0,
decimals in one scale. A row whose key can never match (NULL under `=`) goes by its primary key, or by its whole row: such
rows spread out, and a later change of the row still finds it.

Where streams feed several stages every row also names the stage it is for. All go through the first shuffle together, because
a batch that is looked at twice reads its sources twice; the first shuffle of an epoch is made once and read once per stage.

Limits: maps and variants have no hash in Spark; a row without a primary key that consists of nothing else goes to one
bucket when its key is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import DataType

from zset_join.core.relation import Relation
from zset_join.runners.common.stage_bucket import GLOBAL_BUCKET
from zset_join.runners.spark.planning.stages import PlannedStage, Stream, places_in_order
from zset_join.runners.spark.rows.baseline import union
from zset_join.runners.spark.rows.layout import RECEIPT_FLAG, REJECTED, TARGET, SlotLayout, assign_slots, make_layout
from zset_join.runners.spark.rows.names import quoted, select_text
from zset_join.runners.spark.rows.row_reading import RAW, REJECT, WEIGHT
from zset_join.runners.spark.rows.schemas import spark_type
from zset_join.stages import StageInput

__all__ = ["TaggedStreams", "hashed_name", "hashed_type", "rows_for", "slot_bucket", "stage_bucket", "tag"]


_MOST_DECIMAL_DIGITS = 38


@dataclass(frozen=True, kw_only=True)
class TaggedStreams:
    """The union of all streams, ready for the first shuffle."""

    dataframe: DataFrame
    baseline: DataFrame | None
    has_raw: bool
    fed: tuple[int, ...]
    types: tuple[pa.DataType, ...]

    def rows_of(self, shuffled: DataFrame, numbers: Sequence[int]) -> DataFrame:
        """Return the rows that streams have for some stages."""
        return shuffled if set(numbers) == set(self.fed) else rows_for(shuffled, numbers)


def rows_for(shuffled: DataFrame, numbers: Sequence[int]) -> DataFrame:
    """Return the rows of a shuffle that are for some stages."""
    # Not deterministic, so that Spark leaves it behind the shuffle, which all stages share then.
    return shuffled.where(F.when(F.monotonically_increasing_id() >= 0, F.col(TARGET).isin(*numbers)))


class NamedColumns:
    """Columns by the names of a relation, made when they are requested."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Column:
        return F.col(self.text(name))

    def text(self, name: str) -> str:
        """Return a column as SQL text."""
        return quoted(name if self._names is None else self._names[name])


def tag(planned_stages: Sequence[PlannedStage], buckets: int, order: Sequence[str] = ()) -> TaggedStreams:
    """Build the union of all streams."""
    fed = [one for one in planned_stages if one.streams]
    streams = [stream for one in fed for _, stream in sorted(one.streams.items())]
    has_raw = any(stream.may_reject for stream in streams)
    # The rows of streams carry the slots that streams need; what a view needs besides comes behind them.
    types: list[pa.DataType] = []
    for stream in streams:
        assign_slots(types, stream.schema)
    tagged: list[DataFrame] = []
    baselines: list[DataFrame] = []
    for one in fed:
        layout = make_layout(*(given.relation.schema for given in one.stage.inputs), has_raw=has_raw, types=types)
        for side, source in sorted(one.streams.items()):
            for rows, tagged_rows in ((source.prepared, tagged), (source.baseline, baselines)):
                if rows is not None:
                    rows_of_side = _tag_side(source, rows, layout, types, one.stage.inputs[side], side, buckets)
                    tagged_rows.append(
                        rows_of_side if len(fed) == 1 else rows_of_side.select(F.lit(one.number).alias(TARGET), "*")
                    )
    whole = union([tagged[at] for at in places_in_order([stream.name for stream in streams], order)])
    if whole is None:
        raise TypeError("a query without a stream")
    return TaggedStreams(
        dataframe=whole,
        baseline=union(baselines),
        has_raw=has_raw,
        fed=tuple(one.number for one in fed),
        types=tuple(types),
    )


def _tag_side(
    stream: Stream,
    rows: DataFrame,
    layout: SlotLayout,
    types: Sequence[pa.DataType],  # of the slots that streams use; others of the layout are absent yet
    given: StageInput,
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
    reject = F.when(F.col(REJECT).isNotNull(), F.concat_ws(":", F.col(REJECT), F.col(RAW)))
    raw = {"__raw_told": reject} if layout.has_raw else {}
    nulls = {name: F.lit(None).cast(spark_type(kind)) for kind, name in empty.items()}
    bucket = row_bucket(given, given.key, NamedColumns(), buckets)
    if given.everywhere is not None:
        # One row per bucket, of what concerns them all.
        here = F.array(bucket)
        bucket = F.explode(
            F.when(F.col(quoted(given.everywhere)) < 0, F.lit([*range(buckets)]).cast("array<int>")).otherwise(here)
        )
    with_flag = rows.withColumns({"__flag": flag, **raw, **nulls, "__bucket": bucket})
    shown = ["__flag AS flag", f"{WEIGHT} AS weight", *(["__raw_told AS raw"] if raw else [])]
    return select_text(with_flag, [*shown, *slots, "__bucket AS bucket"])


def stage_bucket(layout: SlotLayout, inputs: Sequence[StageInput], buckets: int) -> Column:
    """Return the bucket of rows in slots for a stage; receipts go to bucket 0."""
    keys = [(given, given.key) for given in inputs]
    return slot_bucket(layout, keys, buckets)


def slot_bucket(layout: SlotLayout, keys: Sequence[tuple[StageInput, Sequence[str]]], buckets: int) -> Column:
    """Return the bucket of rows in slots; receipts go to bucket 0."""
    bucket = F.when(F.col("flag") == RECEIPT_FLAG, F.lit(0))
    for side, (given, key) in enumerate(keys):
        names = layout.schemas[side].names
        columns = NamedColumns({name: f"s{slot}" for slot, name in zip(layout.slots[side], names, strict=True)})
        bucket = bucket.when(F.col("flag") == side, row_bucket(given, key, columns, buckets))
    return bucket.cast("int").alias("bucket")


def row_bucket(given: StageInput, key: Sequence[str], columns: NamedColumns, buckets: int) -> Column:
    """Return the bucket of rows for an input of a stage."""
    if not key:
        return F.lit(GLOBAL_BUCKET).cast("int")
    own = [columns[name] for name in key]
    by_key = hash_bucket([column.cast(kind) for column, kind in zip(own, hashed_types(given), strict=True)], buckets)
    equal = [column for column, is_value in zip(own, given.null_is_value, strict=True) if not is_value]
    if not equal:
        return by_key
    cannot_match = reduce(lambda found, column: found | column, [column.isNull() for column in equal])
    return F.when(cannot_match, _identity_bucket(given.relation, columns, buckets)).otherwise(by_key).cast("int")


def _identity_bucket(relation: Relation, columns: NamedColumns, buckets: int) -> Column:
    """Return the bucket by the columns that distinguish rows, as far as Spark can hash them; as text, for there may be many."""
    hashable = [field.name for field in relation.schema if not _holds_map(field.type)]
    texts = [columns.text(name) for name in relation.primary_key or hashable]
    return F.expr(f"CAST(pmod(hash({', '.join(texts) or '0'}), {buckets}) AS INT)")


def hashed_types(given: StageInput) -> list[DataType | str]:
    """Return, per key column, the Spark type in which an input is hashed."""
    return [hashed_type(kind) for kind in given.key_types]


def hashed_type(kind: pa.DataType) -> DataType | str:
    """Return the Spark type in which values of a type are hashed."""
    too_wide = pa.types.is_decimal(kind) and kind.precision > _MOST_DECIMAL_DIGITS
    return "double" if too_wide else spark_type(kind)


def hashed_name(kind: pa.DataType) -> str:
    """Return the name of the Spark type in which values of a type are hashed."""
    hashed = hashed_type(kind)
    return hashed if isinstance(hashed, str) else hashed.simpleString()


def hash_bucket(columns: Sequence[Column], buckets: int) -> Column:
    """Return the bucket of what is equal in some columns."""
    return F.pmod(F.hash(*columns), F.lit(buckets)).cast("int")


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_holds_map(kind.field(position).type) for position in range(kind.num_fields))
