"""Outputs beside the changelog of `spark_program`, and what they hold after a death.

| output | is in | a death may leave it |
|---|---|---|
| DuckDB view | `view.duckdb` | an epoch behind the checkpoint |
| JSON lines, with weights | `lines` | an epoch behind |
| a function | `called`, a file per call | called again with the last epoch, and the same rows |

`between-N@E` is the moment before the output number N (from 0, in the order in which they are written) is given epoch E.

The law: every output holds the view after its own last epoch, whole, and at most one epoch behind the checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb

from zset_join.runners.common import rejected
from zset_join.testing.reference import Counts
from zset_join.tools.position import positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from zset_join.spark import JoinStreamWriter

__all__ = ["BETWEEN", "death_between", "outputs_of", "with_more_outputs"]

BETWEEN = "between-"


def with_more_outputs(writer: JoinStreamWriter, place: Path) -> JoinStreamWriter:
    """Return a writer with the outputs of the table above."""

    def call(rows: DataFrame, epoch: int) -> None:
        lines = sorted(json.dumps(list(row), default=str) for row in rows.collect())
        called = place / "called"
        called.mkdir(exist_ok=True)
        path = called / f"{epoch:04d}-{time.time_ns()}"
        path.with_name("." + path.name).write_text("\n".join(lines))
        path.with_name("." + path.name).rename(path)

    return writer.toDuckDB(place / "view.duckdb", "v").to("json_lines", path=place / "lines", form="weight").foreachBatch(call)


def death_between(number: int, epoch: int, faults: Path, execution: str) -> AbstractContextManager[object]:
    """Return what ends this process before an output is given an epoch, while it is entered.

    Args:
        number: which output, as they are written.
        epoch: which epoch.
        faults: directory of the files that faults leave.
        execution: where the epochs run.
    """
    from zset_join.runners.spark.epoch.outputs import ChangelogOutput, FunctionOutput, SinkOutput

    written: Counter[int] = Counter()

    def mortal(write: Callable[..., Any], epoch_of: Callable[..., int]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            at = epoch_of(*arguments)
            if at == epoch and written[at] == number:
                (faults / f"driver-{BETWEEN}{number}-{epoch}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            written[at] += 1
            return write(*arguments)

        return call

    stack = ExitStack()
    if execution == "driver":
        write = mortal(rejected.write_epoch, lambda _, epoch, *__: epoch)
        stack.enter_context(mock.patch.object(rejected, "write_epoch", write))
        return stack
    for kind in (ChangelogOutput, SinkOutput, FunctionOutput):
        publish = mortal(kind.publish, lambda _, __, ___, record: record.epoch)
        stack.enter_context(mock.patch.object(kind, "publish", publish))
    return stack


def outputs_of(place: Path) -> dict[str, tuple[int, Counts]]:
    """Return the last epoch of every output that is present, and what it holds.

    Raises:
        ValueError: the function was called twice with one epoch and other rows.
    """
    found: dict[str, tuple[int, Counts]] = {}
    there = [place / name for name in ("view.duckdb", "lines") if (place / name).exists()]
    for one in positions([str(path) for path in there]).outputs:
        is_view = one.kind == "duckdb"
        if one.epoch is not None:
            found[one.kind] = one.epoch, _in_view(place / "view.duckdb") if is_view else _in_lines(place / "lines")
    calls = sorted((place / "called").glob("[0-9]*"))
    by_epoch: dict[int, set[str]] = {}
    for path in calls:
        by_epoch.setdefault(int(path.name[:4]), set()).add(path.read_text())
    differing = [epoch for epoch, texts in by_epoch.items() if len(texts) > 1]
    if differing:
        raise ValueError(f"the function was given other rows when it was called again: epochs {differing}")
    if by_epoch:
        rows = [json.loads(line) for (text,) in by_epoch.values() for line in text.splitlines()]
        found["function"] = max(by_epoch), _summed([(tuple(row[:-1]), int(row[-1])) for row in rows])
    return found


def _in_view(path: Path) -> Counts:
    with duckdb.connect(str(path), read_only=True) as connection:
        return _summed([(row, 1) for row in connection.table("v").fetchall()])


def _in_lines(directory: Path) -> Counts:
    records = [json.loads(text) for path in sorted(directory.glob("*.jsonl")) for text in path.read_text().splitlines()]
    values = [json.loads(record["value"]) for record in records]
    return _summed([(tuple(one for name, one in value.items() if name != "_weight"), value["_weight"]) for value in values])


def _summed(weighted: list[tuple[tuple[Any, ...], int]]) -> Counts:
    held: Counts = {}
    for row, weight in weighted:
        held[row] = held.get(row, 0) + weight
    return {row: weight for row, weight in held.items() if weight}
