"""The outputs of a query, of one view or of several, kept at the same epoch.

The law: an epoch is committed once, in the checkpoint; then each output takes it, in the order in which they were chosen, and
the next epoch waits for all. An output that has it already is passed over, so after a failure or a restart each has every epoch
as it promises by itself: exactly once, or a function at least once. Between two epochs all show the same one.

The tasks write the answer of a view once per way of writing: outputs that are fed by the driver share their parts, a changelog
whose files the tasks write has its own. A part carries the name of its way, and that of its view where there are several, so
outputs may change places between two starts; a new one that is chosen in the middle of a query is refused by itself
(`SINK_EPOCH_GAP`).

Memory: with two ways of writing or more, the answer of a task, while it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.answer_parts import ArrowParts
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.record import CommitRecord, PartEntry
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.runners.common.rejected import Rejected
from zset_join.runners.spark.epoch.outputs import Output, SelectiveOutput
from zset_join.runners.spark.worker.parts import PartWriter
from zset_join.zset import ZSet

__all__ = ["SeveralOutputs"]


@dataclass(frozen=True)
class SharedParts:
    """Write the answer in several ways."""

    writers: Mapping[str, PartWriter]
    view: str

    def write(
        self, files: CheckpointFiles, bucket: int, tick: Tick, schema: pa.Schema, chunks: Iterable[ZSet]
    ) -> list[PartEntry]:
        given = chunks if len(self.writers) == 1 else [chunk for chunk in chunks if len(chunk)]
        return [
            replace(part, way=way, view=self.view)
            for way, writer in self.writers.items()
            for part in writer.write(files, bucket, tick, schema, given)
        ]


@dataclass(frozen=True)
class _OfView:
    """An output, and the view it is of; the only view has no name."""

    view: str
    output: Output

    def own(self, record: CommitRecord) -> CommitRecord:
        way = _way(self.output)
        return replace(record, parts=tuple(part for part in record.parts if (part.view, part.way) == (self.view, way)))


class SeveralOutputs:
    """Write every epoch to one output after the other.

    Args:
        outputs: by view; the only view may have any name.
    """

    def __init__(self, outputs: Mapping[str, Sequence[Output]]) -> None:
        self._is_one = len(outputs) == 1
        self._chosen = tuple(_OfView(self.known(view), output) for view, chosen in outputs.items() for output in chosen)
        self._opened: list[Output] = []

    def known(self, view: str) -> str:
        """Return the name of a view in parts of records: none of the only one."""
        return "" if self._is_one else view

    def of_views(self, views: Collection[str]) -> SeveralOutputs:
        some = SeveralOutputs({})
        some._is_one, known = self._is_one, set(map(self.known, views))
        some._chosen = tuple(one for one in self._chosen if one.view in known)
        return some

    def _selective(self) -> Iterator[tuple[_OfView, SelectiveOutput]]:
        yield from ((one, one.output) for one in self._chosen if isinstance(one.output, SelectiveOutput))

    def set_aside_in(self, dead_letter_path: str, *, quarantines: bool) -> None:
        """Set rows aside that an output can never hold, at a path where tasks write the output themselves; or refuse them."""
        for _, output in self._selective():
            output.quarantines, output.dead_letter_path = quarantines, dead_letter_path

    def put_aside(self, files: CheckpointFiles, record: CommitRecord) -> dict[str, Rejected]:
        """Return the rows of an answered epoch that outputs can never hold, by what `explain` calls these, or refuse them."""
        rejected: dict[str, Rejected] = {}
        for one, output in self._selective():
            rejected |= output.put_aside(files, one.own(record))
        return rejected

    def unfit_flags(self, name: str) -> Callable[[pa.RecordBatch], npt.NDArray[np.bool_]] | None:
        """Return what finds the rows that an output can never hold; "" names all, None: there are none."""
        found = [output for _, output in self._selective() if name in ("", output.describe())]
        if not found or (not name and len(found) < len(self._chosen)):
            return None
        return lambda rows: np.logical_and.reduce([output.unfit(rows) for output in found])

    def view_of(self, name: str) -> str:
        """Return the view of the output that `explain` calls so."""
        return next(one.view for one in self._chosen if one.output.describe() == name)

    def parts(self, view: str) -> PartWriter:
        known = self.known(view)
        return SharedParts({_way(one.output): one.output.parts for one in self._chosen if one.view == known}, known)

    def describe(self) -> str:
        named = [(f'view "{one.view}": ' if one.view else "", one.output.describe()) for one in self._chosen]
        return "; ".join(map("".join, named))

    def open(self, relations: Mapping[str, Relation], query_id: str, *, may_lack_columns: Collection[str] = ()) -> None:
        """Attach every output to the query; `may_lack_columns`: views whose outputs are given columns by `give_change`."""
        known = {self.known(view): (view in may_lack_columns, relation) for view, relation in relations.items()}
        try:
            for one in self._chosen:
                self._opened.append(one.output)
                may_lack, relation = known[one.view]
                one.output.open(relation, query_id, may_lack_columns=may_lack)
        except BaseException:
            self.close()
            raise

    def has(self, record: CommitRecord) -> bool:
        """Return whether all have a committed epoch already."""
        contained = [one.output.has(one.own(record)) for one in self._chosen]
        return all(contained)

    def lacking(self, record: CommitRecord, views: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the titles of outputs without a committed epoch, of all views or of some."""
        known = None if views is None else set(map(self.known, views))
        chosen = [one for one in self._chosen if known is None or one.view in known]
        return tuple(name for one in chosen for name in one.output.lacking(one.own(record)))

    def can_publish(self, files: CheckpointFiles, record: CommitRecord) -> bool:
        """Return whether the parts of a committed epoch are still there, for those that lack it."""
        return all(
            one.output.has(own)
            or (
                (bool(own.parts) or not any(part.view == one.view for part in record.parts))
                and one.output.can_publish(files, own)
            )
            for one, own in ((one, one.own(record)) for one in self._chosen)
        )

    def publish(self, session: SparkSession, files: CheckpointFiles, record: CommitRecord) -> None:
        for one in self._chosen:
            own = one.own(record)
            if not one.output.has(own):
                one.output.publish(session, files, own)

    def check_altered(self, view: str, relation: Relation) -> None:
        """Refuse columns that the open outputs of a view cannot be given."""
        for one in self._chosen:
            if one.view == self.known(view):
                one.output.check_altered(relation)

    def check_change(self, view: str, epoch: int, rows: ZSet) -> None:
        """Refuse rows of a change of the query that outputs of a view can never hold, unless they are set aside."""
        for one, output in self._selective():
            if one.view == self.known(view):
                output.check_change(epoch, rows)

    def give_change(
        self, session: SparkSession, files: CheckpointFiles, view: str, record: CommitRecord, rows: ZSet
    ) -> dict[str, Rejected]:
        """Give outputs of a view the answer of an epoch in which the query changed; return what was set aside, by output."""
        rejected: dict[str, Rejected] = {}
        for one in self._chosen:
            if one.view == self.known(view) and not one.output.has(record):
                rejected |= one.output.give_change(session, files, record, rows)
        return rejected

    def readable(self, session: SparkSession, view: str) -> dict[str, DataFrame]:
        """Read every output of a view that can be read, by what `explain` calls it."""
        outputs = [one.output for one in self._chosen if one.view == self.known(view)]
        by_output = {output.describe(): output.contents(session) for output in outputs}
        return {name: contents for name, contents in by_output.items() if contents is not None}

    def at_rest(self) -> tuple[str, ...]:
        """Return where the files of outputs lie, which are closed until their next use."""
        return tuple(place for one in self._chosen for place in one.output.at_rest())

    def close(self) -> None:
        failure: BaseException | None = None
        while self._opened:
            try:
                self._opened.pop().close()
            except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
                failure = failure or error
        if failure is not None:
            raise failure


def _way(output: Output) -> str:
    """Return the name of the way in which parts of an output are written; the same after a restart."""
    return "arrow" if isinstance(output.parts, ArrowParts) else repr(output.parts)
