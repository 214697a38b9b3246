"""Rows of a view as an output of a query on executors holds them: what its console shows.

Cost: one or two Spark jobs over what the output holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.core.errors import OptionError
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.rows.text_select import sums_per_row
from zset_join.runners.spark.tools.verification import numbered_rows
from zset_join.zset import ZSet, single_batch

__all__ = ["emitted_rows"]


def emitted_rows(runner: EpochRunner, values: Mapping[str, Any], *, most_rows: int) -> tuple[ZSet, int]:
    """Return distinct rows with their weights, and how many there are, from the first output that can be read back."""
    output = runner.query.output
    names = output.schema.names
    with runner.pause():
        emitted = runner.contents(runner.query.session)
        if not emitted:
            raise OptionError("no output of this query can be read back.", code="VERIFY_OUTPUT")
        rows = numbered_rows(next(iter(emitted.values())), output)
        for name, value in values.items():
            rows = rows.where(F.col(f"c{names.index(name)}").eqNullSafe(F.lit(value)))
        summed = sums_per_row(rows, [f"c{at}" for at in range(len(names))], ["actual"]).where("actual <> 0")
        found = summed.limit(most_rows).toArrow()
        total = found.num_rows if found.num_rows < most_rows else summed.count()
    weights = single_batch(found.select(["actual"])).column(0).to_numpy().astype(np.int64)
    return ZSet(single_batch(found.drop_columns(["actual"]).rename_columns(names)), weights), total
