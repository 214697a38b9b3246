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

An `AlterableSink` takes more columns while it continues, behind those it has:

    sink.check_altered(output)       before the change counts: refuses what the output cannot become
    sink.open(output, id, ...)       of a later process: `may_lack_columns` where the change may not have reached the output
    sink.alter(output)               once the change counts: the next epoch that is written adds the columns

The columns come with the epoch of the change, which holds the rows before, with NULL in them, as retractions, and the new rows:
the sum of all epochs stays what the output holds. A process that dies on the way leaves empty columns at most.

Who looks at an output and does not write reads `StoredEpochs`: an output that holds an epoch holds it for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.epochs import ChainLink, accepts_argument, short_mark
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation, adds_columns
from zset_join.zset import ZSet

__all__ = [
    "DIGESTS_KEPT",
    "AlterableSink",
    "ChainedSink",
    "DatabaseSink",
    "Sink",
    "SinkProgress",
    "StoredEpochs",
    "TableSink",
    "beside",
    "check_adds_columns",
    "check_chunk",
    "check_output",
    "has_epoch",
    "holds_duration",
    "is_replay",
    "is_same_epoch",
    "listed",
    "marks_of",
    "newest_digests",
    "stored_views",
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

    def last_epoch(self) -> int | None:
        """Return the last epoch the output holds; None before the first."""

    def write(self, epoch: int, chunks: Iterable[ZSet]) -> SinkProgress:
        """Add the answer of one epoch, whole or not at all; an epoch that is present already is left alone.

        Raises:
            SinkError: the answer does not fit the output, or `epoch` leaves a hole; the output is as before.
        """

    def close(self) -> None:
        """Give up files and locks; what was written stays. Closing twice is allowed."""


@runtime_checkable
class ChainedSink(Sink, Protocol):
    """A sink that keeps the digests of the epochs it took. A sink of a user's own need not."""

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        """Return whether an epoch is present already.

        Raises:
            SinkError: epochs before it are missing; or `SINK_OTHER_CHAIN`, see `write`.
        """

    @override
    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        """Add an epoch, as any sink; without its place in the chain only numbers are compared.

        Raises:
            SinkError: see `Sink`; and `SINK_OTHER_CHAIN`: the output took another epoch of this number, or of the one before.
        """


@runtime_checkable
class DatabaseSink(Sink, Protocol):
    """A sink in a database that others may be in as well: an epoch reaches all of them in one transaction."""

    @property
    def database(self) -> Hashable:
        """Return an identity of the database; sinks with the same one can share a transaction."""

    def together(self, others: Sequence[Sink]) -> AbstractContextManager[None]:
        """Make one transaction of all that is written to this sink and others inside; left by an error, nothing was written.

        Args:
            others: open sinks in the same database.

        Raises:
            SinkError: the transaction cannot be begun or committed.
        """


@runtime_checkable
class AlterableSink(Sink, Protocol):
    """A sink whose output takes more columns."""

    @override
    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        """Attach the sink, as any; the present content may lack the last columns, which the next epoch then adds."""

    def check_altered(self, output: Relation) -> None:
        """Refuse columns that the open output cannot be given. Nothing changes.

        Raises:
            SinkError: `EVOLVE_OUTPUT`: they are not those of before with others behind them; or there is no type for one.
        """

    def alter(self, output: Relation) -> None:
        """Take rows with these columns from now on; the columns are added with the next epoch."""


@runtime_checkable
class TableSink(Sink, Protocol):
    """A sink whose output has a name, beside which another one can be made."""

    def beside(self, name: str) -> Sink:
        """Return a sink like this one, not opened, of a table of another name in the same place.

        Args:
            name: of the table; of what is a directory, the name of a directory beside it.
        """


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
            f"{sink} was opened with columns [{listed(schema)}] and got [{listed(chunk.schema)}] in epoch {epoch}; "
            "cast the answer to the output relation first.",
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


def beside(location: str, name: str) -> str:
    """Return the path or URI of a directory of another name in the same place.

    >>> beside("s3://shop/views/totals", "totals_2")
    's3://shop/views/totals_2'
    """
    return f"{location.rstrip('/').rpartition('/')[0]}/{name}"


def check_adds_columns(
    described: str, before: pa.Schema, after: pa.Schema, key_before: Sequence[str], key_after: Sequence[str]
) -> None:
    """Refuse a change of columns that is not an addition behind them, or of the key."""
    if adds_columns(before, after) and tuple(key_before) == tuple(key_after):
        return
    raise SinkError(
        f"{described} has the columns [{listed(before)}] and the key {list(key_before)}; the changed query "
        f"has [{listed(after)}] and the key {list(key_after)}. An output that stays is given columns behind those it "
        "has, and nothing else. Select the columns in that order, or give the view a new output with outputs= or new_table=; "
        "it is filled at once.",
        code="EVOLVE_OUTPUT",
        output=described,
        before=before.names,
        after=after.names,
    )


def listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


# -- positions, as others read them


@dataclass(frozen=True, slots=True)
class StoredEpochs:
    """Position of one output."""

    query_id: str
    last: int | None
    mark_of: Callable[[int], str | None]
    table: str | None = None
    detail: str = ""


def marks_of(digests: Mapping[int, str | None]) -> Callable[[int], str | None]:
    """Return a function from an epoch to its mark, given the digests of epochs."""

    def mark_of(epoch: int) -> str | None:
        digest = digests.get(epoch)
        return short_mark(epoch, digest) if digest else None

    return mark_of


def stored_views(rows: Iterable[Mapping[str, Any]], table: str | None) -> list[StoredEpochs]:
    """Return the contents of a table `_zset_join_epochs`.

    >>> found = stored_views([{"view": "v", "query_id": "q", "epoch": 4, "chain": '[[4, "d4"]]'}], None)
    >>> found[0].last, found[0].mark_of(4) == short_mark(4, "d4"), found[0].mark_of(3)
    (4, True, None)
    """
    known = list(rows)
    found = [row for row in known if table is None or row["view"].lower() == table.lower()]
    if not found:
        raise SinkError(
            f"the database has the views {sorted(row['view'] for row in known)}, and not {table!r}. Name one of them, or leave "
            "the name out for all.",
            code="SINK_IO",
            table=table,
        )
    return [
        StoredEpochs(row["query_id"], row["epoch"], marks_of(dict(json.loads(row.get("chain") or "[]"))), table=row["view"])
        for row in found
    ]
