"""Receivers of the deltas of a pipeline, besides its caller: sinks and functions.

The law: a sink gets every epoch exactly once, in order, without the rows that it can never hold: these are refused before the
epoch counts, or become dead letters (see `zset_join.sinks.unfit_values`). With a directory an epoch that was committed and not
written is written when the pipeline is opened again, or with the next step; a sink holds its own last epoch. In memory only, a
sink must be new.

Of several views every one has outputs of its own, and all are given an epoch before the next one counts. Those in one database
(`DatabaseSink`) get it in one transaction; across databases a crash may leave one an epoch behind, until the next start.

With a directory an epoch comes with its place in the chain of epochs (see `epoch_chain`), so that a sink refuses those of a
directory that was restored from a copy of another time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from zset_join.connectors import sinks_of
from zset_join.core.epochs import ChainLink, accepts_argument
from zset_join.core.errors import OptionError, SinkError, ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.rejected import RejectedRows, SinkEpochs
from zset_join.sinks.sink import AlterableSink, ChainedSink, DatabaseSink, Sink, SinkProgress, TableSink, check_adds_columns
from zset_join.sinks.unfit_values import UnfitRows
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.changelog import RecordForm
    from zset_join.sinks.record_texts import RecordWriter

_IN_MEMORY = "in memory"
_FORMS = ("upsert", "weight", "row_kind", "change_data_feed", "debezium")

__all__ = ["FunctionSink", "Outputs", "OutputsByView", "PipelineOutputs", "outputs_by_view"]

Outputs: TypeAlias = Sequence[Sink] | Mapping[str, Mapping[str, Any]]
OutputsByView: TypeAlias = Mapping[str, Sink | Outputs]


def outputs_by_view(plan: QueryPlan, given: Outputs | OutputsByView, *, has_several: bool) -> dict[str, Sequence[Sink]]:
    found: dict[str, Sequence[Sink]] = {view.name: () for view in plan.views}
    if not has_several:
        return {plan.name: sinks_of(cast("Outputs", given))}
    if given and not isinstance(given, Mapping):
        raise OptionError(
            f"outputs={given!r}: this pipeline was made of several views; give outputs by the names of their views, such as "
            f'{{"{plan.views[0].name}": sink}}.',
            code="VIEW_NAME",
            names=[view.name for view in plan.views],
        )
    for name, sinks in cast("OutputsByView", given or {}).items():
        found[plan.view(name).name] = sinks_of(sinks if isinstance(sinks, Sequence | Mapping) else (sinks,))
    return found


class FunctionSink:
    """Call a function with the delta of every epoch.

    After a crash the last epoch may be repeated; a function that stores the number can skip it.

    Args:
        function: called with the number of the epoch and its delta, even an empty one; a parameter `chain` also receives the
            epoch's digest.
        form: upsert, weight, row_kind, change_data_feed or debezium: the function receives a table of `key` and `value` as JSON
            texts, see `zset_join.sinks.record_texts`; None: a ZSet.
        key: columns that identify a row; default: the primary key of the view.
    """

    def __init__(
        self, function: Callable[..., None], *, form: RecordForm | None = None, key: Sequence[str] | None = None
    ) -> None:
        if form is not None and form not in _FORMS:
            raise OptionError(f"form={form!r} is unknown; use one of {', '.join(_FORMS)}.", code="FORM", form=form)
        self._function = function
        self._form: RecordForm | None = form
        self._key = key
        self._writer: RecordWriter | None = None
        self._takes_chain = accepts_argument(function, "chain")
        self._output: Relation | None = None
        self._last: int | None = None

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:  # noqa: ARG002 - the protocol's
        self.alter(output)

    def check_altered(self, output: Relation) -> None:
        before = output if self._output is None else self._output
        check_adds_columns(repr(self), before.schema, output.schema, before.primary_key, output.primary_key)

    def alter(self, output: Relation) -> None:
        self._output = output
        if self._form is not None:
            from zset_join.sinks.record_texts import RecordWriter  # needs DuckDB, which a pipeline can do without

            self.close()
            self._writer = RecordWriter(output.schema, self._form, output.primary_key if self._key is None else self._key)
            self.written_as = self._writer.written_as

    def last_epoch(self) -> int | None:
        # A function keeps no earlier one.
        return self._last

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        if self._output is None:
            raise SinkError("a function was given an epoch before it was opened.", code="SINK_CLOSED", epoch=epoch)
        delta = ZSet.concat(chunks, schema=self._output.schema)
        given = delta if self._writer is None else self._writer.table(delta.consolidated(), epoch=epoch)
        if self._takes_chain:
            self._function(epoch, given, chain=None if link is None else link.digest)
        else:
            self._function(epoch, given)
        self._last = epoch
        return SinkProgress(epoch, len(delta), int((delta.weights < 0).sum()), time.perf_counter() - started)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return () if self._writer is None else self._writer.unfit(rows)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


@dataclass(frozen=True, slots=True)
class _Pending:
    """An epoch that counts and that outputs are still to be given; the arguments are those of `PipelineOutputs.add`."""

    epoch: int
    answers: Mapping[str, ZSet]
    link: ChainLink | None
    begins: Mapping[str, ZSet]

    def of(self, view: str, sink: Sink) -> tuple[ZSet | None, ChainLink | None]:
        """Return the first epoch of an output: all rows for an output without epochs, if the view begins."""
        # None: nothing, since the view was absent, or not with these columns.
        if view not in self.begins or sink.last_epoch() is not None:
            return self.answers.get(view), self.link
        link = ChainLink(_IN_MEMORY, begins=True) if self.link is None else replace(self.link, begins=True)
        return self.begins[view], link

    def check(self, view: str, epochs: SinkEpochs) -> None:
        """Refuse an output of before that would be given all rows of a view once more, since the view has other columns."""
        rows, last = self.begins.get(view), epochs.sink.last_epoch()
        if rows is None or rows is not self.answers.get(view) or last is None or last >= self.epoch:
            return
        raise SinkError(
            f"{epochs.name} ends with epoch {last}; in epoch {self.epoch} the query was changed so that its view has other "
            "columns, and outputs begin with all rows. Open the query with a new output for it.",
            code="EVOLVE_OUTPUT",
            output=epochs.name,
            epoch=self.epoch,
        )


class PipelineOutputs:
    def __init__(self, sinks: Mapping[str, Sequence[Sink]], *, quarantines: bool = False, bare_view: str | None = None) -> None:
        self._sinks = sinks
        self.bare_view = bare_view  # its outputs have the id of the query alone, those of another view also its name
        self._quarantines = quarantines
        self._opened: list[tuple[str, SinkEpochs]] = []
        self._by_database: list[list[tuple[str, SinkEpochs]]] = []
        self._pending: list[_Pending] = []
        self._altered: list[tuple[AlterableSink, Relation]] = []

    def open(self, outputs: Mapping[str, Relation], query_id: str | None, *, altered: Collection[str] = ()) -> None:
        for view, sinks in self._sinks.items():
            for sink in sinks:
                with self._naming(view):
                    own_id = query_id if query_id is None or view == self.bare_view else f"{query_id}/{view}"
                    self._open(sink, outputs[view], own_id, may_lack_columns=view in altered)
                    self._opened.append((view, SinkEpochs(sink, quarantines=self._quarantines)))
        self._group()

    @property
    def is_any(self) -> bool:
        """Return whether there are outputs."""
        return bool(self._opened)

    def epochs(self) -> dict[str, int | None]:
        """Return the last epoch of each opened output, by its name."""
        return {epochs.name: epochs.sink.last_epoch() for _, epochs in self._opened}

    def changed(
        self,
        before: Mapping[str, Relation],
        after: Mapping[str, Relation],
        given: Mapping[str, Sequence[Sink]],
        query_id: str | None = None,
    ) -> PipelineOutputs:
        """Return the outputs of a changed query: those that were opened, and new ones."""
        altered: list[tuple[AlterableSink, Relation]] = []
        for view, epochs in self._opened:
            old, new = before[view], after.get(view)
            if new is None or view in given or (old.schema.equals(new.schema) and old.primary_key == new.primary_key):
                continue
            if not isinstance(epochs.sink, AlterableSink):
                raise SinkError(
                    f'view "{view}" gets other columns or another key, and the output {epochs.sink!r} has those of before. '
                    f'Give it a new output, such as evolve(..., outputs={{"{view}": sink}}); it is filled at once.',
                    code="EVOLVE_OUTPUT",
                    views=(view,),
                )
            known, wanted = ((one.schema.names, one.schema.types, one.primary_key) for one in (old, new))
            if known != wanted:
                with self._naming(view):
                    epochs.sink.check_altered(new)
                altered.append((epochs.sink, new))
        kept = {view: () if view in given else self._sinks.get(view, ()) for view in after}
        opened = PipelineOutputs(dict(given), quarantines=self._quarantines, bare_view=self.bare_view)
        try:
            opened.open(after, query_id)
        except BaseException:
            opened.close()
            raise
        opened._sinks = {**kept, **given}
        opened._opened[:0] = [one for one in self._opened if one[0] in kept and one[0] not in given]
        opened._group()
        opened._altered = altered
        return opened

    def beside(self, plan: QueryPlan, names: str | Mapping[str, str]) -> dict[str, Sequence[Sink]]:
        """Return new outputs in the place of those that views have, by view."""
        by_view = {plan.view().name: names} if isinstance(names, str) else names
        found: dict[str, Sequence[Sink]] = {}
        for view, name in by_view.items():
            known = plan.view(view).name
            sinks = [epochs.sink for of, epochs in self._opened if of == known]
            tables = [sink for sink in sinks if isinstance(sink, TableSink)]
            if not tables or len(tables) < len(sinks):
                others = [repr(sink) for sink in sinks if not isinstance(sink, TableSink)]
                raise SinkError(
                    f'view "{known}" was to get the new table "{name}", and '
                    + (f"{others} have no tables" if others else "it has no outputs")
                    + f'. Give it outputs of its own: evolve(..., outputs={{"{known}": sink}}).',
                    code="EVOLVE_OUTPUT",
                    views=(known,),
                )
            found[known] = [sink.beside(name) for sink in tables]
        return found

    def go_on(self) -> None:
        """Let the outputs that stay take the columns of the changed query, which counts."""
        for sink, output in self._altered:
            sink.alter(output)
        self._altered = []

    def leave(self, other: PipelineOutputs) -> None:
        """Close the outputs that another one, made by `changed` or changed to this one, does not have."""
        used = {id(epochs) for _, epochs in other._opened}
        while self._opened:
            _, epochs = self._opened.pop()
            if id(epochs) not in used:
                epochs.sink.close()

    def _group(self) -> None:
        """Find the outputs that are in one database."""
        groups: dict[Hashable, list[tuple[str, SinkEpochs]]] = {}
        for view, epochs in self._opened:
            database = epochs.sink.database if isinstance(epochs.sink, DatabaseSink) else id(epochs.sink)
            groups.setdefault(database, []).append((view, epochs))
        self._by_database = list(groups.values())

    @staticmethod
    def _open(sink: Sink, output: Relation, query_id: str | None, *, may_lack_columns: bool) -> None:
        if may_lack_columns and isinstance(sink, AlterableSink):
            sink.open(output, query_id or str(uuid.uuid4()), may_lack_columns=True)
        else:
            sink.open(output, query_id or str(uuid.uuid4()))
        if query_id is None and sink.last_epoch() is not None:
            last = sink.last_epoch()
            sink.close()
            raise SinkError(
                f"the output {sink!r} has epochs up to {last}, and this pipeline, in memory, begins at 0. Give the pipeline a "
                "directory, so that it resumes, or a new output.",
                code="SINK_EPOCH_GAP",
                last_epoch=last,
            )

    @contextmanager
    def _naming(self, view: str) -> Iterator[None]:
        """Add to an error of an output which of several views it is of."""
        try:
            yield
        except ZsetJoinError as error:
            if len(self._sinks) > 1 and "views" not in error.facts:
                error.message = f'view "{view}": {error.message}'
                error.facts = {**error.facts, "views": (view,)}
            raise

    def check(self, epoch: int, answers: Mapping[str, ZSet]) -> list[RejectedRows]:
        """Decide, before an epoch counts, on rows that an output can never hold."""
        rejected = []
        for view, epochs in self._opened:
            with self._naming(view):
                aside = epochs.put_aside(epoch, [answers[view]])
            rejected += [RejectedRows(epochs.name, aside)] if len(aside) else []
        return rejected

    def add(
        self, epoch: int, answers: Mapping[str, ZSet], link: ChainLink | None = None, begins: Mapping[str, ZSet] | None = None
    ) -> None:
        """Take an epoch that counts; `settle` writes it."""
        if self._opened:
            self._pending.append(_Pending(epoch, answers, link, {} if begins is None else begins))

    def settle(self) -> None:
        """Give sinks the epoch that one of them failed at: before the next one counts, for a directory keeps one that waits."""
        while self._pending:
            for outputs in self._by_database:
                self._write(outputs, self._pending[0])
            del self._pending[0]

    def _write(self, outputs: Sequence[tuple[str, SinkEpochs]], given: _Pending) -> None:
        """Give an epoch to outputs of one database that do not have it, in one transaction where there are several."""
        missing: list[tuple[str, SinkEpochs, ZSet, ChainLink | None]] = []
        for view, epochs in outputs:
            with self._naming(view):
                rows, link = given.of(view, epochs.sink)
                given.check(view, epochs)
                if rows is not None and _is_missing(epochs.sink, given.epoch, link):
                    missing.append((view, epochs, rows, link))
        first = missing[0][1].sink if len(missing) > 1 else None
        sharing = (
            first.together([epochs.sink for _, epochs, *_ in missing[1:]]) if isinstance(first, DatabaseSink) else nullcontext()
        )
        with sharing:
            for view, epochs, rows, link in missing:
                with self._naming(view):
                    epochs.write(given.epoch, [rows], link)

    def close(self) -> None:
        while self._opened:
            self._opened.pop()[1].sink.close()


def _is_missing(sink: Sink, epoch: int, link: ChainLink | None) -> bool:
    """Return whether a sink is still to be given an epoch."""
    if isinstance(sink, ChainedSink):
        return not sink.has(epoch, link)
    last = sink.last_epoch()
    return last is None or last < epoch
