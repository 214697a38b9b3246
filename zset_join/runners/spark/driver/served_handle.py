"""A client's view of a query that it started over Spark Connect, wherever on the server its epochs run.

The law: the client answers nothing itself. A verb with its arguments goes to the process that holds the checkpoint; what is
read from files that nobody changes goes to any. An error that stops a query reaches the client with its code and its
message; its facts are kept in the checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from zset_join.core import errors
from zset_join.core.errors import OptionError, PlanError, ZsetJoinError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.driver.choosing import memory_budget
from zset_join.runners.spark.driver.on_server import on_server, without_package
from zset_join.runners.spark.driver.questions import CHANGES, HAS_CHANGED
from zset_join.runners.spark.driver.served import SentQuery, answer_of, read_at_rest
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.named_outputs import ChosenSink
from zset_join.runners.spark.epoch.progress import ProgressLog
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.frames.sent import packed_with_frames

__all__ = ["ServedHandle", "budget_of", "refuse_unsent"]

_READS = ("dead_letters", "diff")
"""Verbs that read files which nobody changes: epochs do not wait for them."""

_ERROR = re.compile(
    r"zset_join\.core\.errors\.(\w+): \[(\w+)\] (.*?)(?=\n\s*(?:\n|at |During handling|The above)|\Z)", re.DOTALL
)


@dataclass(eq=False, kw_only=True)
class ServedHandle:
    """A client's view of a query whose epochs run on the server."""

    settings: SentQuery
    session: SparkSession
    columns: Callable[[], pa.Schema]  # of the only view
    explanation: Callable[[], str]
    is_active: Callable[[], bool] = lambda: False
    error: BaseException | None = None
    heartbeat: Heartbeat | None = None
    has_ended: bool = False
    progress: ProgressLog = field(init=False)

    def __post_init__(self) -> None:
        self.progress = _Progress(self.session, self.settings.options.checkpoint_location)

    @property
    def schema(self) -> pa.Schema:
        return self.columns()

    @property
    def options(self) -> QueryOptions:
        return self.settings.options

    @property
    def dead_letters(self) -> str:
        return self.settings.dead_letters

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        raise PlanError(f"epoch {epoch} of {batch} runs on the server, not in this client.", code="SPARK_CONNECT")

    def call(self, verb: str, **given: Any) -> Any:
        """Return the answer of the server to a question."""
        refuse_unsent(verb, given)
        if verb in _READS:
            return on_server(self.session, partial(read_at_rest, self.settings, verb, packed_with_frames(given)))
        try:
            found = answer_of(verb, given, self.settings, self.session, self.is_active)
        except ZsetJoinError as error:
            self.has_ended = self.has_ended or bool(error.facts.get(HAS_CHANGED))
            raise
        self.has_ended = self.has_ended or verb in CHANGES
        return found

    def attach(self, query_id: str) -> None:
        # The server opens checkpoint and outputs with the first epoch.
        pass

    def begin(self) -> None:
        # The server begins the query with the first epoch.
        pass

    def failure_of(self, error: BaseException) -> ZsetJoinError | None:
        return _failure_of(error)

    def close(self) -> None:
        # The server closes checkpoint and outputs when its process ends.
        pass


def budget_of(session: SparkSession, options: QueryOptions) -> int:
    """Return how many bytes of state a query may have on the driver, or on the server of Spark Connect."""
    if options.driver_memory is not None or not is_connect(session):
        return memory_budget(options)
    return int(on_server(session, partial(memory_budget, options)))


def refuse_unsent(verb: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments that do not travel: a stream to read again, and outputs of a program's own."""
    terms = given.get("terms")
    if terms is not None and terms.reread:
        raise OptionError(
            f"over Spark Connect {verb}() takes no reread=. Run zset-join {verb} with --reread beside the server"
            f"{', once the query is stopped' if verb == 'evolve' else ''}.",
            code="NOT_FROM_HERE",
            what=verb,
        )
    outputs: Mapping[str, Sequence[ChosenSink]] = given.get("outputs", {})
    for view, chosen in outputs.items():
        if any(one.written()[0] is None for one in chosen):
            raise OptionError(
                f'the new output of "{view}" is a function, a sink of your own or a table that Spark writes. Over Spark '
                "Connect such an output is given to a query when it starts. Choose one of the connectors for the change, or "
                "stop the query, run zset-join evolve beside the server, and start the new query with this output.",
                code="NOT_FROM_HERE",
                what="evolve",
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

    @override
    def of_epoch(self, epoch: int) -> dict[str, Any] | None:
        return self.of_epochs([epoch])[epoch]

    @override
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
