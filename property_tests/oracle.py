"""The answer key of the laws: the dict-only reference, which is shipped to users as `zset_join.testing.reference`."""

from __future__ import annotations

from zset_join.testing.reference import (
    Bag,
    Counts,
    IllegalHistoryError,
    JoinedLine,
    Residual,
    Row,
    Side,
    batch_join,
    identity,
    lay_out,
    resolve,
    row_identity,
    total,
)

__all__ = [
    "Bag",
    "Counts",
    "IllegalHistoryError",
    "JoinedLine",
    "Residual",
    "Row",
    "Side",
    "batch_join",
    "identity",
    "lay_out",
    "resolve",
    "row_identity",
    "total",
]
