"""The handle of a running query, with the names of PySpark's StreamingQuery.

What stops the query is kept as it was raised: `exception()` and `awaitTermination()` give the engine's own error, with its
code and facts, not the text of a Java stack trace; so they do for records that Kafka has lost, which Spark notices itself.

The query id is Spark's: it stays the same across restarts on one checkpoint, and state, log and output carry it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typing_extensions import override

from zset_join.checkpoint.reading import stored_query_id
from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.core.shown_values import html_progress, html_text
from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords
from zset_join.runners.spark.api.changing_query import ChangingQuery
from zset_join.runners.spark.api.stored_query import Call, QueryRunner, StoredQuery
from zset_join.runners.spark.driver.on_server import refuse_missing
from zset_join.runners.spark.driver.served import ServedEpochs, refuse_served
from zset_join.runners.spark.driver.served_handle import ServedHandle

if TYPE_CHECKING:
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.rows import PlannedQuery
    from zset_join.runners.spark.planning.other_mode import OtherMode

__all__ = ["JoinQuery", "attached_on_server", "start_query", "start_served"]


class JoinQuery(StoredQuery):
    """A running query; made by `JoinStreamWriter.start`.

    Args:
        spark_query: Spark's own handle.
        runner: runs the epochs.
        call: calls the process that holds the checkpoint.
        changing: changes it.
    """

    def __init__(self, spark_query: StreamingQuery, runner: QueryRunner, call: Call, changing: ChangingQuery) -> None:
        super().__init__(runner, call)
        self.spark_query = spark_query
        self.changing = changing
        self._changes = threading.Lock()
        if runner.heartbeat is not None:
            runner.heartbeat.start()
        self._closer = threading.Thread(target=self._close_at_the_end, name="zset_join-closer", daemon=True)
        self._closer.start()

    def __repr__(self) -> str:
        return f"JoinQuery(name={self.name!r}, id={self.id!r}, isActive={self.isActive})"

    def _repr_html_(self) -> str:
        """Return name, state and what the newest epoch did, for a notebook."""
        entries = self._runner.progress.entries
        return f"<p>{html_text(repr(self))}</p>{html_progress(entries[-1] if entries else None)}"

    @property
    def id(self) -> str:
        """Return the id of the query; the same after a restart on the same checkpoint."""
        return str(self.spark_query.id)

    @property
    def runId(self) -> str:  # noqa: N802 - the name PySpark users type
        """Return the id of this run."""
        return str(self.spark_query.runId)

    @property
    def name(self) -> str | None:
        """Return the name given with `queryName`."""
        return self.spark_query.name

    @property
    def isActive(self) -> bool:  # noqa: N802 - the name PySpark users type
        """Return whether the query runs."""
        return self.spark_query.isActive

    @property
    def status(self) -> dict[str, Any]:
        """Return Spark's status of the query."""
        return dict(self.spark_query.status)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - the name PySpark users type
        """Return Spark's newest progress, with ours under the key `join`; None before the first epoch."""
        progress = self.spark_query.lastProgress
        return None if progress is None else self._with_ours([progress])[0]

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - the name PySpark users type
        """Return the newest progresses, oldest first."""
        return self._with_ours(self.spark_query.recentProgress)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - the name PySpark users type
        """Wait until the query stops.

        Args:
            timeout: seconds to wait at most; None waits for ever.

        Returns:
            With a timeout, whether the query has stopped.

        Raises:
            ZsetJoinError: an error of the engine stopped the query.
            StreamingQueryException: another error stopped it.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            awaited = self.spark_query
            try:
                stopped = awaited.awaitTermination() if until is None else _awaited(awaited, until)
            except PySparkException as error:
                if self._has_changed(awaited):
                    continue
                self._closer.join()
                self._raise_own(error)
                raise
            if stopped is not False and self._has_changed(awaited):
                continue
            if stopped is not False:
                self._closer.join()
            return stopped

    def processAllAvailable(self) -> None:  # noqa: N802 - the name PySpark users type
        """Wait until everything the sources have now is in the output; for tests.

        Raises:
            ZsetJoinError: an error of the engine stopped the query.
        """
        try:
            self.spark_query.processAllAvailable()
        except PySparkException as error:
            self._raise_own(error)
            raise

    def stop(self) -> None:
        """Stop the query and close its output; committed epochs remain."""
        self.spark_query.stop()
        self._closer.join()

    def evolve(
        self,
        view: Any,
        *,
        renamed: Mapping[str, Mapping[str, str]] | None = None,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        reread: Mapping[str, Any] | None = None,
        as_now: bool = False,
    ) -> PlanDiff:
        """Go on with another query: outputs get the difference once, and Spark's batch ids continue.

        The change is made between two epochs. Stages that are in both queries keep their state. This object is then the handle
        of the new query: Spark's own, `spark_query`, is another one with another `runId` and the same `id`.

        Args:
            view: the new query over the same streams: a view, all views by name, or the `writeStream` of one. Options, trigger
                and outputs stay; a view for which outputs were chosen in that writer gets these instead, with all its rows.
            renamed: by stream, names of columns before to their names now.
            defaults: by stream, values of added columns in rows from before, instead of NULL.
            reread: by stream, all its rows again, for columns that no state has; see `Pipeline.evolve`. They are read in this
                process while epochs wait, and are as the stream gives them to the query: in its columns, behind what Spark
                computes of it. Not over Spark Connect.
            as_now: build stages whose answer depends on arrival as if all stored rows arrived now.

        Returns: The difference; `taken` is the epoch of the change in the checkpoint, which is no batch of Spark's.

        Raises:
            OptionError: `NOT_FROM_HERE`: executors cannot continue from their state; over Spark Connect, a new output that is
                no connector, or `reread`; `REREAD`: a place cannot be read.
            PlanError: the driver cannot run the new query.
            StateError: `QUERY_STOPPED`: it does not run; `EVOLVE_STREAM`: another stream; `EVOLVE_REREAD`: rows that are not
                those taken; or as `Pipeline.evolve`. The query continues as it was.
            SinkError: `EVOLVE_OUTPUT`: an output that stays would get other columns. The query continues as it was.
            Exception: an output, or the start of the new query, failed after the change was committed. The query has stopped;
                start the new one to bring the outputs up to date.

        Cost: that of `Pipeline.evolve`, and a stop and a start of Spark's query; epochs wait meanwhile.
        """
        words = ColumnWords(renamed={} if renamed is None else renamed, defaults={} if defaults is None else defaults)
        terms = ChangeTerms(words=words, reread=reread, as_now=as_now)
        return self._changed("evolve", lambda changing: changing.changed(view, terms))

    def undo(self) -> PlanDiff:
        """Go back to the query before the last change, as `evolve` does: a change like any other, undone by another `undo`.

        What the change dropped is rebuilt from stored rows, or the call is rejected. A dropped view returns without outputs;
        `evolve` with a writer adds them.

        Returns: The difference; `taken` is the epoch of the change in the checkpoint.

        Raises:
            StateError: `NOTHING_TO_UNDO`: the query was never changed; `UNDO_GONE`: more than `undoEpochs` epochs ago.
            OptionError: `NOT_FROM_HERE`: on executors, another process made the change.
            ZsetJoinError: as `evolve`. The query continues as it was.

        Cost: that of `evolve`.
        """
        return self._changed("undo", lambda changing: changing.undone())

    @override
    def _planned(self, view: Any) -> PlannedQuery:
        """Return another query with the options of this one, such as `keepState`."""
        return self.changing.planned(view)

    def _changed(self, what: str, change: Callable[[ChangingQuery], tuple[PlanDiff, Any]]) -> PlanDiff:
        """Change the query, stop Spark's, and continue with the one that is started."""
        with self._changes:
            if not self.isActive:
                raise StateError(
                    f"{what}() changes a query that runs, and this one has stopped. Change its checkpoint by zset-join {what} "
                    f"{self._runner.options.checkpoint_location}{'' if what == 'undo' else ' QUERY'}, and start the query that "
                    "it is then on it.",
                    code="QUERY_STOPPED",
                )
            before = self._runner
            try:
                diff, after = change(self.changing)
                self.stop()
                started = self.changing.started(after, diff)
            except BaseException as error:
                if before.has_ended:
                    self.stop()
                    before.error = error
                raise
            self.spark_query, self._closer = started.spark_query, started._closer
            self._runner, self._call, self.changing = started._runner, started._call, started.changing
            log = self._runner.progress.entries  # goes on with the epochs before the change
            log.extendleft(reversed([one for one in before.progress.entries if one not in log]))
        return diff

    def exception(self) -> BaseException | None:
        """Return the error of the query; None while it runs or after `stop`."""
        own = self._runner.error
        if isinstance(own, ZsetJoinError):
            return own
        error = self.spark_query.exception()
        return None if error is None else self._runner.failure_of(error) or error

    def _has_changed(self, before: StreamingQuery) -> bool:
        """Return whether a query that Spark has stopped was stopped to be changed, and continues as another one."""
        with self._changes:
            return self.spark_query is not before

    def _raise_own(self, error: PySparkException) -> None:
        own = self._runner.error
        failure = own if isinstance(own, ZsetJoinError) else self._runner.failure_of(error)
        if failure is not None:
            raise failure from error

    def _with_ours(self, of_spark: Sequence[Any]) -> list[dict[str, Any]]:
        progresses = [dict(one) for one in of_spark]
        ours = self._runner.progress.of_epochs([one["batchId"] for one in progresses]) if progresses else {}
        return [{**one, "join": ours[one["batchId"]]} for one in progresses]

    def _close_at_the_end(self) -> None:
        """Close the output when the query has stopped, however it stopped."""
        try:
            self.spark_query.awaitTermination()
        except PySparkException:
            pass  # reported by exception() and awaitTermination()
        finally:
            if self._runner.heartbeat is not None:
                self._runner.heartbeat.stop()
            self._runner.close()


def _awaited(query: StreamingQuery, until: float) -> bool:
    return bool(query.awaitTermination(max(until - time.monotonic(), 0.001)))  # type: ignore[arg-type]  # seconds as float


class _Gate:
    """Let the first epoch wait until the query's id is known and everything is open."""

    def __init__(self, runner: QueryRunner) -> None:
        self._runner = runner
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None

    def open(self, failure: BaseException | None = None) -> None:
        self._failure = failure
        self._is_ready.set()

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        self._is_ready.wait()
        if self._failure is not None:
            raise self._failure
        self._runner(batch, epoch)


def start_query(
    stream: Callable[[], DataStreamWriter], runner: QueryRunner, call: Call, changing: ChangingQuery, *, location: str
) -> JoinQuery:
    # A checkpoint that exists is opened before Spark starts; for a new one Spark chooses the id first.
    gate = _Gate(runner)
    known_id = stored_query_id(location)
    if known_id is not None:
        runner.attach(known_id)
    try:
        spark_query = stream().foreachBatch(gate).start()
    except BaseException:
        runner.close()
        raise
    try:
        if known_id is None:
            runner.attach(str(spark_query.id))
        elif str(spark_query.id) != known_id:
            raise StateError(
                f"the checkpoint {location} holds the state of query {known_id}, and Spark started query {spark_query.id} on "
                "it: Spark's own files there were removed. Start with a new checkpointLocation.",
                code="FOREIGN_STATE",
                found=known_id,
                expected=str(spark_query.id),
            )
        runner.begin()
    except BaseException as error:
        gate.open(error)
        spark_query.stop()
        runner.close()
        raise
    gate.open()
    return JoinQuery(spark_query, runner, call, changing)


def start_served(
    stream: Callable[[], DataStreamWriter], runner: ServedHandle, draft: Callable[[], OtherMode], changing: ChangingQuery
) -> JoinQuery:
    """Start a query over Spark Connect: its epochs run in a process of the server."""
    other = None if refuse_served(runner.settings, runner.session) else draft()
    query = stream().foreachBatch(ServedEpochs(runner.settings, other)).start()

    def is_active() -> bool:
        return bool(query.isActive)

    runner.is_active = is_active
    return JoinQuery(query, runner, runner.call, changing)


def attached_on_server(handle: ServedHandle) -> StoredQuery:
    """Return the questions of a client of Spark Connect to a query that does not run: every question opens its checkpoint."""
    refuse_missing(handle.session, handle.options.checkpoint_location)
    refuse_served(handle.settings, handle.session)
    return StoredQuery(handle, handle.call)
