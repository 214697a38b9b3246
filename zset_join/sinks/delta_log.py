"""The log of a Delta table of ours, through delta-rs, and what the changelog and the view have in common as sinks.

The law: an epoch is one commit of the log, and the commit carries the epoch as the version of the application transaction
`zset_join:<query id>`. So the table itself records which epochs it holds, an epoch that is present is never added again, and of
two writers with the same epoch one commits; the other finds the epoch there and has nothing to do.

A table belongs to one query. Its properties name the query and what must be the same next time:

    zset_join.query_id   zset_join.kind   zset_join.form   zset_join.key

The place of an epoch in the chain of epochs (see `epoch_chain`) goes into the same commit, as the version of one of 128
further application transactions, `zset_join:<query id>:chain:<epoch mod 128>`: the first 62 bits of a digest over both. So it
comes and goes with the epoch and survives checkpoints of the log.

Others may read it, OPTIMIZE and VACUUM it; another writer that changes its rows breaks its promise. Files of attempts that did
not commit stay until VACUUM removes them; no reader sees them.

On a local disk a commit is on the disk when `commit` returns; delta-rs itself does not wait for it.

Limits: delta-rs cannot keep a table at a local path that has `%20` or the like in it. A table that was given column mapping,
deletion vectors or partitions is refused. Credentials of an object store must be where both pyarrow (or fsspec), which writes
the data files, and delta-rs find them, such as the environment; `storage_options` reach delta-rs alone.

Source: the Delta transaction protocol (transaction identifiers).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import ChainLink, short_mark
from zset_join.core.errors import SinkError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.sinks.delta_files import DataFile
from zset_join.sinks.epoch_sink import EpochSink, Position, check_layout
from zset_join.sinks.sink import StoredEpochs, is_same_epoch
from zset_join.sinks.unfit_values import UnfitRows, unfit_values, within_microseconds
from zset_join.storage.folder import Folder, is_local, local_path, open_folder
from zset_join.storage.local import sync_directory
from zset_join.storage.operations import perform

with needed_for("a Delta output"):
    from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction

__all__ = ["ChangedTableError", "DeltaLog", "DeltaSink"]

_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_COLUMN_MAPPING_VERSION = 2
_DIGEST_SLOTS = 128


class ChangedTableError(Exception):
    """Somebody changed the table meanwhile, and a commit made from what it was would be wrong."""


class DeltaLog:
    """The log of one table of ours."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._is_local = is_local(location)
        self.location = str(local_path(location)) if self._is_local else location.rstrip("/")
        # As a URI: of a plain path delta-rs would decode the per cent signs.
        self._table_uri = Path(self.location).as_uri() if self._is_local else self.location
        self.folder: Folder = open_folder(self.location, option="path of the Delta table")
        self.storage_options = dict(storage_options or {}) or None
        self._table: DeltaTable | None = None
        self._application = ""

    def __str__(self) -> str:
        return f'Delta table "{self.location}"'

    def open(self, schema: pa.Schema, query_id: str, given: Mapping[str, str], *, may_lack_columns: bool = False) -> None:
        """Attach to the table, making it when there is none."""
        made_with = {f"zset_join.{name}": value for name, value in {"query_id": query_id, **given}.items()}
        with self.failures("opened"):
            there = self._found()
            table = self._made(schema, made_with) if there is None else there
            properties = table.metadata().configuration
            if properties.get("zset_join.query_id") is None:
                raise SinkError(
                    f"{self} already exists, and was not created by this package. Choose another path; a query makes its table "
                    "itself.",
                    code="SINK_NAME_TAKEN",
                    table=self.location,
                )
            if may_lack_columns and properties["zset_join.query_id"] == query_id:
                self._add_columns(table, schema)
        stored = {name.removeprefix("zset_join."): value for name, value in properties.items()}
        wanted = {"query_id": query_id, **given}
        check_layout(
            str(self),
            {**stored, "columns": _columns(table.schema())},
            {**wanted, "columns": _columns(Schema.from_arrow(schema))},
        )
        self._check_features(table)
        self._application = f"zset_join:{query_id}"
        self._table = table

    def add_columns(self, schema: pa.Schema) -> None:
        """Give the table the columns that it lacks, in a commit without rows: NULL in the rows that are present."""
        self._add_columns(self._opened(), schema)

    def _add_columns(self, table: DeltaTable, schema: pa.Schema) -> None:
        have, wanted = _columns(table.schema()), Schema.from_arrow(schema)
        if not {*have} <= {*_columns(wanted)}:
            return  # it is not only columns that are lacking, which the caller compares
        names = {field.name for field in table.schema().fields}
        lacking = [field for field in wanted.fields if field.name not in names]
        if not lacking:
            return
        first = table.version() + 1

        def act() -> None:
            table.alter.add_columns([Field(field.name, field.type, nullable=True) for field in lacking])

        perform("put_new", self.folder.uri("_delta_log"), act)
        self._sync_commits(first, table.version())

    def close(self) -> None:
        self._table = None

    def last_epoch(self, *, look_again: bool = False) -> int | None:
        """Return the last epoch the table holds; None before the first."""
        table = self._opened()
        with self.failures("read"):
            if look_again:
                table.update_incremental()
            version: int | None = table.transaction_version(self._application)
        return version

    def has(self, epoch: int, link: ChainLink | None = None) -> bool:
        """Look again, and return whether the table holds an epoch."""
        last = self.last_epoch(look_again=True)
        marks = None
        if link is not None:
            before = None if link.before is None else short_mark(epoch - 1, link.before)
            marks = ChainLink(short_mark(epoch, link.digest), before, link.begins)
        return is_same_epoch(str(self), last, self.digest_of, epoch, marks)

    def digest_of(self, epoch: int) -> str | None:
        """Return the short digest an epoch came with; None where it had none, is absent, or is too long ago."""
        last = self.last_epoch()
        if last is None or not last - _DIGEST_SLOTS < epoch <= last:
            return None
        with self.failures("read"):
            version = self._opened().transaction_version(self._slot(epoch))
        return None if version is None else f"{version:016x}"

    def stored(self) -> StoredEpochs:
        """Return which epochs the table holds, without attaching to it; it is only read."""
        with self.failures("read"):
            self._table = self._found()
            properties = {} if self._table is None else self._table.metadata().configuration
        query_id = properties.get("zset_join.query_id")
        if query_id is None:
            raise SinkError(
                f"{self} does not exist, or was not created by this package. Give the path of a table that a query wrote.",
                code="SINK_IO",
                table=self.location,
            )
        self._application = f"zset_join:{query_id}"
        return StoredEpochs(query_id, self.last_epoch(), self.digest_of, detail=str(properties.get("zset_join.kind")))

    def version_of(self, epoch: int) -> int | None:
        """Return the newest version of the table that an epoch's commit made; None where the log no longer has it."""
        wanted = f"zset_join epoch {epoch}"
        with self.failures("read"):
            table = self._opened()
            limit = 16
            while True:
                history = table.history(limit)
                found = [commit["version"] for commit in history if commit.get("userMetadata") == wanted]
                if found or len(history) < limit:
                    return max(found, default=None)
                limit *= 4

    def _slot(self, epoch: int) -> str:
        return f"{self._application}:chain:{epoch % _DIGEST_SLOTS}"

    def files(self) -> list[DataFile]:
        """Return the files that the newest version this process has seen consists of."""
        with self.failures("read"):
            actions = pa.table(self._opened().get_add_actions(flatten=False)).to_pylist()
        return [
            DataFile(
                unquote(action["path"]),
                action["size_bytes"],
                action.get("num_records"),
                action.get("min") or {},
                action.get("max") or {},
            )
            for action in actions
        ]

    def commit(
        self,
        epoch: int,
        adds: Iterable[DataFile],
        removes: Iterable[DataFile] = (),
        *,
        link: ChainLink | None = None,
    ) -> bool:
        """Make an epoch true, in one commit, unless it is present already."""
        table = self._opened()
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.bytes, {}, now, True, file.statistics()) for file in adds
        ]
        actions += [RemoveAction(file.name, True, now, file.bytes, {}) for file in removes]
        transactions = [Transaction(self._application, epoch)]
        if link is not None:
            transactions.append(Transaction(self._slot(epoch), int(short_mark(epoch, link.digest), 16)))
        properties = CommitProperties(
            custom_metadata={"userMetadata": f"zset_join epoch {epoch}"},
            # No attempt after the first: delta-rs would let a commit pass that removes a file which OPTIMIZE has replaced.
            max_commit_retries=0,
            app_transactions=transactions,
        )
        first = table.version() + 1

        def act() -> None:
            table.create_write_transaction(actions, mode="append", schema=table.schema(), commit_properties=properties)

        try:
            perform("put_new", self.folder.uri("_delta_log"), act)
        except CommitFailedError as error:
            if self.has(epoch, link):
                return False
            raise ChangedTableError(str(error)) from error
        table.update_incremental()
        self._sync_commits(first, table.version())
        return True

    def vacuum(self, retention_hours: int) -> None:
        """Remove the files that no version of the last hours needs, those of attempts that did not commit among them."""
        self._opened().vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=True)

    @contextlib.contextmanager
    def failures(self, what: str) -> Iterator[None]:
        """Convert errors of delta-rs and the file system into a SinkError."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise SinkError(
                f"{self} could not be {what}: {error}. Check the path, its rights, the space there, and the settings of the "
                "object store.",
                code="SINK_IO",
                table=self.location,
            ) from error

    def _opened(self) -> DeltaTable:
        if self._table is None:
            raise SinkError(f"{self} is closed; call open first.", code="SINK_CLOSED", table=self.location)
        return self._table

    def _found(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._table_uri, storage_options=self.storage_options)
        except TableNotFoundError:
            return None

    def _made(self, schema: pa.Schema, configuration: Mapping[str, str]) -> DeltaTable:
        if any("_delta_log" not in name.split("/") for name in self.folder.names("")):
            raise SinkError(
                f"{self}: the directory has files and is not a Delta table; choose an empty one.",
                code="SINK_NAME_TAKEN",
                table=self.location,
            )

        def act() -> DeltaTable:
            return DeltaTable.create(
                self._table_uri,
                schema=Schema.from_arrow(schema),
                mode="ignore",
                configuration=dict(configuration),
                storage_options=self.storage_options,
                raise_if_key_not_exists=False,
            )

        result = perform("put_new", self.folder.uri("_delta_log"), act)
        self._sync_commits(0, 0)
        return result

    def _sync_commits(self, first: int, last: int) -> None:
        """Put the commits of these versions on the disk."""
        if not self._is_local:
            return
        for version in range(first, last + 1):
            path = f"{self.location}/_delta_log/{version:020d}.json"
            perform("sync", path, lambda path=path: _sync(path))  # type: ignore[misc]
        sync_directory(f"{self.location}/_delta_log")

    def _check_features(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        features = set(protocol.reader_features or ()) - _READER_FEATURES
        if protocol.min_reader_version == _COLUMN_MAPPING_VERSION:
            features.add("columnMapping")
        if table.metadata().partition_columns:
            features.add("partitions")
        if features:
            raise SinkError(
                f"{self} was given {sorted(features)}, which this package does not write. Undo that, or start a new table and "
                "checkpoint.",
                code="SINK_FEATURES",
                table=self.location,
                features=sorted(features),
            )


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bare(schema: Any) -> Any:
    """Return a schema without the metadata of its columns: comments are anybody's to write."""
    if isinstance(schema, dict):
        return {name: _bare(value) for name, value in schema.items() if name != "metadata"}
    return [_bare(value) for value in schema] if isinstance(schema, list) else schema


def _columns(schema: Schema) -> list[str]:
    """Return the columns of a table as they are compared: those that arrived later are behind the others, and may be NULL."""
    fields = _bare(json.loads(schema.to_json()))["fields"]
    kinds = [
        (field["name"], field["type"] if isinstance(field["type"], str) else json.dumps(field["type"])) for field in fields
    ]
    return sorted(f"{name}: {kind}" for name, kind in kinds)


class DeltaSink(EpochSink):
    """Write every epoch to a Delta table, in one commit."""

    kind, attempts = "", 1
    _errors = (DeltaError, OSError, pa.ArrowException)

    def __init__(self, location: str | Path, storage_options: Mapping[str, str] | None) -> None:
        self.log = DeltaLog(str(location), storage_options)

    def check_altered(self, output: Relation) -> None:
        self._check_growth(output)

    def alter(self, output: Relation) -> None:
        self._grow(output)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, within_microseconds)

    @override
    def close(self) -> None:
        super().close()
        self.log.close()

    @property
    @override
    def _described(self) -> str:
        return str(self.log)

    @abstractmethod
    def _stored(self, output: Relation) -> pa.Schema:
        """Return the columns of the table."""

    @override
    def _check_columns(self, output: Relation) -> None:
        self._stored(output)

    @override
    def _take(self, output: Relation) -> None:
        self._columns = self._stored(output)

    @override
    def _attach(self) -> None:
        made_with = {"kind": self.kind, "key": json.dumps(self._key), **({"form": self.form} if self.form else {})}
        self.log.open(self._columns, self._query_id, made_with, may_lack_columns=self._may_lack_columns)

    @override
    def _position(self) -> Position:
        return self.log.last_epoch(), self.log.digest_of

    @override
    def _is_there(self, epoch: int, link: ChainLink | None) -> bool:
        return self.log.has(epoch, link)

    @override
    def _add_columns(self) -> None:
        self.log.add_columns(self._columns)
        self._may_lack_columns = False

    def _committed(
        self,
        epoch: int,
        link: ChainLink | None,
        files: Callable[[], tuple[Sequence[DataFile], Sequence[DataFile]]],
        discard: Callable[[Sequence[DataFile]], None] = lambda _: None,
    ) -> bool:
        """Commit new files and the removal of others; again, when others changed the table meanwhile."""
        # Files of a commit that failed in any other way are left for VACUUM: it may have reached the log all the same.
        conflict: ChangedTableError | None = None
        for _ in range(self.attempts):
            added, removed = files()
            try:
                return self.log.commit(epoch, added, removed, link=link)
            except ChangedTableError as error:
                discard(added)
                conflict = error
        raise SinkError(
            f"{self.log} was changed by others in each of {self.attempts} attempts to write epoch {epoch}: {conflict}. Run "
            "OPTIMIZE and other jobs on this table less often, and restart the query; it continues with this epoch.",
            code="SINK_CONFLICT",
            table=self.log.location,
            epoch=epoch,
        ) from conflict
