"""The bases of the sinks that keep their epochs: life cycle, position, and what must be the same next time.

    EpochSink                 an epoch is written unless it is present; other layouts and queries are refused
    ├── EpochFilesSink        a plain file per epoch, see `epoch_files`
    └── TransactionalTable    a view in a database

A sink that takes more columns behind those it has forwards `check_altered` and `alter` to `_check_growth` and `_grow`.

The law: that of `sink`. A sink writes `_take`, `_attach`, `_position` and `_put`; nothing here touches an output.

`TransactionalTable`: a materialized view in a database: what the sinks of DuckDB and PostgreSQL share.

The law: one transaction writes the rows of an epoch and the line of the view in the table `_zset_join_epochs`: query, epoch,
layout, and the digests of the newest epochs. So a crash leaves the view at the end of an epoch, and an epoch that arrives again
changes nothing. Views in one database that are written `together` share the transaction.

A sink writes how it connects (`_using`, `_connected`, `_transaction`, `_run`), makes and widens its table, and brings it from
before the rows of an epoch to after them (`_apply`).
"""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from typing_extensions import override

from zset_join.changelog import UpsertFormat, WeightFormat
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation, with_added_nullable
from zset_join.core.shown_values import counted
from zset_join.sinks.sink import (
    Sink,
    SinkProgress,
    check_adds_columns,
    check_chunk,
    check_output,
    is_same_epoch,
    newest_digests,
)
from zset_join.zset import ZSet

__all__ = [
    "FIND_ALL",
    "EpochSink",
    "Position",
    "TransactionalTable",
    "check_layout",
    "check_names",
    "claimed_key",
    "given_key",
    "repeated_names",
    "unheld_row",
]

Position: TypeAlias = tuple[int | None, Callable[[int], str | None]]
"""The last epoch, and the digest of each of the newest ones."""


class EpochSink(ABC):
    """Write every epoch once."""

    form = ""
    key: tuple[str, ...] | None = None
    _errors: tuple[type[Exception], ...] = (OSError, pa.ArrowException)
    _may_lack_columns = False
    _output: Relation | None = None
    _query_id = ""

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        check_output(self._described, output)
        self.close()
        self._may_lack_columns = may_lack_columns
        self._query_id, self._key = query_id, self._key_of(output)
        self._take(output)
        self._output = output
        try:
            with self._using("opened"):
                self._attach()
        except BaseException:
            self.close()
            raise

    def last_epoch(self) -> int | None:
        self._opened()
        with self._using("read"):
            return self._position()[0]

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        self._opened()
        with self._using("read"):
            return self._is_there(epoch, link)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        self._opened()
        with self._using(f"written in epoch {epoch}"):
            counts = self._write(epoch, chunks, link)
        rows, retractions = counts or (0, 0)
        return SinkProgress(epoch, rows, retractions, time.perf_counter() - started, replayed=counts is None)

    def close(self) -> None:
        self._output = None

    # -- what a sink writes ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _take(self, output: Relation) -> None:
        """Refuse columns that the output cannot have, and prepare for rows with them."""

    @abstractmethod
    def _attach(self) -> None:
        """Make the output, or continue with it."""

    @abstractmethod
    def _position(self) -> Position:
        """Return the position of the output."""

    @abstractmethod
    def _put(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        """Add an epoch, and return its lines and how many are retractions; None where somebody else has added it meanwhile."""

    # -- what they share ------------------------------------------------------------------------------------------------

    @property
    def _described(self) -> str:
        return repr(self)

    def _opened(self) -> Relation:
        if self._output is None:
            raise SinkError(f"{self._described} is closed; call open first.", code="SINK_CLOSED")
        return self._output

    @contextlib.contextmanager
    def _using(self, what: str) -> Iterator[None]:
        """Convert the errors of the system below into a SinkError."""
        try:
            yield
        except self._errors as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Any) -> SinkError:
        return SinkError(
            f"{self._described} could not be {what}: {error}. An epoch is there as a whole or not at all; check the path, its "
            "rights, the space there, and the settings of an object store, and start again.",
            code="SINK_IO",
            output=self._described,
        )

    def _write(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        if self._is_there(epoch, link):
            return None
        if self._may_lack_columns:
            self._add_columns()
        return self._put(epoch, chunks, link)

    def _is_there(self, epoch: int, link: ChainLink | None) -> bool:
        return is_same_epoch(self._described, *self._position(), epoch, link)

    def _key_of(self, output: Relation) -> tuple[str, ...]:
        return output.primary_key if self.key is None else self.key

    def _layout(self) -> dict[str, Any]:
        """Return what must be the same next time."""
        columns = [f"{field.name}: {field.type}" for field in self._opened().schema]
        return {"query_id": self._query_id, "form": self.form, "key": list(self._key), "columns": columns}

    def _checked(self, epoch: int, chunks: Iterable[ZSet]) -> Iterator[ZSet]:
        for chunk in chunks:
            check_chunk(self._described, epoch, self._opened().schema, chunk)
            yield chunk

    def _delta(self, epoch: int, chunks: Iterable[ZSet]) -> ZSet:
        return ZSet.concat(self._checked(epoch, chunks), schema=self._opened().schema)

    # -- more columns ---------------------------------------------------------------------------------------------------

    def _check_growth(self, output: Relation) -> None:
        check_adds_columns(self._described, self._opened().schema, output.schema, self._key, self._key_of(output))
        self._check_columns(output)

    def _grow(self, output: Relation) -> None:
        before = self._opened().schema
        self._may_lack_columns = True
        self._output = replace(output, schema=with_added_nullable(len(before), output.schema))
        self._take(self._output)

    def _check_columns(self, output: Relation) -> None:  # noqa: B027 - most refuse them in `_take`
        """Refuse columns that the output cannot have."""

    def _add_columns(self) -> None:  # noqa: B027 - not every sink takes more columns
        """Give the output the columns that it lacks; nothing where it has them."""


def check_layout(
    described: str, stored: Mapping[str, Any], wanted: Mapping[str, Any], *, may_lack_columns: bool = False
) -> None:
    """Refuse an output of another query, and one that was made with another form, key or columns.

    >>> check_layout("it", {"query_id": "q", "columns": ["k: int64"]}, {"query_id": "q", "columns": ["k: int64"]})
    """
    if stored.get("query_id") != wanted["query_id"]:
        last = f" (its last epoch is {stored['epoch']})" if "epoch" in stored else ""
        raise SinkError(
            f'{described} belongs to query "{stored.get("query_id")}"{last}, not to "{wanted["query_id"]}". Write elsewhere, '
            "or delete this output to start over.",
            code="SINK_QUERY_ID",
            expected=stored.get("query_id"),
            actual=wanted["query_id"],
        )
    different = {name for name, value in wanted.items() if stored.get(name) != value}
    if may_lack_columns and different == {"columns"}:
        have = stored["columns"]
        different -= {"columns"} if wanted["columns"][: len(have)] == have else set()
    if different:
        names = [name for name in wanted if name != "query_id"]
        before, now = (", ".join(_stated(name, one.get(name)) for name in names) for one in (stored, wanted))
        raise SinkError(
            f"{described} was made with {before}; the query now has {now}. Restore the query, or start a new output and "
            "checkpoint.",
            code="SINK_SCHEMA",
            different=sorted(different),
        )


def _stated(name: str, value: Any) -> str:
    return f"columns [{', '.join(value)}]" if name == "columns" and value else f"{name}={value!r}"


def given_key(key: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns of a key that a user gave."""
    if isinstance(key, str):
        raise OptionError(f"key={key!r}: a key is a list of column names.", code="SINK_OPTION", key=key)
    return None if key is None else tuple(key)


def check_names(
    described: str,
    names: Sequence[str],
    key: Sequence[str],
    *,
    refused: Iterable[str] = (),
    why: str = "",
    needs_key: bool = False,
) -> None:
    """Refuse a key that is not among the columns, and names that an output cannot have."""
    missing, refused = [name for name in key if name not in names], sorted({*refused} & {*names})
    if missing or refused or not names or (needs_key and not key):
        raise SinkError(
            f"{described} cannot have the columns {names} and the key {list(key)}"
            + (f"; {missing} are missing" if missing else "")
            + (f"; {refused}: {why}" if refused else "")
            + ". Rename the columns of the output, and name columns that identify a row in key=.",
            code="SINK_COLUMNS",
            columns=names,
            missing=missing,
            clashes=refused,
        )


def repeated_names(names: Sequence[str]) -> list[str]:
    """Return empty names, and those that differ from another one by no more than case.

    >>> repeated_names(["a", "B", "b"])
    ['B', 'b']
    """
    folded = [name.lower() for name in names]
    return [name for name, low in zip(names, folded, strict=True) if not name or folded.count(low) > 1]


def unheld_row(
    described: str,
    epoch: int,
    row: Mapping[str, Any],
    weight: int,
    instead: str,
    *,
    key: Sequence[str] = (),
    retractions: int = 1,
) -> SinkError:
    """Return the error for a retraction of a row that a view does not hold as often."""
    return SinkError(
        f"{described}: epoch {epoch} retracts row {dict(row)} {counted(-weight, 'time')} and {instead}"
        + (f" (key { ({name: row[name] for name in key}) })" if key else "")
        + (f"; {retractions - 1} more retractions are like it" if retractions > 1 else "")
        + ". The view was changed by others or belongs to another checkpoint: delete both to start over.",
        code="SINK_RETRACTION",
        epoch=epoch,
        row=tuple(row.values()),
        weight=weight,
        retractions=retractions,
    )


def claimed_key(described: str, epoch: int, key: Mapping[str, Any]) -> SinkError:
    """Return the error for a key that two live rows of a view have."""
    return SinkError(
        f"{described}: two live rows claim the key {dict(key)} in epoch {epoch}. Name more columns in key=, or leave it out "
        "for a view that may hold several.",
        code="SINK_KEY",
        epoch=epoch,
        key=tuple(key.values()),
    )


# ruff: noqa: S608 - the names in the statements are ours.


EPOCHS = "_zset_join_epochs"
FIND_ALL = f"SELECT * FROM {EPOCHS} ORDER BY view"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {EPOCHS} (view text NOT NULL, query_id text NOT NULL, epoch bigint, rows bigint NOT NULL, "
    "retractions bigint NOT NULL, layout text NOT NULL, chain text)"
)


class TransactionalTable(EpochSink):
    """Keep the view `table` equal to the sum of all answers."""

    form, table = "view", ""
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

    def check_altered(self, output: Relation) -> None:
        self._check_growth(output)

    def alter(self, output: Relation) -> None:
        self._grow(output)

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

    @override
    def _take(self, output: Relation) -> None:
        self.written_as = self._key, UpsertFormat() if self._key else WeightFormat()

    @override
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

    @override
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

    @override
    def _write(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        with self._transaction():
            self._lock(whole=False)
            return super()._write(epoch, chunks, link)

    @override
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

    @override
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
