"""A stage whose rows end by time as a batch query: the stage inside, over the rows that are alive.

Where rows are retracted by event time, alive is what a condition on the row says. By processing time the epoch in which an
append-only row came says it. Everything else depends on more than the rows (who read them when; what was said before they were
forgotten) and is refused by name.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here.

from __future__ import annotations

from collections.abc import Sequence

from zset_join.core.errors import PlanError
from zset_join.stages.expiring import ExpiringStage
from zset_join.state.time.expiring_rows import TimeToLive
from zset_join.tools.batch.tables import BatchScope, BatchTable, batch_query, register_batch_query, tied_query

__all__ = ["expiring_sql", "expiring_tied"]


def expiring_sql(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the query of the stage inside over the rows that are alive.

    Raises:
        PlanError: what is alive does not follow from the rows that came.
    """
    parts, tables = _living(stage, inputs, scope)
    return f"WITH {', '.join(parts)} SELECT * FROM ({batch_query(stage.inside, tables, scope)})"


def expiring_tied(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the rows of the stage inside among which arrival decides: when a row came is known to the state alone.

    Raises:
        PlanError: as `expiring_sql`.
    """
    parts, tables = _living(stage, inputs, scope)
    tied = tied_query(stage.inside, tables, scope)
    return None if tied is None else f"WITH {', '.join(parts)} SELECT * FROM ({tied})"


def _living(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> tuple[list[str], list[BatchTable]]:
    """Return the tables of the rows that are alive, with the parts of a query that make them."""
    parts, tables = [], []
    for number, (table, ttl) in enumerate(zip(inputs, stage.ttls, strict=True)):
        if ttl is None:
            tables.append(table)
            continue
        parts.append(f"alive_{number} AS ({_alive(stage, number, table, ttl, scope)})")
        tables.append(BatchTable(name=f"alive_{number}", relation=table.relation))
    return parts, tables


def _alive(stage: ExpiringStage, number: int, table: BatchTable, ttl: TimeToLive, scope: BatchScope) -> str:
    relation = stage.sources[number]
    why = None
    if ttl.forgets:
        why = 'what was said of rows that are forgotten stands (on_expire="forget")'
    elif ttl.reads:
        why = 'rows live on when the other side reads them (refreshed_by="read")'
    elif ttl.by_key:
        why = 'the rows of a key live as long as the newest of them (of="key")'
    elif not ttl.by_event_time and (table.history is None or relation.mode != "append"):
        why = f'by processing time the last write of each row of "{relation.name}" would have to be known'
    if why is not None:
        raise PlanError(
            f'verify() cannot say which rows of "{relation.name}" are alive: {why}. Compare a pipeline without state_ttl, or '
            'verify one with state_ttl=StateTtl(..., by="event", of="row").',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    dialect, times = scope.dialect, scope.times
    columns = ", ".join(table.columns)
    if not ttl.by_event_time:
        came = dialect.repeated(f"{table.history} h JOIN {scope.epochs} t ON t.e = h.e", "h.w")
        return f"SELECT {columns} FROM {came} WHERE t.t + {ttl.after} > {times.processing_time_us}"
    if times.watermark_us is None:
        return f"SELECT {columns} FROM {table.name}"
    time = str(relation.event_time)
    own = dialect.microseconds(table.column(time), relation.schema.field(time).type)
    return f"SELECT {columns} FROM {table.name} WHERE {own} IS NULL OR {own} + {ttl.after} > {times.watermark_us}"


register_batch_query("state_ttl", expiring_sql, tied=expiring_tied)
