"""Tables that are loaded as a whole and trusted for `reload_interval`: Parquet files, a Delta table, an Arrow table in memory.

The law: a lookup sees the table as it was when it was last loaded. What is written between loads shows after the next one.

Cost: the whole table in memory, per worker. Delta needs `deltalake` (extra `delta`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.extras import needed_for
from zset_join.lookup.source import LookupClient, Opening, TransientLookupError
from zset_join.lookup.sources.written import WrittenSource, read_schema, register_source, write_schema

__all__ = ["ArrowSource", "DeltaSource", "ParquetSource"]

_FULL = frozenset({"full"})


class _LoadedClient(LookupClient):
    def __init__(self, load: Callable[[], pa.Table]) -> None:
        self._load = load

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
        """Return full."""
        return _FULL

    def open(self, opening: Opening) -> LookupClient:
        columns = list(opening.columns)
        return _LoadedClient(lambda: _parquet(self.path).to_table(columns=columns))

    def explain(self) -> str:
        """Return the path."""
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
        """Return full."""
        return _FULL

    def open(self, opening: Opening) -> LookupClient:
        columns = list(opening.columns)
        return _LoadedClient(lambda: _delta(self.path).to_table(columns=columns))

    def explain(self) -> str:
        """Return the path."""
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
        """Return full."""
        return _FULL

    def open(self, opening: Opening) -> LookupClient:  # noqa: ARG002 - the contract
        table = self.table
        return _LoadedClient(table if callable(table) else lambda: table)

    def explain(self) -> str:
        """Return a description."""
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
