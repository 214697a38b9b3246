"""What a session refuses of its queries and of changes of them, in the names of the session."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from zset_join.core.errors import SqlError, StateError
from zset_join.evolution.differences import PlanDiff
from zset_join.sql.runtime.written_tables import is_fed
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import driver_options, idle_timeout, stage_options, watermark_jump
from zset_join.sql_expressions.consumed import SqlWarning

__all__ = [
    "change_lines",
    "check_settings",
    "no_more_columns",
    "options_of",
    "query_changed",
    "refuse_other_columns",
    "refuse_replaced_rows",
    "tables_not_kept",
    "unconfirmed",
    "unread_beside",
]


def options_of(settings: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the settings of a pipeline, fixed while it is open."""
    driver = driver_options(settings)
    of_driver = (driver.driver_threads, driver.keep_state, driver.snapshot_after_bytes)
    return stage_options(settings), idle_timeout(settings), *of_driver


def check_settings(query: Query, settings: Mapping[str, str]) -> None:
    """Refuse settings of a query that its stages cannot have by themselves, and that differ from those of the session.

    Threads, snapshots and the columns that are stored are those of the session too: they change no answer, so others warn.
    """
    wanted, had = driver_options(query.settings), driver_options(settings)
    for name in ("driver_threads", "keep_state", "snapshot_after_bytes"):
        if getattr(wanted, name) != getattr(had, name):
            warnings.warn(
                SqlWarning(f"the setting '{name}' has no effect: the session keeps {getattr(had, name)}, of its first table."),
                stacklevel=7,
            )
    whole = {"on_bad_input": _bad_input, "idle_timeout": idle_timeout, "max_watermark_jump": watermark_jump}
    other = [name for name, read in whole.items() if read(query.settings) != read(settings)]
    if other:
        raise SqlError(
            f"this query has another {' and '.join(other)} than the session. It decides on the rows of tables, which all "
            "queries of a session read as one pipeline, so it is the same for all. SET it before the first table, or use "
            "another session.",
            code="SESSION_SETTINGS",
            settings=other,
        )


def no_more_columns(name: str, *, is_registered: bool) -> SqlError:
    why = "is filled by its connector: in memory it keeps its columns. Use a directory."
    if is_registered:
        why = "is what a program registers; register it with the columns that it is to have."
    return SqlError(f'"{name}" {why}', code="NOT_OFFERED", name=name)


def query_changed(known: Running) -> StateError:
    return StateError(
        f'the session has a query "{known.name}" with another text or other settings: {known.query.sql} Start this one '
        "under another name, or stop that one.",
        code="QUERY_CHANGED",
        query=known.name,
    )


def tables_not_kept(name: str, what: str) -> SqlError:
    return SqlError(
        f'"{name}" could not {what}: the session keeps no rows of its tables. Open the session with keep_tables=True.',
        code="TABLES_NOT_KEPT",
        name=name,
    )


def unread_beside(name: str, kept: Collection[str]) -> SqlError:
    what = f'no query of the session reads "{name}", so its rows are not there beside those of {", ".join(kept)}'
    return SqlError(f"{what}. Start this query: one that runs reads its tables.", code="NOT_OFFERED", name=name)


def unconfirmed(catalog: Path, names: Collection[str]) -> StateError:
    listed = sorted(names)
    return StateError(
        f"statements in {catalog}, which this user did not write at this place, refer to variables of the environment: "
        f"{', '.join(listed)}. They choose where the values are sent. Read them, and open the directory with "
        f"allow_env={listed}, or {' '.join(f'--allow-env {name}' for name in listed)}.",
        code="ENV_NOT_ALLOWED",
        directory=str(catalog.parent),
        names=listed,
    )


def refuse_replaced_rows(running: Running, query: Query) -> None:
    """Refuse a change of a query whose rows its table keeps: what it wrote before stays there."""
    if running.writer is None or not (is_fed(running) or running.writer.table.primary_key):
        return
    still_retracts = query.bound.view.node.relation.mode != "append"
    if not (running.retracts and still_retracts):
        raise SqlError(
            f'"{running.name}" writes rows into "{running.writes}" that are never retracted, so the table would keep those of '
            "the previous query. DROP it, and CREATE it again.",
            code="NOT_OFFERED",
            name=running.name,
        )


def refuse_other_columns(running: Running, query: Query) -> None:
    """Refuse other columns of a query that is paused."""
    before, after = running.query.schema, query.schema
    if running.is_paused and (before.names, before.types) != (after.names, after.types):
        raise SqlError(
            f'"{running.name}" is paused and holds rows with other columns. RESUME MATERIALIZED VIEW {running.name} first.',
            code="NOT_OFFERED",
            name=running.name,
        )


def change_lines(diff: PlanDiff, queries: Iterable[Running]) -> list[str]:
    """Return the effect of a change: on stages, on each query, and on rows that are in none."""
    first, *_ = diff.lines()
    views = [str(diff.views[one.name]) for one in queries if one.name in diff.views]
    return [first, *views, *diff.notes()] if views else []


def _bad_input(settings: Mapping[str, str]) -> str:
    return settings.get("on_bad_input", "error")
