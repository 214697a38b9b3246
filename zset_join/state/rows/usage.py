"""Usage checks of every operator: inputs, directory and its files, tables to restore, and that it is open.

The law: wrong use is an error with a code and the operator's own words, before anything is changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = ["check_deltas", "check_same_epoch", "check_tables", "closed", "make_directory"]


def check_deltas(operator: str, inputs: Sequence[Relation], deltas: Sequence[ZSet]) -> None:
    if len(deltas) != len(inputs):
        raise PlanError(
            f"{operator} has {len(inputs)} inputs ({', '.join(relation.name for relation in inputs)}) and was given "
            f"{len(deltas)} deltas; give one for each, in this order, an empty one without changes.",
            code="DELTA_COUNT",
            inputs=[relation.name for relation in inputs],
            deltas=len(deltas),
        )


def check_same_epoch(epochs: Iterable[int], directory: str | None) -> None:
    """Refuse local state whose parts were absorbed up to different epochs: the process that wrote it died in between."""
    distinct_epochs = list(dict.fromkeys(epochs))
    if len(distinct_epochs) > 1:
        raise StateError(
            f"the parts of the local state in {directory} are at epochs {' and '.join(map(str, distinct_epochs))}. It is a "
            "cache: delete the directory and it is rebuilt from the checkpoint.",
            code="STATE_HALF_WRITTEN",
            directory=directory,
        )


def check_tables(
    operator: str, wanted: Mapping[str, Sequence[str]], tables: Mapping[str, pa.Table | pa.RecordBatchReader]
) -> None:
    for name, columns in wanted.items():
        missing = ["all of it"] if name not in tables else [one for one in columns if one not in tables[name].schema.names]
        if missing:
            raise StateError(
                f"{operator} is restored from the tables {sorted(wanted)} of its snapshot(); table {name!r} lacks "
                f"{', '.join(missing)}. Give what snapshot() of the same operator returned.",
                code="SNAPSHOT_TABLES",
                table=name,
                missing=missing,
            )


def closed(operator: str) -> StateError:
    return StateError(
        f"{operator} was closed; make a new one, which resumes from the same directory.",
        code="OPERATOR_CLOSED",
        operator=operator,
    )


def make_directory(directory: str | None) -> None:
    if directory is None:
        return
    try:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - a directory is given as text
    except OSError as error:
        raise OptionError(
            f"directory={directory!r} cannot be made: {error}. Give a directory where this process may write.",
            code="DIRECTORY",
            directory=directory,
        ) from error
