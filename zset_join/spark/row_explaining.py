"""Answer `query.explain_row`: the history of output rows, from what the checkpoint keeps of the join stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zset_join.checkpoint.row_history import RowHistory, RowQuestion
from zset_join.errors import OptionError, StateError
from zset_join.spark.joined import JoinedStream
from zset_join.spark.operators import join_builder
from zset_join.spark.progress import JOIN_STAGE
from zset_join.spark.runner import EpochRunner
from zset_join.state.join_shape import joined_schema

__all__ = ["explain_row"]


def explain_row(joined: JoinedStream, runner: EpochRunner, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
    """Return which input changes made and unmade the output rows with given values.

    Args:
        joined: the join.
        runner: what runs its epochs; they wait.
        row: columns of the output to values.
        most_rows: rows to report at most.

    Raises:
        OptionError: `ROW_QUESTION`; or the view does more than join.
        StateError: the checkpoint cannot be read.
    """
    if joined.steps:
        raise OptionError(
            "explain_row answers for the rows of a join; this view does more with them "
            f"({', '.join(step.title for step in joined.steps)}). Run the join alone as a query of its own, and ask there.",
            code="ROW_QUESTION",
        )
    node = joined.node
    left, right = node.left.relation, node.right.relation
    _, sources = joined_schema(left, right, node.how, using=node.using, output_names=None)
    # Rows in quarantine are in the log; they are left out here as they were left out then.
    build = join_builder(node, replace(runner.operator_options, on_bad_input="quarantine"))
    question = RowQuestion(build, joined.output.schema, sources, row, most_rows=most_rows)
    with runner.pause():
        checkpoint = runner.checkpoint
        if checkpoint is None:
            raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
        histories = [history for key, history in sorted(checkpoint.histories.items()) if key.partition("/")[0] == JOIN_STAGE]
        return question.ask(checkpoint.files, histories)
