"""A paused query of a session in a directory: in its place the pipeline has the rows that it held, as a source of their own.

    PAUSE MATERIALIZED VIEW v       v := source "v (paused at epoch 7)", which begins with what v held      nothing differs
    RESUME MATERIALIZED VIEW v      v := its query, over what its tables hold now                           the difference, once

So its outputs and the tables that it writes continue: they are given nothing while it is paused, and the difference by the
epoch of RESUME. Both are changes of the plan, each true by one commit record.

Cost: of PAUSE, a copy of what it holds; of RESUME, the query is built; of both, the readers of a table that it writes as well.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.changelog import AppendFormat
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Read
from zset_join.query import View
from zset_join.query.reading import Reading

__all__ = ["held_relation", "held_view"]


def held_relation(view: Relation, source: str) -> Relation:
    """Return the rows of a source that has the columns, the key and the time of a view, and changes only by what it is fed."""
    # It has no watermark, so that it holds up nobody's.
    mode: ChangelogMode = "append" if view.mode == "append" else "changelog"
    return replace(view, name=source, join_key=(), sequence_by=(), mode=mode, watermark_delay=None)


def held_view(relation: Relation) -> View:
    """Return the source as a view."""
    source = PlanSource(relation=relation)
    reading = Reading(source=source, given=relation.schema, changelog_format=AppendFormat())
    return View(node=Read(source), name=relation.name, bindings=(reading,))
