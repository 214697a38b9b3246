"""Shape of a join: arguments, output columns and their key.

Order of the output: left columns, then right columns (semi and anti joins: left only). With `using`, the key columns come
first and once, as Spark's `USING` puts them; where either side may be missing (FULL) they are coalesced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.key_types import check_key_type, common_key_type
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, check
from zset_join.shapes.kept_types import check_kept

__all__ = [
    "JOIN_TYPES",
    "JoinShape",
    "JoinTerms",
    "check_join",
    "compared_types",
    "join_shape",
    "join_type",
    "joined_schema",
    "output_key",
    "visible_columns",
]

JOIN_TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")

_SPELLINGS = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "anti": "left_anti",
    "leftanti": "left_anti",
}
_PADS_RIGHT = ("left", "full")
_PADS_LEFT = ("right", "full")


def join_type(how: str) -> str:
    """Return the plain name of a join type, whichever of PySpark's spellings is used.

    >>> join_type("leftOuter"), join_type("left_anti"), join_type("outer")
    ('left', 'left_anti', 'full')
    """
    plain = str(how).replace("_", "").lower()
    if plain not in _SPELLINGS:
        cure = "a cross join has no bounded change; join on a key" if plain == "cross" else "use one of inner, left, right, "
        raise OptionError(
            f"how={how!r} is not a join type this engine has; {cure if plain == 'cross' else cure + 'full, semi, anti'}.",
            code="UNKNOWN_JOIN_TYPE",
            how=how,
        )
    return _SPELLINGS[plain]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTerms:
    """Terms of a join of two relations by equal keys."""

    how: str = "inner"
    null_safe: Sequence[bool] | None = None  # per key column, `<=>` instead of `=`
    using: bool = False
    residual: Expression | None = None
    hidden: Sequence[Collection[str]] = ((), ())
    output_names: Sequence[str] | None = None  # hidden columns too


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinShape:
    null_safe: tuple[bool, ...]
    key_types: tuple[pa.DataType, ...]
    output: Relation
    sources: tuple[tuple[str, str], ...]  # per output column, (side, source column)


def join_shape(left: Relation, right: Relation, terms: JoinTerms) -> JoinShape:
    how = terms.how
    flags = check_join(left, right, how, terms.null_safe, terms.using)
    key_types = compared_types(left, right, tuple(zip(left.join_key, right.join_key, strict=True)))
    if terms.residual is not None:
        check(terms.residual, left.schema, right.schema)
    schema, sources = joined_schema(left, right, how, using=terms.using, output_names=terms.output_names)
    schema, sources = visible_columns(schema, sources, terms.hidden)
    check_kept(left)
    check_kept(right)
    output = Relation(
        name=f"{left.name}_{how}_{right.name}",
        schema=schema,
        primary_key=output_key(left, right, how, schema, sources),
        mode="changelog",
    )
    return JoinShape(null_safe=flags, key_types=key_types, output=output, sources=tuple(sources))


def compared_types(left: Relation, right: Relation, pairs: Sequence[tuple[str, str]]) -> tuple[pa.DataType, ...]:
    """Return, per pair of columns, the type both are compared in."""
    return tuple(
        common_key_type(left.schema.field(a).type, right.schema.field(b).type, left_column=a, right_column=b) for a, b in pairs
    )


def check_join(left: Relation, right: Relation, how: str, null_safe: Sequence[bool] | None, using: bool) -> tuple[bool, ...]:
    """Refuse arguments that make no join; return one null-safe flag per key column."""
    if how not in JOIN_TYPES:
        raise OptionError(f"how={how!r} is unknown; use one of {', '.join(JOIN_TYPES)}.", code="UNKNOWN_JOIN_TYPE", how=how)
    if not left.join_key or len(left.join_key) != len(right.join_key):
        raise PlanError(
            f'"{left.name}" is joined on {list(left.join_key)} and "{right.name}" on {list(right.join_key)}; both need the '
            "same number of key columns, at least one.",
            code="JOIN_KEY_LENGTH",
            left=left.join_key,
            right=right.join_key,
        )
    if using and left.join_key != right.join_key:
        raise PlanError(
            f"using=True needs key columns of the same names; got {list(left.join_key)} and {list(right.join_key)}.",
            code="USING_NAMES",
        )
    for relation in (left, right):
        for column in relation.join_key:
            check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
        for column in relation.primary_key:
            check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
    flags = tuple(null_safe) if null_safe is not None else (False,) * len(left.join_key)
    if len(flags) != len(left.join_key):
        raise PlanError(
            f"null_safe={list(flags)} needs one flag per key column of {list(left.join_key)}.", code="NULL_SAFE_LENGTH"
        )
    return flags


def output_key(
    left: Relation, right: Relation, how: str, schema: pa.Schema, sources: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the columns that identify an output row, empty where the inputs have no key."""
    # One side's primary key is enough where every row of it meets at most one row of the other.
    sides = {"left": left, "right": right}
    if how in ("left_semi", "left_anti") or (how in ("inner", "left") and _is_unique(right)):
        del sides["right"]
    elif how in ("inner", "right") and _is_unique(left):
        del sides["left"]
    if not all(relation.primary_key for relation in sides.values()):
        return ()
    columns: dict[str, None] = {}
    for side, relation in sides.items():
        for column in relation.primary_key:
            name = _shown_as(side, column, left, right, schema, sources)
            if name is None:
                return ()
            columns[name] = None
    return tuple(columns)


def _is_unique(relation: Relation) -> bool:
    """Return whether at most one row has a given join key."""
    return bool(relation.primary_key) and set(relation.primary_key) <= set(relation.join_key)


def _shown_as(
    side: str, column: str, left: Relation, right: Relation, schema: pa.Schema, sources: Sequence[tuple[str, str]]
) -> str | None:
    """Return the output column that shows a column of a side, or, with USING, the key column it is merged into."""
    own = left if side == "left" else right
    wanted = {(side, column), ("both", column)}
    if column in own.join_key:
        partner = (right if side == "left" else left).join_key[own.join_key.index(column)]
        merged = ("right" if side == "left" else "left", partner)
        wanted_merged = {merged}
    else:
        wanted_merged = set()
    for candidates in (wanted, wanted_merged):
        for source, name in zip(sources, schema.names, strict=True):
            if source in candidates:
                return str(name)
    return None


def joined_schema(
    left: Relation, right: Relation, how: str, *, using: bool, output_names: Sequence[str] | None
) -> tuple[pa.Schema, list[tuple[str, str]]]:
    """Return the output's schema and, per column, (side, source column); side `both` is a coalesced key."""
    sources: list[tuple[str, str]] = []
    if how in ("left_semi", "left_anti"):
        first = left.join_key if using else ()
        sources = [("left", name) for name in (*first, *(name for name in left.schema.names if name not in first))]
    elif using:
        key_side = {"right": "right", "full": "both"}.get(how, "left")
        sources = [(key_side, name) for name in left.join_key]
        sources += [("left", name) for name in left.schema.names if name not in left.join_key]
        sources += [("right", name) for name in right.schema.names if name not in right.join_key]
    else:
        sources = [("left", name) for name in left.schema.names] + [("right", name) for name in right.schema.names]
    if output_names is None:
        taken = {name for side, name in sources if side != "right"}
        names = [f"{name}_right" if side == "right" and name in taken else name for side, name in sources]
    else:
        names = list(output_names)
    if len(names) != len(sources) or len(set(names)) != len(names):
        raise PlanError(
            f'the join of "{left.name}" and "{right.name}" would have the columns {names}; it needs {len(sources)} different '
            "names. Rename columns before the join, or pass output_names.",
            code="OUTPUT_NAMES",
            names=names,
        )
    fields = [_output_field(side, source, name, left, right, how) for (side, source), name in zip(sources, names, strict=True)]
    return pa.schema(fields), sources


def visible_columns(
    schema: pa.Schema, sources: Sequence[tuple[str, str]], hidden: Sequence[Collection[str]]
) -> tuple[pa.Schema, list[tuple[str, str]]]:
    """Return the result of `joined_schema` without columns that only order changes."""
    sides = {"left": hidden[0], "right": hidden[1], "both": {*hidden[0], *hidden[1]}}
    kept = [at for at, (side, name) in enumerate(sources) if name not in sides[side]]
    return pa.schema([schema.field(at) for at in kept]), [sources[at] for at in kept]


def _output_field(side: str, source: str, name: str, left: Relation, right: Relation, how: str) -> pa.Field:
    relation = right if side == "right" else left
    field = relation.schema.field(source)
    padded = how in (_PADS_LEFT if side == "left" else _PADS_RIGHT)
    if side == "both":
        other = right.schema.field(source)
        kind = common_key_type(field.type, other.type, left_column=source, right_column=source)
        metadata = field.metadata if field.metadata == other.metadata else None
        return pa.field(name, kind, field.nullable or other.nullable, metadata=metadata)
    return field.with_name(name).with_nullable(field.nullable or padded)
