"""The answer key of aggregates: the dict-only reference, shipped to users as `zset_join.testing.reference_aggregate`."""

from __future__ import annotations

from zset_join.testing.reference_aggregate import Call, Filter, batch_aggregate, order_of

__all__ = ["Call", "Filter", "batch_aggregate", "order_of"]
