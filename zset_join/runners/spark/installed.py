"""The package that `zset_join.spark` needs, imported first: its absence is reported, and a version that is too old."""

from __future__ import annotations

import re

from zset_join.core.errors import PlanError
from zset_join.core.extras import needed_for

with needed_for("zset_join.spark"):
    import pyspark

__all__: list[str] = []

_LEAST = (4, 1)


def _check_version(version: str) -> None:
    """Refuse a PySpark that is too old."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise PlanError(
            f"zset_join.spark needs PySpark {least} or newer, and {version} is installed. "
            f"Install a newer one: pip install 'pyspark>={least}', on the server of Spark Connect and on executors too.",
            code="PYSPARK_VERSION",
            version=version,
        )


_check_version(pyspark.__version__)
