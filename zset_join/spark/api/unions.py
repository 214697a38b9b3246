"""UNION ALL of views: the sum of their rows, in one query.

The law: the answer of an epoch is the sum of the answers. Nothing is remembered, and nothing is shuffled: every branch hands
its rows on by itself. What is done with the rows of the union is done in each branch; an aggregate, a join or the output takes
the rows of all.

Columns go by position, as in PySpark, and have the names of the first branch. A row that leaves one branch and enters another
in one epoch is a retraction and an insertion. `distinct()` behind it gives UNION.
"""

from __future__ import annotations

from zset_join.errors import OptionError, PlanError
from zset_join.spark.planning.row_steps import row_step
from zset_join.spark.planning.union_plan import UnionPlan
from zset_join.spark.planning.view_plan import ViewPlan, check_inputs
from zset_join.spark.rows.names import column_named
from zset_join.spark.rows.schemas import field_type

__all__ = ["union"]


def union(first: ViewPlan, other: ViewPlan) -> UnionPlan:
    """Describe the union of two views.

    Args:
        first: a view; its names are those of the union.
        other: a view with columns of the same types in the same order.

    Raises:
        OptionError: `other` is no view, or uses a stream that `first` uses under the same name.
        PlanError: the columns do not go together.
    """
    if not isinstance(other, ViewPlan):
        raise OptionError(
            f"union expects another view, that is a join and what is done with it; got {type(other).__name__}. Streams of "
            "rows that are only added, or that carry weights, are united before: df.union(other_df).",
            code="NOT_A_VIEW",
        )
    names, types = first.columns, [field_type(at).simpleString() for at in first.output.schema]
    other_types = [field_type(at).simpleString() for at in other.output.schema]
    if types != other_types:
        raise PlanError(
            f'the columns of "{other.name}" have the types {other_types}, those of "{first.name}" {types}; a union goes by '
            "position. Select or cast columns first.",
            code="UNION_TYPES",
            relation=other.name,
        )
    if other.columns != names:
        renamed = [column_named(own).alias(name) for own, name in zip(other.columns, names, strict=True)]
        step = row_step(
            other.session, other.output, "union", lambda rows, kept: rows.select(*renamed, *map(column_named, kept))
        )
        other = other.then(step)
    branches = first.branches if isinstance(first, UnionPlan) and not first.steps else (first,)
    plan = UnionPlan(branches=(*branches, other))
    check_inputs(plan)
    return plan
