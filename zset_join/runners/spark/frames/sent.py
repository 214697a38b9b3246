"""DataFrames of Spark Connect, and what refers to them, on their way to another process.

A DataFrame travels as its plan, as the client sends it; a session as a mark, in whose place the other process has its own.
Everything else is pickled with PySpark's cloudpickle, functions by their code.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, cast

from pyspark.cloudpickle import CloudPickler
from pyspark.sql import DataFrame, SparkSession

__all__ = ["frame_bytes", "frame_of", "packed_with_frames", "unpacked_with_frames"]


def frame_bytes(rows: DataFrame) -> bytes:
    frame = cast("Any", rows)
    return bytes(frame._plan.to_proto(frame.sparkSession.client).SerializeToString())


def frame_of(content: bytes, session: SparkSession) -> DataFrame:
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


def packed_with_frames(value: Any) -> bytes:
    """Return an object as bytes, the DataFrames in it as plans."""
    content = io.BytesIO()
    packer: Any = _Packer
    packer(content).dump(value)
    return content.getvalue()


def unpacked_with_frames(content: bytes, session: SparkSession | None) -> Any:
    """Return the object that `packed_with_frames` was given."""
    return _Unpacker(io.BytesIO(content), session).load()  # from a client that may run code in this process anyway


class _Packer(CloudPickler):
    """Write a mark for sessions and DataFrames."""

    def persistent_id(self, obj: Any) -> tuple[str, bytes] | None:
        if isinstance(obj, DataFrame):
            return "frame", frame_bytes(obj)
        return ("session", b"") if isinstance(obj, SparkSession) or _is_session(obj) else None


class _Unpacker(pickle.Unpickler):
    """Make sessions and DataFrames of marks."""

    def __init__(self, content: io.BytesIO, session: SparkSession | None) -> None:
        super().__init__(content)
        self._session = session

    def persistent_load(self, pid: Any) -> Any:
        kind, plan = pid
        return self._session if kind == "session" or self._session is None else frame_of(plan, self._session)


def _is_session(value: Any) -> bool:
    """Return whether an object is a session of Spark Connect, which is no subclass of the other kind."""
    return type(value).__name__ == "SparkSession" and type(value).__module__ == "pyspark.sql.connect.session"
