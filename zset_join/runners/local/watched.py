"""A pipeline as shown by the page of `Pipeline.console`.

The law: the page never reads the memory of an operator. With a directory it reads the checkpoint, as `zset-join console
DIRECTORY` does. In memory, the pipeline publishes after every epoch, once a console is open: an immutable summary, and
references to the deltas of the newest `_KEPT_DELTAS` epochs. Questions about views and inputs take what they need between two
epochs.

Cost: nothing until `console()` is called; then the counts of every stage, some microseconds each, per epoch.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from zset_join.checkpoint.record import CommitRecord
from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.core.shown_values import shown_column
from zset_join.runners.local.engine import AnsweredEpoch
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue

if TYPE_CHECKING:
    from zset_join.console import Console
    from zset_join.plan.query_plan import QueryPlan

__all__ = ["PublishedEpoch", "PublishedEpochs", "WatchablePipeline", "WatchedPipeline", "open_pipeline_console"]

_KEPT_EPOCHS, _KEPT_DELTAS, _KEPT_LETTERS = 1_000, 20, 200
_IN_MEMORY = "memory"
"""What metrics call a query without a checkpoint."""
_MOST_KEYS, _MOST_COUNTED_ROWS = 20, 100_000


@dataclass(frozen=True, slots=True)
class PublishedEpoch:
    """Summary of an epoch, published by a pipeline in memory."""

    epoch: int
    at_us: int | None
    progress: Mapping[str, Any]
    statistics: Mapping[str, Mapping[str, Any]]
    watermarks: Mapping[str, int]
    dues: Mapping[str, NextDue]


class WatchablePipeline(Protocol):
    """Questions to a pipeline; see `zset_join.runners.local.questions`."""

    plan: QueryPlan
    epoch: int

    def contents(self, name: str | None = None) -> ZSet:
        """Return the contents of a view."""

    def verification(self, *, view: str | None = None) -> Callable[[], Any]:
        """Return the work of a verification."""

    def row_question(self, row: Mapping[str, Any], *, view: str | None = None) -> Callable[[], Any]:
        """Return the work of explaining a row."""

    def published_epoch(self) -> PublishedEpoch:
        """Return the summary of the last epoch."""

    def diff(self, view: Any) -> Any:
        """Return how the answers of another query would differ."""

    def options_in_force(self) -> dict[str, Any]:
        """Return the options."""


@dataclass(frozen=True, slots=True)
class _Deltas:
    """The deltas of an epoch: of the views, and of the inputs of the stages by number."""

    epoch: int
    answers: Mapping[str, ZSet]
    fed: Mapping[int, Sequence[ZSet]]


class PublishedEpochs:
    """Receive the summaries of a pipeline while somebody watches."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while an epoch is taken
        self.is_watched = False  # a console is open
        self.epochs: deque[PublishedEpoch] = deque(maxlen=_KEPT_EPOCHS)
        self.deltas: deque[_Deltas] = deque(maxlen=_KEPT_DELTAS)
        self.letters: deque[pa.Table] = deque(maxlen=_KEPT_LETTERS)

    def publish(self, summary: Callable[[], PublishedEpoch], answered: AnsweredEpoch, letters: pa.Table) -> None:
        """Keep the summary of an epoch that was taken; nothing where nobody watches."""
        if not self.is_watched:
            return
        self.epochs.append(summary())
        fed = {number: tuple(deltas) for number, (_, deltas) in answered.requested.items()}
        self.deltas.append(_Deltas(answered.epoch, dict(answered.answers), fed))
        if letters.num_rows:
            self.letters.append(letters)


class WatchedPipeline:
    """Watch a pipeline in memory; a `zset_join.console.Watched`."""

    def __init__(
        self, pipeline: WatchablePipeline, published: PublishedEpochs, *, name: str, diff: Callable[[], Any] | None = None
    ) -> None:
        self._pipeline, self._published, self._name, self._diff = pipeline, published, name, diff

    @property
    def _plan(self) -> QueryPlan:
        """Return the plan of the newest epoch: a pipeline may change its query."""
        return self._pipeline.plan

    def overview(self) -> dict[str, Any]:
        from zset_join.console.epochs import plan_graph
        from zset_join.console.watched import shown

        plan = self._plan
        return {
            "name": self._name,
            "kind": "pipeline in memory",
            "query_id": None,
            "owner": None,
            "buckets": 1,
            "plan": plan_graph(plan, buckets=1),
            "views": [view.name for view in plan.views],
            "view_columns": {view.name: list(plan.output_of(view.name).schema.names) for view in plan.views},
            "options": {},
            "in_force": {name: shown(value) for name, value in self._pipeline.options_in_force().items()},
            "can": {"verify": True, "explain_row": True, "search": True, "diff": self._diff is not None},
            "trouble": [],
        }

    def epochs(self, after: int) -> Sequence[dict[str, Any]]:
        from zset_join.console.epochs import summary_of_progress

        with self._published.lock:
            published = [one for one in self._published.epochs if one.epoch > after]
        return [
            summary_of_progress(
                one.epoch,
                {**one.progress, "remembers": {name: counts for name, counts in one.statistics.items() if " " not in name}},
                at_us=one.at_us,
                behind={},
                state_bytes={
                    name: counts["resident_bytes"] for name, counts in one.statistics.items() if "resident_bytes" in counts
                },
                watermarks=one.watermarks,
                dues=one.dues,
            ).to_json()
            for one in published
        ]

    def changes(self, *, after: int = -1) -> dict[str, Any]:
        from zset_join.console.answers import changed_rows
        from zset_join.console.watched import MOST_ROWS

        with self._published.lock:
            newest = [one for one in self._published.deltas if one.epoch > after][-_KEPT_DELTAS:]
        found: list[dict[str, Any]] = []
        left = MOST_ROWS
        for one in reversed(newest):
            for view, delta in one.answers.items():
                if len(delta) and left > 0:
                    found.append(changed_rows(one.epoch, view, delta, most=left))
                    left -= len(found[-1]["rows"])
        return {"epochs": found[::-1]}

    def rows(self, table: str | None, where: Mapping[str, str]) -> dict[str, Any]:
        from zset_join.console.answers import rows_of_view

        view = table or self._plan.views[0].name
        with self._published.lock:
            contents = self._pipeline.contents(view)
        return {"tables": [one.name for one in self._plan.views], "table": view, **rows_of_view(contents, where)}

    def explain_row(self, view: str | None, where: Mapping[str, str]) -> dict[str, Any]:
        from zset_join.console.answers import events_of
        from zset_join.console.watched import typed_values

        name = view or self._plan.views[0].name
        with self._published.lock:
            work = self._pipeline.row_question(typed_values(self._plan.output_of(name).schema, where), view=name)
        return events_of(work())

    def verify(self, view: str | None, on_step: Callable[[str], None]) -> dict[str, Any]:
        from zset_join.console.answers import verdict

        return verdict(verified(self._pipeline, self._published, view, on_step))

    def hot_keys(self) -> dict[str, Any]:
        with self._published.lock:
            deltas = list(self._published.deltas)
        stages = []
        for node in self._plan.nodes:
            for place, given in enumerate(node.stage.inputs):
                counted = _counted_keys(
                    [one.fed[node.number][place] for one in deltas if place < len(one.fed.get(node.number, ()))], given.key
                )
                if counted:
                    stages.append(
                        {
                            "stage": node.name,
                            "table": node.name,
                            "input": given.relation.name,
                            "rows": None,
                            "unit": "changes",
                            "columns": list(given.key),
                            "keys": counted,
                        }
                    )
        return {"stages": stages, "counted": f"changes of the newest {len(deltas)} epochs since this page was opened"}

    def dead_letters(self) -> dict[str, Any]:
        from zset_join.console.answers import letters_of

        with self._published.lock:
            tables = list(self._published.letters)
        if not tables:
            return {"letters": [], "total": 0}
        letters = pa.concat_tables(tables)
        names = ["stream" if name == "source" else name for name in letters.column_names]
        return letters_of(letters.rename_columns(names))

    def waiting(self) -> dict[str, Any]:
        from zset_join.console.answers import waiting_in

        newest = self.epochs(-1)[-1:]
        return waiting_in(self._plan, newest[0] if newest else {})

    def files(self) -> dict[str, Any]:
        raise OptionError(
            "a pipeline in memory has no checkpoint. Give it a directory: Pipeline(view, directory).",
            code="NOT_FROM_HERE",
            what="files",
        )

    def damage(self) -> dict[str, Any]:
        return {"checked": 0, "bytes": 0, "found": []}

    def metrics(self) -> str:
        from zset_join.tools.metrics import measured_record, text_of

        with self._published.lock:
            published = self._published.epochs[-1] if self._published.epochs else None
        if published is None:
            return text_of(measured_record(_IN_MEMORY, 1, None))
        counts = {name: held for name, held in published.statistics.items() if " " not in name}
        record = CommitRecord(
            query_id=_IN_MEMORY,
            epoch=published.epoch,
            processing_time_us=published.at_us,
            histories={},
            parts=(),
            quarantined=(),
            progress={**published.progress, "remembers": counts},
            watermarks=published.watermarks,
        )
        return text_of(measured_record(_IN_MEMORY, 1, record))

    def diff(self) -> dict[str, Any]:
        from zset_join.console.answers import differences_of

        if self._diff is None:
            raise OptionError("no changed query was named. Open console(diff=view).", code="NOT_FROM_HERE", what="diff")
        return differences_of(self._diff())


def verified(pipeline: WatchablePipeline, published: PublishedEpochs, view: str | None, on_step: Callable[[str], None]) -> Any:
    """Return the report of a verification, which runs while the pipeline continues."""
    on_step("waiting until no epoch is being taken")
    with published.lock:
        work = pipeline.verification(view=view)
    on_step("running the batch query over all input, and comparing")
    begun = time.perf_counter()
    report = work()
    on_step(f"compared in {time.perf_counter() - begun:.1f} s")
    return report


def open_pipeline_console(
    pipeline: WatchablePipeline, published: PublishedEpochs, directory: str | None, *, port: int, changed: Any = None
) -> Console:
    with needed_for("console()"):
        from zset_join.console import QueryAnswers, WatchedCheckpoint, open_console
    names = ", ".join(view.name for view in pipeline.plan.views)
    with published.lock:
        if directory is None and not published.is_watched:
            published.is_watched = True
            if pipeline.epoch:
                published.epochs.append(pipeline.published_epoch())
    diff = None if changed is None else lambda: _diff_of(pipeline, published, changed)
    if directory is None:
        return open_console(WatchedPipeline(pipeline, published, name=names, diff=diff), port=port)

    def explained(view: str | None, row: Mapping[str, Any]) -> Any:
        with published.lock:
            work = pipeline.row_question(row, view=view)
        return work()

    watched = WatchedCheckpoint(
        Path(directory),
        QueryAnswers(
            verify=lambda view, on_step: verified(pipeline, published, view, on_step),
            explain_row=explained,
            options=pipeline.options_in_force(),
            diff=diff,
        ),
    )
    return open_console(watched, port=port)


def _diff_of(pipeline: WatchablePipeline, published: PublishedEpochs, changed: Any) -> Any:
    with published.lock:
        return pipeline.diff(changed)


def _counted_keys(deltas: Sequence[ZSet], key: Sequence[str]) -> list[list[Any]]:
    """Return the keys with the most changes, each with how many."""
    from zset_join.console.watched import shown

    counts: Counter[tuple[Any, ...]] = Counter()
    left = _MOST_COUNTED_ROWS
    for delta in reversed(deltas):
        if not key or left <= 0 or not set(key) <= set(delta.schema.names):
            continue
        rows = pa.Table.from_batches([delta.rows.slice(0, left)]).select(list(key))
        grouped = rows.append_column("n", pa.repeat(1, rows.num_rows)).group_by(list(key)).aggregate([("n", "sum")])
        columns = [shown_column(grouped[name]) for name in key]
        for one in zip(*columns, grouped["n_sum"].to_pylist(), strict=True):
            counts[tuple(map(shown, one[:-1]))] += one[-1]
        left -= rows.num_rows
    return [[list(one), count] for one, count in counts.most_common(_MOST_KEYS)]
