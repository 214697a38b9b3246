"""A materialized view in a database: what the sinks of DuckDB and PostgreSQL share.

The law: one transaction writes the rows of an epoch and the line of the view in the table `_zset_join_epochs`: query, epoch,
layout, and the digests of the newest epochs. So a crash leaves the view at the end of an epoch, and an epoch that arrives again
changes nothing. Views in one database that are written `together` share the transaction.

A sink writes how it connects (`_using`, `_connected`, `_transaction`, `_run`), makes and widens its table, and brings it from
before the rows of an epoch to after them (`_apply`).
"""

# ruff: noqa: S608 - the names in the statements are ours.

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from zset_join.changelog import UpsertFormat, WeightFormat
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.sinks.epoch_sink import GrowingSink, Position, check_layout
from zset_join.sinks.sink import Sink, newest_digests
from zset_join.zset import ZSet

__all__ = ["EPOCHS", "FIND_ALL", "TransactionalTable"]

EPOCHS = "_zset_join_epochs"
FIND_ALL = f"SELECT * FROM {EPOCHS} ORDER BY view"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {EPOCHS} (view text NOT NULL, query_id text NOT NULL, epoch bigint, rows bigint NOT NULL, "
    "retractions bigint NOT NULL, layout text NOT NULL, chain text)"
)


class TransactionalTable(GrowingSink):
    """Keep the view `table` equal to the sum of all answers."""

    table: str
    form = "view"
    _same_view = "view = :view"
    _shared: Any = None
    """The connection of `together`, while it lasts."""

    @contextlib.contextmanager
    def together(self, others: Sequence[Sink]) -> Iterator[None]:
        views = [self, *(other for other in others if isinstance(other, type(self)))]
        with self._using("written"), self._transaction():
            connection = self._connected()
            for view in views:
                view._shared = connection
            try:
                yield
            finally:
                for view in views:
                    view._shared = None

    # -- what a database writes -----------------------------------------------------------------------------------------

    @abstractmethod
    def _connected(self) -> Any:
        """Return the connection, inside of `_using`."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """Make one transaction of what is inside, or be part of that of `together`."""

    @abstractmethod
    def _run(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of ours, in which `:name` is a value, and return its rows."""

    @abstractmethod
    def _make(self) -> None:
        """Make the table; refuse a name that is taken."""

    @abstractmethod
    def _widen(self, lacking: int) -> None:
        """Give the table its last columns."""

    @abstractmethod
    def _apply(self, epoch: int, chunks: Iterable[ZSet]) -> tuple[int, int]:
        """Bring the table from before the answer to after it; return lines of the net change and its retractions."""

    def _lock(self, *, whole: bool) -> None:
        """Keep other drivers away from the line of the view, or from all, until the transaction ends."""

    def _go_on(self, stored: dict[str, Any]) -> None:
        """Continue with a table that was made with a layout."""

    # -- the line of the view -------------------------------------------------------------------------------------------

    @property
    def _schema(self) -> pa.Schema:
        return self._opened().schema

    def _take(self, output: Relation) -> None:  # noqa: ARG002 - for other sinks
        self.written_as = self._key, UpsertFormat() if self._key else WeightFormat()

    def _attach(self) -> None:
        with self._transaction():
            self._lock(whole=True)
            self._run(_CREATE)
            line = self._line()
            if line is None:
                self._make()
                values = {"view": self.table, "query_id": self._query_id, "layout": json.dumps(self._layout())}
                self._run(f"INSERT INTO {EPOCHS} VALUES (:view, :query_id, NULL, 0, 0, :layout, NULL)", **values)
                return
            query_id, epoch, layout, _ = line
            stored = json.loads(layout)
            known = {**stored, "query_id": query_id, "epoch": epoch}
            check_layout(self._described, known, super()._layout(), may_lack_columns=self._may_lack_columns)
            self._go_on(stored)

    def _line(self) -> tuple[Any, ...] | None:
        found = self._run(f"SELECT query_id, epoch, layout, chain FROM {EPOCHS} WHERE {self._same_view}", view=self.table)
        return found[0] if found else None

    def _position(self) -> Position:
        line = self._line()
        if line is None:
            raise SinkError(
                f"{self._described} has lost its line in {EPOCHS}; the view was changed by others. Drop it and start over.",
                code="SINK_RETRACTION",
                table=self.table,
            )
        self._digests = dict(json.loads(line[3] or "[]"))
        return line[1], self._digests.get

    def _write(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        with self._transaction():
            self._lock(whole=False)
            return super()._write(epoch, chunks, link)

    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int]:
        rows, retractions = self._apply(epoch, chunks)
        chain = json.dumps(list(newest_digests(self._digests, epoch, link).items()))
        self._run(
            f"UPDATE {EPOCHS} SET epoch = :epoch, rows = :rows, retractions = :retractions, chain = :chain "
            f"WHERE {self._same_view}",
            epoch=epoch,
            rows=rows,
            retractions=retractions,
            chain=chain,
            view=self.table,
        )
        return rows, retractions

    def _add_columns(self) -> None:
        line = self._line()
        lacking = 0 if line is None else len(self._schema) - len(json.loads(line[2])["columns"])
        if lacking:
            self._widen(lacking)
            self._keep_layout()

    def _keep_layout(self) -> None:
        layout = json.dumps(self._layout())
        self._run(f"UPDATE {EPOCHS} SET layout = :layout WHERE {self._same_view}", layout=layout, view=self.table)

    def _refuse_name(self, *, is_taken: bool) -> None:
        if is_taken:
            raise SinkError(
                f"{self._described} cannot be made: there is something else of that name which this package did not make. "
                "Choose another name, or drop it.",
                code="SINK_NAME_TAKEN",
                table=self.table,
            )
