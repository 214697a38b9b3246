"""Columns of a source that are added, dropped, widened or renamed: the rows from before under the new columns.

    before:   id long, total int,  note string
    after:    id long, total long, place string
    step:     select id, cast(total as long) AS total, NULL AS place

The law: a query over a changed source is that query over the accepted rows behind this step. Key, order, mode and event time
stay what they are; only their columns may get wider types or other names.

Undoing swaps both sides. A column that was dropped has no rows to come back with, so that is refused; a wider type narrows only
while no row has come since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.conversions.typed_values import python_values
from zset_join.core.errors import OptionError, StateError
from zset_join.expressions import Expression
from zset_join.expressions.rows import named
from zset_join.expressions.tree import Cast, Literal
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.plan.row_steps import SelectStep, read_row_step
from zset_join.stages.written import read_schema, write_schema

__all__ = [
    "NO_TERMS",
    "ChangeTerms",
    "ColumnChange",
    "ColumnWords",
    "changes_of_columns",
    "is_same_source",
    "is_wider",
    "no_words",
]

_FLOATS = {16: 11, 32: 24, 64: 53}
"""By the width of a floating-point type, the bits of a whole number that it holds exactly."""


@dataclass(frozen=True, kw_only=True)
class ColumnWords:
    """Facts about a change of columns that schemas do not show."""

    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by source, names before to names after
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by source and added column, else NULL
    may_narrow: frozenset[str] = frozenset()  # sources without a row under the wider types

    def __post_init__(self) -> None:
        given: Any
        examples = {"orders": {"total": "amount"}}, {"orders": {"place": "shop"}}
        for name, given, example in zip(("renamed", "defaults"), (self.renamed, self.defaults), examples, strict=True):
            if not isinstance(given, Mapping) or not all(isinstance(one, Mapping) for one in given.values()):
                raise OptionError(
                    f"{name}={given!r}: expected columns by the names of their sources, such as {name}={example}.",
                    code="ARGUMENT",
                    option=name,
                )


@dataclass(frozen=True, kw_only=True)
class ChangeTerms:
    """Arguments of a change beside the new query."""

    words: ColumnWords | None = None
    reread: Mapping[str, Any] | None = None
    as_now: bool = False
    first_rows: Mapping[str, Any] = field(default_factory=dict)  # by added source, its first rows; no watermark follows them
    fresh: Collection[str] = ()  # sources that begin without rows, even if dropped ones had their names
    note: Any = None  # JSON-ready, stored with the new query


NO_TERMS = ChangeTerms()


def no_words() -> ColumnWords:
    """Return those of a change that renames nothing and fills added columns with NULL."""
    return ColumnWords()


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """How the columns of one source change."""

    source: str
    step: SelectStep  # makes rows from before to rows of now
    before: pa.Schema
    after: pa.Schema
    renamed: Mapping[str, str]  # names before to names of now

    @property
    def touched(self) -> frozenset[str]:
        """Return the names of columns, before or now, that are not the same in both; all where their order differs."""
        same = [one for one in self.before if one.name in self.after.names and one == self.after.field(one.name)]
        kept = [one.name for one in same if one.name not in {*self.renamed, *self.renamed.values()}]
        if kept != [name for name in self.after.names if name in set(kept)]:
            return frozenset({*self.before.names, *self.after.names})
        return frozenset({*self.before.names, *self.after.names} - set(kept))

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self.before.names if name not in self.after.names and name not in self.renamed)

    @property
    def is_widened(self) -> bool:
        return any(isinstance(expression, Cast) for _, expression in self.step.columns)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "step": self.step.to_json(),
            "before": write_schema(self.before),
            "after": write_schema(self.after),
            "renamed": dict(self.renamed),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> ColumnChange:
        step = read_row_step(written["step"])
        assert isinstance(step, SelectStep)  # noqa: S101 - as it is written
        return cls(
            source=written["source"],
            step=step,
            before=read_schema(written["before"]),
            after=read_schema(written["after"]),
            renamed=written["renamed"],
        )


def changes_of_columns(before: QueryPlan, after: QueryPlan, words: ColumnWords) -> dict[str, ColumnChange]:
    """Return by name the sources of both plans whose columns differ, each with the step for its rows."""
    there = {source.name: source for source in before.sources}
    now = {source.name: source for source in after.sources}
    for name in (*words.renamed, *words.defaults):
        if name not in there or name not in now:
            raise _refused(name, f"is not in both queries; the one of before reads {sorted(there)}, the new one {sorted(now)}")
    found = {}
    for name in now.keys() & there.keys():
        renamed, defaults = words.renamed.get(name, {}), words.defaults.get(name, {})
        old, new = there[name].relation.schema, now[name].relation.schema
        if renamed or defaults or not _without_metadata(old).equals(_without_metadata(new)):
            found[name] = _change(there[name], now[name], renamed, defaults, may_narrow=name in words.may_narrow)
    return {name: found[name] for name in now if name in found}


def is_same_source(before: PlanSource, after: PlanSource, change: ColumnChange | None) -> bool:
    """Return whether a source is the same apart from its columns and its baseline, which counts in the first epoch only."""
    relation, called = before.relation, {} if change is None else change.renamed
    schema = relation.schema if change is None else after.relation.schema
    own = (*relation.join_key, *relation.primary_key, *relation.sequence_by, relation.event_time)
    if any(called.get(name, name) not in schema.names for name in own if name is not None):
        return False
    expected = replace(
        relation,
        schema=schema,
        join_key=tuple(called.get(name, name) for name in relation.join_key),
        primary_key=tuple(called.get(name, name) for name in relation.primary_key),
        sequence_by=tuple(called.get(name, name) for name in relation.sequence_by),
        event_time=None if relation.event_time is None else called.get(relation.event_time, relation.event_time),
    )
    hidden = tuple(called.get(name, name) for name in before.hidden)
    return expected == after.relation and hidden == after.hidden


def is_wider(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type holds every value of another one exactly.

    >>> is_wider(pa.int32(), pa.int64()), is_wider(pa.int64(), pa.int32()), is_wider(pa.int64(), pa.float64())
    (True, False, False)
    >>> is_wider(pa.decimal128(10, 2), pa.decimal128(12, 3)), is_wider(pa.decimal128(10, 2), pa.decimal128(10, 3))
    (True, False)
    """
    if pt.is_decimal128(there) and pt.is_decimal128(wanted):
        return bool(wanted.scale >= there.scale and wanted.precision - wanted.scale >= there.precision - there.scale)
    if pt.is_integer(there) and pt.is_integer(wanted):
        room = wanted.bit_width - pt.is_signed_integer(wanted)
        signs = pt.is_signed_integer(wanted) or pt.is_unsigned_integer(there)
        return bool(signs and room >= there.bit_width - pt.is_signed_integer(there))
    if pt.is_floating(wanted):
        if pt.is_floating(there):
            return bool(there.bit_width <= wanted.bit_width)
        return bool(pt.is_integer(there) and there.bit_width - pt.is_signed_integer(there) <= _FLOATS[wanted.bit_width])
    return False


def _change(
    before: PlanSource, after: PlanSource, renamed: Mapping[str, str], defaults: Mapping[str, Any], *, may_narrow: bool
) -> ColumnChange:
    name, old, new = before.name, before.relation.schema, after.relation.schema
    for column, other in renamed.items():
        if column not in old.names or other not in new.names:
            raise _refused(name, f"cannot have {column!r} renamed to {other!r}: it had {old.names} and has {new.names}")
    called = {other: column for column, other in renamed.items()}
    if len(called) < len(renamed):
        raise _refused(name, f"would have two columns renamed to one: {dict(renamed)}")
    columns = []
    for one in new:
        origin = called.get(one.name, one.name if one.name not in renamed else None)
        if origin is None or origin not in old.names:
            columns.append((one.name, _added(name, one, defaults)))
        elif one.name in defaults:
            raise _refused(name, f"has a default for {one.name!r}, which is no added column")
        else:
            columns.append((one.name, _kept(name, old.field(origin), one, may_narrow=may_narrow)))
    if old.names == new.names and any(called.get(one, one) != one for one in new.names):
        raise _refused(
            name, f"would have the same names for other columns: {dict(renamed)}. Use a name between, in two changes"
        )
    unknown = sorted(defaults.keys() - set(new.names))
    if unknown:
        raise _refused(name, f"has defaults for {unknown}, and its columns are {new.names}")
    return ColumnChange(source=name, step=SelectStep(tuple(columns)), before=old, after=new, renamed=dict(renamed))


def _added(source: str, one: pa.Field, defaults: Mapping[str, Any]) -> Expression:
    value = defaults.get(one.name)
    if value is None and not one.nullable:
        raise _refused(source, f"gets the column {one.name!r}, which is never NULL, and rows from before have no value for it")
    converted = python_values([value], one.type)
    if converted.unfit is not None:
        raise _refused(source, f"has the default {value!r} for {one.name!r}, which is no {one.type}")
    return Literal(converted.values[0].as_py(), one.type)


def _kept(source: str, there: pa.Field, one: pa.Field, *, may_narrow: bool) -> Expression:
    if there.nullable and not one.nullable:
        raise _refused(source, f"has NULL allowed in {there.name!r} before, and {one.name!r} is never NULL")
    if there.type == one.type:
        return named(there.name)
    if is_wider(there.type, one.type) or (may_narrow and is_wider(one.type, there.type)):
        return Cast(named(there.name), one.type)
    raise _refused(
        source,
        f"has {there.name!r} of type {there.type} before and {one.name!r} of type {one.type} now, which does not hold every "
        "value of it",
    )


def _refused(source: str, why: str) -> StateError:
    return StateError(
        f'the source "{source}" {why}. Columns may be added (with `defaults`, or NULL), dropped, renamed (with `renamed`), or '
        "get a wider type; for anything else give the source another name, under which it begins without rows.",
        code="EVOLVE_COLUMN",
        source=source,
    )


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return schema.remove_metadata()
