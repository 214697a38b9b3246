"""A client's view of a query that it started over Spark Connect, wherever on the server its epochs run.

The law: an error that stops a query reaches the client with its code and its message; its facts are kept in the checkpoint.
"""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from zset_join.core import errors
from zset_join.core.errors import OptionError, PlanError, ZsetJoinError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.driver.on_server import on_server, table_bytes, table_of, without_package
from zset_join.runners.spark.driver.sent_changes import read_diff, read_query, written_diff
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.progress import ProgressLog
from zset_join.tools.dead_letters import read_letters
from zset_join.zset import ZSet, single_batch

if TYPE_CHECKING:
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.several import PlannedQuery
    from zset_join.tools.reports import RowHistory

__all__ = ["ServedHandle", "ToolsOfServed", "compared", "refuse_reread"]

_log = logging.getLogger("zset_join.epochs")

_ERROR = re.compile(
    r"zset_join\.core\.errors\.(\w+): \[(\w+)\] (.*?)(?=\n\s*(?:\n|at |During handling|The above)|\Z)", re.DOTALL
)


class ServedSettings(Protocol):
    """What a client sends of its query."""

    @property
    def options(self) -> QueryOptions: ...

    @property
    def dead_letters(self) -> str: ...


@dataclass(eq=False)
class ServedHandle:
    """A client's view of a query whose epochs run on the server."""

    settings: ServedSettings
    session: SparkSession
    is_active: Callable[[], bool] = lambda: False
    error: BaseException | None = None
    heartbeat: Heartbeat | None = None
    has_ended: bool = False
    progress: ProgressLog = field(init=False)

    def __post_init__(self) -> None:
        self.progress = _Progress(self.session, self.settings.options.checkpoint_location)

    @property
    def options(self) -> QueryOptions:
        return self.settings.options

    @property
    def dead_letters(self) -> str:
        return self.settings.dead_letters

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        raise PlanError(f"epoch {epoch} of {batch} runs on the server, not in this client.", code="SPARK_CONNECT")

    def attach(self, query_id: str) -> None:
        """Return: the server opens checkpoint and outputs with the first epoch."""

    def begin(self) -> None:
        """Return: the server begins the query with the first epoch."""

    def failure_of(self, error: BaseException) -> ZsetJoinError | None:
        return _failure_of(error)

    def close(self) -> None:
        """Return: the server closes checkpoint and outputs when its process ends."""


class ToolsOfServed(ABC):
    """Answer questions about a query of the server, wherever its epochs run."""

    def __init__(self, query: ServedHandle) -> None:
        self._session = query.session
        self._is_active = query.is_active
        self._options = query.options

    def diff(
        self, query: PlannedQuery, *, lease_seconds: float, reread: Mapping[str, Any] | None = None, as_now: bool = False
    ) -> PlanDiff:
        """Return how the answers of another query would differ, by a job; rows that differ travel. See `StoredQuery.diff`."""
        refuse_reread("diff", reread)
        return read_diff(on_server(self._session, self._compared(query, lease_seconds, as_now=as_now)))

    def dead_letters(self, **chosen: Any) -> pa.Table:
        """Return the dead letters; see `zset_join.dead_letters.read_letters`."""
        location, path = self._options.checkpoint_location, self._options.dead_letter_path

        def letters() -> bytes:
            return table_bytes(read_letters(location, path=path, **chosen))

        return table_of(on_server(self._session, letters))

    def explain_row(self, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
        found: RowHistory = self._answer("explain_row", {"row": dict(row), "most_rows": most_rows})
        return found

    def view_rows(self, view: str, values: Mapping[str, Any], *, most_rows: int) -> tuple[ZSet, int]:
        content, weights, count = self._answer("view_rows", {"view": view, "values": dict(values), "most_rows": most_rows})
        return ZSet(single_batch(table_of(content)), np.asarray(weights, np.int64)), count

    @abstractmethod
    def _answer(self, about: str, given: Mapping[str, Any]) -> Any:
        """Return the answer of the server to a question."""

    @abstractmethod
    def _compared(self, query: PlannedQuery, lease_seconds: float, *, as_now: bool) -> Callable[[], Any]:
        """Return the function of the server that compares another query with the stored one."""


def compared(compare: Callable[..., Any], location: str, written: Any, lease_seconds: float, *, as_now: bool) -> Any:
    """Return a difference as it travels, on the server."""
    return written_diff(compare(location, read_query(written), lease_seconds=lease_seconds, as_now=as_now))


def refuse_reread(what: str, reread: Mapping[str, Any] | None) -> None:
    """Refuse to read a stream again, whose place only the server reaches."""
    if reread:
        raise OptionError(
            f"over Spark Connect {what}() takes no reread=. Run zset-join {what} with --reread beside the server"
            f"{', once the query is stopped' if what == 'evolve' else ''}.",
            code="NOT_FROM_HERE",
            what=what,
        )


def _failure_of(error: BaseException) -> ZsetJoinError | None:
    """Return the error of this library that an error of the server's carries as text; None where there is none."""
    if not isinstance(error, PySparkException):
        return None
    found = _ERROR.search(str(error))
    if found is None:
        return without_package(error)
    kind: type[ZsetJoinError] = getattr(errors, found[1], ZsetJoinError)
    return kind(found[3].strip(), code=found[2])


class _Progress(ProgressLog):
    """Read the counts of epochs from the checkpoint, by a job on the server."""

    def __init__(self, session: SparkSession, location: str) -> None:
        super().__init__()
        self._session = session
        self._location = location

    def of_epoch(self, epoch: int) -> dict[str, Any] | None:
        return self.of_epochs([epoch])[epoch]

    def of_epochs(self, epochs: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        location, wanted = self._location, list(epochs)
        found: dict[str, Any] = json.loads(on_server(self._session, lambda: _counts(location, wanted)))
        return {epoch: found[str(epoch)] for epoch in wanted}


def _counts(location: str, epochs: Sequence[int]) -> str:
    """Return the counts in the records of Spark's batches as JSON, by their numbers; null where there is no record."""
    from zset_join.checkpoint.reading import epoch_of_batch, read_committed, read_record, record_name

    committed = read_committed(location)
    found: dict[int, Any] = dict.fromkeys(epochs)
    for batch in epochs:
        epoch = batch if committed is None else epoch_of_batch(committed, batch)
        if committed is None or committed.files.folder.size(record_name(epoch)) is None:
            continue
        record = read_record(committed.files, epoch)
        found[batch] = None if record is None else {**record.progress, **({"batch": batch} if batch != epoch else {})}
    return json.dumps(found, default=str)
