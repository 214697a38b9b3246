"""One query of a session, a view among others of one pipeline, shown as a pipeline of its own would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from zset_join.query.reading import Reading
from zset_join.runners.local.contents import repeated
from zset_join.runners.local.pipeline import Pipeline
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue

__all__ = ["QueryView", "SessionPipeline"]


class SessionPipeline:
    """The pipeline of a session, as its queries see it: it is another object when the session has its first settings."""

    pipeline: Pipeline[dict[str, ZSet]]


class QueryView:
    """Show one query of a pipeline."""

    def __init__(self, shared: SessionPipeline, name: str, schema: pa.Schema, *, is_paused: bool) -> None:
        self._shared = shared
        self.progress: Mapping[str, Any] = {}
        self.schema = schema
        self._name = name
        self._is_paused = is_paused

    @property
    def whole(self) -> Pipeline[dict[str, ZSet]]:
        return self._shared.pipeline

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of its sources; while it is paused, none."""
        if self._is_paused:
            return ()
        plan = self.whole.plan
        feeds = [feed for number in plan.stages_of(self._name) for given in plan.nodes[number].feeds for feed in given]
        read = {feed.origin for feed in (*feeds, *plan.view(self._name).feeds)}
        return tuple(source.name for source in plan.sources if source.name in read)

    @property
    def readings(self) -> Mapping[str, Reading]:
        return {name: self.whole.readings[name] for name in self.sources}

    @property
    def epoch(self) -> int:
        """Return the number of the next epoch of the pipeline."""
        return self.whole.epoch

    @property
    def dead_letters(self) -> pa.Table:
        """Return its own, and those of no query, among the dead letters of the last epoch."""
        letters = self.whole.dead_letters
        texts = letters.column("reason").to_pylist() if letters.num_rows else []
        is_own = [not str(text).startswith('query "') or str(text).startswith(f'query "{self._name}":') for text in texts]
        return letters.filter(pa.array(is_own, pa.bool_()))

    def view(self) -> pa.Table:
        return repeated(self.contents(), self.schema)

    def seen(self) -> Callable[[], pa.Table]:
        """Return a reader of the present contents, usable from any thread."""
        return partial(self.whole.snapshot().table, self._name)

    def contents(self) -> ZSet:
        return self.whole.contents(self._name)

    def took(self) -> None:
        """Note the counts of an epoch that the pipeline has taken."""
        counts = self.whole.progress
        if not counts:  # the first views are present before the first epoch
            return
        own, read = counts.get("views", {}).get(self._name, {}), self.sources
        self.progress = {**counts, **own, "rows": {name: rows for name, rows in counts.get("rows", {}).items() if name in read}}

    def next_due(self) -> NextDue:
        """Return when the pipeline has rows to emit though no row arrives."""
        return self.whole.next_due()

    def verify(self) -> Any:
        return self.whole.verify(view=self._name)

    def explain_row(self, row: Mapping[str, Any], *, most_changes: int = 100) -> Any:
        """Return which changes made the rows with given values, and which unmade them."""
        return self.whole.explain_row(row, view=self._name, most_changes=most_changes)
