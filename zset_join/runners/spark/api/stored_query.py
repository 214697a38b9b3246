"""Questions to a query, running or not: is its output right, and where does a row come from.

A running query answers through its handle; epochs wait meanwhile. One that does not run is opened by
`JoinStreamWriter.attach`, which opens checkpoint and output as a start would, and starts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from zset_join.checkpoint.clearing import LEASE_SECONDS
from zset_join.checkpoint.reading import stored_query_id
from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.core.extras import needed_for
from zset_join.core.options import QueryOptions
from zset_join.core.progress_line import progress_line
from zset_join.evolution.changed_columns import ChangeTerms
from zset_join.runners.spark.api.other_queries import planned_writer
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.progress import ProgressLog
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.console import Console
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.rows import PlannedQuery
    from zset_join.tools.reports import RowHistory, VerificationReport
    from zset_join.tools.savepoint import Savepoint

__all__ = ["Call", "QueryRunner", "StoredQuery"]


class QueryRunner(Protocol):
    """Interface of the runner of a query's epochs.

    Attributes:
        error: what stopped the query, as it was raised; None while it runs.
        progress: what the newest epochs did.
        heartbeat: brings an epoch when something is due though no row arrives; None where nothing waits for a time.
        has_ended: a change of the query counts, so that the epochs of before have come to an end.
    """

    error: BaseException | None
    has_ended: bool
    progress: ProgressLog
    heartbeat: Heartbeat | None

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def options(self) -> QueryOptions: ...

    @property
    def dead_letters(self) -> str: ...

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Run one epoch."""

    def attach(self, query_id: str) -> None:
        """Open checkpoint and output for a query."""

    def begin(self) -> None:
        """Finish a start that passed all checks."""

    def explanation(self) -> str: ...

    def failure_of(self, error: BaseException) -> ZsetJoinError | None:
        """Return the library's error for one of Spark or Python; None if there is none."""

    def close(self) -> None:
        """Close the output and release the checkpoint."""


Call: TypeAlias = Callable[..., Any]
"""Takes a verb and its arguments by name; returns the answer of the process that holds the checkpoint."""


class StoredQuery:
    """Questions to a stored query; a context manager, so that the checkpoint is released."""

    def __init__(self, runner: QueryRunner, call: Call) -> None:
        self._runner = runner
        self._call = call

    def __enter__(self) -> StoredQuery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._runner.close()

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the output."""
        return self._runner.schema

    def explain(self) -> None:
        """Print a description of the query and its state."""
        print(self._runner.explanation())  # noqa: T201 - printing is what explain() does in PySpark

    def verify(
        self,
        left_df: DataFrame | None = None,
        right_df: DataFrame | None = None,
        *,
        tables: Mapping[str, DataFrame] | None = None,
        actual_df: DataFrame | None = None,
        most_differences: int = 20,
        sample: float | None = None,
    ) -> VerificationReport:
        """Compare the emitted rows with Spark's batch join of the inputs; see `zset_join.runners.spark.tools.verification`.

        Args:
            left_df: the final left table as a batch DataFrame; default: that of the checkpoint.
            right_df: the final right table.
            tables: name of a stream to its final table; for a chain of joins.
            actual_df: the emitted rows, with a column `_weight`; for outputs that cannot be read back.
            most_differences: differing rows to put into the report.
            sample: a share of the view to check, such as 0.01, the same rows every time; None checks everything.

        Raises:
            OptionError: an argument that is not allowed, or the output cannot be read back.
            StateError: the checkpoint cannot be read.
        """
        with progress_line("verifying the outputs with a batch query"):
            report: VerificationReport = self._call(
                "verify",
                left_df=left_df,
                right_df=right_df,
                tables=tables,
                actual_df=actual_df,
                most_differences=most_differences,
                sample=sample,
            )
            return report

    def backup(self, directory: str | Path) -> Savepoint:
        """Copy checkpoint and output together, between two epochs; `zset_join.tools.savepoint.restore` brings both back.

        Epochs wait meanwhile. Outputs that are not files (a database, a topic, the target of a function) are not copied.

        Args:
            directory: of the savepoint, a path or URI; empty or missing.

        Raises:
            OptionError: the directory has files in it.
            StateError: the query has stopped, and another driver runs on its checkpoint.

        Cost: every byte of checkpoint and output is read and written once.
        """
        found: Savepoint = self._call("backup", directory=directory)
        return found

    def explain_row(self, row: Mapping[str, Any], *, view: str | None = None, most_rows: int = 1_000) -> RowHistory:
        """Return the input changes that produced and retracted the output rows with given values, from the kept log.

        Epochs wait meanwhile. The log reaches back to the last snapshot of a bucket, or with `retainInputLog` to the start.

        Args:
            row: columns of the view to values; best its key.
            view: its name; optional if there is only one.
            most_rows: input changes to report at most, of an epoch.

        Raises:
            OptionError: `ROW_QUESTION`: an unknown column, a value of another type, or too many changes; `VIEW_NAME`.
            StateError: the checkpoint cannot be read.

        Cost: a replay of the snapshots and logs of all stages on the driver, one bucket at a time; with a step that Spark alone
            evaluates a small Spark job per epoch.
        """
        found: RowHistory = self._call("explain_row", row=row, view=view, most_rows=most_rows)
        return found

    def diff(
        self,
        view: Any,
        *,
        lease_seconds: float = LEASE_SECONDS,
        reread: Mapping[str, Any] | None = None,
        as_now: bool = False,
    ) -> PlanDiff:
        """Return how the answers of another query would differ, over all input up to one epoch, which the result names.

        A lease keeps the files of that epoch while they are read; epochs continue meanwhile. Nothing else is written.

        Args:
            view: the other query: a view of the same streams, or all views by name.
            lease_seconds: maximum time for which files are kept.
            reread: by stream, all its rows again, as for `JoinQuery.evolve`; they are compared with those of the epoch.
            as_now: as for `JoinQuery.evolve`.

        Raises:
            PlanError: the query cannot be planned for the driver.
            OptionError: `REREAD`: a place cannot be read; `NOT_FROM_HERE`: over Spark Connect, `reread`.
            StateError: there is no epoch yet; the query needs rows that are not stored (see
                `zset_join.pipeline.Pipeline.evolve`); or the lease ran out (`LEASE_EXPIRED`); of executors also `MOVE_UNKNOWN`
                and `MOVE_REFUSED`.

        Cost: every snapshot and log is read, and the state is built again as mapped files in the temporary directory.
        """
        terms = ChangeTerms(reread=reread, as_now=as_now)
        found: PlanDiff = self._call("diff", query=self._planned(view), lease_seconds=lease_seconds, terms=terms)
        return found

    def _planned(self, view: Any) -> PlannedQuery:
        """Return another query as it is compared with this one."""
        planned: PlannedQuery = planned_writer(view).planned
        return planned

    def dead_letters(self, *, stream: str | None = None, epoch: int | None = None, code: str | None = None) -> pa.Table:
        """Return the rows that were set aside in epochs that count, oldest first, as `zset_join.dead_letters.LETTER_SCHEMA`.

        Args:
            stream: only those of one stream.
            epoch: only those of one epoch.
            code: only those with one code.

        Raises:
            StateError: there is no checkpoint, or a file cannot be read.

        Memory: all that are returned.
        """
        return self._call("dead_letters", stream=stream, epoch=epoch, code=code)

    def view_rows(self, view: str, values: Mapping[str, Any], *, most_rows: int = 1_000) -> tuple[ZSet, int]:
        """Return present rows of the view from its first readable output, and their number.

        Epochs wait meanwhile.

        Args:
            view: its name.
            values: columns to the values that they have; None finds NULL.
            most_rows: distinct rows to return at most.

        Raises:
            OptionError: `VERIFY_OUTPUT`: no output can be read back.

        Cost: a pass over the output.
        """
        found: tuple[ZSet, int] = self._call("view_rows", view=view, values=values, most_rows=most_rows)
        return found

    def console(self, *, port: int = 0, diff: Any = None) -> Console:
        """Serve a page about the query on this machine until it is closed; see `zset_join.console`.

        It reads the checkpoint; verification, the history of a row and rows of the view are answered by this process. Close it
        before the query is stopped for good.

        Args:
            port: of 127.0.0.1; 0 picks a free one. The attribute `url` of the result is the address.
            diff: another query, as for `diff`: the page shows how its answers would differ, computed on request.

        Raises:
            MissingPackageError: the extra `console` is not installed.
            StateError: `NO_CHECKPOINT`: this process cannot read the checkpoint, as over Spark Connect to another machine.
            OptionError: the port is taken.
        """
        return _open_console(self, self._runner, port=port, other=diff)


# Opening and reading the page changes nothing. Epochs wait while a view is verified, a row is explained, or an output is read.
_MOST_ROWS = 200


def _open_console(query: StoredQuery, runner: QueryRunner, *, port: int, other: Any) -> Console:
    with needed_for("console()"):
        from zset_join.console import QueryAnswers, WatchedCheckpoint, open_console
    options, location = runner.options, runner.options.checkpoint_location
    if stored_query_id(location) is None:
        raise StateError(
            f"there is no checkpoint in {location} that this process can read. Where Spark runs on another machine, run "
            f"zset-join console {location} there.",
            code="NO_CHECKPOINT",
            checkpoint=location,
        )

    def verified(view: str | None, on_step: Callable[[str], None]) -> Any:  # noqa: ARG001 - a report is of all outputs
        on_step("epochs wait; running the batch query over all input, and comparing it with the outputs")
        begun = time.perf_counter()
        report = query.verify()
        on_step(f"compared in {time.perf_counter() - begun:.1f} s")
        return report

    answers = QueryAnswers(
        verify=verified,
        explain_row=lambda view, row: query.explain_row(row, view=view),
        view_rows=lambda view, values: query.view_rows(view, values, most_rows=_MOST_ROWS),
        diff=None if other is None else lambda: query.diff(other),
        options={one.name: _plain(getattr(options, one.name)) for one in fields(options)},
    )
    return open_console(WatchedCheckpoint(location, answers, dead_letters=runner.dead_letters), port=port)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
