"""Options of the command line for what a changed query does not show: columns of sources that change, and new outputs.

    --rename orders.total=amount --default orders.place=shop --new-table totals --undo-epochs 50

Values are texts, and spelled as a CAST of a text to the type of the column accepts them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zset_join.core.errors import OptionError

if TYPE_CHECKING:
    from zset_join.evolution.changed_columns import ChangeTerms

__all__ = ["add_change_options", "add_column_options", "change_terms", "row_values"]


def add_column_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for columns of sources that change."""
    parser.add_argument(
        "--rename", action="append", default=[], metavar="SOURCE.OLD=NEW", help="a column of a source is renamed"
    )
    parser.add_argument(
        "--default", action="append", default=[], metavar="SOURCE.COLUMN=VALUE", help="value of an added column in stored rows"
    )
    parser.add_argument(
        "--reread",
        action="append",
        default=[],
        metavar="SOURCE=PLACE",
        help="read a source once more for columns that no state has: a file, FILE.duckdb:TABLE, postgresql://...:TABLE",
    )
    parser.add_argument(
        "--as-now",
        action="store_true",
        help="build stages whose answer depends on arrival, such as state_ttl, as if all stored rows arrived now",
    )


def add_change_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--new-table",
        action="append",
        default=[],
        nargs="?",
        const="",
        metavar="VIEW",
        help="the next start gives this view (or the only one) new outputs; they receive all its rows",
    )


def change_terms(options: argparse.Namespace) -> ChangeTerms:
    from zset_join.evolution.changed_columns import ChangeTerms, ColumnWords

    words = ColumnWords(renamed=_by_source("--rename", options.rename), defaults=_by_source("--default", options.default))
    return ChangeTerms(words=words, reread=_reread_places(options), as_now=options.as_now)


def _reread_places(options: argparse.Namespace) -> dict[str, str]:
    """Return where sources are read again, by their names."""
    found = {}
    for one in options.reread:
        name, equals, place = one.partition("=")
        if not (equals and name and place):
            raise OptionError(
                f"--reread {one!r} is not spelled SOURCE=PLACE, such as orders=orders.parquet.",
                code="ARGUMENT",
                option="--reread",
                value=one,
            )
        found[name] = place
    return found


def _by_source(option: str, given: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for one in given:
        column, equals, value = one.partition("=")
        source, dot, name = column.rpartition(".")
        if not (equals and dot and source and name):
            raise OptionError(
                f"{option} {one!r} is not spelled SOURCE.COLUMN=VALUE, such as orders.total=amount.",
                code="ARGUMENT",
                option=option,
                value=one,
            )
        found.setdefault(source, {})[name] = value
    return found


def row_values(values: Sequence[str], schema: pa.Schema) -> Mapping[str, Any]:
    """Return COLUMN=VALUE arguments as values of the columns; an empty value is NULL."""
    row: dict[str, Any] = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError(f"{text!r}: expected COLUMN=VALUE.", code="ROW_QUESTION", value=text)
        if name not in schema.names or not value:
            row[name] = None
            continue
        kind = schema.field(name).type
        try:
            row[name] = pa.scalar(value).cast(kind).as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise OptionError(f"{text!r}: {error}", code="ROW_QUESTION", value=text) from error
    return row
