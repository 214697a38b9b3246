"""Rows of a source that a query cannot evaluate: those for which its own WHERE or SELECT raises.

The law: a row fails alone or not at all, so a set of rows passes iff each of its rows does. What fails behind a stage (a
join, a group) depends on other rows and is not looked for here.

Cost: the steps once over all rows where none fails; else, per failing row, about log2(rows) times over ever smaller parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError
from zset_join.core.row_conversion import conform
from zset_join.core.shown_values import shown_names, shown_value
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.row_steps import RowStep, as_changelog
from zset_join.query.reading import Reading
from zset_join.runners.local.feeding import transforms_of
from zset_join.stages.latest import LatestStage
from zset_join.zset import ZSet

__all__ = ["failing_rows", "unread_rows"]

_UNREAD = pa.schema([("row", pa.string()), ("code", pa.string()), ("reason", pa.string())])


def failing_rows(plan: QueryPlan, reading: Reading, rows: pa.Table | ZSet) -> dict[int, BadInputError]:
    """Return the positions of rows that fail in the steps between a source and the first stage, its own table apart."""
    name = reading.source.name
    relation = next(source.relation for source in plan.sources if source.name == name)
    steps = [transforms_of(one, as_changelog(relation)) for one in _steps(plan, name)]
    failing: dict[int, BadInputError] = {}
    left = [(0, len(rows) if isinstance(rows, ZSet) else rows.num_rows)] if steps else []
    while left:
        begin, end = left.pop()
        delta, _ = reading.taken(_part(rows, begin, end))
        if delta.schema != relation.schema:
            delta = ZSet(conform(delta.rows, relation), delta.weights)
        try:
            for transforms in steps:
                passed = delta
                for transform in transforms:
                    passed = transform(passed)
        except BadInputError as error:
            if end - begin == 1:
                failing[begin] = error
            else:
                middle = (begin + end) // 2
                left += [(begin, middle), (middle, end)]
    return failing


def unread_rows(rows: pa.Table | ZSet, failing: Mapping[int, BadInputError], query: str) -> pa.Table:
    """Return failing rows as `zset_join.runners.local.dead_letters.Undecodable` lists them; the reason names the query."""
    batch = rows.rows if isinstance(rows, ZSet) else rows
    lines = [
        {
            "row": json.dumps(
                {name: shown_value(_array(batch, name, place), 0) for name in shown_names(batch.schema.names)},
                default=str,
                ensure_ascii=False,
            ),
            "code": error.code,
            "reason": f'query "{query}": {error.message}',
        }
        for place, error in sorted(failing.items())
    ]
    return pa.Table.from_pylist(lines, schema=_UNREAD)


def _array(batch: pa.RecordBatch | pa.Table, name: str, place: int) -> pa.Array:
    column = batch.column(name).slice(place, 1)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _steps(plan: QueryPlan, name: str) -> Iterator[tuple[RowStep, ...]]:
    """Yield the steps that depend on a row of a source alone: before the first stage, or behind the table of the source."""
    tables: dict[str | int, tuple[RowStep, ...]] = {name: ()}
    for node in plan.nodes:
        of_source = [(*tables[feed.origin], *feed.steps) for feeds in node.feeds for feed in feeds if feed.origin in tables]
        if isinstance(node.stage, LatestStage) and node.stage.control is None and of_source:
            tables[node.number] = of_source[0]
        yield from filter(None, of_source)
    for feed in plan.outputs:
        if feed.origin in tables and feed.steps:
            yield (*tables[feed.origin], *feed.steps)


def _part(rows: pa.Table | ZSet, begin: int, end: int) -> Any:
    if isinstance(rows, ZSet):
        return ZSet(rows.rows.slice(begin, end - begin), np.ascontiguousarray(rows.weights[begin:end]))
    return rows.slice(begin, end - begin)
