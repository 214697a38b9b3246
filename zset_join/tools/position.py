"""Positions of outputs: which query and view each one is of, its last epoch, and the newest epoch that all of them hold.

    zset-join position shop.duckdb lines changelog "postgresql://db/shop#by_day"

An output is a DuckDB file, a Delta table (view or changelog), a Parquet changelog, a directory of JSON lines, rows or CSV,
`postgresql://...` (its views), or `kafka://HOST:PORT/TOPIC`; `#TABLE` behind a file or database chooses one of several views.

The law: nothing is written, and no driver is held up or fenced off, but for a DuckDB file, which one process at a time can
write: it is open for reading as long as its table of epochs is read. Outputs are read one after the other; since an output
that holds an epoch holds it for ever, the common epoch is right though they continue meanwhile.

Epochs are compared by their place in the chain of epochs, never by bare numbers: two outputs share epoch 17 where both took
the same inputs up to it. What they are compared by is the 62 bits that every kind of output keeps. Outputs of one query that
differ from some epoch on are forked: one of them is of another time than the other, as after a restored backup.

Limits: a database, a Delta table and a topic keep the digests of about the last hundred epochs, so outputs further apart have
no known common epoch; nor has the output of a pipeline in memory, which has no chain.

Cost: reading what each output keeps about its epochs; no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zset_join.core.errors import OptionError
from zset_join.sinks.epoch_files import HEADERS
from zset_join.sinks.sink import StoredEpochs
from zset_join.storage.folder import is_local, local_path, open_folder

__all__ = ["OutputPosition", "Positions", "positions"]

_POSTGRES = ("postgresql://", "postgres://")
_KAFKA = "kafka://"
_AHEAD = "not possible: it keeps no older versions; wait until the others have caught up"


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """The position of one output."""

    output: str
    kind: str
    query: str
    view: str | None
    epoch: int | None
    mark: str | None
    at_common: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of several outputs."""

    outputs: tuple[OutputPosition, ...]
    common: int | None
    is_forked: bool
    reason: str

    @property
    def is_well(self) -> bool:
        """Return whether the outputs share an epoch, and none is of another time than the others."""
        return self.common is not None and not self.is_forked

    def to_json(self) -> dict[str, Any]:
        outputs = [one.to_json() for one in self.outputs]
        return {"outputs": outputs, "common": self.common, "forked": self.is_forked, "reason": self.reason or None}

    def __str__(self) -> str:
        lines = [("output", "kind", "query", "view", "epoch", "mark")]
        lines += [
            (one.output, one.kind, one.query, one.view or "-", "-" if one.epoch is None else str(one.epoch), one.mark or "-")
            for one in self.outputs
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        if self.common is not None:
            texts += ["", f"newest common epoch: {self.common}"]
            texts += [f"  {one.output}{_named(one.view)}: {one.at_common}" for one in self.outputs]
        return "\n".join([*texts, *([self.reason] if self.reason else [])])


@dataclass(frozen=True, slots=True)
class _Found:
    """One output, and how to read it at an epoch that it has gone on from."""

    output: str
    kind: str
    stored: StoredEpochs
    read_at: Callable[[int], str]


def positions(outputs: Sequence[str | Path]) -> Positions:
    """Return the positions of outputs; see the module."""
    found = [one for output in outputs for one in _looked_at(str(output))]
    common, is_forked, reason = _common([(one.output, one.stored) for one in found])
    return Positions(tuple(_position(one, common) for one in found), common, is_forked, reason)


def _position(one: _Found, common: int | None) -> OutputPosition:
    query, _, view = one.stored.query_id.partition("/")
    last = one.stored.last
    mark = None if last is None else one.stored.mark_of(last)
    how = None
    if common is not None:
        how = "as it is" if last == common else one.read_at(common)
    return OutputPosition(one.output, one.kind, query, view or None, last, mark, how)


def _named(view: str | None) -> str:
    return "" if view is None else f" ({view})"


def _common(found: Sequence[tuple[str, StoredEpochs]]) -> tuple[int | None, bool, str]:
    """Return the newest epoch that all hold, whether they differ behind it, and why there is none."""
    queries = sorted({stored.query_id.partition("/")[0] for _, stored in found})
    if len(queries) > 1:
        return None, False, f"no common epoch: the outputs belong to {len(queries)} queries, {', '.join(queries)}."
    empty = [name for name, stored in found if stored.last is None]
    if empty:
        return None, False, f"no common epoch: {', '.join(empty)} holds no epoch yet."
    newest = min(stored.last for _, stored in found if stored.last is not None)
    differing: int | None = None
    for epoch in range(newest, -1, -1):
        marks = [stored.mark_of(epoch) for _, stored in found]
        if None in marks:
            unknown = [name for (name, _), mark in zip(found, marks, strict=True) if mark is None]
            return None, differing is not None, _undecided(epoch, unknown)
        if len(set(marks)) == 1:
            return epoch, differing is not None, "" if differing is None else _forked(differing)
        differing = epoch
    return None, True, "no common epoch: the outputs differ from the first epoch on; they were made from different inputs."


def _undecided(epoch: int, unknown: Sequence[str]) -> str:
    return (
        f"no common epoch: {', '.join(unknown)} does not show which epoch {epoch} it holds: it came without a place in the "
        "chain of epochs, as from a pipeline in memory, or is longer ago than it keeps. Let the query that lags catch up."
    )


def _forked(first: int) -> str:
    return (
        f"forked: from epoch {first} on the outputs hold different epochs of the same number: one of them is of another time, "
        "as after a restored backup. Restore the one that belongs to the checkpoint, or delete it and start over."
    )


def _looked_at(output: str) -> list[_Found]:
    if output.startswith(_POSTGRES):
        return _postgres(output)
    if output.startswith(_KAFKA):
        return _kafka(output)
    place, _, table = output.partition("#")
    if is_local(output) and local_path(output).exists():
        place, table = output, ""  # the # is part of its name
    if is_local(place) and local_path(place).is_file():
        return _duckdb(place, table or None)
    return [_folder(output)]


def _folder(output: str) -> _Found:
    folder = open_folder(output, option="output")
    if folder.size("_changelog.json") is not None:
        return _parquet(output)
    if is_local(output) and any(folder.size(name) is not None for name in HEADERS):
        return _files(output)
    if any(True for _ in folder.names("_delta_log")):
        return _delta(output)
    raise OptionError(
        f"{output}: no output of a query. Give a DuckDB file, a Delta table, a Parquet changelog, a directory of JSON "
        "lines, rows or CSV, postgresql://HOST/DATABASE, or kafka://HOST:PORT/TOPIC.",
        code="ARGUMENT",
        output=output,
    )


def _duckdb(path: str, table: str | None) -> list[_Found]:
    from zset_join.sinks.duckdb_view import stored_epochs

    found = stored_epochs(str(local_path(path)), table)
    return [_Found(f"{path}#{one.table}", "duckdb", one, lambda _epoch: _AHEAD) for one in found]


def _postgres(output: str) -> list[_Found]:
    from zset_join.sinks.postgres_view import stored_epochs

    address, _, table = output.partition("#")
    shown = _without_user(address)
    found = stored_epochs(address, table or None)
    return [_Found(f"{shown}#{one.table}", "postgres", one, lambda _epoch: _AHEAD) for one in found]


def _kafka(output: str) -> list[_Found]:
    from zset_join.sinks.kafka_topic import stored_epochs

    servers, _, topic = output.removeprefix(_KAFKA).partition("/")
    if not servers or not topic:
        raise OptionError(f"{output}: expected kafka://HOST:PORT/TOPIC.", code="ARGUMENT", output=output)
    stored = stored_epochs({"bootstrap.servers": servers}, topic)
    if stored.detail == "change_data_feed":
        return [_Found(output, "kafka", stored, lambda epoch: f"the records with _commit_version <= {epoch}")]
    return [_Found(output, "kafka", stored, lambda _epoch: "not possible: its records hold no epoch")]


def _parquet(output: str) -> _Found:
    from zset_join.sinks.parquet_changelog import stored_epochs

    return _Found(output, "parquet", stored_epochs(output), lambda epoch: f"read_changelog(..., up_to_epoch={epoch})")


def _files(output: str) -> _Found:
    from zset_join.sinks.epoch_files import stored_epochs

    return _Found(output, "files", stored_epochs(local_path(output)), lambda epoch: f"the files of epochs up to {epoch}")


def _delta(output: str) -> _Found:
    from zset_join.sinks.delta_log import DeltaLog

    log = DeltaLog(output)
    stored = log.stored()
    if stored.detail == "changelog":
        return _Found(output, "delta changelog", stored, lambda epoch: f"the rows with _epoch <= {epoch}")

    def read_at(epoch: int) -> str:
        version = log.version_of(epoch)
        return "not possible: the log no longer has that version" if version is None else f"version {version} of the table"

    return _Found(output, "delta view", stored, read_at)


def _without_user(address: str) -> str:
    """Return the address of a database without user, password and parameters.

    >>> _without_user("postgresql://me:hush@db:5432/shop?password=hush")
    'postgresql://db:5432/shop'
    """
    scheme, _, rest = address.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
