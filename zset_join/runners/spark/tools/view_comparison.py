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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.notebook import html_differences
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted, shown_rows
from zset_join.runners.spark.planning.placed import Placed
from zset_join.runners.spark.rows.text_select import sums_per_row
from zset_join.zset import single_batch

__all__ = ["ExpectedView", "VerificationReport", "compare_outputs"]

UnfitFlags = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]
"""Returns which rows of a view an output can never hold."""

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, repr=False)
class VerificationReport:
    """Result of comparing the emitted rows with the batch join.

    Args:
        equal: every row has the weight it should have.
        epoch: the last epoch that is in the output; None before the first.
        basis: per stream, the origin of its table: "given", "log" or "snapshot and log".
        expected_rows: rows of the batch join, copies counted.
        actual_rows: rows of the output, copies counted.
        different_rows: distinct rows whose weights differ, without those of the next two counts.
        left_out_rows: distinct rows that the output can never hold: its dead letters with the code `SINK_VALUE`.
        unjudged_rows: distinct rows whose weights differ only by ties that arrival decides, where only the state has the order
            of arrival: after another stage or a snapshot, or in a given table.
        differences: the first of them, as (row, expected weight, actual weight).
        sample: the share that was checked; None for all rows. The counts are those of the sample.
        sampled_by: the output columns by whose hash the sample was chosen.
        outputs: the compared outputs; none with `actual_df`. Counts and differences are those of
            the first that differs, or of the first.
        differing: those of them that differ.
    """

    equal: bool
    epoch: int | None
    basis: Mapping[str, str]
    expected_rows: int
    actual_rows: int
    different_rows: int
    differences: Sequence[tuple[dict[str, Any], int, int]] = field(default_factory=tuple)
    sample: float | None = None
    sampled_by: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    left_out_rows: int = 0
    unjudged_rows: int = 0

    def __repr__(self) -> str:
        """Return the verdict alone; `str` has the differences."""
        return f"VerificationReport({str(self).splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return the verdict and the differences for a notebook."""
        return html_differences(str(self).splitlines()[0], self.differences)

    def __str__(self) -> str:
        verdict = (
            "equal"
            if self.equal
            else f"{counted(self.different_rows, 'row')} {'differs' if self.different_rows == 1 else 'differ'}"
        )
        if self.sample is not None:
            verdict += f" in a sample of {self.sample} by {', '.join(self.sampled_by)}"
        if len(self.outputs) > 1:
            verdict += f" in {' and '.join(self.differing)}" if self.differing else f" in all {len(self.outputs)} outputs"
        verdict += f", {self.left_out_rows} left out that it can never hold" if self.left_out_rows else ""
        verdict += f", {self.unjudged_rows} unjudged because of ties" if self.unjudged_rows else ""
        basis = ", ".join(f"{name} from {source}" for name, source in self.basis.items())
        counts = f"{counted(self.expected_rows, 'row')} expected, {self.actual_rows} emitted, after epoch {self.epoch}"
        lines = [f"{verdict}: {counts} (tables: {basis})"]
        lines += [f"  expected {expected}, got {actual}: {row}" for row, expected, actual in self.differences]
        return "\n".join(lines)


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
    differing = tuple(name for name, report in reports.items() if not report.equal)
    chosen = reports[differing[0]] if differing else next(iter(reports.values()))
    return replace(chosen, outputs=tuple(name for name in reports if name), differing=tuple(name for name in differing if name))


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
