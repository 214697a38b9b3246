"""Compare the emitted rows of a query with Spark's batch join.

Expected: the plan of the query as one batch query in Spark SQL (`zset_join.tools.batch`), over the tables of its streams.
Actual: the sum of all answers, read back from the output. Both are compared as Z-sets (`view_comparison`).

Where the tables come from, best first:
- given: `verify(left_df, right_df)` takes the final tables as batch DataFrames. Nothing of ours is in them.
- log: every input change since the first epoch, as it was delivered; Spark SQL picks the newest change of each key.
  Available until the first snapshot, or for ever with the option `retainInputLog`.
- snapshot and log: the engine's own live rows with the changes since. This checks the join, not how changes were resolved.

Rows in quarantine are in none of the last two. Epochs wait while a verification runs.

A sample is a condition over an output row: the hash of some of its columns falls below a share of all hashes. It is put on
what was emitted and on what the batch query gives, so every row in the sample is compared exactly. The columns are the key of
the last stage, as far as the view shows it, where Spark may filter inputs by it; else all but floats, which may differ in
their last digits.

Cost: the batch query, and one aggregation over its result and the output; of a sample over its share of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.plan.row_steps import name_after
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.planning.placed_query import PlacedQuery
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.planning.stages import Placed, ends_of
from zset_join.runners.spark.rows.names import column_named, sums_per_row
from zset_join.runners.spark.rows.schemas import field_type, spark_type
from zset_join.runners.spark.tools.batch_sources import (
    BatchSource,
    BatchTables,
    ViewTables,
    given_source,
    own_source,
    plan_of_places,
    sources_of,
)
from zset_join.runners.spark.tools.view_comparison import ExpectedView, compare_outputs
from zset_join.tools.reports import VerificationReport, of_outputs
from zset_join.zset import ZSet, single_batch

__all__ = ["Sample", "emitted_rows", "given_tables", "verify"]

_HASHES = 1 << 62


def verify(
    runner: EpochRunner,
    *,
    given: Mapping[str, DataFrame],
    actual_df: DataFrame | None = None,
    most_differences: int = 20,
    sample: float | None = None,
) -> VerificationReport:
    """Compare the outputs of a query, of one view after the other, with Spark's batch query."""
    query = runner.query
    options: dict[str, Any] = {"given": given, "most_differences": most_differences, "sample": sample}
    if len(query.outputs) == 1 or actual_df is not None:
        return _verified(query, query.plan.view().name, runner, actual_df=actual_df, **options)
    with runner.pause():
        read = [view for view in query.outputs if runner.output.readable(query.session, view)]
    if not read:
        raise _not_readable()
    found = {f'view "{view}"': _verified(query.of_view(view), view, runner, **options) for view in read}
    return replace(of_outputs(found), basis={name: one for report in found.values() for name, one in report.basis.items()})


def _verified(
    joined: PlacedQuery,
    view: str,
    runner: EpochRunner,
    *,
    given: Mapping[str, DataFrame],
    actual_df: DataFrame | None = None,
    most_differences: int,
    sample: float | None,
) -> VerificationReport:
    chosen = None if sample is None else Sample.of(joined, sample)
    session = joined.session
    checkpoint = runner.checkpoint
    if checkpoint is None:
        raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
    plan = plan_of_places(joined.plan)
    with runner.pause(), BatchTables(session) as batch_tables:
        sources: dict[str, BatchSource] = {}
        basis: dict[str, str] = {}
        streams = {stream.name: stream for stream in joined.streams}
        for name, planned, side in sources_of(plan, joined.planned_stages):
            stream = streams[planned.streams[side].name]
            if stream.name in given:
                sources[name] = given_source(_given_table(stream, given[stream.name]), plan.source(name).relation.schema)
            else:
                sources[name] = own_source(session, checkpoint, joined.planned_stages, planned, side)
            basis[stream.name] = sources[name].basis
        epoch = None if checkpoint.last is None else checkpoint.last.epoch
        try:
            known = ViewTables(joined, plan, batch_tables, sources, checkpoint=checkpoint)
        except PlanError as error:
            raise OptionError(error.message, code="VERIFY_STAGE", **error.facts) from error
        rows = known.rows
        rows = _typed(joined, rows.limit(0) if epoch is None else rows)  # a global aggregate has no row yet, either
        rows = rows.withColumn("expected", F.lit(1).cast("long"))
        emitted = _emitted(session, runner, view, joined.output, actual_df)

        def tied() -> DataFrame | None:
            found = known.tied()
            return None if found is None else _typed(joined, found).withColumn("expected", F.lit(1).cast("long"))

        if chosen is not None:
            rows, emitted = chosen.rows_in(rows), {name: chosen.rows_in(one) for name, one in emitted.items()}
        expected = ExpectedView(view=joined, rows=rows, tied=tied, epoch=epoch, basis=basis)
        unfit = {name: flags for name in emitted if (flags := runner.output.unfit_flags(name)) is not None}
        report = compare_outputs(expected, emitted, unfit, most_differences=most_differences)
        if chosen is None:
            return report
        return replace(report, sample=chosen.share, sampled_by=chosen.columns)


@dataclass(frozen=True)
class Sample:
    """A share of the rows of a view."""

    share: float
    columns: tuple[str, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, view: Placed, share: Any) -> Sample:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise _no_sample(share, "expected a fraction above 0 and up to 1, such as 0.01; leave it out to check every row.")
        schema, ends, columns = view.output.schema, ends_of(view.planned_stages), list[str]()
        if len(ends) == 1:
            ((last, use),) = ends
            if last.stage.emits_without_input:
                why = "the view is made of the one row of all rows, so there is no share of it to check. Leave sample out."
                raise _no_sample(share, why)
            key = last.stage.output_key.bucketed_by or last.stage.output_key.columns
            columns = [shown for name in key if (shown := name_after(use.steps, name)) is not None]
        columns = [name for name in columns if _is_exact(schema.field(name).type)]
        columns = columns or [at.name for at in schema if _is_exact(at.type)]
        if not columns:
            raise _no_sample(
                share,
                f"the view shows neither its join key nor a group key, and of its columns {schema.names} none is the same to "
                "the last digit on every machine. Leave sample out, or let the view show a key.",
            )
        return cls(share, tuple(columns), tuple(schema.names.index(name) for name in columns))

    def rows_in(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the view that are in the sample; the columns are called c0, c1 and so on."""
        # Another hash than that of the buckets, so a sample has its share of every bucket.
        chosen = F.pmod(F.xxhash64(*(F.col(f"c{at}") for at in self.places)), F.lit(_HASHES))
        return rows.where(chosen < F.lit(max(1, int(self.share * _HASHES))))


def _no_sample(share: Any, why: str) -> OptionError:
    return OptionError(f"sample={share!r}: {why}", code="VERIFY_SAMPLE", value=share)


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether a column can be hashed, and is the same in whatever order it is added up."""
    if pa.types.is_map(kind) or pa.types.is_floating(kind):
        return False
    return all(_is_exact(kind.field(at).type) for at in range(kind.num_fields))


def given_tables(
    joined: PlacedQuery,
    *,
    left_df: DataFrame | None = None,
    right_df: DataFrame | None = None,
    tables: Mapping[str, DataFrame] | None = None,
) -> dict[str, DataFrame]:
    given = dict(tables or {})
    for (name, is_stream), argument, table in zip(joined.sides, ("left_df", "right_df"), (left_df, right_df), strict=False):
        if table is None:
            continue
        if not is_stream:
            raise OptionError(
                f'{argument} is the table of a stream, and "{name}" is a view. Pass tables={{"name of a stream": '
                "DataFrame, ...}.",
                code="VERIFY_TABLE",
                name=name,
            )
        given[name] = table
    names = [stream.name for stream in joined.streams]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise OptionError(f"tables= names {unknown}; the streams are {names}.", code="VERIFY_TABLE", missing=unknown)
    return given


def _given_table(stream: SourceStream, given: DataFrame) -> DataFrame:
    missing = [name for name in stream.columns if name not in given.columns]
    if missing or given.isStreaming:
        what = f"lacks the columns {missing}" if missing else "streams"
        raise OptionError(
            f'the table given for "{stream.name}" {what}; expected a batch DataFrame with {list(stream.columns)}.',
            code="VERIFY_TABLE",
            name=stream.name,
            missing=missing,
        )
    return given.select(*(column_named(name).cast(_kind(stream, name)).alias(name) for name in stream.columns)).withColumn(
        "__weight", F.lit(1).cast("long")
    )


def _kind(stream: SourceStream, name: str) -> Any:
    return field_type(stream.schema.field(name))


def _emitted(
    session: SparkSession, runner: EpochRunner, view: str, output: Relation, actual_df: DataFrame | None
) -> dict[str, DataFrame]:
    """Return the emitted rows per readable output; rows given by the caller have no name."""
    emitted = runner.output.readable(session, view) if actual_df is None else {"": actual_df}
    if not emitted:
        raise _not_readable()
    return {name: numbered_rows(rows, output) for name, rows in emitted.items()}


def _not_readable() -> OptionError:
    return OptionError(
        "what a foreachBatch function did with the rows cannot be read back; pass verify(actual_df=...) with the "
        "emitted changes and their column _weight.",
        code="VERIFY_OUTPUT",
    )


def numbered_rows(emitted: DataFrame, output: Relation) -> DataFrame:
    """Return the emitted rows, with the columns of the output numbered and the weight last."""
    missing = [name for name in output.schema.names if name not in emitted.columns]
    if missing:
        raise OptionError(f"actual_df lacks the columns {missing}.", code="VERIFY_TABLE", missing=missing)
    weight = F.col("_weight").cast("long") if "_weight" in emitted.columns else F.lit(1).cast("long")
    named = [column_named(at.name).cast(spark_type(at.type)).alias(f"c{n}") for n, at in enumerate(output.schema)]
    return emitted.select(*named, weight.alias("actual"))


def _typed(joined: PlacedQuery, rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(f"c{n}").cast(spark_type(at.type)).alias(f"c{n}") for n, at in enumerate(joined.output.schema)))


def emitted_rows(runner: EpochRunner, view: str, values: Mapping[str, Any], *, most_rows: int) -> tuple[ZSet, int]:
    """Return distinct rows with their weights, and how many there are, from the first output that can be read back."""
    relations = runner.relations
    output = relations[view] if len(relations) > 1 else runner.query.output
    names = output.schema.names
    with runner.pause():
        emitted = runner.output.readable(runner.query.session, view)
        if not emitted:
            raise OptionError("no output of this query can be read back.", code="VERIFY_OUTPUT")
        rows = numbered_rows(next(iter(emitted.values())), output)
        for name, value in values.items():
            rows = rows.where(F.col(f"c{names.index(name)}").eqNullSafe(F.lit(value)))
        summed = sums_per_row(rows, [f"c{at}" for at in range(len(names))], ["actual"]).where("actual <> 0")
        found = summed.limit(most_rows).toArrow()
        total = found.num_rows if found.num_rows < most_rows else summed.count()
    weights = single_batch(found.select(["actual"])).column(0).to_numpy().astype(np.int64)
    return ZSet(single_batch(found.drop_columns(["actual"]).rename_columns(names)), weights), total
