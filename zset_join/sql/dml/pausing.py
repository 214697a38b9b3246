"""PAUSE and RESUME MATERIALIZED VIEW: one view that cannot be answered does not stop the others.

The law: a paused view takes nothing and shows what it held; behind RESUME it holds what it would hold without the pause, and
readers of its changes get the difference as one epoch.
"""

from __future__ import annotations

from zset_join.core.errors import SqlError
from zset_join.sql.parse.readers import Reader
from zset_join.sql.tables.contexts import StatementContext
from zset_join.sql.tables.results import Message, Running
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import near

__all__ = ["pause", "resume"]


def pause(session: StatementContext, statement: Statement) -> Message:
    """Run PAUSE MATERIALIZED VIEW v."""
    running = _view(session, statement)
    if running.is_paused:
        return Message(f"{running.name} is paused already")
    session.pause(running)
    return Message(f"{running.name} is paused")


def resume(session: StatementContext, statement: Statement) -> Message:
    """Run RESUME MATERIALIZED VIEW v."""
    running = _view(session, statement)
    if not running.is_paused:
        return Message(f"{running.name} runs already")
    session.resume(running)
    return Message(f"{running.name} goes on")


def _view(session: StatementContext, statement: Statement) -> Running:
    reader = Reader(statement, 1)
    reader.expect("MATERIALIZED", "VIEW")
    at = statement.place(reader.index)
    name = reader.name("the name of the view")
    reader.end()
    known = {view.name for view in session.catalog.views.values() if view.is_materialized}
    found = [running for running in session.running if running.name in known and running.name == name]
    if not found:
        raise SqlError(
            f'there is no materialized view "{name}" that runs.{near(name, sorted(known))}',
            code="UNKNOWN_TABLE",
            at=at,
            name=name,
        )
    return found[0]
