"""A declared index: a name for the columns by which rows are kept, once, for all joins that look up in them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TableIndex"]


@dataclass(frozen=True, eq=False)
class TableIndex:
    """Name columns of rows; see `zset_join.query.indexes`."""

    name: str
    columns: tuple[str, ...]
    node: object

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.columns)})"
