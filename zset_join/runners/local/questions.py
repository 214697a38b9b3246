"""Text, verification, row history and console of a pipeline, between its epochs.

The law: nothing here changes the pipeline. `verification` and `row_question` take what they need at once and return the work as
a function, so another thread can run it while the pipeline continues; see `zset_join.runners.local.watched`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL
from zset_join.core.progress_line import progress_line
from zset_join.core.shown_values import html_progress
from zset_join.plan.query_plan import one_view
from zset_join.runners.local.contents import view_not_kept
from zset_join.runners.local.explaining import explain_row
from zset_join.runners.local.history import InputHistory, inputs_not_kept, part_of
from zset_join.runners.local.progress import statistics_of
from zset_join.runners.local.snapshots import Snapshots
from zset_join.runners.local.verification import marks_by_stage, verify
from zset_join.runners.local.watched import PublishedEpoch
from zset_join.tools.batch import BatchTimes
from zset_join.tools.reports import RowHistory, VerificationReport
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE

__all__ = ["PipelineQuestions"]


class PipelineQuestions(Snapshots):
    """Answer questions about a pipeline."""

    def show(self, n: int = 20, *, view: str | None = None) -> None:
        """Print the first rows of a view, each after its weight.

        Raises:
            OptionError: as `view`.
        """
        self.contents(view).show(n)

    def __repr__(self) -> str:
        """Return the views and the number of epochs in one line; `explain` prints the plan."""
        return f"Pipeline(views: {', '.join(one.name for one in self.plan.views)}; epochs: {self.epoch})"

    def _repr_html_(self) -> str:
        """Return the plan and what the newest epoch did, for a notebook."""
        return self.plan._repr_html_() + html_progress(self.progress)

    def verify(
        self, *, view: str | None = None, contents: ZSet | None = None, most_differences: int = 20
    ) -> VerificationReport:
        """Compare a view with DuckDB's batch query over all inputs; needs `keep_inputs`.

        Args:
            view: its name; optional if there is only one.
            contents: the rows to compare, with weights, as an output holds them; default: those of `keep_view`.
            most_differences: differing rows to list.

        Raises:
            OptionError: contents or inputs are not kept; or `VIEW_NAME`.
            PlanError: DuckDB cannot run a part of the query.
        """
        with progress_line(f"verifying {view or ', '.join(one.name for one in self.plan.views)}"):
            return self.verification(view=view, contents=contents, most_differences=most_differences)()

    def verification(
        self, *, view: str | None = None, contents: ZSet | None = None, most_differences: int = 20
    ) -> Callable[[], VerificationReport]:
        """Return `verify` over the present input as a function that another thread may call.

        Raises:
            OptionError: as `verify`.
        """
        history = self._kept_inputs("verify()").copied()
        contents = self.contents(view) if contents is None else contents
        if not self.epoch:
            return lambda: VerificationReport(equal=True, epoch=None, expected_rows=0, actual_rows=0, different_rows=0)
        plan, watermarks, epoch = one_view(self.plan, view), self._watermarks.known.stages, self.epoch - 1
        late = frozenset(self.progress.get(LATE_CHANGES_TOTAL, ()))
        times = [
            BatchTimes(watermark_us=watermarks[number], processing_time_us=self._processing_time_us, late_inputs=late)
            for number in self.plan.stages_of(plan.name)
        ]
        marks = marks_by_stage(self._watermarks, history, self.plan, plan.name)
        return lambda: verify(plan, history, contents, times, marks, epoch=epoch, most_differences=most_differences)

    def explain_row(self, row: Mapping[str, Any], *, view: str | None = None, most_changes: int = 100) -> RowHistory:
        """List the input changes that produced and retracted the rows of a view with given values; needs `keep_inputs`.

        Args:
            row: columns of the view to values.
            view: its name; optional if there is only one.
            most_changes: changes to list per epoch.

        Raises:
            OptionError: unknown columns, more changes than the limit, or inputs are not kept; or `VIEW_NAME`.
        """
        return self.row_question(row, view=view, most_changes=most_changes)()

    def row_question(
        self, row: Mapping[str, Any], *, view: str | None = None, most_changes: int = 100
    ) -> Callable[[], RowHistory]:
        """Return `explain_row` over the present input as a function that another thread may call.

        Raises:
            OptionError: as `explain_row`.
        """
        plan, history = one_view(self.plan, view), self._kept_inputs("explain_row()").copied()
        stages, sources = self.plan.stages_of(plan.name), [source.name for source in plan.sources]
        return lambda: explain_row(plan, part_of(history, stages, sources), self._options, row, most_changes=most_changes)

    def contents(self, name: str | None = None) -> ZSet:
        """Return the contents of a view, each distinct row with its weight.

        Args:
            name: of the view; optional if there is only one.

        Raises:
            OptionError: contents are not kept; or `VIEW_NAME`.
        """
        view = self.plan.view(name)
        if self._contents is None:
            raise view_not_kept()
        return self._contents[view.name].rows()

    def published_epoch(self) -> PublishedEpoch:
        """Return the summary of the last epoch, of a pipeline in memory, for its console."""
        known, memory = self._watermarks.known, self._memory
        dues = {} if memory is None else {f"{one.name}/0": memory.next_due(one.number) for one in self.plan.nodes}
        return PublishedEpoch(
            epoch=self.epoch - 1,
            at_us=self._processing_time_us,
            progress=dict(self.progress),
            statistics=statistics_of(self.plan, self._watermarks, {} if memory is None else memory.operators, {}),
            watermarks=self._watermarks.written(known),
            dues={name: due for name, due in dues.items() if due != NOTHING_DUE},
        )

    def options_in_force(self) -> dict[str, Any]:
        """Return the options of the pipeline, defaults included."""
        shown = {one.name: getattr(self._options, one.name) for one in fields(self._options)}
        return {**shown, "keep_view": self._contents is not None, "keep_inputs": self._history is not None}

    def _kept_inputs(self, what: str) -> InputHistory:
        if self._history is None:
            raise inputs_not_kept(what)
        return self._history
