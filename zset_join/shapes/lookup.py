"""Shape of a lookup join: keys, second input, output.

The second input of a lookup join, the *fetched* rows, has the columns of the external table, then the requested key
(`_zset_key_0`, ...) and `_zset_found`. A key that nothing was found for has one row, with `_zset_found` false and NULL
everywhere else, so that a requested key differs from one that was not.

They also carry the treatment of a miss (`RetryPolicy`), so that an epoch that is folded into the state after its options were
changed is folded as it was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.key_types import check_key_type, common_key_type, storage_type
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import cast_key, plain, take_rows
from zset_join.expressions import Expression, check, evaluate, references
from zset_join.shapes.join import joined_schema
from zset_join.shapes.kept_types import check_kept

__all__ = [
    "FOUND",
    "LookupShape",
    "LookupTerms",
    "ProcessTimeTerms",
    "RetryPolicy",
    "looked_up_relation",
    "process_time_relation",
]

FOUND = "_zset_found"
_POLICY = ("_zset_max_retries", "_zset_delay_us", "_zset_padded_first", "_zset_max_parked", "_zset_pads_at_limit")
_LOOKED_UP = "_zset_key_"

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The treatment of a miss."""

    max_retries: int = 0
    delay_us: int = 0
    padded_first: bool = False  # shown padded while it waits
    max_parked_rows: int = 1_000_000  # in one bucket
    pads_at_limit: bool = False  # beyond it a miss is final; else the epoch is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTerms:
    """Terms of a lookup join, besides the treatment of a miss."""

    how: str = "inner"
    constants: Mapping[str, Any] | None = None  # by key column of the external table
    using: bool = False
    residual: Expression | None = None
    unaskable: Callable[[pa.RecordBatch], Mapping[int, str]] | None = None  # by row, why it is bad input; not of deletes
    hidden: Collection[str] = ()  # probe columns that only order changes
    output_names: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimeTerms:
    """Terms of a join by processing time."""

    how: str = "inner"
    snapshot: str = "current"  # with the right changes of the same epoch, or `previous`: without
    null_safe: Sequence[bool] | None = None
    using: bool = False
    residual: Expression | None = None
    hidden: Collection[str] = ()  # left columns that only order changes
    find_by: Sequence[str] | None = None  # columns of the right key that rows are found by; None: all
    output_names: Sequence[str] | None = None


@dataclass(frozen=True)
class LookupShape:
    """Describe a join with looked-up rows; build it with `of`."""

    probe: Relation
    table: Relation
    constants: tuple[Any, ...]  # values of the last key columns of the table
    key_schema: pa.Schema
    lookup_schema: pa.Schema  # the same under the names they have in the fetched rows
    fetched: Relation  # the second input
    joined_schema: pa.Schema
    output_schema: pa.Schema
    shown: tuple[int, ...]  # positions among the joined columns

    @property
    def sources_of_answer(self) -> list[tuple[str, tuple[int, str]]]:
        """Return the columns of the answer, each with its side, 0 for the probe, and its column there."""
        sides = [(side, name) for side, one in enumerate((self.probe, self.table)) for name in one.schema.names]
        return [(name, sides[at]) for at, name in zip(self.shown, self.output_schema.names, strict=True)]

    @classmethod
    def of(
        cls,
        probe: Relation,
        table: Relation,
        how: str,
        *,
        constants: Mapping[str, Any] | None = None,
        using: bool = False,
        output_names: Sequence[str] | None = None,
        leaves_process: bool = True,
    ) -> LookupShape:
        """Check two relations and describe their join."""
        _check_how(how, leaves_process=leaves_process)
        constants = dict(constants or {})
        plain_key = tuple(column for column in table.join_key if column not in constants)
        if not table.join_key or len(plain_key) != len(probe.join_key) or not set(constants) <= set(table.join_key):
            raise PlanError(
                f'"{probe.name}" is looked up by {list(probe.join_key)} in "{table.name}" by {list(plain_key)} and '
                f"constants for "
                f"{sorted(constants)}; both sides need the same number of key columns, at least one in all.",
                code="JOIN_KEY_LENGTH",
                left=probe.join_key,
                right=table.join_key,
            )
        key_fields = []
        for left, right in zip(probe.join_key, plain_key, strict=True):
            check_key_type(probe.schema.field(left).type, relation=probe.name, column=left)
            kind = common_key_type(
                probe.schema.field(left).type, table.schema.field(right).type, left_column=left, right_column=right
            )
            key_fields.append(pa.field(right, kind))
        key_fields += [pa.field(column, storage_type(table.schema.field(column).type)) for column in constants]
        for field in key_fields:
            if leaves_process and pa.types.is_nested(field.type):
                raise PlanError(
                    f'"{table.name}" is looked up by "{field.name}" of type {field.type}; a key that leaves the process '
                    f"must be "
                    "a plain value. Look up by its parts.",
                    code="LOOKUP_KEY_TYPE",
                    column=field.name,
                    type=str(field.type),
                )
        reserved = [name for name in (*probe.schema.names, *table.schema.names) if name.startswith("_zset_")]
        if reserved:
            raise PlanError(
                f"columns {reserved} start with _zset_, which is reserved for a lookup join; rename them.",
                code="RESERVED_COLUMN",
                columns=reserved,
            )
        key_schema = pa.schema(key_fields)
        lookup_schema = pa.schema([pa.field(f"{_LOOKED_UP}{at}", field.type) for at, field in enumerate(key_fields)])
        columns = [field.with_nullable(True) for field in table.schema]
        fetched = Relation(
            name=f"{table.name} (fetched)",
            schema=pa.schema(
                [*columns, *lookup_schema, pa.field(FOUND, pa.bool_()), *(pa.field(name, pa.int64()) for name in _POLICY)]
            ),
        )
        bare_table = Relation(name=table.name, schema=table.schema, join_key=plain_key)
        joined, _ = joined_schema(probe, bare_table, how, using=False, output_names=_inner_names(probe, table))
        output, sources = joined_schema(probe, bare_table, how, using=using, output_names=output_names)
        places = {("left", name): at for at, name in enumerate(probe.schema.names)}
        places |= {("right", name): len(probe.schema) + at for at, name in enumerate(table.schema.names)}
        return cls(
            probe=probe,
            table=table,
            constants=tuple(constants.values()),
            key_schema=key_schema,
            lookup_schema=lookup_schema,
            fetched=fetched,
            joined_schema=joined,
            output_schema=output,
            shown=tuple(places[source] for source in sources),
        )

    @property
    def lookup_names(self) -> tuple[str, ...]:
        """Return the names of the requested key in the fetched rows."""
        return tuple(self.lookup_schema.names)

    def keys_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of some left rows; a value that does not fit the type it is compared in gives NULL."""
        columns = []
        for name, field in zip(self.probe.join_key, self.key_schema, strict=False):
            column = rows.column(name)
            columns.append(cast_key(plain(column, storage_type(column.type)), field.type)[0])
        for value, field in zip(self.constants, list(self.key_schema)[len(self.probe.join_key) :], strict=True):
            columns.append(pa.repeat(pa.scalar(value, field.type), rows.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.key_schema)

    def table_keys_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of some rows of the table, in the types they are compared in."""
        columns = [rows.column(name) for name in self.key_schema.names]
        cast = [
            cast_key(plain(column, storage_type(column.type)), field.type)[0]
            for column, field in zip(columns, self.key_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(cast, schema=self.key_schema)

    @staticmethod
    def policy_of(fetched: pa.RecordBatch) -> RetryPolicy:
        """Return the treatment of a miss, as it was decided when these rows were fetched."""
        if not fetched.num_rows:
            return RetryPolicy()
        retries, delay_us, padded, parked, pads = (int(fetched.column(name)[0].as_py()) for name in _POLICY)
        return RetryPolicy(retries, delay_us, bool(padded), parked, bool(pads))

    def joined_rows(
        self, left: pa.RecordBatch, owners: Int64s, right: pa.RecordBatch | None, sources: Int64s
    ) -> pa.RecordBatch:
        lefts = take_rows(left, owners).columns
        schema = pa.schema([field.with_nullable(True) for field in self.joined_schema])
        if right is None or not right.num_rows:
            rights = [pa.nulls(len(owners), field.type) for field in list(schema)[len(lefts) :]]
        else:
            taken = pa.array(sources, mask=sources < 0)
            own = right.columns[: len(self.table.schema)]
            rights = [plain(column, storage_type(column.type)).take(taken).cast(column.type) for column in own]
        return pa.RecordBatch.from_arrays([*lefts, *rights], schema=schema)

    def output_rows(self, joined: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([joined.column(at) for at in self.shown], schema=self.output_schema)

    def passing_pairs(
        self, residual: Expression, left: pa.RecordBatch, positions: Int64s, right: pa.RecordBatch, sources: Int64s
    ) -> npt.NDArray[np.bool_]:
        sides = []
        for names, rows, chosen in zip(references(residual), (left, right), (positions, sources), strict=True):
            picked = take_rows(rows.select(sorted(names)), chosen)
            sides.append(dict(zip(picked.schema.names, picked.columns, strict=True)))
        return evaluate(residual, sides[0], sides[1], len(positions))


def looked_up_relation(
    shape: LookupShape, how: str, *, residual: Expression | None = None, emits_padded_first: bool = False
) -> Relation:
    """Return the answer of a lookup join."""
    if emits_padded_first and how != "left":
        raise OptionError(
            'emit_padded_first=True is for how="left": an inner join shows no row without its partner.',
            code="OPTION_VALUE",
            option="emit_padded_first",
        )
    _check_sides(shape, residual)
    is_append_only = shape.probe.mode == "append" and not emits_padded_first
    return Relation(
        name=f"{shape.probe.name}_lookup_{shape.table.name}",
        schema=shape.output_schema,
        mode="append" if is_append_only else "changelog",
    )


def process_time_relation(shape: LookupShape, snapshot: str, *, residual: Expression | None = None) -> Relation:
    """Return the answer of a join by processing time."""
    if snapshot not in ("current", "previous"):
        raise OptionError(
            f'snapshot={snapshot!r} is unknown; use "current" or "previous".',
            code="OPTION_VALUE",
            option="snapshot",
            value=snapshot,
        )
    _check_sides(shape, residual)
    return Relation(
        name=f"{shape.probe.name}_as_of_now_{shape.table.name}",
        schema=shape.output_schema,
        mode="append" if shape.probe.mode == "append" else "changelog",
    )


def _check_how(how: str, *, leaves_process: bool) -> None:
    if how in ("inner", "left"):
        return
    if leaves_process:
        raise PlanError(
            f"how={how!r}: a lookup join is INNER or LEFT; the rows of the external table are unknown, so they cannot "
            f"be preserved.",
            code="LOOKUP_JOIN_TYPE",
            how=how,
        )
    raise PlanError(
        f"how={how!r}: a join by processing time is INNER or LEFT; right rows have no moment at which they could be shown.",
        code="TEMPORAL_JOIN_TYPE",
        how=how,
    )


def _check_sides(shape: LookupShape, residual: Expression | None) -> None:
    if residual is not None:
        check(residual, shape.probe.schema, shape.table.schema)
    check_kept(shape.probe)
    check_kept(shape.table)


def _inner_names(probe: Relation, table: Relation) -> list[str]:
    """Return one name per column of both sides, whatever the output calls them."""
    names = list(probe.schema.names)
    for name in table.schema.names:
        while name in names:
            name += "_right"
        names.append(name)
    return names
