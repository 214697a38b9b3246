"""Compare a view with what an output holds, as Z-sets: every distinct row with its expected and its actual weight.

Behind an aggregate, floats that differ by less than a billionth of themselves count as equal: Spark adds them in the order
they come in.

Two kinds of rows may differ though nothing is wrong. They are counted by themselves: rows that the output can never hold and
was not given (dead letters with the code `SINK_VALUE`), and rows among which arrival decides where it is not known.

Cost: one aggregation over the view and the output. Rows that are missing from an output that cannot hold every value are
brought to the driver; ties are looked for only where rows differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_rows
from zset_join.runners.spark.planning.stages import Placed
from zset_join.runners.spark.rows.names import sums_per_row
from zset_join.tools.reports import VerificationReport, of_outputs
from zset_join.zset import single_batch

__all__ = ["ExpectedView", "compare_outputs"]

UnfitFlags = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]
"""Returns which rows of a view an output can never hold."""

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class ExpectedView:
    """The batch query of a view, its columns numbered."""

    view: Placed
    rows: DataFrame
    tied: Callable[[], DataFrame | None]
    epoch: int | None
    basis: Mapping[str, str]


def compare_outputs(
    expected: ExpectedView,
    emitted: Mapping[str, DataFrame],
    unfit: Mapping[str, UnfitFlags],
    *,
    most_differences: int,
) -> VerificationReport:
    """Compare each output with the batch query, which runs once; report the first difference."""
    if len(emitted) > 1:
        expected = replace(expected, rows=expected.rows.cache())
    try:
        reports = {name: _compare(expected, one, unfit.get(name), most_differences) for name, one in emitted.items()}
    finally:
        if len(emitted) > 1:
            expected.rows.unpersist()
    return of_outputs(reports)


def _compare(expected: ExpectedView, actual: DataFrame, unfit: UnfitFlags | None, most_differences: int) -> VerificationReport:
    output = expected.view.output
    names = [f"c{number}" for number in range(len(output.schema))]
    nothing = F.lit(0).cast("long")
    both = expected.rows.withColumn("actual", nothing).unionByName(actual.withColumn("expected", nothing))
    sums = sums_per_row(both, names, ["expected", "actual"]).cache()
    different = left_out = unjudged = 0
    rows: list[dict[str, Any]] = []
    try:
        totals = sums.agg(
            F.coalesce(F.sum("expected"), nothing),
            F.coalesce(F.sum("actual"), nothing),
            F.count_if(F.col("expected") != F.col("actual")),
        ).collect()[0]
        if totals[2]:
            wrong = sums.where(F.col("expected") != F.col("actual"))
            if unfit is not None:
                wrong, left_out = _without_unfit(wrong, output, unfit)
            tied = expected.tied() if int(totals[2]) > left_out else None
            if tied is not None:
                wrong = _with_marks(wrong, tied, names)
                unjudged = wrong.where("tied > 0").count()
                wrong = wrong.where("tied = 0").drop("tied")
            if _has_rounded_columns(expected.view):
                wrong = _without_rounding(wrong, output)
            different = wrong.count()
            rows = _shown(wrong.limit(most_differences)) if different else []
    finally:
        sums.unpersist()
    differences = [
        (
            {at.name: row[f"c{number}"] for number, at in enumerate(output.schema)},
            int(row["expected"]),
            int(row["actual"]),
        )
        for row in rows
    ]
    return VerificationReport(
        equal=different == 0,
        epoch=expected.epoch,
        basis=dict(expected.basis),
        expected_rows=int(totals[0]),
        actual_rows=int(totals[1]),
        different_rows=different,
        differences=differences,
        left_out_rows=left_out,
        unjudged_rows=unjudged,
    )


def _without_unfit(wrong: DataFrame, output: Relation, unfit: UnfitFlags) -> tuple[DataFrame, int]:
    """Leave out the rows that are wholly missing because the output can never hold them; return how many these are."""
    missing = wrong.where("actual = 0 and expected > 0").toArrow()
    if not missing.num_rows:
        return wrong, 0
    columns = [missing.column(f"c{at}").cast(one.type) for at, one in enumerate(output.schema)]
    flags = unfit(single_batch(pa.Table.from_arrays(columns, schema=output.schema)))
    kept = missing.filter(pa.array(~flags))
    left_out = missing.num_rows - kept.num_rows
    if not left_out:
        return wrong, 0
    others = wrong.where("not (actual = 0 and expected > 0)")
    return others.unionByName(wrong.sparkSession.createDataFrame(kept, schema=wrong.schema)), left_out


def _with_marks(wrong: DataFrame, tied: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return rows that differ, with `tied` above 0 for those among which arrival decides."""
    nothing = F.lit(0).cast("long")
    beside = {"expected": nothing, "actual": nothing, "tied": F.lit(1).cast("long")}
    marked = wrong.withColumn("tied", nothing).unionByName(tied.select(*names).withColumns(beside))
    return sums_per_row(marked, names, ["expected", "actual", "tied"]).where("expected <> actual")


def _shown(rows: DataFrame) -> list[dict[str, Any]]:
    """Return a few rows, with values that Python does not have as text."""
    try:
        return [row.asDict() for row in rows.collect()]
    except (OverflowError, ValueError):  # a date beyond the year 9999
        return shown_rows(rows.toArrow())


def _has_rounded_columns(joined: Placed) -> bool:
    """Return whether the view shows floats of an aggregate, in rows that a key distinguishes."""
    has_floats = any(pa.types.is_floating(at.type) for at in joined.output.schema)
    last = [one.stage for one in joined.planned_stages if one.stage.kind == "aggregate"][-1:]
    return bool(last) and has_floats and (bool(joined.output.primary_key) or last[0].emits_without_input)


def _without_rounding(wrong: DataFrame, output: Relation) -> DataFrame:
    """Leave out the pairs of an expected and an actual row of one key that are equal up to the rounding of floats."""
    condition = F.col("e.expected") > F.col("e.actual")
    condition &= F.col("a.expected") < F.col("a.actual")
    same_key = F.lit(True)
    for number, at in enumerate(output.schema):
        ours, theirs = F.col(f"a.c{number}"), F.col(f"e.c{number}")
        equal = theirs.eqNullSafe(ours)
        if at.name in output.primary_key:
            same_key &= F.col(f"w.c{number}").eqNullSafe(F.col(f"p.c{number}"))
        elif pa.types.is_floating(at.type):
            equal |= F.abs(theirs - ours) <= _ROUNDING * F.greatest(F.abs(theirs), F.abs(ours))
        condition &= equal
    pairs = wrong.alias("e").join(wrong.alias("a"), condition).select("e.*")
    return wrong.alias("w").join(pairs.alias("p"), same_key, "left_anti")
