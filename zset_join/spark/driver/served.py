"""Epochs of a query that a client of Spark Connect started: they run in a process of the server.

The client sends settings; checkpoint, inputs and outputs are the server's alone. Client and server share no disk, so the client
reads nothing of them itself: `on_server` runs a function there, as a job with one task, and brings its answer back as text.

The law: a query that was started over Spark Connect and one that was started beside the server have one checkpoint and one
output. An error that stops a query reaches the client with its code and its message; its facts are kept in the checkpoint.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.reading import checkpoint_folder, stored_query_id
from zset_join.core import errors
from zset_join.core.errors import PlanError, StateError, ZsetJoinError
from zset_join.core.options import QueryOptions
from zset_join.kernels.machine.first_use import compile_rest_in_background
from zset_join.spark.driver.epochs import DriverEpochs, DriverSettings
from zset_join.spark.driver.on_server import on_server
from zset_join.spark.driver.starting import check_mode
from zset_join.spark.epoch.frame_sink import TakesSession
from zset_join.spark.epoch.heartbeat import Heartbeat
from zset_join.spark.epoch.progress import ProgressLog
from zset_join.tools.savepoint import Savepoint

__all__ = ["ServedEpochs", "ServedQuery", "refuse_served"]

_ERROR = re.compile(
    r"zset_join\.core\.errors\.(\w+): \[(\w+)\] (.*?)(?=\n\s*(?:\n|at |During handling|The above)|\Z)", re.DOTALL
)


@dataclass(eq=False)
class ServedEpochs:
    """Run the epochs of a query in a process of the server; callable, for `foreachBatch`; travels as its settings.

    Args:
        settings: of the query.
    """

    settings: DriverSettings
    _epochs: DriverEpochs | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServedEpochs, (self.settings,))

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Run one epoch.

        Raises:
            ZsetJoinError: as `DriverEpochs`.
        """
        if self._epochs is None:
            compile_rest_in_background()
            check_mode(self.settings.options.checkpoint_location, "driver")
            self._epochs = DriverEpochs(self.settings)
        epochs = self._epochs
        is_new = not epochs.is_open
        epochs(batch, epoch)
        if is_new and self.settings.is_timed:
            epochs.heartbeat = Heartbeat(checkpoint_folder(epochs.location), epochs.next_due)
            epochs.heartbeat.start()


@dataclass(eq=False)
class ServedQuery:
    """What a client knows of a query whose epochs run on the server.

    Args:
        settings: of the query.
        session: of Spark Connect.

    Attributes:
        error: what stopped the query; None while it runs, and where Spark did.
        progress: what the newest epochs did, as the checkpoint has it.
        heartbeat: None: it is the server's.
    """

    settings: DriverSettings
    session: SparkSession
    error: BaseException | None = None
    heartbeat: Heartbeat | None = None
    progress: ProgressLog = field(init=False)

    def __post_init__(self) -> None:
        self.progress = _Progress(self.session, self.settings.options.checkpoint_location)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the only view."""
        return self.settings.query.plan.output.schema

    @property
    def options(self) -> QueryOptions:
        """Return the options of the query."""
        return self.settings.options

    @property
    def dead_letters(self) -> str:
        """Return where rows that were put aside are written."""
        return self.settings.dead_letters

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Refuse: epochs run on the server.

        Raises:
            PlanError: always.
        """
        raise PlanError(f"epoch {epoch} of {batch} runs on the server, not in this client.", code="SPARK_CONNECT")

    def attach(self, query_id: str) -> None:
        """Return: the server opens checkpoint and outputs with the first epoch."""

    def begin(self) -> None:
        """Return: the server begins the query with the first epoch."""

    def explanation(self) -> str:
        """Return what `explain` prints."""
        return DriverEpochs(self.settings).explanation()

    def failure_of(self, error: BaseException) -> ZsetJoinError | None:
        """Return the error of this library that an error of the server's carries as text; None where there is none."""
        return _failure_of(error)

    def backup(self, directory: str | Path) -> Savepoint:
        """Refuse: the files are the server's.

        Raises:
            StateError: `SPARK_CONNECT`.
        """
        raise StateError(
            f"a savepoint in {directory} is a copy of files of the server, which this client does not reach. Stop the query "
            "and copy its checkpointLocation and outputs there, or run `zset-join savepoint` on the server.",
            code="SPARK_CONNECT",
        )

    def close(self) -> None:
        """Return: the server closes checkpoint and outputs when its process ends."""


def refuse_served(settings: DriverSettings, session: SparkSession) -> None:
    """Open checkpoint and outputs on the server and release them, so that a start which they refuse writes nothing.

    A new checkpoint is not looked at, nor one with an output that writes by Spark.

    Args:
        settings: of the query.
        session: of Spark Connect.

    Raises:
        ZsetJoinError: what they raise.

    Cost: one job with one task; of a checkpoint that exists, it restores the state into a temporary directory.
    """

    def opened() -> str:
        _open_and_close(settings)
        return ""

    try:
        on_server(session, opened)
    except PySparkException as error:
        failure = _failure_of(error)
        if failure is None:
            raise
        raise failure from error


def _open_and_close(settings: DriverSettings) -> None:
    location = settings.options.checkpoint_location
    query_id = stored_query_id(location)
    if query_id is None:
        return
    check_mode(location, "driver")
    if any(isinstance(one.sink, TakesSession) for sinks in settings.sinks.values() for one in sinks):
        return
    with tempfile.TemporaryDirectory(prefix="zset_join-start-") as directory:
        epochs = DriverEpochs(replace(settings, options=replace(settings.options, local_state_dir=directory)))
        try:
            epochs.attach(query_id)
        finally:
            epochs.close()


def _failure_of(error: BaseException) -> ZsetJoinError | None:
    """Return the error of this library that an error of the server's carries as text; None where there is none."""
    found = _ERROR.search(str(error)) if isinstance(error, PySparkException) else None
    if found is None:
        return None
    kind: type[ZsetJoinError] = getattr(errors, found[1], ZsetJoinError)
    return kind(found[3].strip(), code=found[2])


class _Progress(ProgressLog):
    """Read the counts of epochs from the checkpoint, by a job on the server.

    Args:
        session: of Spark Connect.
        location: `checkpointLocation`.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        super().__init__()
        self._session = session
        self._location = location

    def of_epoch(self, epoch: int) -> dict[str, Any] | None:
        """Return the counts of a committed epoch; None where it is not committed, or its record is gone."""
        location = self._location
        found: dict[str, Any] | None = json.loads(on_server(self._session, lambda: _counts(location, epoch)))
        return found


def _counts(location: str, epoch: int) -> str:
    """Return the counts in the record of an epoch as JSON; "null" where there is none."""
    from zset_join.checkpoint.reading import read_committed, read_record, record_name

    committed = read_committed(location)
    if committed is None or committed.files.folder.size(record_name(epoch)) is None:
        return "null"
    record = read_record(committed.files, epoch)
    return "null" if record is None else json.dumps(dict(record.progress), default=str)
