"""Rows of a source that is read again for a changed query: they must be those that the query has taken.

The law: where rows of the source are kept in any form, what was read again makes of itself these very rows; else it is refused
with the counts. Where none are kept, as before a group over an append-only source, the rows are taken as they are.

Cost: a hash of every row that is kept of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.row_conversion import take_rows
from zset_join.evolution.refusals import bad_reread
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.reading import Reading
from zset_join.runners.local.feeding import transforms_of
from zset_join.runners.local.stored_rows import StoredRows
from zset_join.sources.again import rows_again
from zset_join.zset import ZSet

__all__ = ["check_reread", "read_again"]


def read_again(given: Mapping[str, Any], readings: Mapping[str, Reading]) -> dict[str, ZSet]:
    """Return what sources hold now, as changes.

    Args:
        given: by source, what `rows_again` reads.
        readings: of the new query.

    Raises:
        StateError: `EVOLVE_REREAD`: the new query has no such source.
        OptionError: `REREAD`: it cannot be read.
        PlanError: columns are missing or of other types.
        BadInputError: a value that its column does not hold.
    """
    found = {}
    for name, one in given.items():
        if name not in readings:
            raise bad_reread(name, "are of no source that the new query reads")
        reading, rows = readings[name], rows_again(one)
        if isinstance(rows, pa.Table | pa.RecordBatch):  # a table may have columns that the source does not
            rows = rows.select([column for column in rows.schema.names if column in reading.given.names])
        found[name] = reading.delta(rows)
    return found


def check_reread(name: str, again: ZSet, plan: QueryPlan, kept: Iterable[StoredRows], origin: str, *, is_mapped: bool) -> None:
    """Refuse rows that are not those that were taken.

    Args:
        name: of the source.
        again: its rows, read again.
        plan: the new plan.
        kept: rows that there are.
        origin: fingerprint of the source's rows in the plan before.
        is_mapped: columns of the source change, so that kept rows cannot be compared.

    Raises:
        StateError: `EVOLVE_REREAD`.
    """
    relation = plan.source(name).relation
    for one in kept:
        if is_mapped or len(one.feeds) != 1 or one.feeds[0].origin != origin:
            continue
        rows = again
        for transform in transforms_of(one.feeds[0].steps, relation):
            rows = transform(rows)
        names = one.relation.schema.names
        sides = [_live(side, names, one.gaps) for side in (rows, one.read())]
        differ = ZSet.concat([sides[0], -sides[1]], schema=sides[0].schema).consolidated()
        if len(differ):
            more, fewer = int((differ.weights > 0).sum()), int((differ.weights < 0).sum())
            raise bad_reread(
                name,
                f"are not those of {one.what} ({one.count:,} rows): {more:,} rows are new or changed, {fewer:,} are gone "
                "or were others",
                more=more,
                fewer=fewer,
            )


def _live(rows: ZSet, names: list[str], gaps: tuple[str, ...]) -> ZSet:
    """Return the rows that are there, with these columns, but for those with NULL in one of `gaps`."""
    lives = rows.weights > 0
    for name in gaps:
        lives &= rows.rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    chosen = take_rows(rows.rows, np.flatnonzero(lives))
    schema = pa.schema([chosen.schema.field(name).with_nullable(True) for name in names])
    return ZSet(pa.RecordBatch.from_arrays([chosen.column(name) for name in names], schema=schema), rows.weights[lives])
