"""The join of two views: the forms of `on=`, and the request for the stage.

`CurrentWords`, `LookupWords`: joins that look something up: in an external table, or in another view as it is when a row
arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.expressions.rows import is_plain, named, plain_column, value_type
from zset_join.lookup.options import Lookup
from zset_join.lookup.source import LookupSource
from zset_join.lookup.sources.table_files import ArrowSource
from zset_join.plan.conditions import named_once, no_key, split_condition, together
from zset_join.plan.versioning import current_versions
from zset_join.query.columns import ExternalRows, condition_over, resolved
from zset_join.query.indexes import chosen_index
from zset_join.query.rows import Rows
from zset_join.shapes.join import join_type
from zset_join.stages.expiring import lasting
from zset_join.stages.join import JoinRequest
from zset_join.stages.lookup_join import LookupJoinRequest
from zset_join.stages.process_time_join import ProcessTimeJoinRequest

__all__ = ["PROCESSING_TIME", "CurrentWords", "LookupWords", "check_reloaded", "join", "lookup_join", "temporal_join"]

_Pair = tuple[Expression, Expression]
_R = TypeVar("_R", bound=Rows)


def join(
    left: _R,
    right: Rows,
    on: Any,
    how: str = "inner",
    *,
    null_safe: bool | Sequence[bool] = False,
    condition: Expression | str | None = None,
    state_ttl: Any = None,
) -> _R:
    """Describe the join of two views; see `View.join`."""
    pairs, flags, using, more = equal_pairs(left, right, on, null_safe, condition)
    kind = join_type(how)
    names = (left.name, right.name if right.name != left.name else f"{right.name}_2")
    request = JoinRequest(pairs, kind, flags, using=using, condition=more, names=names)
    return left.operate(lasting(request, state_ttl, 2), right).alias(f"{left.name}_{kind}_{names[1]}")


def equal_pairs(
    left: Rows, right: Rows, on: Any, null_safe: bool | Sequence[bool], condition: Expression | str | None
) -> tuple[tuple[_Pair, ...], tuple[bool, ...], bool, Expression | None]:
    """Return the pairs of keys of a join, their flags, whether they are shown once, and the residual condition."""
    if not isinstance(right, Rows):
        raise OptionError(
            f"join expects another view, got {type(right).__name__}. Describe the source first: changes(name, schema, "
            "keys=[...]) or appends(name, schema).",
            code="NOT_A_VIEW",
        )
    if condition is not None and not isinstance(condition, Expression | str):
        raise OptionError(
            f'condition is a {type(condition).__name__}; expected a tree such as left("x") < right("y"), with left and '
            "right from zset_join.expressions.",
            code="CONDITION",
        )
    if isinstance(on, list | tuple) and on and all(isinstance(entry, Expression) for entry in on):
        on = together(list(on))
    if isinstance(on, Expression):
        parts = split_condition(on if is_plain(on) else condition_over(on, left, right))
        using = False
    else:
        pairs, using = _pairs(left, right, on)
        parts = named_once(pairs, _flags(null_safe, len(pairs)))
    if not parts.keys:
        raise no_key(left.name, right.name)
    for side, view in enumerate((left, right)):
        for pair in parts.keys:
            value_type(pair[side], view.arrow_schema)
    residual: Any = condition
    if condition is not None and not is_plain(condition):
        residual = condition_over(condition, left, right)
    more = together([one for one in (parts.condition, residual) if one is not None])
    return parts.keys, parts.null_safe, using, more


def _pairs(left: Rows, right: Rows, on: Any) -> tuple[list[_Pair], bool]:
    if on is None or (isinstance(on, list | tuple) and not on):
        raise no_key(left.name, right.name)
    wanted = list(on) if isinstance(on, list | tuple) else [on]
    if all(isinstance(entry, str) for entry in wanted):
        return [_pair(left, right, (entry, entry), on) for entry in wanted], True
    return [_pair(left, right, (entry, entry) if isinstance(entry, str) else entry, on) for entry in wanted], False


def _pair(left: Rows, right: Rows, entry: Any, on: Any) -> _Pair:
    if not isinstance(entry, list | tuple) or len(entry) != 2 or not all(isinstance(one, str | Expression) for one in entry):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, a list of pairs (left, right) of names or "
            'expressions, or a condition such as left("a") == right("b").',
            code="ON",
        )
    keys = []
    for view, one in zip((left, right), entry, strict=True):
        if isinstance(one, str) and one not in view.columns:
            raise PlanError(
                f'on={on!r} names "{one}", which "{view.name}" does not have; its columns are {view.columns}.',
                code="UNKNOWN_COLUMN",
                name=view.name,
                missing=[one],
            )
        keys.append(named(one) if isinstance(one, str) else view._expression(one, "join"))
    return keys[0], keys[1]


def _flags(null_safe: bool | Sequence[bool], count: int) -> tuple[bool, ...]:
    flags = (null_safe,) * count if isinstance(null_safe, bool) else tuple(null_safe)
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise OptionError(
            f"null_safe={null_safe!r}; expected True, False, or one of them for each of the {count} key columns.",
            code="NULL_SAFE",
        )
    return flags


PROCESSING_TIME = "processing_time"
"""As `as_of`: the moment at which a row arrives."""


@dataclass(frozen=True, kw_only=True)
class LookupWords:
    """The arguments of `View.lookup_join`, which explains them."""

    on: Any
    how: str = "inner"
    hint: Lookup | None = None
    columns: Sequence[str] | None = None
    constants: Mapping[str, Any] | None = None
    condition: Expression | str | None = None
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class CurrentWords:
    """The arguments of `View.temporal_join` by processing time, which explains them."""

    on: Any
    how: str
    snapshot: str
    null_safe: bool | Sequence[bool]
    condition: Expression | str | None
    index: str | None
    reload_interval: Any


def lookup_join(view: _R, source: LookupSource, words: LookupWords) -> _R:
    """Describe a lookup join; see `View.lookup_join`."""
    if not isinstance(source, LookupSource):
        raise OptionError(
            f"lookup_join expects an external table, such as PostgresSource(...), got {type(source).__name__}. For another "
            f"view use "
            "join, or temporal_join.",
            code="NOT_A_SOURCE",
        )
    on, hint, columns, constants = words.on, words.hint, words.columns, words.constants
    if hint is not None and not isinstance(hint, Lookup):
        raise OptionError(
            f"hint is a {type(hint).__name__}; expected Lookup(...), or Lookup.from_hint({{...}}) for options by their SQL "
            f"names.",
            code="ARGUMENT",
            argument="hint",
        )
    given = [on] if isinstance(on, str) or (isinstance(on, tuple) and len(on) == 2) else list(on or ())
    using = bool(given) and all(isinstance(entry, str) for entry in given)
    keys = [_key(view, source, (entry, entry) if isinstance(entry, str) else entry, on) for entry in given]
    if not keys and not constants:
        raise PlanError(
            f'the lookup join of "{view.name}" with "{source.name}" has no key; name the columns to look up by, as in '
            f'on="customer_id" '
            'or on=[("customer_id", "id")].',
            code="JOIN_KEY_LENGTH",
        )
    wanted = tuple(source.schema.names if columns is None else columns)
    table = ExternalRows(words.alias or source.name, source.schema)
    condition = None if words.condition is None else condition_over(words.condition, view, table)
    once = named_once([(own, named(column)) for own, column in keys])
    request = LookupJoinRequest(
        source=source,
        keys=tuple((own, str(plain_column(column))) for own, column in once.keys),
        columns=wanted,
        how=_how(words.how),
        hint=Lookup() if hint is None else hint,
        constants=dict(constants or {}),
        using=using,
        condition=together([one for one in (once.condition, condition) if one is not None]),
        alias=words.alias,
        name=view.name,
    )
    return view.operate(request).alias(f"{view.name}_lookup_{words.alias or source.name}")


def _key(view: Rows, source: LookupSource, entry: Any, on: Any) -> tuple[Expression, str]:
    if not isinstance(entry, list | tuple) or len(entry) != 2 or not isinstance(entry[1], str):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, or a list of pairs (name or expression "
            f"over the "
            "row, column of the external table).",
            code="ON",
        )
    own, column = entry
    if isinstance(own, str) and own not in view.columns:
        raise PlanError(
            f'on={on!r} names "{own}", which "{view.name}" does not have; its columns are {view.columns}.',
            code="UNKNOWN_COLUMN",
            name=view.name,
            missing=[own],
        )
    if column not in source.schema.names:
        raise PlanError(
            f'on={on!r} names "{column}", which "{source.name}" does not have; its columns are {source.schema.names}.',
            code="UNKNOWN_COLUMN",
            name=source.name,
            missing=[column],
        )
    expression = named(own) if isinstance(own, str) else resolved(own, view, "lookup_join")
    value_type(expression, view.node.relation.schema)  # a key that a runner has computed is hidden
    return expression, column


def temporal_join(left: _R, right: Any, words: CurrentWords) -> _R:
    """Describe a temporal join; see `View.temporal_join`."""
    if not isinstance(right, Rows):
        check_reloaded(snapshot=words.snapshot, null_safe=words.null_safe, index=words.index)
        hint = Lookup(cache="full", reload_interval=words.reload_interval)
        requested = LookupWords(on=words.on, how=words.how, hint=hint, condition=words.condition)
        return lookup_join(left, loaded_table(right), requested)
    if words.reload_interval is not None:
        raise OptionError(
            f'reload_interval={words.reload_interval!r} is for a table that is loaded, and "{right.name}" follows its changes. '
            "Leave it out.",
            code="ARGUMENT",
            argument="reload_interval",
        )
    pairs, flags, using, more = equal_pairs(left, right, words.on, words.null_safe, words.condition)
    names = (left.name, right.name if right.name != left.name else f"{right.name}_2")
    compared = [column for _, expression in pairs if (column := plain_column(expression)) is not None]
    used = chosen_index(right, compared, words.index, exactly=False)
    index_name = None if used is None else used.name
    find_by = () if used is None or len(used.columns) == len(pairs) else used.columns
    request = ProcessTimeJoinRequest(
        pairs,
        _how(words.how),
        flags,
        snapshot=words.snapshot,
        using=using,
        condition=more,
        names=names,
        index=index_name,
        find_by=find_by,
    )
    looked_up = replace(right, node=current_versions(right.node))
    return left.operate(request, looked_up).alias(f"{left.name}_as_of_now_{names[1]}")


def loaded_table(given: Any) -> LookupSource:
    """Return a table that is loaded as a whole: an Arrow table as it is, or a source such as `ParquetSource`."""
    if isinstance(given, pa.Table):
        return ArrowSource(name="table", table=given)
    if isinstance(given, LookupSource):
        return given
    raise OptionError(
        f"temporal_join expects another view, an Arrow table, or a table that is loaded, such as ArrowSource or ParquetSource; "
        f"got {type(given).__name__}.",
        code="NOT_A_VIEW",
    )


def check_reloaded(*, snapshot: str, null_safe: bool | Sequence[bool], index: str | None) -> None:
    """Reject options that a join with a loaded table does not support."""
    for option, value, default in (("snapshot", snapshot, "current"), ("null_safe", null_safe, False), ("index", index, None)):
        if value != default:
            raise OptionError(
                f"{option}={value!r} is for a view; a table that is loaded is looked up in as it was loaded last, by plain "
                "equality. Leave it out.",
                code="ARGUMENT",
                argument=option,
            )


def _how(how: str) -> str:
    """Return the plain name of a join type; the stage refuses those that cannot be."""
    plain = str(how).lower().replace("_", "").replace(" ", "")
    return {"leftouter": "left", "inner": "inner", "left": "left"}.get(plain, str(how))
