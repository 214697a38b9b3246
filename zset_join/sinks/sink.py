"""The contract of every output.

The law: after `write(epoch, chunks)` has returned, the output holds the answers of all epochs up to `epoch`, each
exactly once, whatever was retried, replayed or killed on the way. An epoch is atomic: all of it is present, or nothing.

A sink belongs to one query. It keeps the query's id and the number of its last epoch together with the rows, so that
a restarted driver can resume from it, and another query cannot write into it by mistake.

Epochs arrive in order and without holes, empty ones included, and the first is 0. An epoch at or below the last one is
a replay: its answer is the one already there, so nothing is written. A hole means that somebody replaced the output
or the checkpoint, and is refused: rows would be missing, and nobody would notice.

Numbers alone do not show that. Beside an older checkpoint that was restored, the epochs planned again have numbers the output
has, and other rows. So an epoch comes with its place in the chain of epochs (see `epoch_chain`), the sink keeps the digests of
the last hundred epochs it took, and one of the same number with another digest is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.epoch_chain import ChainLink, accepts_argument
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = [
    "DIGESTS_KEPT",
    "ChainedSink",
    "DatabaseSink",
    "Sink",
    "SinkProgress",
    "check_chunk",
    "check_output",
    "has_epoch",
    "holds_duration",
    "is_replay",
    "is_same_epoch",
    "newest_digests",
    "write_epoch",
]

DIGESTS_KEPT = 100
"""How many of its newest epochs a sink distinguishes from others of the same number, at least."""


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """Result of one `write`."""

    epoch: int
    rows: int
    retractions: int
    seconds: float
    replayed: bool = False


@runtime_checkable
class Sink(Protocol):
    """Interface of an output. A sink is used by one thread."""

    def open(self, output: Relation, query_id: str) -> None:
        """Attach the sink to a query, making the output when it is absent yet.

        Raises:
            SinkError: the output belongs to another query, has other columns, or cannot be opened.
        """
        ...

    def last_epoch(self) -> int | None:
        """Return the last epoch the output holds; None before the first."""
        ...

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Add the answer of one epoch, whole or not at all; an epoch that is present already is left alone.

        Raises:
            SinkError: the answer does not fit the output, or `epoch` leaves a hole; the output is as before.
        """
        ...

    def close(self) -> None:
        """Give up files and locks; what was written stays. Closing twice is allowed."""
        ...


@runtime_checkable
class ChainedSink(Sink, Protocol):
    """A sink that keeps the digests of the epochs it took. A sink of a user's own need not."""

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        """Return whether an epoch is present already.

        Raises:
            SinkError: epochs before it are missing; or `SINK_OTHER_CHAIN`, see `write`.
        """
        ...

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        """Add the answer of one epoch.

        Args:
            epoch: the epoch.
            chunks: its answer.
            link: its place in the chain; without one only numbers are compared.

        Raises:
            SinkError: see `Sink`; and `SINK_OTHER_CHAIN`: the output took another epoch of this number, or of the one before.
        """
        ...


@runtime_checkable
class DatabaseSink(Sink, Protocol):
    """A sink in a database that others may be in as well: an epoch reaches all of them in one transaction."""

    @property
    def database(self) -> Hashable:
        """Return an identity of the database; sinks with the same one can share a transaction."""
        ...

    def together(self, others: Sequence[Sink]) -> AbstractContextManager[None]:
        """Make one transaction of all that is written to this sink and others inside; left by an error, nothing was written.

        Args:
            others: open sinks in the same database.

        Raises:
            SinkError: the transaction cannot be begun or committed.
        """
        ...


def has_epoch(sink: Sink, epoch: int, link: ChainLink | None) -> bool:
    """Return whether a sink has an epoch; a sink without a chain is compared by its last number."""
    if isinstance(sink, ChainedSink):
        return sink.has(epoch, link)
    return is_replay(repr(sink), sink.last_epoch(), epoch)


def write_epoch(sink: Sink, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> SinkProgress:
    """Write an epoch to a sink; one whose `write` takes no `link` is given none."""
    if accepts_argument(sink.write, "link"):
        return cast("ChainedSink", sink).write(epoch, chunks, link=link)
    return sink.write(epoch, chunks)


def is_same_epoch(
    sink: str,
    last_epoch: int | None,
    digest_of: Callable[[int], str | None],
    epoch: int,
    link: ChainLink | None,
) -> bool:
    """Return whether an epoch is in the output already, as `is_replay`, and compare its digest with the one that is present.

    >>> known = {3: "c"}
    >>> is_same_epoch("view", 3, known.get, 3, ChainLink("c")), is_same_epoch("view", 3, known.get, 4, ChainLink("d", "c"))
    (True, False)
    """
    if link is not None and link.begins and last_epoch is None:
        return False
    is_there = is_replay(sink, last_epoch, epoch)
    if link is not None and link.begins and not is_there:
        raise SinkError(
            f"{sink} holds epochs up to {last_epoch}. The query was changed so that its view has new outputs (--new-table), "
            f"which begin with epoch {epoch} and all rows; this one would hold rows twice. Nothing was written. "
            "Start the query with outputs that are new.",
            code="EVOLVE_OUTPUT",
            output=sink,
            last_epoch=last_epoch,
            epoch=epoch,
        )
    if link is None or last_epoch is None or digest_of(last_epoch) is None:
        return is_there
    compared, expected = (epoch, link.digest) if is_there else (epoch - 1, link.before)
    held = digest_of(compared)
    if expected is None or held == expected:
        return is_there
    raise SinkError(
        f"{sink} holds epochs up to {last_epoch}, and its epoch {compared} is another one than the checkpoint's epoch "
        f"{compared}: it was made from other input, as happens when an older checkpoint is restored beside a newer output, or "
        "the other way round. Nothing was written. Restore the output of the same time as the checkpoint (zset-join backup "
        "keeps both together), or delete the output and start over with a new checkpointLocation.",
        code="SINK_OTHER_CHAIN",
        sink=sink,
        last_epoch=last_epoch,
        epoch=compared,
        found=held,
        expected=expected,
    )


def newest_digests(digests: Mapping[int, str], epoch: int, link: ChainLink | None) -> dict[int, str]:
    """Return the digests to keep once an epoch is written.

    >>> newest_digests({0: "a", 1: "b"}, 101, ChainLink("c"))
    {1: 'b', 101: 'c'}
    """
    kept = {number: digest for number, digest in digests.items() if epoch - DIGESTS_KEPT <= number < epoch}
    return kept if link is None else {**kept, epoch: link.digest}


def is_replay(sink: str, last_epoch: int | None, epoch: int) -> bool:
    """Return whether an epoch of this number is in the output already.

    >>> is_replay("view", 3, 3), is_replay("view", 3, 4), is_replay("view", None, 0)
    (True, False, False)
    """
    expected = 0 if last_epoch is None else last_epoch + 1
    if epoch > expected:
        holds = "holds no epoch yet" if last_epoch is None else f"ends with epoch {last_epoch}"
        raise SinkError(
            f"{sink} {holds} and was given epoch {epoch}; epoch {expected} was expected. The output or the "
            f"checkpoint was replaced: restore the matching one, or start both again.",
            code="SINK_EPOCH_GAP",
            sink=sink,
            last_epoch=last_epoch,
            epoch=epoch,
        )
    return epoch < expected


def check_output(sink: str, output: Relation) -> None:
    """Refuse a relation whose deltas do not carry whole rows on both sides."""
    if output.mode == "upsert":
        raise SinkError(
            f'{sink} was given relation "{output.name}" in upsert mode, whose deletes carry no row; a sink takes the '
            f"answer of an operator, which is in changelog mode.",
            code="SINK_MODE",
            sink=sink,
            relation=output.name,
        )


def check_chunk(sink: str, epoch: int, schema: pa.Schema, chunk: ZSet) -> None:
    """Refuse a chunk whose columns are not those the sink was opened with."""
    if chunk.schema.names != schema.names or chunk.schema.types != schema.types:
        raise SinkError(
            f"{sink} was opened with columns [{_describe(schema)}] and got [{_describe(chunk.schema)}] in epoch "
            f"{epoch}; cast the answer to the output relation first.",
            code="SINK_SCHEMA",
            sink=sink,
            epoch=epoch,
        )


def holds_duration(data_type: pa.DataType) -> bool:
    """Return whether a type is a duration, or has one inside.

    >>> holds_duration(pa.list_(pa.duration("us"))), holds_duration(pa.int64())
    (True, False)
    """
    if pt.is_duration(data_type):
        return True
    return any(holds_duration(data_type.field(index).type) for index in range(data_type.num_fields))


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
