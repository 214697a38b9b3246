"""Answers to questions about a query that runs on executors: by Spark's jobs, from the process that runs its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.tools.dead_letters import read_letters
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.evolution.differences import PlanDiff
    from zset_join.query.several import PlannedQuery
    from zset_join.tools.reports import RowHistory, VerificationReport

__all__ = ["ExecutorTools"]


class ExecutorTools:
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
        return verify(self._runner.query, self._runner, given=given, **options)

    def explain_row(self, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
        from zset_join.runners.spark.tools.logged_stages import explain_row

        return explain_row(self._runner.query, self._runner, row, most_rows=most_rows)

    def diff(
        self, query: PlannedQuery, *, lease_seconds: float, reread: Mapping[str, Any] | None = None, as_now: bool = False
    ) -> PlanDiff:
        from zset_join.runners.spark.driver.executors_state import diff_of_executors

        location = self._runner.options.checkpoint_location
        return diff_of_executors(location, query, lease_seconds=lease_seconds, reread=reread, as_now=as_now)

    def dead_letters(self, **chosen: Any) -> pa.Table:
        options = self._runner.options
        return read_letters(options.checkpoint_location, path=options.dead_letter_path, **chosen)

    def view_rows(self, view: str, values: Mapping[str, Any], *, most_rows: int) -> tuple[ZSet, int]:  # noqa: ARG002 - the only one
        from zset_join.runners.spark.tools.verification import emitted_rows

        return emitted_rows(self._runner, values, most_rows=most_rows)
