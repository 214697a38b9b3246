"""Questions about a query inside Spark, answered by the process that holds its checkpoint; epochs wait.

On the driver its pipeline answers, from the inputs that `retainInputLog` keeps: `verify` compares DuckDB's batch query over
everything that arrived with what every output that can be read back holds. On executors Spark's jobs answer, over their logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zset_join.changelog import format_named
from zset_join.changelog.decoding import decode
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import rows_having, take_rows
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint
from zset_join.runners.spark.driver.changing_executors import evolve_executors, undo_executors
from zset_join.runners.spark.driver.epochs import DriverEpochs
from zset_join.runners.spark.driver.executors_state import diff_of_executors
from zset_join.runners.spark.driver.served_executors import ExecutorSettings
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.tools.dead_letters import read_letters
from zset_join.tools.reports import VerificationReport, of_outputs
from zset_join.zset import ZSet, single_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from zset_join.evolution.changed_columns import ChangeTerms
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.rows import PlannedQuery
    from zset_join.tools.reports import RowHistory

__all__ = ["called_here", "verbs_of"]

_FORMS = {"weight": "_weight", "row_kind": "_row_kind", "change_data_feed": "_change_type"}
"""The column of each form with the operation of a line."""


def verbs_of(runner: DriverEpochs | EpochRunner) -> Mapping[str, Callable[..., Any]]:
    """Return what a query answers, by name."""
    tools: Any = ExecutorTools(runner) if isinstance(runner, EpochRunner) else DriverTools(runner)
    changes: Any = tools if isinstance(runner, EpochRunner) else runner
    location, options = runner.options.checkpoint_location, runner.options
    diff: Callable[..., Any] = diff_of_executors if isinstance(runner, EpochRunner) else diff_of_checkpoint
    return {
        "backup": runner.backup,
        "dead_letters": partial(read_letters, location, path=options.dead_letter_path),
        "diff": partial(diff, location),
        "evolve": changes.evolve,
        "explain_row": tools.explain_row,
        "undo": changes.undo,
        "verify": tools.verify,
        "view_rows": tools.view_rows,
    }


def called_here(runner: DriverEpochs | EpochRunner) -> Callable[..., Any]:
    """Return what answers questions in this process."""
    return lambda verb, **given: verbs_of(runner)[verb](**given)


class DriverTools:
    def __init__(self, epochs: DriverEpochs) -> None:
        self._epochs = epochs

    def verify(
        self,
        *,
        actual_df: Any = None,
        most_differences: int = 20,
        **given: Any,
    ) -> VerificationReport:
        _refuse_given(given)
        epochs = self._kept("verify()")
        plan, found = epochs.settings.query.plan, dict[str, VerificationReport]()
        views = [view.name for view in plan.views] if actual_df is None and len(plan.views) > 1 else [None]
        with epochs.pause():
            pipeline = epochs.opened()
            for view in views:
                schema = plan.output_of(plan.view(view).name).schema
                emitted = _readable(epochs, view) if actual_df is None else {"": actual_df.toArrow}
                for name, read in emitted.items():
                    rows, at = _emitted_rows(read(), schema), name if view is None else f'view "{view}", {name}'
                    found[at] = pipeline.verify(view=view, contents=rows, most_differences=most_differences)
            if not found:
                raise OptionError(
                    "no output can be read back; pass verify(actual_df=...) with the emitted changes and their column _weight.",
                    code="VERIFY_OUTPUT",
                )
        return replace(of_outputs(found), basis=dict.fromkeys(pipeline.sources, "log"))

    def explain_row(self, row: Mapping[str, Any], *, view: str | None = None, most_rows: int) -> RowHistory:
        epochs = self._kept("explain_row()")
        with epochs.pause():
            return epochs.opened().explain_row(row, view=view, most_changes=most_rows)

    def view_rows(self, view: str, values: Mapping[str, Any], *, most_rows: int) -> tuple[ZSet, int]:
        epochs = self._epochs
        readers = list(_readable(epochs, view).values())
        if not readers:
            raise OptionError("no output can be read back from here.", code="VERIFY_OUTPUT")
        schema = epochs.settings.query.plan.output_of(view).schema
        with epochs.pause():
            held = _emitted_rows(readers[0](), schema).consolidated()
        chosen = np.flatnonzero(rows_having(held.rows, values).to_numpy(zero_copy_only=False))
        few = chosen[:most_rows]
        return ZSet(take_rows(held.rows, few), held.weights[few]), len(chosen)

    def _kept(self, what: str) -> DriverEpochs:
        """Return the runner of the epochs, which keeps inputs."""
        if not self._epochs.settings.options.retain_input_log:
            executors = "" if self._epochs.settings.is_served else ', or with option("execution", "executors")'
            raise OptionError(
                f"{what} needs every input change, and this query does not keep them. Start it with a new "
                f'checkpointLocation and option("retainInputLog", True){executors}.',
                code="INPUTS_NOT_KEPT",
            )
        return self._epochs


class ExecutorTools:
    """Answer questions about a query that runs on executors, by Spark's jobs."""

    def __init__(self, runner: EpochRunner) -> None:
        self._runner = runner

    def verify(
        self,
        *,
        left_df: DataFrame | None,
        right_df: DataFrame | None,
        tables: Mapping[str, DataFrame] | None,
        **options: Any,
    ) -> VerificationReport:
        from zset_join.runners.spark.tools.verification import given_tables, verify

        given = given_tables(self._runner.query, left_df=left_df, right_df=right_df, tables=tables)
        return verify(self._runner, given=given, **options)

    def explain_row(self, row: Mapping[str, Any], *, view: str | None = None, most_rows: int) -> RowHistory:
        from zset_join.runners.spark.tools.logged_stages import explain_row

        return explain_row(self._runner, view, row, most_rows=most_rows)

    def evolve(
        self, query: PlannedQuery, after: EpochRunner | ExecutorSettings, terms: ChangeTerms, *, given: Collection[str]
    ) -> PlanDiff:
        """Change the query between two epochs; where it was sent here, outputs are given the difference now."""
        runner, is_sent = self._made(after), not isinstance(after, EpochRunner)
        return evolve_executors(self._runner, query, runner, given=given, terms=terms, gives_difference=is_sent)

    def undo(self, query: PlannedQuery | None = None, after: EpochRunner | ExecutorSettings | None = None) -> PlanDiff:
        """Go back to the query before the last change, as `evolve`."""
        before = None if query is None or after is None else (query, self._made(after))
        return undo_executors(self._runner, before, gives_difference=not isinstance(after, EpochRunner))

    def _made(self, after: EpochRunner | ExecutorSettings) -> EpochRunner:
        return after if isinstance(after, EpochRunner) else after.runner(self._runner.query.session)

    def view_rows(self, view: str, values: Mapping[str, Any], *, most_rows: int) -> tuple[ZSet, int]:
        from zset_join.runners.spark.tools.verification import emitted_rows

        return emitted_rows(self._runner, view, values, most_rows=most_rows)


def _refuse_given(given: Mapping[str, Any]) -> None:
    """Reject arguments that verify() takes on executors and not on the driver."""
    unfit = sorted(name for name, value in given.items() if value is not None)
    if unfit:
        raise OptionError(
            f"verify() of a query on the driver compares with all inputs, and takes no {' and no '.join(unfit)}; leave it out.",
            code="VERIFY_TABLE",
            missing=unfit,
        )


def _readable(epochs: DriverEpochs, view: str | None = None) -> dict[str, Callable[[], pa.Table]]:
    """Return how each output that can be read back is read, of all views or of one."""
    sinks = [one.sink for name, chosen in epochs.settings.sinks.items() for one in chosen if view in (None, name)]
    readers = {f"{type(sink).__name__} {number}": getattr(sink, "read", None) for number, sink in enumerate(sinks, 1)}
    return {name: read for name, read in readers.items() if read is not None}


def _emitted_rows(lines: pa.Table, schema: pa.Schema) -> ZSet:
    missing = [name for name in schema.names if name not in lines.column_names]
    if missing:
        raise OptionError(f"what was emitted lacks the columns {missing}.", code="VERIFY_TABLE", missing=missing)
    for form, column in _FORMS.items():
        if column in lines.column_names and column not in schema.names:
            emitted = Relation(name="emitted", schema=schema, mode="changelog")
            return decode(lines.select([*schema.names, column]), emitted, format_named(form)).delta
    return ZSet(single_batch(lines.select(schema.names).cast(schema)), np.ones(len(lines), np.int64))
