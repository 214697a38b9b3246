"""The public path of sources of JSON records; see `zset_join.query.records`."""

from __future__ import annotations

from zset_join.query.records import Baseline, records

__all__ = ["Baseline", "records"]
