"""Baselines: a bounded snapshot of a table, loaded in bulk before its stream.

The law: what epoch 0 answers is the join of the baselines and of the stream's first rows, in one commit; later epochs
never look at a baseline again, whatever happens. The same protocol as for every epoch covers a crash: until epoch 0
is committed the baseline is read again, afterwards it is not.

A stream usually overlaps its snapshot: some of its changes are in the snapshot already.

| the stream has | an overlap is resolved by | needed |
|---|---|---|
| keys and `sequence_by` | the larger sequence, as between any two changes of one key | nothing |
| keys alone | arrival: first the baseline, then the stream, older rows included, until it has caught up | nothing |
| no keys, or only appends | nothing: a change that arrives twice counts twice | `after_baseline`: which changes are not in it |

A baseline without the column that names what a row does (`apply_as_deletes`, `weight_column`, `row_kind_column`) has live rows
only; with it, the column counts.

Epoch 0 must also come when no stream has a row yet. A query with a baseline therefore reads one more streaming source, a
directory with one empty file (`<checkpointLocation>/zset/start`), which is new once and for all in epoch 0. It stays part
of the query, because Spark counts the sources of a checkpoint.

Memory: as for any epoch, a bucket's part of the baseline at once.

Limits: a baseline is read by the tasks of one job. If it changes meanwhile and a task is tried again, the attempts see
different rows: name a version of it, or write it to a table first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import ByteType, DataType, DoubleType, FloatType, IntegerType, LongType, ShortType

from zset_join.checkpoint.reading import START_FILE, checkpoint_folder, has_commits, reads_start, stored_description
from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.relation import ChangelogMode
from zset_join.runners.spark.frames.facts import reader_of
from zset_join.storage.folder import is_local, local_path

__all__ = [
    "NULL_AFTER_BASELINE",
    "check_baseline",
    "check_overlap",
    "has_baseline",
    "has_start",
    "in_types_of",
    "make_start",
    "needs_start",
    "resolve_baselines",
    "union",
    "used_columns",
    "with_made_start",
    "with_start",
]

NULL_AFTER_BASELINE = "NULL_AFTER_BASELINE"
_WIDTHS: Mapping[type[DataType], int] = {ByteType: 1, ShortType: 2, IntegerType: 4, LongType: 8}


def check_overlap(name: str, mode: ChangelogMode, baseline: Any, after_baseline: Any) -> None:
    """Refuse a combination that could count a change twice, or means nothing."""
    if baseline is None and after_baseline is not None:
        raise OptionError(
            f'"{name}": after_baseline selects the changes that are not in the baseline, and no baseline is given. Pass '
            "baseline=..., or filter the stream with where(...).",
            code="BASELINE_MISSING",
            name=name,
        )
    if baseline is not None and after_baseline is None and mode != "upsert":
        raise OptionError(
            f'"{name}": a stream in {mode} mode with a baseline needs after_baseline: a change that is in the baseline and '
            "in the stream would count twice, and no row shows it. Pass the condition that is true for the changes "
            'after the baseline, such as after_baseline="_commit_version > 17"; pass after_baseline="true" when the stream '
            "begins exactly where the baseline ends.",
            code="BASELINE_OVERLAP",
            name=name,
            mode=mode,
        )


def check_baseline(baseline: Any, name: str, needed: Sequence[str]) -> None:
    """Reject anything but a batch DataFrame with the needed columns."""
    if not isinstance(baseline, DataFrame) or baseline.isStreaming:
        what = "streams" if isinstance(baseline, DataFrame) else f"is a {type(baseline).__name__}"
        raise OptionError(
            f'"{name}": the baseline {what}; expected a batch DataFrame such as spark.read.parquet(...) gives.',
            code="BASELINE",
            name=name,
        )
    missing = [column for column in needed if column not in baseline.columns]
    if missing:
        raise PlanError(
            f'"{name}": the baseline lacks the columns {missing}; it has {baseline.columns}. It needs the columns of the '
            "table and those of sequence_by. Where a snapshot has no sequence of its own, add the one as of which it was "
            'taken: withColumn("...", lit(...)).',
            code="BASELINE_COLUMNS",
            name=name,
            missing=missing,
        )


def in_types_of(stream: DataFrame, baseline: DataFrame, name: str) -> DataFrame:
    """Return a prepared baseline with the types of the prepared stream; narrower numbers are widened."""
    columns = []
    for wanted, given in zip(stream.schema, baseline.schema, strict=True):
        is_same = wanted.dataType.simpleString() == given.dataType.simpleString()
        if not is_same and not _is_wider(given.dataType, wanted.dataType):
            raise PlanError(
                f'"{name}": column "{given.name}" of the baseline has type {given.dataType.simpleString()}, in the stream '
                f"{wanted.dataType.simpleString()}. Cast it in the baseline.",
                code="BASELINE_TYPE",
                name=name,
                column=given.name,
            )
        column = F.col("`" + given.name.replace("`", "``") + "`")
        columns.append(column if is_same else column.cast(wanted.dataType).alias(given.name))
    return baseline.select(*columns)


def used_columns(df: DataFrame, expression: Column) -> frozenset[str]:
    """Return the columns of a DataFrame that an expression reads."""
    return reader_of(df.sparkSession).used_columns(df, expression)


def has_baseline(description: Mapping[str, Any] | None) -> bool:
    """Return whether a stream has a baseline in the description of a query."""
    return description is not None and any(one.get("baseline") for one in description.get("inputs", ()))


def resolve_baselines(
    given: Mapping[str, Any], stored: Mapping[str, Any] | None, *, is_loaded: bool, is_draft: bool = False
) -> Mapping[str, Any]:
    """Return the description under which a query continues: once loaded, a baseline need not be given again."""
    # Streams are paired by name.
    if stored is None:
        return given
    named = {one.get("name"): one for one in stored.get("inputs", ())}
    pairs = [(now, named.get(now["name"], {})) for now in given["inputs"]]
    return {**given, "inputs": [_resolved(now, then, is_loaded=is_loaded, is_draft=is_draft) for now, then in pairs]}


def _resolved(given: Mapping[str, Any], stored: Mapping[str, Any], *, is_loaded: bool, is_draft: bool) -> Mapping[str, Any]:
    """Return the description of a stream under which a query continues; one that is not stored is another query's."""
    if not stored:
        return given
    now, then, name = bool(given.get("baseline")), bool(stored.get("baseline")), given["name"]
    if is_draft:
        return {**given, **({"baseline": True} if then else {})}
    if now and not then:
        raise StateError(
            f'"{name}" is given a baseline, and the query of this checkpoint began without one; loaded now, its rows '
            "would come after changes that replace them. Leave baseline= out, or start with a new checkpointLocation "
            "and a new output.",
            code="BASELINE_TOO_LATE",
            name=name,
        )
    if then and not now and not is_loaded:
        raise StateError(
            f'the query of this checkpoint starts from a baseline of "{name}", which was not loaded completely. Give '
            "baseline= again, or start with a new checkpointLocation.",
            code="BASELINE_NOT_LOADED",
            name=name,
        )
    return {**given, **({"baseline": True} if then else {})}


def with_start(rows: DataFrame, location: str) -> DataFrame:
    """Add the source without rows that triggers epoch 0."""
    make_start(location)
    return with_made_start(rows, location)


def make_start(location: str) -> None:
    """Make the directory that `with_made_start` reads."""
    folder = checkpoint_folder(location)
    if not reads_start(folder):
        folder.put(START_FILE, b"")


def has_start(location: str) -> bool:
    """Return whether a query has read that source, which Spark's own files then name."""
    return reads_start(checkpoint_folder(location))


def needs_start(location: str, *, is_timed: bool) -> bool:
    """Return whether a query reads that source: its first epoch needs it, or Spark's own files name it."""
    # A stage that waits and came with a change of the query is no reason: Spark counts the sources of a checkpoint.
    has_it = has_start(location) or has_baseline(stored_description(location))
    return has_it or (is_timed and not has_commits(location))


def with_made_start(rows: DataFrame, location: str) -> DataFrame:
    """Add the source without rows that makes epoch 0 come, where its directory is present."""
    uri = uri_below(location, "zset/start")
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema]
    return rows.unionAll(rows.sparkSession.readStream.text(uri).select(*nothing).where(F.lit(False)))


def uri_below(location: str, name: str) -> str:
    """Return the URI, as Spark opens it, of a folder inside the one at a location: Spark decodes no character of it.

    >>> uri_below("/data/my cp", "zset/start"), uri_below("s3a://bucket/cp?x=1", "zset")
    ('file:///data/my cp/zset/start', 's3a://bucket/cp/zset')
    """
    return f"file://{local_path(location)}/{name}" if is_local(location) else f"{location.partition('?')[0].rstrip('/')}/{name}"


def union(frames: Iterable[DataFrame | None]) -> DataFrame | None:
    """Return the rows of those that are present; None when none is."""
    united: DataFrame | None = None
    for frame in frames:
        if frame is not None:
            united = frame if united is None else united.unionAll(frame)
    return united


def _is_wider(narrow: DataType, wide: DataType) -> bool:
    if isinstance(narrow, FloatType) and isinstance(wide, DoubleType):
        return True
    return _WIDTHS.get(type(narrow), 9) < _WIDTHS.get(type(wide), 0)
