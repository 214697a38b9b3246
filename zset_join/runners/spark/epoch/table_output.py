"""A table of a catalog of the session: a view that MERGE keeps, or a changelog that grows.

| | the epoch reaches the table by | the last epoch may come again |
|---|---|---|
| a view (`form=None`) | one MERGE by key | its lines set or delete whole rows |
| a changelog, in a format with commits (Delta, Iceberg) | one INSERT | unless rows with its `_epoch` are present |
| a changelog, in files (Parquet, ORC) | INSERT OVERWRITE of the partition `_epoch` | it replaces its own rows |

The law: after `write(epoch)` the table holds the answers of all epochs up to it, each once. Its position (query, epoch, chain)
is in the properties of the table, set behind the rows: it is at most one epoch behind them, and this epoch is written again.

Ties and edge cases: keys are equal as by `<=>` (NULL = NULL, NaN = NaN, 0.0 = -0.0). Two live rows of one key are refused when
they come in one epoch. In files, readers may see part of an epoch while it is written.

Memory: the lines of an epoch. Cost: per epoch two statements of the session, and a new version of the table's properties.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns go through `quoted`, the table is the user's own text.

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from zset_join.changelog import ChangelogForm, ChangelogFormat, UpsertFormat, encode, encoded_schema, format_named
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, PlanError, SinkError
from zset_join.core.relation import Relation
from zset_join.runners.spark.epoch.outputs import SinkOutput, weighted
from zset_join.runners.spark.rows.names import first_line, literal, quoted
from zset_join.runners.spark.rows.schemas import refuse_collations, spark_schema
from zset_join.sinks.sink import SinkProgress, check_chunk, check_output, is_same_epoch, newest_digests
from zset_join.zset import ZSet

__all__ = ["EPOCH", "TableOutput", "TableSink", "table_sink"]

EPOCH = "_epoch"
"""Column of a changelog that holds the epoch of a row."""
_PROPERTY = "zset_join.position"
_OF_FILES = frozenset({"parquet", "orc", "csv", "json", "avro", "text", "xml", "hive"})
"""Formats without commits: no MERGE, and an INSERT may be there in part."""
_DIGESTS = 20
"""Digests that are kept: a catalog in Hive takes properties of 4,000 characters."""


class TableSink:
    """Write every epoch to a table of a catalog."""

    def __init__(self, name: str, form: ChangelogForm | None, key: Sequence[str] | None, format: str | None) -> None:  # noqa: A002
        self.name = name
        self.form = form
        self.session: SparkSession | None = None
        self._wanted_key = None if key is None else tuple(key)
        self._wanted_format = format
        self._shape: ChangelogFormat = UpsertFormat(column="_deleted") if form is None else format_named(form)
        self._rows: pa.Schema | None = None
        self._is_certain = False

    def __repr__(self) -> str:
        return f"table {self.name} ({'view' if self.form is None else self.form})"

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "session": None}

    def open(self, output: Relation, query_id: str) -> None:
        check_output(repr(self), output)
        self._key = output.primary_key if self._wanted_key is None else self._wanted_key
        self._check_key(output)
        stored = encoded_schema(output.schema, self._shape)
        if EPOCH in stored.names and self.form is not None:
            raise PlanError(
                f'{self!r}: the rows have a column "{EPOCH}", which holds the epoch; rename it in the query.',
                code="DUPLICATE_COLUMN",
                columns=[EPOCH],
            )
        schema = spark_schema(output.schema if self.form is None else pa.schema([*stored, (EPOCH, pa.int64())]))
        columns = [(one.name, one.dataType.simpleString()) for one in schema]
        self._query_id = query_id
        with self._failures("opened"):
            if not self._session.catalog.tableExists(self.name):
                self._make(columns)
            self._attach(columns)
        self._rows, self._is_certain = output.schema, False

    def last_epoch(self) -> int | None:
        return self._position()[0]

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        last, digests = self._position()
        return is_same_epoch(repr(self), last, digests.get, epoch, link)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = time.perf_counter()
        if self._rows is None:
            raise SinkError(f"{self!r} is closed; call open first.", code="SINK_CLOSED", table=self.name)
        with self._failures(f"written in epoch {epoch}"):
            last, digests = self._position()
            if is_same_epoch(repr(self), last, digests.get, epoch, link):
                return SinkProgress(epoch, 0, 0, time.perf_counter() - started, replayed=True)
            is_certain, self._is_certain = self._is_certain, False
            delta = ZSet.concat(self._checked(epoch, chunks, self._rows), schema=self._rows)
            lines = encode(delta, self._key, self._shape, epoch=epoch, committed_at_us=time.time_ns() // 1000)
            if self.form is None:
                self._merge(lines)
            else:
                self._append(lines, epoch, may_be_there=not is_certain)
            self._keep_position(epoch, newest_digests(digests, epoch, link))
            self._is_certain = True
        return SinkProgress(epoch, lines.num_rows, int((delta.weights < 0).sum()), time.perf_counter() - started)

    def contents(self, session: SparkSession) -> DataFrame:
        """Return the rows of the table, of a changelog with `_weight`."""
        rows = session.table(self.name)
        return rows if self.form is None else weighted(rows.drop(EPOCH), self.form)

    def close(self) -> None:
        self._rows = None

    @property
    def _session(self) -> SparkSession:
        return self.session or SparkSession.active()

    def _check_key(self, output: Relation) -> None:
        if self.form is not None:
            self._key = output.primary_key
            return
        missing = [name for name in self._key if name not in output.schema.names]
        if missing or not self._key:
            raise PlanError(
                f"{self!r} is kept by MERGE, which needs a key among the columns {output.schema.names}, and has "
                f'{list(self._key) or "none"}. Pass key=[...], the columns that identify a row, or form="weight" for a '
                "changelog.",
                code="UNKNOWN_COLUMN" if missing else "MISSING_PRIMARY_KEY",
                missing=missing,
            )
        refuse_collations(output.schema, self._key, relation=output.name, use="a key of a table")

    def _checked(self, epoch: int, chunks: Iterable[ZSet], rows: pa.Schema) -> Iterator[ZSet]:
        for chunk in chunks:
            check_chunk(repr(self), epoch, rows, chunk)
            yield chunk

    # -- statements -----------------------------------------------------------------------------------------------------

    def _make(self, columns: Sequence[tuple[str, str]]) -> None:
        kind = (self._wanted_format or self._session.conf.get("spark.sql.sources.default") or "").lower()
        if self.form is None and self._wanted_format is not None:
            self._check_format(kind)
        declared = ", ".join(f"{quoted(name)} {of_spark}" for name, of_spark in columns)
        using = "" if self._wanted_format is None else f" USING {self._wanted_format}"
        parted = f" PARTITIONED BY ({quoted(EPOCH)})" if self.form is not None and kind in _OF_FILES else ""
        self._session.sql(f"CREATE TABLE {self.name} ({declared}){using}{parted}")

    def _attach(self, columns: Sequence[tuple[str, str]]) -> None:
        """Check the owner of the table, and claim it if it has none and is empty."""
        described = self._session.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        self._format = next((str(row[1]).lower() for row in described if row[0] == "Provider"), "")
        if self.form is None:
            self._check_format(self._format)
        table = self._session.table(self.name)
        found = [(one.name, one.dataType.simpleString()) for one in table.schema]
        if found != [*columns]:
            raise SinkError(
                f"{self!r} has the columns {found}, and the query writes {[*columns]}. Start a new table and a new "
                "checkpointLocation, or restore the query.",
                code="SINK_SCHEMA",
                table=self.name,
                found=found,
                expected=[*columns],
            )
        stored = self._property()
        if stored is None:
            if not table.isEmpty():
                raise SinkError(
                    f"{self!r} has rows, and none of them were written here. Choose another name, or an empty table.",
                    code="SINK_NAME_TAKEN",
                    table=self.name,
                )
            self._keep_position(None, {})
        elif stored["query"] != self._query_id or stored["form"] != self.form:
            raise SinkError(
                f"{self!r} belongs to the query {stored['query']} (form {stored['form']}), and this one is {self._query_id}. "
                "Write elsewhere, or drop the table to start over.",
                code="SINK_QUERY_ID",
                table=self.name,
                found=stored["query"],
                expected=self._query_id,
            )

    def _check_format(self, kind: str) -> None:
        if kind in _OF_FILES:
            raise SinkError(
                f'{self!r}: a table of format "{kind}" has no MERGE, which keeps a view. Take a format that has it, such as '
                'format="delta" or format="iceberg" in a session with its catalog; or form="weight" for a changelog.',
                code="SINK_FEATURES",
                table=self.name,
                format=kind,
            )

    def _merge(self, lines: pa.RecordBatch) -> None:
        if not lines.num_rows:
            return
        columns = [quoted(name) for name in lines.schema.names[:-1]]
        gone = f"s.{quoted(lines.schema.names[-1])}"
        same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in self._key)
        with self._named(lines) as source:
            self._session.sql(
                f"MERGE INTO {self.name} AS t USING {source} AS s ON {same} WHEN MATCHED AND {gone} THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
                f"WHEN NOT MATCHED AND NOT {gone} THEN INSERT ({', '.join(columns)}) "
                f"VALUES ({', '.join(f's.{name}' for name in columns)})"
            ).collect()

    def _append(self, lines: pa.RecordBatch, epoch: int, *, may_be_there: bool) -> None:
        columns = ", ".join(quoted(name) for name in lines.schema.names)
        of_files = self._format in _OF_FILES
        if not lines.num_rows and not (of_files and may_be_there):
            return
        if not of_files and may_be_there:
            there = self._session.sql(f"SELECT 1 FROM {self.name} WHERE {quoted(EPOCH)} = {epoch} LIMIT 1")
            if there.collect():
                return
        with self._named(lines) as source:
            if of_files:
                to = f"INSERT OVERWRITE TABLE {self.name} PARTITION ({quoted(EPOCH)} = {epoch}) SELECT {columns} FROM {source}"
            else:
                to = f"INSERT INTO {self.name} SELECT {columns}, CAST({epoch} AS BIGINT) FROM {source}"
            self._session.sql(to).collect()

    @contextmanager
    def _named(self, lines: pa.RecordBatch) -> Iterator[str]:
        """Give lines a name that statements of the session can use."""
        name = f"zset_join_lines_{uuid.uuid4().hex}"
        schema, make = spark_schema(lines.schema), self._session.createDataFrame
        frame = make(pa.Table.from_batches([lines]), schema) if lines.num_rows else make([], schema)
        frame.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._session.catalog.dropTempView(name)

    def _property(self) -> dict[str, object] | None:
        rows = self._session.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        text = next((row[1] for row in rows if row[0] == _PROPERTY), None)
        return None if text is None else cast("dict[str, object]", json.loads(text))

    def _position(self) -> tuple[int | None, dict[int, str]]:
        stored = self._property() or {}
        digests = cast("Mapping[str, str]", stored.get("chain", {}))
        return cast("int | None", stored.get("epoch")), {int(epoch): digest for epoch, digest in digests.items()}

    def _keep_position(self, epoch: int | None, digests: Mapping[int, str]) -> None:
        kept = dict(sorted(digests.items())[-_DIGESTS:])
        position = {"query": self._query_id, "form": self.form, "epoch": epoch, "chain": kept}
        text = literal(json.dumps(position))
        self._session.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_PROPERTY}' = {text})").collect()

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            raise SinkError(
                f"{self!r} cannot be {what}: {first_line(error)}. Check the name, the catalog, and whether the format of the "
                "table can do that.",
                code="SINK_IO",
                table=self.name,
            ) from error


class TableOutput(SinkOutput):
    """Write the answers of executors to a table of a catalog."""

    def __init__(self, sink: TableSink) -> None:
        super().__init__(sink)
        self._table = sink

    @override
    def contents(self, session: SparkSession) -> DataFrame | None:
        return self._table.contents(session)


def table_sink(
    name: str,
    form: ChangelogForm | None = None,
    key: Sequence[str] | None = None,
    format: str | None = None,  # noqa: A002 - as in PySpark
) -> TableSink:
    """Return a table of a catalog as a sink; see `JoinStreamWriter.toTable`."""
    if not str(name).strip() or isinstance(key, str) or (form is not None and key is not None):
        raise OptionError(
            f"toTable({name!r}, form={form!r}, key={key!r}): a table has a name, and a key is a list of "
            "columns, for a view alone.",
            code="SINK_OPTION",
            name=name,
            key=key,
        )
    return TableSink(name, form, key, format)
