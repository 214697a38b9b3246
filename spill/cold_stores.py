"""The cold stores of one directory, on one medium: plain files, or one DuckDB file that all of them share.

The law: stores of both media hold what was put into them (`spill.cold_store`, `spill.pair_store`); which medium it is shows in
their speed, their files and their memory, never in a row. A directory of one medium is refused by the other: its owner wipes
it and builds it again from the checkpoint.

The code that opens stores closes them, and then what they share with `close`.

| medium | keeps pages in | memory beside the index |
|---|---|---|
| `files` | a file per run and store | none: the host's page cache |
| `duckdb` | `cold.duckdb`, one per directory | that of DuckDB, at most `memory_bytes` |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from spill.cold_store import Pages
from spill.file_pages import FilePages
from spill.pair_store import PairStore
from spill.run_store import RunStore

__all__ = ["ColdStores", "FileStores", "closing_on_error"]


class ColdStores(ABC):
    """Make the stores of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def _pages(self, name: str) -> Pages:
        """Return where the pages of a store lie."""

    def rows(self, name: str, *, owner: Mapping[str, str | int], with_subcodes: bool = True) -> RunStore:
        return RunStore(self.directory / name, pages=self._pages(name), owner=owner, with_subcodes=with_subcodes)

    def pairs(self, name: str, *, owner: Mapping[str, str | int]) -> PairStore:
        """Open a store of pairs; as `rows`."""
        return PairStore(self.directory / name, pages=self._pages(name), owner=owner)

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether the shared files are as this process left them."""

    @abstractmethod
    def close(self) -> None:
        """Release the shared files of closed stores."""


class FileStores(ColdStores):
    """Keep all pages in plain files; nothing is shared."""

    @override
    def _pages(self, name: str) -> Pages:
        return FilePages(self.directory / name)

    @override
    def is_current(self) -> bool:
        return True

    @override
    def close(self) -> None:
        pass


@contextmanager
def closing_on_error(close: Callable[[], object]) -> Iterator[None]:
    """Close opened stores when opening the rest fails."""
    try:
        yield
    except BaseException:
        close()
        raise
