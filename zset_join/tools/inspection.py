"""Look into the state of a query with SQL: what its checkpoint holds after the last committed epoch, in a DuckDB of its own.

    connection = open_state("/data/checkpoints/orders")
    connection.sql("SELECT count(*) FROM join_left")

The law: the views show the state after one committed epoch, whole: the snapshots with the logged epochs after them folded in,
all buckets together. Nothing is changed, and the query may continue meanwhile: it is read at the epoch that was the newest one
when reading began. Files that a running query has cleared away since make it begin again from the newest epoch.

| view | holds |
|---|---|
| `join_left`, `join_right` | the live rows of a side: columns of the stream, `_zset_weight`, `_zset_bucket` |
| `route_left`, `route_right` | where a side is routed: primary key, join key and sequence of its live rows |
| `join_2_left`, `route_2_right`, ... | the same of a later join of a chain, by the number of its stage |
| `aggregate_1`, ... | the groups of an aggregate, or the rows of a DISTINCT: its columns, `_zset_rows`, `_zset_bucket` |
| `<view>_deleted` | where changes have a sequence: the keys whose deletion is remembered, with `_zset_watermark` |
| `<stage>_<table>`, ... | what another kind of stage remembers, table by table |
| `cold` | with `local_state_dir`: the runs in the DuckDB files of hybrid state (`cold_store="duckdb"`) on this host |
| `about` | one line per view and nothing else: stage, side, stream, query, epoch, buckets, rows |

Rows go bucket by bucket into a DuckDB file that has no name any more when it is given out: the disk gets its space back when
the connection is closed, or its process ends. It is opened read-only, without access to other files, networks, extensions or
variables of Python, and its configuration is locked.

Memory: one bucket as Arrow data, what its operator maps, and what DuckDB takes. Disk: the live rows, compressed.

Limits: of an aggregate what its groups show is shown, not the single values that min, max and their like keep. Columns whose
names differ only by case cannot be shown; durations are shown as intervals.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; each one here is ours or went through `quote`.

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from spill.duckdb_pages import COLD_FILE, quoted_text
from zset_join.checkpoint.reading import CommittedState, no_checkpoint, read_committed, stages_of
from zset_join.checkpoint.record import BucketHistory, read_log
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.core.errors import StateError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.sinks.duckdb_file import quote
from zset_join.stages import Stage, StageOptions
from zset_join.state.rows.side_snapshot import SNAPSHOT_DEGREE, SNAPSHOT_SEQUENCE, SNAPSHOT_WATERMARK, SNAPSHOT_WEIGHT
from zset_join.storage.local import lock_file
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

with needed_for("looking into the state"):
    import duckdb

__all__ = ["open_state"]

_BUCKET, _GROUP_ROWS = "_zset_bucket", "_zset_rows"
_ROWS = "rows_of_bucket"
_TIMES = 5
_LONG_SECONDS = 100_000 * 86_400
_CLOSED_BOX: Mapping[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
}
_SIDES = ("left", "right")


def open_state(
    checkpoint: str | Path,
    *,
    temporary_directory: str | Path | None = None,
    local_state_dir: str | Path | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return the state of a query after its last committed epoch, as a read-only DuckDB connection.

    Args:
        checkpoint: `checkpointLocation` of the query, a path or a URI. The query may run.
        temporary_directory: of the rows while the connection is open; default: that of the host.
        local_state_dir: `localStateDir` of the query, to show also its cold rows in DuckDB files. They are attached read-only,
            one at a time; files of a bucket in use are omitted.

    Raises:
        StateError: there is no checkpoint or no committed epoch, a file is damaged or of another version, a column cannot be
            shown, or the query removes files faster than they can be read.

    Cost: every live row is read and written once; logged epochs since the last snapshots are absorbed.
    """
    location = str(checkpoint)
    for _ in range(_TIMES):
        committed = _found(location)
        try:
            stages = [_shown(name, stage) for name, stage in stages_of(location).items()]
            return _opened(committed, stages, temporary_directory, local_state_dir)
        except StateError as error:
            if error.code != "DAMAGED_FILE" or not _has_moved_on(committed, location):
                raise
    raise StateError(
        f"the query of the checkpoint {location} cleared files away {_TIMES} times while its state was being read: it writes "
        "snapshots faster than they can be read from here. Stop the query, or read a copy of the checkpoint.",
        code="STATE_MOVES_ON",
        location=location,
    )


def _found(location: str) -> CommittedState:
    committed = read_committed(location)
    if committed is None:
        raise no_checkpoint(location)
    if committed.last is None:
        raise StateError(
            f"no epoch is committed in the checkpoint {location}: there is no state to look into yet.",
            code="NOTHING_COMMITTED",
            location=location,
        )
    return committed


def _has_moved_on(committed: CommittedState, location: str) -> bool:
    now = _found(location)
    return (now.last, now.rescaling) != (committed.last, committed.rescaling)


@runtime_checkable
class _ShowsGroups(Protocol):
    """An operator that shows its groups as they were answered last, instead of the tables of its snapshot."""

    def held(self) -> Iterator[ZSet]:
        """Yield them."""


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A stage, what its operators are built with, and per table of its state the view and the side.

    Of a grouped stage the groups are shown, not the tables of its snapshot; one that begins alone has its row from the first
    epoch on, whether rows have come or not.
    """

    name: str
    stage: Stage
    options: StageOptions
    tables: Mapping[str, tuple[str, int | None]]
    is_grouped: bool

    def build(self, directory: str | None) -> DurableOperator:
        return self.stage.build(self.options, directory)


def _shown(name: str, stage: Stage) -> _Shown:
    # Nothing is refused and nothing expires here: what was committed is shown as it is.
    options = StageOptions(on_bad_input="quarantine", tombstone_retention_seconds=_LONG_SECONDS)
    operator = stage.build(options, None)
    is_grouped = isinstance(operator, _ShowsGroups)
    operator.close()
    view = name.replace("-", "_")
    if is_grouped:
        tables: dict[str, tuple[str, int | None]] = {"groups": (view, None)}
    elif stage.forwards:
        kind, side, *number = name.split("-")
        tables = {table: ("_".join([kind, *number, side]), _SIDES.index(side)) for table in stage.state_tables}
    else:
        tables = {table: (f"{view}_{table}", key.of_input) for table, key in stage.state_tables.items()}
    return _Shown(name=name, stage=stage, options=options, tables=tables, is_grouped=is_grouped)


def _opened(
    committed: CommittedState, stages: Sequence[_Shown], directory: str | Path | None, local_state_dir: str | Path | None
) -> duckdb.DuckDBPyConnection:
    with tempfile.TemporaryDirectory(prefix="zset_join-state-", dir=directory) as scratch:
        path = str(Path(scratch) / "state.duckdb")
        with duckdb.connect(path, config=dict(_CLOSED_BOX)) as filling:
            filling.execute(
                "CREATE TABLE main.about (view VARCHAR, stage VARCHAR, side VARCHAR, stream VARCHAR, query_id VARCHAR, "
                "epoch BIGINT, buckets BIGINT, rows BIGINT)"
            )
            filling.execute("CREATE SCHEMA held")
            for stage in stages:
                _fill(filling, committed, stage, str(Path(scratch) / "mapped"))
            if local_state_dir is not None:
                _fill_cold(filling, Path(local_state_dir) / committed.files.query_id)
        connection = duckdb.connect(path, read_only=True, config=dict(_CLOSED_BOX))
        for setting in ("enable_external_access = false", "lock_configuration = true"):
            connection.execute(f"SET GLOBAL {setting}")
        return connection  # the file loses its name here, and lives as long as it is open


def _fill_cold(filling: duckdb.DuckDBPyConnection, home: Path) -> None:
    """Make the view of the runs that DuckDB files of cold rows hold."""
    filling.execute("CREATE TABLE held.cold (stage VARCHAR, bucket BIGINT, store VARCHAR, run VARCHAR, pages BIGINT)")
    filling.execute("CREATE VIEW main.cold AS SELECT * FROM held.cold")
    for path in sorted(home.glob(f"*/state/cold/{COLD_FILE}")):
        place = path.parents[2]
        lock = lock_file(place / "lock")
        if lock is None:
            continue
        try:
            stage, _, bucket = place.name.rpartition("-")
            filling.execute(f"ATTACH {quoted_text(str(path))} AS attached (READ_ONLY)")
            try:
                named = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'attached' ORDER BY ALL"
                for store, run in filling.execute(named).fetchall():
                    pages = f"(SELECT count(*) FROM attached.{quote(store)}.{quote(run)})"
                    about = [stage, int(bucket), store.partition("#")[0], run]
                    filling.execute(f"INSERT INTO held.cold SELECT ?, ?, ?, ?, {pages}", about)
            finally:
                filling.execute("DETACH attached")
        finally:
            lock.release()


def _fill(filling: duckdb.DuckDBPyConnection, committed: CommittedState, stage: _Shown, mapped: str) -> None:
    operator = stage.build(None)
    empty = {name: table.slice(0, 0) for name, table in _state_of(operator).items()}
    relations = [operator.inputs[0 if side is None or stage.stage.forwards else side] for _, side in stage.tables.values()]
    operator.close()
    for (name, (view, _)), relation in zip(stage.tables.items(), relations, strict=True):
        _make_views(filling, view, empty[name], relation, is_grouped=stage.is_grouped)
    for bucket in range(committed.buckets):
        history = committed.histories.get(f"{stage.name}/{bucket}")
        if stage.stage.emits_without_input and bucket == 0:  # where its one group is
            history = history or BucketHistory()
        tables = {} if history is None else _tables(committed, history, stage, f"{mapped}-{stage.name}-{bucket}")
        for name, table in tables.items():
            _insert(filling, stage.tables[name][0], table.select(empty[name].column_names), bucket)
    for (view, side), relation in zip(stage.tables.values(), relations, strict=True):
        rows = f"(SELECT count(*) FROM main.{quote(view)})"
        filling.execute(
            f"INSERT INTO main.about SELECT $view, $stage, $side, $stream, $query_id, $epoch, $buckets, {rows}",
            {
                "view": view,
                "stage": stage.name,
                "side": None if side is None else _SIDES[side],
                "stream": relation.name,
                "query_id": committed.files.query_id,
                "epoch": None if committed.last is None else committed.last.epoch,
                "buckets": committed.buckets,
            },
        )


def _tables(committed: CommittedState, history: BucketHistory, stage: _Shown, directory: str) -> Mapping[str, pa.Table]:
    """Return the rows of one bucket after the last epoch."""
    held = None if history.snapshot is None else read_snapshot(committed.files, history.snapshot)
    if held is not None and not history.logs and not stage.is_grouped:
        return held
    Path(directory).mkdir()
    operator = stage.build(directory)
    try:
        if held is not None:
            operator.restore(held)
        schemas = [relation.schema for relation in operator.inputs]
        for log in history.logs:
            for logged in read_log(committed.files, log, schemas=schemas):
                operator.absorb(logged.tick, logged.deltas)
        return _state_of(operator)
    finally:
        operator.close()


def _state_of(operator: DurableOperator) -> dict[str, pa.Table]:
    """Return the state of an operator, as tables: of an aggregate the groups as they were answered last."""
    if not isinstance(operator, _ShowsGroups):
        return dict(operator.snapshot())
    field = pa.field(_GROUP_ROWS, pa.int64())
    chunks = operator.held() if operator.absorbed_epoch >= 0 or not operator.output.primary_key else iter(())
    batches = [chunk.rows.append_column(field, pa.array(chunk.weights)) for chunk in chunks]
    return {"groups": pa.Table.from_batches(batches, operator.output.schema.append(field))}


def _make_views(
    filling: duckdb.DuckDBPyConnection, view: str, empty: pa.Table, relation: Relation, *, is_grouped: bool
) -> None:
    """Make the table of one side or of the groups of an aggregate, with numbered columns, and the views over it."""
    stream = relation.name
    names = [*empty.column_names, _BUCKET]
    twice = sorted({name for name in names if [other.lower() for other in names].count(name.lower()) > 1})
    if twice:
        raise StateError(
            f'the columns {twice} of "{stream}" differ only by case, and DuckDB treats them as one; its state cannot be shown.',
            code="STATE_COLUMNS",
            stream=stream,
            columns=twice,
        )
    held = f"held.{quote(view)}"
    filling.register(_ROWS, _numbered(empty, 0))
    try:
        filling.execute(f"CREATE TABLE {held} AS SELECT * FROM {_ROWS}")
    except (duckdb.Error, pa.ArrowNotImplementedError) as error:
        types = {field.name: str(field.type) for field in empty.schema}
        raise StateError(
            f'DuckDB has no type for a column of "{stream}" ({error}); its state cannot be shown. The columns: {types}.',
            code="STATE_COLUMNS",
            stream=stream,
        ) from error
    finally:
        filling.unregister(_ROWS)
    if is_grouped:
        filling.execute(f"CREATE VIEW main.{quote(view)} AS SELECT {_listed(list(enumerate(names)))} FROM {held}")
        return
    internal = (SNAPSHOT_WATERMARK, SNAPSHOT_DEGREE)
    shown = [(at, name) for at, name in enumerate(names) if name not in internal and not name.startswith(SNAPSHOT_SEQUENCE)]
    if SNAPSHOT_WEIGHT not in names:
        filling.execute(f"CREATE VIEW main.{quote(view)} AS SELECT {_listed(shown)} FROM {held}")
        return
    weight = f"c{names.index(SNAPSHOT_WEIGHT)}"
    filling.execute(f"CREATE VIEW main.{quote(view)} AS SELECT {_listed(shown)} FROM {held} WHERE {weight} > 0")
    if relation.sequence_by:
        gone = [(at, name) for at, name in shown if name != SNAPSHOT_WEIGHT]
        gone.append((names.index(SNAPSHOT_WATERMARK), SNAPSHOT_WATERMARK))
        filling.execute(f"CREATE VIEW main.{quote(f'{view}_deleted')} AS SELECT {_listed(gone)} FROM {held} WHERE {weight} = 0")


def _listed(columns: list[tuple[int, str]]) -> str:
    return ", ".join(f"c{at} AS {quote(name)}" for at, name in columns)


def _insert(filling: duckdb.DuckDBPyConnection, view: str, table: pa.Table, bucket: int) -> None:
    filling.register(_ROWS, _numbered(table, bucket))
    filling.execute(f"INSERT INTO held.{quote(view)} SELECT * FROM {_ROWS}")
    filling.unregister(_ROWS)


def _numbered(table: pa.Table, bucket: int) -> pa.Table:
    """Return the rows with their bucket, and columns that no name of a user meets."""
    whole = table.append_column(_BUCKET, pa.repeat(pa.scalar(bucket, pa.int32()), table.num_rows))
    return whole.rename_columns([f"c{at}" for at in range(whole.num_columns)])
