"""An outside table that is read once per epoch by the driver, and lies in the checkpoint for the tasks to look rows up in.

The law: all tasks and attempts of an epoch see the same rows. The driver puts them there before the epoch's job, only if new,
so an epoch that is asked for again after a failure finds those of the first time; what was looked up is journaled as ever.

A file is `fetched/<stage>/rows/<epoch>.arrow`, one Arrow stream. It is removed once its epoch is committed. `dataframe` is what
the driver reads: a batch DataFrame of Spark, or a function that makes one for every epoch. It travels nowhere: a task has only
the description.

Bytes: the asked columns of the table, on the driver, in the checkpoint, and in every process that asks. `max_rows` bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from zset_join.errors import PlanError, ResourceError, StateError
from zset_join.lookup.source import LookupClient, LookupSource, Opening
from zset_join.lookup.sources.table_files import ArrowSource
from zset_join.lookup.sources.written import register_source
from zset_join.lookup.written_schema import read_schema, write_schema
from zset_join.storage.folder import Folder

__all__ = ["DataFrameSource", "EpochSource"]


@runtime_checkable
class EpochSource(Protocol):
    """A source whose rows are those of an epoch."""

    def of_epoch(self, folder: Folder | None, stage: str, epoch: int) -> LookupSource:
        """Return the rows of an epoch, as a source that can be loaded."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataFrameSource:
    """Describe a batch DataFrame of Spark that is read once per epoch.

    Args:
        name: what it is called in plans and messages.
        schema: its columns.
        dataframe: the DataFrame, or a function without arguments that makes it for every epoch: of files that are listed when a
            DataFrame is made, only the latter sees new ones.
        max_rows: how many rows it may have.
    """

    name: str
    schema: pa.Schema
    dataframe: Any = field(default=None, repr=False, compare=False)
    max_rows: int = 1_000_000

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels: the description."""
        return {**self.__dict__, "dataframe": None}

    @property
    def modes(self) -> frozenset[str]:
        """Return full."""
        return frozenset({"full"})

    def open(self, opening: Opening) -> LookupClient:  # noqa: ARG002 - the contract
        """Refuse: it is asked by epoch."""
        raise PlanError(
            f'the lookup source "{self.name}" is a DataFrame, which the driver of a Spark query reads once per epoch. Here, '
            "give ArrowSource(table=...) or one of the files.",
            code="UNKNOWN_LOOKUP_SOURCE",
            kind="dataframe",
        )

    def explain(self) -> str:
        """Return what it is."""
        return "a DataFrame, read once per epoch"

    def to_json(self) -> dict[str, Any]:
        """Return its name and columns; the DataFrame is the program's."""
        return {"kind": "dataframe", "name": self.name, "schema": write_schema(self.schema), "max_rows": self.max_rows}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> DataFrameSource:
        """Build from what `to_json` gave: enough to show a query and its state, not to read the table."""
        return cls(name=found["name"], schema=read_schema(found["schema"]), max_rows=found["max_rows"])

    def keep(self, folder: Folder, stage: str, epoch: int, rows: pa.Table) -> None:
        """Put the rows of an epoch where its tasks find them, and remove those of earlier ones.

        Args:
            folder: of the checkpoint.
            stage: name of the stage.
            epoch: its number.
            rows: at most `max_rows + 1` rows.

        Raises:
            ResourceError: there are more than `max_rows`.
        """
        if rows.num_rows > self.max_rows:
            raise ResourceError(
                f'the lookup source "{self.name}" has more than max_rows={self.max_rows:,} rows in epoch {epoch}; all of them '
                "would be in the memory of the driver and of every worker. Select fewer rows, raise max_rows, or join with it "
                "as a stream.",
                code="LOOKUP_TOO_LARGE",
                limit=self.max_rows,
                source=self.name,
            )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        name = _file(stage, epoch)
        for other in list(folder.names(f"fetched/{stage}/rows")):
            if other < name:
                folder.remove(other)
        if folder.size(name) is None:
            folder.put_new(name, sink.getvalue().to_pybytes())

    def has(self, folder: Folder, stage: str, epoch: int) -> bool:
        """Say whether the rows of an epoch are there already."""
        return folder.size(_file(stage, epoch)) is not None

    def of_epoch(self, folder: Folder | None, stage: str, epoch: int) -> LookupSource:
        """Return the rows of an epoch.

        Raises:
            StateError: they are not there.
        """
        if folder is None:
            self.open(Opening(key=(), columns=()))
        data = None if folder is None else folder.read(_file(stage, epoch))
        if data is None:
            raise StateError(
                f'the rows of the lookup source "{self.name}" for epoch {epoch} are not in the checkpoint; the driver puts '
                f"{_file(stage, epoch)} there before the epoch runs. Start the query again.",
                code="DAMAGED_FILE",
                file=_file(stage, epoch),
            )
        return ArrowSource(name=self.name, table=pa.ipc.open_stream(data).read_all())


def _file(stage: str, epoch: int) -> str:
    return f"fetched/{stage}/rows/{epoch:020d}.arrow"


register_source("dataframe", DataFrameSource.from_json)
