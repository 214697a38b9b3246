"""`explain` shows of a group over a many-to-many join that it makes no pairs, or why it makes them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.expressions import col, left, right
from zset_join.pipeline import appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

A = appends("a", "k BIGINT, x BIGINT, d DOUBLE")
B = appends("b", "k BIGINT, y BIGINT")
BAG = changes("bag", {"k": pa.int64(), "y": pa.int64(), "w": pa.int64()}, weight_column="w")
ONE = changes("one", "k BIGINT, y BIGINT", keys="k")
JOINED = A.join(B, "k")

REASONS = {
    "FILTER": (JOINED.groupBy("k").agg(F.count().filter(F.col("x") > 1).alias("n")), "n has a FILTER"),
    "outer": (A.join(B, "k", "left").groupBy("k").count(), "it is a left join"),
    "condition": (A.join(B, "k", condition=left("x") < right("y")).groupBy("k").count(), "it has a condition beside its keys"),
    "computed key": (A.join(B, [(col("k") % 2, "k")]).groupBy("x").count(), "one of its keys is computed"),
    "global": (JOINED.agg(F.count().alias("n")), "all rows are one group"),
    "changelog": (A.join(BAG, "k").groupBy("k").count(), '-1 of the changelog "bag" is compared with whole rows'),
    "filtered": (JOINED.where("x > y").groupBy("k").count(), "rows are filtered behind it"),
    "computed group": (JOINED.groupBy(z=F.col("x") % 2).count(), "columns are computed behind it"),
    "floats": (JOINED.groupBy("k").agg(F.sum("d").alias("s")), "s adds values of type double; only sums of integers are exact"),
    "another aggregate": (
        JOINED.groupBy("k").agg(F.stddev("x").alias("s")),
        "s is no count, sum, avg, min or max of one column",
    ),
    "two readers": (
        JOINED.groupBy("k").count().union(JOINED.select("k", F.col("x").alias("count"))),
        "others read it",
    ),
}


def lines(view, keep_state="needed"):
    """Return the lines of `explain` about pairs."""
    return [line.strip() for line in view.plan(keep_state=keep_state).explain(buckets=1).splitlines() if "pairs" in line]


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_for_making_pairs_is_one_line(name):
    view, why = REASONS[name]

    assert lines(view) == [f"makes the pairs of the join, since {why}"]


def test_a_group_without_pairs_is_named():
    found = lines(JOINED.groupBy("k").agg(F.sum("x").alias("s")))

    assert "group without pairs: sums of both sides are multiplied" in found
    assert not any(line.startswith("makes the pairs") for line in found)


def test_a_join_with_one_row_per_key_on_a_side_and_a_plan_that_keeps_all_show_nothing():
    assert lines(A.join(ONE, "k").groupBy("k").agg(F.sum("d").alias("s"))) == []
    assert lines(JOINED.groupBy("k").count(), keep_state="all") == []
