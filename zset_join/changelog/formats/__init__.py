"""The ways in which systems write changes down: rows with a column for the kind of change, and records of JSON.

`rows` has the former, for reading and writing; `records` describes the latter, and `record_sql` is how they are read, in the
words that Spark and DuckDB share.
"""

from __future__ import annotations

from zset_join.changelog.formats.records import (
    METADATA,
    RECORD_FORMATS,
    RecordFormat,
    RecordOptions,
    is_record_format,
    record_format,
)
from zset_join.changelog.formats.rows import (
    CHANGE_FEED_COLUMN,
    CHANGE_TYPES,
    IMAGE,
    ROW_FORMATS,
    ROW_KINDS,
    SPELLINGS,
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogForm,
    ChangelogFormat,
    RecordForm,
    RowKindFormat,
    UpsertFormat,
    WeightFormat,
    feed_sequence,
    format_named,
    row_format_arguments,
)

__all__ = [
    "CHANGE_FEED_COLUMN",
    "CHANGE_TYPES",
    "IMAGE",
    "METADATA",
    "RECORD_FORMATS",
    "ROW_FORMATS",
    "ROW_KINDS",
    "SPELLINGS",
    "AppendFormat",
    "ChangeDataFeedFormat",
    "ChangelogForm",
    "ChangelogFormat",
    "RecordForm",
    "RecordFormat",
    "RecordOptions",
    "RowKindFormat",
    "UpsertFormat",
    "WeightFormat",
    "feed_sequence",
    "format_named",
    "is_record_format",
    "record_format",
    "row_format_arguments",
]
