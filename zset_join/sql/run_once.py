"""Statements that insert rows, in a directory: run again, they insert nothing.

    with session.once("statement-1"):
        execute(session, statement)

    shop/once/statement-1          whose rows they are, where a statement wrote outside

The law: what a statement of some name inserts is there once, however often the statement is run, and wherever a run was killed:
rows of a table are a file of that name, and a sink outside is written under an id that lies in the directory before the first
row does, so the sink itself says whether it has them.

Known limit: what writes without knowing what it has written (`print`, `blackhole`) writes again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zset_join.sql.stored_tables import file_name

__all__ = ["RunsOnce"]


class RunsOnce:
    """What sessions with a directory have in common: statements that were run before change nothing.

    Attributes:
        statement: the name of the statement that runs; None where it may run again.
    """

    statement: str | None = None
    _directory: Path

    @contextmanager
    def once(self, name: str) -> Iterator[None]:
        """Let INSERTs within it change nothing where they were run before, in a directory of one's own.

        Args:
            name: of the statement, another one for every statement.
        """
        self.statement = name
        try:
            yield
        finally:
            self.statement = None

    def writer_id(self) -> str | None:
        """Return under which id the statement that runs writes outside, the same whenever it runs; None where there is none."""
        if self.statement is None:
            return None
        place = self._directory / "once" / file_name(self.statement)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f"{place.name}.{uuid.uuid4().hex}")
            new.write_text(str(uuid.uuid4()), encoding="utf-8")
            new.rename(place)
        return place.read_text(encoding="utf-8")
