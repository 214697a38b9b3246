"""The package that `zset_join.spark` needs, imported first, so that its absence is reported with the pip line."""

from __future__ import annotations

from zset_join.core.extras import needed_for

with needed_for("zset_join.spark"):
    import pyspark  # noqa: F401 - looked for, used elsewhere

__all__: list[str] = []
