"""Rows of a source that is read again for a changed query: they must be those that the query has taken.

The law: where rows of the source are kept in any form, what was read again makes of itself these very rows; else it is refused
with the counts. Where none are kept, as before a group over an append-only source, the rows are taken as they are. Where
columns of the source change, those are compared that have the same values before and after.

Cost: a hash of every row that is kept of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.changelog import AppendFormat, WeightFormat
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.evolution.changed_columns import ColumnChange
from zset_join.evolution.refusals import bad_reread
from zset_join.expressions.rows import columns_read, named, plain_column
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.row_steps import RowStep, SelectStep
from zset_join.query.reading import Reading
from zset_join.runners.local.feeding import transforms_of
from zset_join.runners.local.stored_rows import StoredRows
from zset_join.sources.again import rows_again
from zset_join.zset import ZSet

__all__ = ["check_reread", "read_again"]


def read_again(given: Mapping[str, Any], readings: Mapping[str, Reading]) -> dict[str, ZSet]:
    """Return the present rows of sources, as changes."""
    found = {}
    for name, one in given.items():
        if name not in readings:
            raise bad_reread(name, "are of no source that the new query reads")
        reading, rows = _of_live_rows(readings[name]), rows_again(one)
        if isinstance(rows, pa.Table | pa.RecordBatch):  # a table may have columns that the source does not
            rows = rows.select([column for column in rows.schema.names if column in reading.given.names])
        elif isinstance(rows, Mapping):
            rows = {column: values for column, values in rows.items() if column in reading.given.names}
        found[name] = reading.delta(rows)
    return found


def _of_live_rows(reading: Reading) -> Reading:
    """Return a reading of rows that all live, where the rows of epochs come with their weights, as from Spark."""
    form = reading.changelog_format
    is_weighted = isinstance(form, WeightFormat) and form.column not in reading.given.names
    return replace(reading, changelog_format=AppendFormat()) if is_weighted else reading


def check_reread(
    name: str, again: ZSet, plan: QueryPlan, kept: Iterable[StoredRows], origin: str, change: ColumnChange | None
) -> None:
    """Refuse rows that are not those that were taken."""
    relation = plan.source(name).relation
    for one in kept:
        if len(one.feeds) != 1 or one.feeds[0].origin != origin:
            continue
        steps, names = one.feeds[0].steps, one.relation.schema.names
        if change is not None:
            found = _comparable(steps, change)
            if found is None or not set(one.gaps) <= found[1]:
                continue
            steps, names = found[0], [column for column in names if column in found[1]]
            if not names:
                continue
            relation = Relation(name=name, schema=change.after)
        rows = again
        for transform in transforms_of(steps, relation):
            rows = transform(rows)
        now, before = (_live(side, names, one.gaps) for side in (rows, one.read()))
        differ = ZSet.concat([now, -before], schema=now.schema).consolidated()
        if len(differ):
            more, fewer = int((differ.weights > 0).sum()), int((differ.weights < 0).sum())
            what = f"{more:,} rows are new or changed, {fewer:,} are gone or were others"
            raise bad_reread(name, f"are not those of {one.what} ({one.count:,} rows): {what}", more=more, fewer=fewer)


def _comparable(steps: Sequence[RowStep], change: ColumnChange) -> tuple[tuple[RowStep, ...], set[str]] | None:
    """Return steps from rows under the columns of now to rows that were stored, and the columns that have the same values."""
    # None where a condition reads another column, or nothing is the same.
    plain = {plain_column(expression): name for name, expression in change.step.columns}
    first = tuple((before, named(now)) for before, now in plain.items() if before is not None)
    found: list[RowStep] = [SelectStep(first)]
    there = {name for name, _ in first}
    for step in steps:
        if step.condition is not None and columns_read(step.condition) <= there:
            found.append(step)
        elif isinstance(step, SelectStep):
            columns = tuple((name, expression) for name, expression in step.columns if columns_read(expression) <= there)
            found.append(SelectStep(columns))
            there = {name for name, _ in columns}
        else:
            return None
        if not there:
            return None
    return (tuple(found), there) if there else None


def _live(rows: ZSet, names: list[str], gaps: tuple[str, ...]) -> ZSet:
    """Return the rows that are present, with these columns, but for those with NULL in one of `gaps`."""
    lives = rows.weights > 0
    for name in gaps:
        lives &= rows.rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    chosen = take_rows(rows.rows, np.flatnonzero(lives))
    schema = pa.schema([chosen.schema.field(name).with_nullable(True) for name in names])
    return ZSet(pa.RecordBatch.from_arrays([chosen.column(name) for name in names], schema=schema), rows.weights[lives])
