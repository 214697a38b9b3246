"""The ways in which a row of a changelog shows its kind of change.

| format                 | column holds                                         | as input                           |
|------------------------|------------------------------------------------------|------------------------------------|
| `AppendFormat`         | nothing                                              | every row +1                       |
| `UpsertFormat`         | whether a row is a delete                            | +1, or -1 for a delete             |
| `WeightFormat`         | how many copies come or go                           | the weight itself; 0 is no change  |
| `RowKindFormat`        | +I -U +U -D, or another spelling of them             | +1 -1 +1 -1                        |
| `ChangeDataFeedFormat` | insert update_preimage update_postimage delete       | +1 -1 +1 -1                        |

A relation in upsert mode ignores -U and update_preimage: its primary key identifies the row an update replaces. The exception
is a change feed (`_change_type`) whose commits are ordered by a sequence: rows of one commit are in no order, and an update may
change
the key. There a preimage is a delete, and the hidden column `IMAGE`, the last one of the sequence, lets a commit's
inserts win over its deletes.

The same formats serve for reading (`decoding`) and for writing (`encoding`). Outputs offer three of them by name, as a
`ChangelogForm`: `weight` (`_weight`), `row_kind` (`_row_kind`) and `change_data_feed` (`_change_type`, `_commit_version`,
`_commit_timestamp`).

Source: RowKind of Flink, the change data feed of Delta and Spark 4.2, `apply_as_deletes` of `create_auto_cdc_flow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from zset_join.core.errors import OptionError, PlanError

__all__ = [
    "CHANGE_FEED_COLUMN",
    "CHANGE_TYPES",
    "IMAGE",
    "ROW_FORMATS",
    "ROW_KINDS",
    "SPELLINGS",
    "AppendFormat",
    "ChangeDataFeedFormat",
    "ChangelogForm",
    "ChangelogFormat",
    "RecordForm",
    "RowKindFormat",
    "UpsertFormat",
    "WeightFormat",
    "feed_sequence",
    "format_named",
    "row_format_arguments",
]

# Row kinds are numbered as in Flink: insert, update before, update after, delete.
ROW_KINDS = ("+I", "-U", "+U", "-D")
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
CHANGE_FEED_COLUMN = "_change_type"
"""A column of row kinds of this name is that of a change feed, whose commits have no order inside."""
IMAGE = "__image"
"""The hidden column that orders the rows of one commit of a change feed: old image (0), delete (1), row that arrives (2)."""
SPELLINGS = {
    **dict.fromkeys(("+I", "I", "INSERT"), 0),
    **dict.fromkeys(("-U", "UB", "UPDATE_BEFORE", "UPDATE_PREIMAGE"), 1),
    **dict.fromkeys(("+U", "U", "UA", "UPDATE_AFTER", "UPDATE_POSTIMAGE"), 2),
    **dict.fromkeys(("-D", "D", "DELETE"), 3),
}


@dataclass(frozen=True, slots=True)
class AppendFormat:
    """Plain rows: each one is an insert, or an upsert of an upsert relation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertFormat:
    """A column that marks deletes; every other row is an upsert.

    Args:
        column: its name. As a boolean, TRUE is a delete; written by `encode` it is a boolean.
        deletes: values of a column of another type that are deletes.
        upserts: values that are upserts; None means all others, NULL excepted.

    >>> UpsertFormat(column="op", deletes=("d",), upserts=("c", "r", "u")).deletes
    ('d',)
    """

    column: str = "_deleted"
    deletes: tuple[Any, ...] = ("d", "D", "delete", "DELETE")
    upserts: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        both = set(self.deletes) & set(self.upserts or ())
        if not self.deletes or both:
            raise OptionError(
                f"deletes={list(self.deletes)} of column {self.column!r} must name at least one value, and none that "
                f"is among upserts={list(self.upserts or ())}.",
                code="DELETE_VALUES",
                column=self.column,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """An integer column with the number of copies of the row that arrive (positive) or go (negative).

    Args:
        column: its name, such as `_tp_delta`.
    """

    column: str = "_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKindFormat:
    """A column of row kinds.

    Args:
        column: its name. Read as text (`+I -U +U -D`, Flink's `I UB UA D`, `INSERT UPDATE_BEFORE UPDATE_AFTER
            DELETE`, the names of the change data feed; case and blanks around do not matter), or as Flink's bytes,
            0 to 3 in the same order.
    """

    column: str = "row_kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDataFeedFormat:
    """The columns of Spark's and Delta's change data feed.

    Args:
        column: name of the change type: insert, update_preimage, update_postimage or delete.
        version_column: name of the column that `encode` fills with the epoch; not read.
        timestamp_column: name of the column that `encode` fills with the time of the epoch; not read. None: no column.
    """

    column: str = "_change_type"
    version_column: str = "_commit_version"
    timestamp_column: str | None = None


ChangelogFormat: TypeAlias = AppendFormat | UpsertFormat | WeightFormat | RowKindFormat | ChangeDataFeedFormat
ChangelogForm: TypeAlias = Literal["weight", "row_kind", "change_data_feed"]
RecordForm: TypeAlias = Literal["upsert", "weight", "row_kind", "change_data_feed", "debezium", "append"]
"""The forms of records of JSON, see `zset_join.sinks.record_texts`."""

_FORMS: Mapping[str, ChangelogFormat] = {
    "weight": WeightFormat(),
    "row_kind": RowKindFormat(column="_row_kind"),
    "change_data_feed": ChangeDataFeedFormat(timestamp_column="_commit_timestamp"),
}


def feed_sequence(name: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the column that orders the commits of a change feed."""
    version = "_commit_version"
    if version in columns:
        return (version,)
    raise PlanError(
        f'changes "{name}": the rows of one commit of a change feed come in no order, so arrival cannot decide what stays. '
        f'Name the column that orders the commits, as in sequence_by="{version}"; the columns are {list(columns)}.',
        code="FEED_SEQUENCE",
        name=name,
    )


def format_named(form: str) -> ChangelogFormat:
    """Return the format that outputs call by a name.

    Raises:
        OptionError: no form has this name.

    >>> format_named("row_kind")
    RowKindFormat(column='_row_kind')
    """
    if form not in _FORMS:
        raise OptionError(f"form={form!r} is unknown; use one of {', '.join(_FORMS)}.", code="FORM", form=form)
    return _FORMS[form]


ROW_FORMATS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "change-data-feed": ("row_kind_column", ("_change_type",), ("_commit_version", "_commit_timestamp")),
    "row-kind": ("row_kind_column", ("row_kind", "_row_kind"), ()),
    "weight": ("weight_column", ("_weight",), ()),
    "tp-delta": ("weight_column", ("_tp_delta",), ()),
}
"""Formats of rows: the argument they represent, the columns it may be, and columns that are none of the table."""


def row_format_arguments(name: str, format_name: str, columns: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `changes` that a format of rows represents.

    >>> rows = ["id", "_change_type", "_commit_version"]
    >>> given = {"keys": ["id"], "sequence_by": None, "column_list": None, "except_column_list": None}
    >>> arguments = row_format_arguments("orders", "change-data-feed", rows, given)
    >>> arguments["row_kind_column"], arguments["sequence_by"], arguments["except_column_list"]
    ('_change_type', '_commit_version', ['_commit_version'])
    """
    argument, candidates, apart = ROW_FORMATS[format_name]
    column = next((one for one in candidates if one in columns), None)
    if column is None:
        raise PlanError(
            f'changes "{name}": format="{format_name}" expects a column {" or ".join(candidates)}; there are {list(columns)}.',
            code="UNKNOWN_COLUMN",
            name=name,
            missing=list(candidates),
        )
    arguments = {**given, argument: column}
    if given["sequence_by"] is None and given["keys"] and apart and apart[0] in columns:
        arguments["sequence_by"] = apart[0]
    if given["column_list"] is None:
        arguments["except_column_list"] = [*(given["except_column_list"] or ()), *(one for one in apart if one in columns)]
    return arguments
