"""The word `lookup_join`, for streams and views alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zset_join.lookup import LookupSource
    from zset_join.spark.api.staged import StagedView

__all__ = ["LooksUp"]


class LooksUp:
    """Rows that can be joined with what an outside table says of them."""

    def lookup_join(self, source: LookupSource, on: Any = None, how: str = "inner", **options: Any) -> StagedView:
        """Join with what an outside table says when a row comes; see `zset_join.spark.api.looking_up.lookup_join`."""
        from zset_join.spark.api.looking_up import lookup_join

        rows: Any = self
        return lookup_join(rows, source, on, how, **options)
