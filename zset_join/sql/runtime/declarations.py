"""Catalog of a session in a directory: its statements and registered tables, in order, as small files.

    catalog/000000000007.json       statements that made the present tables and queries

The law: the plan of the pipeline and its declarations become true together. A file is written before the plan changes, and the
commit record of the change names its number; a file that no record names is that of a change that did not come true. Before the
first epoch the newest file counts.

Statements are kept as they were written; one with a password is refused (`zset_join.sql.parse.secrets`). Only
the owner of the directory can read the files.

A file whose statements refer to the environment has a stamp, made with a key in the configuration of the user
(`zset_join/key` in `XDG_CONFIG_HOME` or in `~/.config`) over the place of the directory and all its statements. So statements
of others, copied and moved directories have none that counts; nor have those of a user who cannot keep a key, as in a container
without a home.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.core.errors import OptionError, StateError
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.storage import local
from zset_join.storage.ownership import kept_token
from zset_join.storage.sealed import seal, unseal

__all__ = ["Catalogued", "Declaration", "Declarations", "QueryNote", "described_table", "table_of", "with_queries"]

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
