"""A DataFrame of Spark Connect that travels to another process of its session: its plan, as the client sends it."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

__all__ = ["frame_bytes", "frame_of"]


def frame_bytes(rows: DataFrame) -> bytes:
    """Return the plan of a DataFrame.

    Args:
        rows: of a session of Spark Connect.
    """
    frame = cast("Any", rows)
    return bytes(frame._plan.to_proto(frame.sparkSession.client).SerializeToString())


def frame_of(content: bytes, session: SparkSession) -> DataFrame:
    """Return the DataFrame with a plan.

    Args:
        content: what `frame_bytes` returned.
        session: of Spark Connect.
    """
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LogicalPlan
    from pyspark.sql.connect.proto import Plan

    class Sent(LogicalPlan):
        """A plan that was made elsewhere."""

        def plan(self, session: Any) -> Any:  # noqa: ARG002 - a method of PySpark's
            sent = Plan()
            sent.ParseFromString(content)
            return sent.root

    return cast("DataFrame", ConnectFrame(Sent(None), cast("Any", session)))
