"""The directory of a session: of one session at a time, and of one layout.

shop/session.lock                           held as long as the session is open
shop/session.json                           how the directory is laid out
shop/catalog/000000000007.json              the statements that made the present content
shop/pipeline/                              one pipeline: the rows of tables, the queries, what sources were read
shop/read/                                  names of files that were read
shop/once/                                  under which id a statement wrote outside

`Catalogued`, `Declaration`: catalog of a session in a directory: its statements and registered tables, in order, as small
files.

    catalog/000000000007.json       statements that made the present tables and queries

The law: the plan of the pipeline and its declarations become true together. A file is written before the plan changes, and the
commit record of the change names its number; a file that no record names is that of a change that did not come true. Before the
first epoch the newest file counts.

Statements are kept as they were written; one with a password is refused (`zset_join.sql.parse.readers`). Only
the owner of the directory can read the files.

A file whose statements refer to the environment has a stamp, made with a key in the configuration of the user
(`zset_join/key` in `XDG_CONFIG_HOME` or in `~/.config`) over the place of the directory and all its statements. So statements
of others, copied and moved directories have none that counts; nor have those of a user who cannot keep a key, as in a container
without a home.

`StatementLog`: the statements that made what a session has: what they declare, and which of them have run before.

The law: a statement that fails leaves the names as they were before it, or as the pipeline has taken them.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.reading import changed_plan_of, read_committed
from zset_join.core.errors import OptionError, StateError
from zset_join.sql.runtime.session_plan import SessionPlan
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.sql.tables.files import file_name
from zset_join.sql.tables.results import QueryChange, Running
from zset_join.sql_expressions.dialects import Statement
from zset_join.stages.written import write_relation
from zset_join.storage import local
from zset_join.storage.local import FileLock
from zset_join.storage.trusted_files import UnknownFormatError, kept_token, seal, unseal

__all__ = ["Catalogued", "Declaration", "SessionDirectory", "StatementLog", "declared_table", "table_of"]

_FORMAT = 1
_NAME = re.compile(r"(\d{12})\.json")
_VARIABLE = re.compile(r"\$\{ENV:(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """One declaration of a session: a statement that made something, or a registered table."""

    names: tuple[str, ...]
    sql: str = ""
    dialect: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None  # under which name a program started it; None for a statement that was run
    table: Mapping[str, Any] | None = None
    paused: Mapping[str, Any] | None = None  # the source in its place until RESUME, see `held_relation`; None while it runs
    since: int = 0  # the epoch at which its query came, where its tables had rows
    stopped: bool = False
    created: str = ""  # the statement that makes the present content, where `sql` only changes what was there
    earlier: tuple[Mapping[str, Any], ...] = ()  # oldest first; `sql`, `dialect`, `settings` of each

    @property
    def steps(self) -> list[Declaration]:
        """Return the statements that made it what it is, in their order."""
        return [*(Declaration(names=self.names, **one) for one in self.earlier), self]

    def changed(self, sql: str, dialect: str, settings: Mapping[str, str], created: str | None) -> Declaration:
        step = {"sql": self.sql, "dialect": self.dialect, "settings": dict(self.settings)}
        return replace(self, sql=sql, dialect=dialect, settings=settings, created=created or "", earlier=(*self.earlier, step))

    def is_same(self, other: Declaration) -> bool:
        return (self.sql, self.dialect, dict(self.settings), self.query, self.table) == (
            other.sql,
            other.dialect,
            dict(other.settings),
            other.query,
            other.table,
        )


@dataclass(frozen=True, kw_only=True)
class QueryNote:
    """Note of a declaration about its query; the arguments are those of `Declaration`."""

    paused: Mapping[str, Any] | None
    since: int
    stopped: bool = False


def with_queries(declared: Sequence[Declaration], queries: Mapping[str, QueryNote]) -> list[Declaration]:
    """Return declarations with what is to be known of the queries among them, by their names."""
    none = QueryNote(paused=None, since=0)
    notes = [next((queries[name] for name in one.names if name in queries), none) for one in declared]
    return [replace(one, **vars(note)) for one, note in zip(declared, notes, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Catalogued:
    """All declarations of a session that count."""

    declared: tuple[Declaration, ...] = ()
    views: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    is_own: bool = False  # this user wrote all of it, at this place

    def variables(self) -> set[str]:
        """Return the variables of the environment that statements name; a spelling with escapes is not found."""
        return {name for one in self.declared for step in one.steps for name in _VARIABLE.findall(f"{step.sql} {step.created}")}


class Declarations:
    """Keep the files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.number = 0

    def candidates(self, named: int | None) -> Iterator[Catalogued]:
        """Yield the declarations that count: those that a record names, or else from the newest file on."""
        numbers = self._numbers()
        for number in sorted(numbers, reverse=True) if named is None else [named]:
            self.number = number
            yield self._read(number)
        if named is None:
            self.number = max(numbers, default=0)
            yield Catalogued()

    def write(self, now: Catalogued) -> int:
        """Write the next file, and return its number; the one before stays."""
        local.make_directories(self._directory)
        self._directory.chmod(0o700)
        number = max([self.number, *self._numbers()]) + 1
        body = asdict(now)
        body["stamp"] = _own_stamp(self._directory, _stamped(body)) if now.variables() else None
        local.write_atomic(self._directory / _named(number), seal(body, version=_FORMAT, name=_named(number)))
        return number

    def settle(self, number: int) -> None:
        """Let a file count, and remove the others."""
        self.number = number
        for other in self._numbers():
            if other != number:
                local.remove_file(self._directory / _named(other))

    def drop(self, number: int) -> None:
        """Remove the file of a failed change."""
        local.remove_file(self._directory / _named(number))

    def _numbers(self) -> list[int]:
        return [int(match[1]) for name in local.list_directory(self._directory) if (match := _NAME.fullmatch(name))]

    def _read(self, number: int) -> Catalogued:
        path = self._directory / _named(number)
        try:
            body = unseal(local.read_bytes(path) or b"", version=_FORMAT, name=_named(number))
            lists = ("names", "earlier")
            declared = tuple(Declaration(**{**one, **{key: tuple(one[key]) for key in lists}}) for one in body["declared"])
            stamp, own = body["stamp"], _own_stamp(self._directory, _stamped(body)) if body["stamp"] else None
            is_own = own is not None and hmac.compare_digest(str(stamp), own)
            return Catalogued(declared=declared, views=tuple(body["views"]), settings=body["settings"], is_own=is_own)
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{path}, which has the statements of the session, is missing or cannot be read ({error}). Restore "
                f"the whole directory, or begin with a new one.",
                code="DAMAGED_FILE",
                file=str(path),
            ) from error


def _stamped(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("declared", "views", "settings")}


def described_table(table: Table) -> dict[str, Any]:
    """Return a table that no statement declares, JSON-ready."""
    return {
        "name": table.name,
        "word": table.word,
        "mode": table.mode,
        "schema": base64.b64encode(table.schema.serialize().to_pybytes()).decode(),
        "primary_key": list(table.primary_key),
        "watermark": None if table.watermark is None else list(table.watermark),
    }


def table_of(described: Mapping[str, Any]) -> Table:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described["schema"])))
    watermark = described["watermark"]
    return Table(
        name=described["name"],
        word=described["word"],
        columns=tuple(ColumnDefinition(one.name, one.type) for one in schema),
        mode=described["mode"],
        primary_key=tuple(described["primary_key"]),
        watermark=None if watermark is None else (watermark[0], watermark[1]),
    )


def _named(number: int) -> str:
    return f"{number:012d}.json"


def _own_stamp(directory: Path, body: Mapping[str, Any]) -> str | None:
    """Return the stamp of this user for what a directory declares, as JSON; None where the user has no key."""
    try:
        place = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "zset_join" / "key"
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = kept_token(place)
    except (OSError, RuntimeError, OptionError):
        return None
    text = json.dumps([os.path.realpath(directory), body], sort_keys=True)
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()


_LAYOUT = "session.json"
_LOCK = "session.lock"


class SessionDirectory:
    """Hold the directory of a session, and make it where it is missing."""

    def __init__(self, place: str | Path, layout: int) -> None:
        self.path = Path(place).absolute()
        self.pipeline, self.read = self.path / "pipeline", self.path / "read"
        self._lock = _locked(self.path)
        try:
            _check_layout(self.path, layout)
        except BaseException:
            self._lock.release()
            raise
        self.declarations = Declarations(self.path / "catalog")

    def declarations_named(self) -> int | None:
        """Return the number of the declarations that the pipeline's last record names; None where there is none."""
        committed = read_committed(str(self.pipeline))
        if committed is None or committed.last is None:
            return None
        changed = changed_plan_of(committed.files.folder, committed.last)
        return None if changed is None or changed.note is None else int(changed.note["catalog"])

    def writer_id(self, statement: str) -> str:
        """Return under which id a statement writes outside, the same whenever it runs."""
        place = self.path / "once" / file_name(statement)
        known = local.read_bytes(place)
        if known is None:
            known = str(uuid.uuid4()).encode()
            local.make_directories(place.parent)
            local.write_atomic(place, known)
        return known.decode()

    def release(self) -> None:
        self._lock.release()


def _locked(directory: Path) -> FileLock:
    try:
        local.make_directories(directory)
        lock = local.lock_file(directory / _LOCK)
    except OSError as error:
        raise OptionError(
            f"the directory {directory} cannot be used: {error}. Give one where this process may write.",
            code="DIRECTORY",
            directory=str(directory),
        ) from error
    if lock is None:
        raise StateError(
            f"{directory} is in use by another session, in this process or another one: two would not see each other's "
            "INSERTs. Close that session first.",
            code="DIRECTORY_IN_USE",
            directory=str(directory),
        )
    return lock


def _check_layout(directory: Path, layout: int) -> None:
    data = local.read_bytes(directory / _LAYOUT)
    if data is None and not local.list_directory(directory / "pipeline"):
        local.write_atomic(directory / _LAYOUT, seal({}, version=layout, name=_LAYOUT))
        return
    try:
        unseal(data or b"", version=layout, name=_LAYOUT)
    except UnknownFormatError as error:
        raise StateError(
            f"{directory} has the layout {error.found}, and this session reads the layout {layout} only: it was made by a "
            "session of the other engine (in this process, or inside Spark), which opens it, or by another version. Rebuild "
            f"it: rm -r {shlex.quote(str(directory))}, then run its statements again.",
            code="OLD_SESSION",
            directory=str(directory),
        ) from error
    except ValueError as error:
        raise StateError(
            f"{directory} has tables, and {_LAYOUT} is missing or cannot be used ({error}): the directory was written by "
            "another version, or copied in part. Restore the whole directory, or begin with a new one.",
            code="DAMAGED_FILE",
            file=str(directory / _LAYOUT),
        ) from error


_CATALOG = ("tables", "views", "functions", "sinks", "indexes")


class StatementLog:
    """Keep what statements declare.

    Attributes:
        declared: what counts.
        replacing: the change of queries that is under way.
        is_running: a statement runs; else a program declares.
    """

    def __init__(self, plan: SessionPlan) -> None:
        self.declared: list[Declaration] = []
        self.replacing: QueryChange | None = None
        self._plan = plan
        self._restored: list[Declaration] = []
        self._repeated: dict[tuple[str, ...], int] = {}
        self._statement: tuple[Statement, Mapping[str, str]] | None = None
        self._before: dict[str, dict[str, Any]] = {}

    @property
    def is_running(self) -> bool:
        return self._statement is not None

    def begin(self, declared: Sequence[Declaration]) -> None:
        """Continue with the statements of a session that was closed."""
        self.declared, self._restored = list(declared), list(declared)

    def repeated(self, statement: Statement, settings: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the result of a statement that has run already; None if it must run.

        A plain CREATE that later statements changed is run again as well, and each of those behind the one before it.
        """
        wanted = Declaration(names=(), sql=statement.sql, dialect=statement.dialect, settings=settings)
        for one in self._restored:
            steps, at = one.steps, self._repeated.get(one.names, 0)
            if one.is_same(wanted) and at in {0, len(steps) - 1}:
                self._restored.remove(one)
                return one.names
            if steps[at].is_same(wanted) and (at or statement.words[1:2] != ("OR",)):
                self._repeated[one.names] = at + 1
                return one.names
        return None

    def is_repeated(self, wanted: Declaration) -> bool:
        """Return whether a program declares what was present when the session was opened, for the first time since."""
        found = next((one for one in self._restored if one.is_same(wanted)), None)
        if found is not None:
            self._restored.remove(found)
        return found is not None

    @contextmanager
    def running(self, statement: Statement) -> Iterator[None]:
        """Note what a statement makes; a failed one leaves the names as the pipeline has them."""
        self._statement, self._before = (statement, dict(self._plan.catalog.settings)), self._entries()
        try:
            yield
        except BaseException:
            for kind in _CATALOG:
                setattr(self._plan.catalog, kind, dict(self._before[kind]))
            raise
        finally:
            self._statement = None

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """Exclude a table from the declarations of the running statement."""
        statement, self._statement = self._statement, None
        try:
            yield
        finally:
            self._statement = statement
            if statement is not None and name in self._plan.catalog.tables:
                self._before["tables"][name] = self._plan.catalog.tables[name]

    def has_changed(self) -> bool:
        """Return whether the running statement has made or dropped something that the pipeline has not taken."""
        return self._entries() != self._before or bool(self._plan.gone)

    def settle(self, declared: list[Declaration]) -> None:
        """Let declarations count, which the pipeline has taken."""
        self.declared = declared
        there = {(one.names, one.sql) for one in declared}
        self._restored = [one for one in self._restored if (one.names, one.sql) in there]
        if self._statement is not None:
            self._before = self._entries()

    def now(self, made: Declaration | None) -> list[Declaration]:
        """Return the declarations, including those of the running statement, or what a program makes."""
        now = self._entries()
        there = {name for entries in now.values() for name in entries}
        queries = {one.name: _noted(one) for one in self._plan.running}
        queries |= {one.name: replace(_noted(one), stopped=True) for one in self._plan.stopped}
        if self.replacing is not None and self._statement is not None:
            change, (statement, settings) = self.replacing, self._statement
            (old,) = [one for one in self.declared if change.name in one.names]
            behind = {*change.following, *(running.name for running in change.queries)} - {change.name}
            declared = [
                *(one for one in self.declared if one is not old and not behind & set(one.names)),
                old.changed(statement.sql, statement.dialect, settings, change.created),
                *(one for one in self.declared if one is not old and behind & set(one.names)),
            ]
            return with_queries(declared, queries)
        if self._statement is not None:
            statement, settings = self._statement
            changed = {
                kind: [name for name in entries if self._before[kind].get(name) is not entries[name]]
                for kind, entries in now.items()
            }
            # What a table gets beside its columns is declared beside it, in order: views before it are of those it had.
            names = changed["columns"] or [name for entries in changed.values() for name in entries]
            if names:
                made = Declaration(
                    names=tuple(dict.fromkeys(names)), sql=statement.sql, dialect=statement.dialect, settings=settings
                )
                if self._holds_rows(statement, names):
                    made = declared_table(self._plan.catalog.tables[names[0]])
        replaced = set() if made is None else set(made.names)
        kept = [one for one in self.declared if not replaced >= set(one.names) and set(one.names) & there]
        return with_queries(kept if made is None else [*kept, made], queries)

    def _holds_rows(self, statement: Statement, names: Sequence[str]) -> bool:
        """Return whether a statement makes a table of rows that are present: CREATE TABLE t AS SELECT FROM table(s)."""
        is_table = len(names) == 1 and names[0] in self._plan.catalog.tables
        words = statement.words
        return (
            is_table
            and "AS" in words
            and "(" not in words[: words.index("AS")]
            and not any(one.writes == names[0] for one in self._plan.running)
        )

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Return everything that has a name now."""
        catalog = self._plan.catalog
        named = {kind: dict(getattr(catalog, kind)) for kind in _CATALOG}
        columns = {f"{table.name} column {name}": name for table in catalog.tables.values() for name in table.added}
        return {**named, "running": {one.name: one for one in self._plan.running}, "columns": columns}


def declared_table(table: Table) -> Declaration:
    """Return the declaration of a table that no statement makes."""
    return Declaration(names=(table.name,), table=described_table(table))


def _noted(running: Running) -> QueryNote:
    return QueryNote(paused=None if running.held is None else write_relation(running.held), since=running.since)
