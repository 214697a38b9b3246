"""Contents of all views after one epoch, for threads other than the one that calls `step`.

    pipeline.snapshot().tables()        {"by_city": ..., "by_day": ...}, both after the same epoch

The law: the tables of a snapshot are those of all views after `epoch`, whatever the pipeline does meanwhile. An epoch becomes
visible by one assignment, after it is committed and all views have taken it, and before outputs are given it.

A view that is listed from the state of its stages (see `contents`) is listed under the lock of the pipeline, which a step
holds. With a directory that folds the last epoch into the state, as the next epoch would; a reader that dies after it leaves
files as a refused epoch leaves them. A state that holds rows on the disk, or forgets some, is not listed: its log is summed.

Cost: an epoch publishes two references per view. Reading a view lists its rows, or adds up those since the last reading, once
per snapshot. Memory: while a snapshot is held, the rows of its views live on, or at most twice as many rows of deltas.

`SavedState`: the state of a pipeline in memory, written to a directory once and read back: what lies between `directory=` and
nothing.

    <path>/state.json                   the plan, the number of the next epoch, times; written last
    <path>/stage-<n>-<table>.parquet    what an operator remembers
    <path>/view.parquet                 what the view holds, with weights; of several, view-<n>.parquet

The law: a pipeline that is loaded answers every further epoch as the one that was saved would have. A directory without
`state.json` is none: a process that died while it saved leaves nothing that can be loaded. An older state in its place stays
until the new one is whole.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.core.errors import OptionError, StateError
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.contents import HeldRows, repeated
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.prepared import DurableEpoch
from zset_join.runners.local.stored_rows import list_view
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet, single_batch
from zset_join.zset.protocol import AnswerListingOperator, DurableOperator

__all__ = ["SavedState", "Snapshot", "lasts", "list_view_of_directory", "load_state", "save_state"]

_FORMAT = 2
_WEIGHT = "__weight"


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """Position that a pipeline continues from, besides its operators."""

    epoch: int  # the next one
    processing_time_us: int | None  # of the last one
    watermarks: Mapping[str, int]
    late_rows: Mapping[str, int]
    contents: Mapping[str, ZSet] | None
    # Rows that a stage held of each; such a source must not come back as an empty one.
    dropped_sources: Mapping[str, int] = field(default_factory=dict)


def save_state(path: Path, plan: QueryPlan, operators: Mapping[int, DurableOperator], state: SavedState) -> None:
    """Write a state; one that is present already is replaced by it as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        tables = {}
        for number, operator in operators.items():
            held = operator.snapshot()
            tables[str(number)] = sorted(held)
            for name, table in held.items():
                pq.write_table(table, temporary / _table(number, name))
        for name, rows in (state.contents or {}).items():
            file = _view_files(plan)[name]
            pq.write_table(pa.Table.from_batches([rows.rows]).append_column(_WEIGHT, pa.array(rows.weights)), temporary / file)
        written = {
            "format": _FORMAT,
            "plan": plan.to_json(),
            "epoch": state.epoch,
            "processing_time_us": state.processing_time_us,
            "watermarks": dict(state.watermarks),
            "late_rows": dict(state.late_rows),
            "tables": tables,
            "keeps_view": state.contents is not None,
            "dropped_sources": dict(state.dropped_sources),
        }
        (temporary / "state.json").write_text(json.dumps(written), encoding="utf-8")
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_state(path: Path, plan: QueryPlan, operators: Mapping[int, DurableOperator], *, keeps_view: bool) -> SavedState:
    """Restore operators, and return what else there is to continue from."""
    try:
        written: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path} holds no saved state of a pipeline ({error}). Give the path that save() was given.",
            code="NO_SAVED_STATE",
            path=str(path),
        ) from error
    if written.get("format") != _FORMAT or written["plan"] != json.loads(json.dumps(plan.to_json())):
        raise StateError(
            f"{path} holds the state of another query, or of another version of the library; state cannot be carried over. "
            "Load it into the query that saved it, or start over.",
            code="QUERY_CHANGED",
            path=str(path),
        )
    if keeps_view and not written["keeps_view"]:
        raise StateError(
            f"{path} was saved with keep_view=False, so it has no contents of the view. Load it with keep_view=False.",
            code="VIEW_NOT_KEPT",
            path=str(path),
        )
    for number, operator in operators.items():
        names = written["tables"][str(number)]
        operator.restore({name: pq.read_table(path / _table(number, name)) for name in names})
    contents = None
    if keeps_view:
        contents = {}
        for name, file in _view_files(plan).items():
            table = pq.read_table(path / file)
            weights = np.asarray(single_batch(table.select([_WEIGHT])).column(0), np.int64)
            contents[name] = ZSet(single_batch(table.drop_columns([_WEIGHT]).cast(plan.output_of(name).schema)), weights)
    return SavedState(
        epoch=written["epoch"],
        processing_time_us=written["processing_time_us"],
        watermarks=written["watermarks"],
        late_rows=written["late_rows"],
        contents=contents,
        dropped_sources=written["dropped_sources"],
    )


def _table(number: int, name: str) -> str:
    return f"stage-{number}-{name}.parquet"


def _view_files(plan: QueryPlan) -> dict[str, str]:
    """Return where the contents of each view are, by its name."""
    if len(plan.views) == 1:
        return {plan.name: "view.parquet"}
    return {view.name: f"view-{number}.parquet" for number, view in enumerate(plan.views)}


def lasts(what: str) -> OptionError:
    """Return the error of a call that only a pipeline in memory supports."""
    return OptionError(
        f"{what} is for a pipeline in memory; this one has a directory, which holds its state after every epoch. Copy the "
        "directory while no process uses it.",
        code="PIPELINE_DIRECTORY",
    )


class Snapshot:
    """Contents of all views of a pipeline after an `epoch`, None before the first; immutable, and readable by any thread.

    >>> from zset_join.pipeline import Pipeline, appends
    >>> x = appends("x", {"x": pa.int64()})
    >>> pipeline = Pipeline({"rows": x, "counts": x.groupBy("x").count()})
    >>> before = pipeline.snapshot()
    >>> _ = pipeline.step({"x": [{"x": 7}, {"x": 7}]})
    >>> after = pipeline.snapshot()
    >>> before.epoch, before.table("counts").num_rows, after.epoch, after.table("counts").to_pylist()
    (None, 0, 0, [{'x': 7, 'count': 2}])
    """

    def __init__(self, plan: QueryPlan, epoch: int | None, held: Mapping[str, HeldRows]) -> None:
        self._plan = plan
        self.epoch = epoch
        self._held = held

    def __repr__(self) -> str:
        return f"Snapshot(epoch={self.epoch}, views={sorted(self._held)})"

    def contents(self, name: str | None = None) -> ZSet:
        """Return each distinct row of a view with its weight."""
        return self._held[self._plan.view(name).name].rows()

    def table(self, name: str | None = None) -> pa.Table:
        """Return a view as a table: a row is present as often as its weight."""
        return repeated(self.contents(name), self._plan.output_of(self._plan.view(name).name).schema)

    def tables(self) -> dict[str, pa.Table]:
        """Return all views by name, all after the same epoch."""
        return {name: self.table(name) for name in self._held}


class _OpenStages:
    """Return the operators of the stages that are being read, one reader at a time."""

    def __init__(self) -> None:
        self.epoch: DurableEpoch | None = None

    def __call__(self, number: int) -> DurableOperator:
        assert self.epoch is not None  # noqa: S101 - set while rows are read
        return self.epoch.read(number)


def list_view_of_directory(
    directory: PipelineDirectory, plan: QueryPlan, name: str, shapes: Mapping[int, DurableOperator], options: StageOptions
) -> Callable[[], ZSet] | None:
    """Return what `list_view` does, over stages that are opened when rows are read."""
    view, stages = plan.view(name), _OpenStages()
    listed = list_view(plan, view, shapes, options, stages)
    if listed is None:
        return None
    origins = [feed.origin for feed in view.feeds if isinstance(feed.origin, int)]
    return partial(_rows, directory, name, stages, origins, listed)


def _rows(directory: PipelineDirectory, name: str, stages: _OpenStages, origins: list[int], listed: Callable[[], ZSet]) -> ZSet:
    with directory.reading() as stages.epoch:
        try:
            operators = [stages(number) for number in origins]
            if all(one.lists_answer for one in operators if isinstance(one, AnswerListingOperator)):
                return listed()
        finally:
            stages.epoch = None
    return directory.summed_view(name)
