"""Tables that are loaded as a whole and trusted for `reload_interval`: Parquet files, a Delta table, an Arrow table in memory.

The law: a lookup sees the table as it was when it was last loaded. What is written between loads shows after the next one.

Cost: the whole table in memory, per worker. Delta needs `deltalake` (extra `delta`).

`DataFrameSource`, `EpochSource`: an external table that is read once per epoch by the driver, and is in the checkpoint for the
tasks to look rows up in.

The law: all tasks and attempts of an epoch see the same rows. The driver puts them there before the epoch's job, only if new,
so an epoch that is requested again after a failure finds those of the first time; what was looked up is journaled as ever.

With `reload_interval` the rows of an earlier epoch are taken again until that much processing time has passed; which ones an
epoch took is written down before its job, too, so a repeated epoch finds the same.

A file is `fetched/<stage>/rows/<epoch>.arrow`, one Arrow stream: the rows, or the name of the file that has them. It is removed
once a later epoch has its own. `dataframe` is what
the driver reads: a batch DataFrame of Spark, or a function that makes one for every epoch. It travels nowhere: a task has only
the description.

Bytes: the wanted columns of the table, on the driver, in the checkpoint, and in every process that reads them. `max_rows`
bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import OptionError, PlanError, ResourceError, StateError
from zset_join.core.extras import needed_for
from zset_join.lookup.options import parse_duration_us
from zset_join.lookup.source import LookupClient, LookupSource, Opening, TransientLookupError
from zset_join.lookup.sources.written import WrittenSource, read_schema, register_source, write_schema
from zset_join.storage.folder import Folder

__all__ = ["ArrowSource", "DataFrameSource", "DeltaSource", "EpochSource", "ParquetSource"]

_FULL = frozenset({"full"})


class _LoadedClient(LookupClient):
    def __init__(self, load: Callable[[], pa.Table]) -> None:
        self._load = load

    @override
    def load(self) -> pa.Table:
        try:
            return self._load()
        except (OSError, FileNotFoundError) as error:
            raise TransientLookupError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ParquetSource(WrittenSource):
    """Describe a Parquet file, or a folder of them.

    Args:
        name: in plans and messages.
        path: of the file or the folder.
        schema: the columns that may be requested; None: those of the files, read now.
    """

    kind: ClassVar[str] = "parquet"

    name: str
    path: str
    schema: pa.Schema = None

    def __post_init__(self) -> None:
        if self.schema is None:
            object.__setattr__(self, "schema", _parquet(self.path).schema)

    @property
    def modes(self) -> frozenset[str]:
        return _FULL

    def open(self, opening: Opening) -> LookupClient:
        columns = list(opening.columns)
        return _LoadedClient(lambda: _parquet(self.path).to_table(columns=columns))

    def explain(self) -> str:
        return f"Parquet {self.path}"


@dataclass(frozen=True, kw_only=True)
class DeltaSource(WrittenSource):
    """Describe a Delta table; each load reads the newest version.

    Args:
        name: in plans and messages.
        path: of the table.
        schema: the columns that may be requested; None: those of the table, read now.
    """

    kind: ClassVar[str] = "delta"

    name: str
    path: str
    schema: pa.Schema = None

    def __post_init__(self) -> None:
        if self.schema is None:
            object.__setattr__(self, "schema", _delta(self.path).schema)

    @property
    def modes(self) -> frozenset[str]:
        return _FULL

    def open(self, opening: Opening) -> LookupClient:
        columns = list(opening.columns)
        return _LoadedClient(lambda: _delta(self.path).to_table(columns=columns))

    def explain(self) -> str:
        return f"Delta table {self.path}"


@dataclass(frozen=True, kw_only=True)
class ArrowSource:
    """Describe a table in memory, or a function that rebuilds it for each load.

    Args:
        name: in plans and messages.
        table: the rows, or a function without arguments that returns them.
        schema: the columns that may be requested; needed with a function.

    >>> ArrowSource(name="rates", table=pa.table({"k": [1], "v": [2]})).schema.names
    ['k', 'v']
    """

    name: str
    table: pa.Table | Callable[[], pa.Table]
    schema: pa.Schema = None

    def __post_init__(self) -> None:
        if self.schema is None and callable(self.table):
            raise OptionError(
                f'the lookup source "{self.name}" is a function; give schema=pa.schema(...), so that the query can be planned.',
                code="LOOKUP_SCHEMA",
                source=self.name,
            )
        if self.schema is None:
            object.__setattr__(self, "schema", self.table.schema)  # type: ignore[union-attr]

    @property
    def modes(self) -> frozenset[str]:
        return _FULL

    def open(self, opening: Opening) -> LookupClient:  # noqa: ARG002 - the contract
        table = self.table
        return _LoadedClient(table if callable(table) else lambda: table)

    def explain(self) -> str:
        return "a table in memory"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "arrow", "name": self.name, "schema": write_schema(self.schema)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ArrowSource:
        def refuse() -> pa.Table:
            raise PlanError(
                f'the lookup source "{fields["name"]}" is a table in the memory of the program that made the query; its rows '
                "were not written down. Start the query from that program, or keep the table in a file: ParquetSource.",
                code="UNKNOWN_LOOKUP_SOURCE",
                kind="arrow",
            )

        return cls(name=fields["name"], table=refuse, schema=read_schema(fields["schema"]))


register_source("arrow", ArrowSource.from_json)
register_source("parquet", ParquetSource.from_json)
register_source("delta", DeltaSource.from_json)


def _parquet(path: str) -> Any:
    import pyarrow.dataset  # not at the top: it brings pandas in where that is installed

    return pyarrow.dataset.dataset(path, format="parquet")


def _delta(path: str) -> Any:
    with needed_for("a lookup in a Delta table"):
        import deltalake
    return deltalake.DeltaTable(path).to_pyarrow_dataset()


_READ, _ROWS_OF = b"zset_join.read_us", b"zset_join.rows_of"


@runtime_checkable
class EpochSource(Protocol):
    """A source whose rows are those of an epoch."""

    def of_epoch(self, folder: Folder | None, stage: str, epoch: int) -> LookupSource:
        """Return the rows of an epoch, as a source that can be loaded."""


@dataclass(frozen=True, kw_only=True)
class DataFrameSource:
    """Describe a batch DataFrame of Spark that is read once per epoch.

    Args:
        name: in plans and messages.
        schema: its columns.
        dataframe: the DataFrame, or a function without arguments that returns one for every epoch; only a function sees new
            files.
        max_rows: how many rows it may have.
        reload_interval: processing time until it is read again, such as "10 minutes"; None: every epoch.

    Raises:
        OptionError: the interval is no duration.
    """

    name: str
    schema: pa.Schema
    dataframe: Any = field(default=None, repr=False, compare=False)
    max_rows: int = 1_000_000
    reload_interval: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _ = self.interval_us

    @property
    def interval_us(self) -> int:
        """Return how long the rows are trusted; 0: for one epoch."""
        return 0 if self.reload_interval is None else parse_duration_us(self.reload_interval, option="reload_interval")

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels: the description."""
        return {**self.__dict__, "dataframe": None}

    @property
    def modes(self) -> frozenset[str]:
        return frozenset({"full"})

    def open(self, opening: Opening) -> LookupClient:  # noqa: ARG002 - the contract
        raise PlanError(
            f'the lookup source "{self.name}" is a DataFrame, which the driver of a Spark query reads once per epoch. Here, '
            "give ArrowSource(table=...) or one of the files.",
            code="UNKNOWN_LOOKUP_SOURCE",
            kind="dataframe",
        )

    def explain(self) -> str:
        return "a DataFrame, " + ("read once per epoch" if not self.interval_us else f"read every {self.reload_interval}")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "dataframe", "name": self.name, "schema": write_schema(self.schema), "max_rows": self.max_rows}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DataFrameSource:
        return cls(name=fields["name"], schema=read_schema(fields["schema"]), max_rows=fields["max_rows"])

    def keep(self, folder: Folder, stage: str, epoch: int, rows: pa.Table, *, read_us: int = 0) -> None:
        """Put the rows of an epoch where its tasks find them, and remove those of earlier ones."""
        if rows.num_rows > self.max_rows:
            raise ResourceError(
                f'the lookup source "{self.name}" has more than max_rows={self.max_rows:,} rows in epoch {epoch}; all of them '
                "would be in the memory of the driver and of every worker. Select fewer rows, raise max_rows, or join with it "
                "as a stream.",
                code="LOOKUP_TOO_LARGE",
                limit=self.max_rows,
                source=self.name,
            )
        self._put(folder, stage, epoch, rows.replace_schema_metadata({_READ: str(read_us)}), kept=None)

    def keep_earlier(self, folder: Folder, stage: str, epoch: int, *, now_us: int) -> bool:
        """Reuse the rows that were read last, if they are recent enough; return whether they are."""
        name = _file(stage, epoch)
        last = max((other for other in folder.names(f"fetched/{stage}/rows") if other < name), default=None)
        data = None if last is None or not self.interval_us else folder.read(last)
        if data is None or last is None:
            return False
        facts = pa.ipc.open_stream(data).schema.metadata or {}
        if now_us - int(facts[_READ]) >= self.interval_us:
            return False
        rows_of = facts.get(_ROWS_OF, last.encode()).decode()
        nothing = self.schema.empty_table().replace_schema_metadata({**facts, _ROWS_OF: rows_of})
        self._put(folder, stage, epoch, nothing, kept=rows_of)
        return True

    @staticmethod
    def _put(folder: Folder, stage: str, epoch: int, rows: pa.Table, *, kept: str | None) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        name = _file(stage, epoch)
        if folder.size(name) is None:
            folder.put_new(name, sink.getvalue().to_pybytes())
        for other in list(folder.names(f"fetched/{stage}/rows")):
            if other < name and other != kept:
                folder.remove(other)

    def has(self, folder: Folder, stage: str, epoch: int) -> bool:
        """Return whether the rows of an epoch are present already."""
        return folder.size(_file(stage, epoch)) is not None

    def of_epoch(self, folder: Folder | None, stage: str, epoch: int) -> LookupSource:
        """Return the rows of an epoch."""
        if folder is None:
            self.open(Opening(key=(), columns=()))
        data = None if folder is None else folder.read(_file(stage, epoch))
        if data is not None and folder is not None:
            rows_of = (pa.ipc.open_stream(data).schema.metadata or {}).get(_ROWS_OF)
            data = data if rows_of is None else folder.read(rows_of.decode())
        if data is None:
            raise StateError(
                f'the rows of the lookup source "{self.name}" for epoch {epoch} are not in the checkpoint; the driver puts '
                f"{_file(stage, epoch)} there before the epoch runs. Start the query again.",
                code="DAMAGED_FILE",
                file=_file(stage, epoch),
            )
        return ArrowSource(name=self.name, table=pa.ipc.open_stream(data).read_all().replace_schema_metadata(None))


def _file(stage: str, epoch: int) -> str:
    return f"fetched/{stage}/rows/{epoch:020d}.arrow"


register_source("dataframe", DataFrameSource.from_json)
