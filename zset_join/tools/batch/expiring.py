"""A stage whose rows end by time as a batch query: the stage inside, over the rows that are alive.

Where rows are retracted by event time, alive is what a condition on the row says. By processing time the epoch in which an
append-only row came says it. Everything else depends on more than the rows (who read them when; what was said before they were
forgotten) and is refused by name.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here.

from __future__ import annotations

from collections.abc import Sequence

from zset_join.errors import PlanError
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
    """Return the rows of the answer of the stage inside among which arrival decides."""
    parts, tables = _living(stage, inputs, scope)
    tied = tied_query(stage.inside, tables, scope)
    return None if tied is None else f"WITH {', '.join(parts)} SELECT * FROM ({tied})"


def _living(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> tuple[list[str], list[BatchTable]]:
    """Return the rows of each input that are alive, and their changes where all are known, as parts and their names."""
    parts, tables = [], []
    for number, (table, ttl) in enumerate(zip(inputs, stage.ttls, strict=True)):
        if ttl is None:
            tables.append(table)
            continue
        rows, history = _alive(stage, number, table, ttl, scope)
        parts.append(f"alive_{number} AS ({rows})")
        if history is not None:
            parts.append(f"alive_changes_{number} AS ({history})")
        known = None if history is None else f"alive_changes_{number}"
        tables.append(BatchTable(name=f"alive_{number}", relation=table.relation, history=known))
    return parts, tables


def _alive(stage: ExpiringStage, number: int, table: BatchTable, ttl: TimeToLive, scope: BatchScope) -> tuple[str, str | None]:
    """Return the rows that are alive, and their changes: all changes of a row end together."""
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
    if not ttl.by_event_time:
        lives = f"t.t + {ttl.after} > {times.processing_time_us}"
        columns = ", ".join(f"h.{one}" for one in [*table.columns, "w", "e", "n"])
        came = f"SELECT {columns} FROM {table.history} h JOIN {scope.epochs} t ON t.e = h.e WHERE {lives}"
        return f"SELECT {', '.join(table.columns)} FROM {dialect.repeated(f'({came})', 'w')}", came
    columns = ", ".join(table.columns)
    lives = ""
    if times.watermark_us is not None:
        time = str(relation.event_time)
        own = dialect.microseconds(table.column(time), relation.schema.field(time).type)
        lives = f" WHERE {own} IS NULL OR {own} + {ttl.after} > {times.watermark_us}"
    is_known = table.history is not None and relation.mode != "upsert"
    changes = ", ".join([*table.columns, "w", "e", "n"])
    history = f"SELECT {changes} FROM {table.history}{lives}" if is_known else None
    return f"SELECT {columns} FROM {table.name}{lives}", history


register_batch_query("state_ttl", expiring_sql, tied=expiring_tied)
