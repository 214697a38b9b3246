"""The join of two streams as a description: checked, explained, not yet running.

`on` follows PySpark: one name or a list of names both sides have (the output then shows them once, first), or pairs of
names when they differ. A condition over both rows beside the keys is a tree from `zset_join.expressions`; text is not
accepted, so nothing a user writes is ever evaluated as code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import StructType

from zset_join.errors import OptionError, PlanError
from zset_join.expressions import Expression
from zset_join.plan import InputNode, JoinNode, RouteNode, SideNode, explain, join_type, needs_route
from zset_join.relation import Relation
from zset_join.spark.operators import output_relation
from zset_join.spark.schemas import spark_schema
from zset_join.spark.streams import ChangeStream

if TYPE_CHECKING:
    from zset_join.spark.writer import JoinStreamWriter

__all__ = ["JoinedStream", "join"]


@dataclass(frozen=True, kw_only=True)
class JoinedStream:
    """A join that can be started with `writeStream`; made by `ChangeStream.join`.

    Args:
        left: the left stream.
        right: the right stream.
        node: the checked description of the join.
    """

    left: ChangeStream
    right: ChangeStream
    node: JoinNode = field(repr=False)

    @cached_property
    def output(self) -> Relation:
        """Return the columns of the answer, without those that only order the inputs."""
        return output_relation(self.node)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the columns of the join, as Arrow types."""
        return self.output.schema

    @property
    def schema(self) -> StructType:
        """Return the columns of the join, as Spark types; an output adds its weight or row kind."""
        return spark_schema(self.output.schema)

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns of the join."""
        return list(self.output.schema.names)

    @property
    def writeStream(self) -> JoinStreamWriter:  # noqa: N802 - the name PySpark users type
        """Return a writer to choose options, an output and a trigger with."""
        from zset_join.spark.writer import JoinStreamWriter

        return JoinStreamWriter(self)

    def explain(self) -> None:
        """Print what the join will do and what it must remember, as DataFrame.explain does."""
        print(self.explanation())  # noqa: T201 - printing is what explain() does in PySpark

    def explanation(self, *, buckets: int | None = None, output: str | None = None) -> str:
        """Return what `explain` prints."""
        return explain(self.node, buckets=buckets, output=output)


def join(
    left: ChangeStream,
    right: ChangeStream,
    on: Any,
    how: str = "inner",
    *,
    null_safe: bool | Sequence[bool] = False,
    condition: Expression | None = None,
) -> JoinedStream:
    """Describe the join of two streams.

    Args:
        left: the left stream.
        right: the right stream.
        on: a column name, a list of names, or a list of pairs (left name, right name).
        how: any spelling PySpark accepts except cross.
        null_safe: compare with `<=>` instead of `=`, for all key columns or one flag each.
        condition: a tree from `zset_join.expressions` that a pair must satisfy as well; part of ON.

    Raises:
        PlanError: see the message; it names the argument, its value and the cure.
    """
    if not isinstance(right, ChangeStream):
        raise OptionError(
            f"join expects another stream, got {type(right).__name__}. Wrap the DataFrame first: changes(df, name=..., "
            "keys=[...]) or appends(df, name=...).",
            code="NOT_A_STREAM",
        )
    pairs, using = _key_pairs(left, right, on)
    flags = _flags(null_safe, len(pairs))
    if condition is not None and not isinstance(condition, Expression):
        raise OptionError(
            f'condition is a {type(condition).__name__}; expected a tree such as left("x") < right("y"), with left and '
            "right from zset_join.expressions.",
            code="CONDITION",
        )
    sides: list[SideNode] = []
    for stream, position in ((left, 0), (right, 1)):
        relation = stream.relation([pair[position] for pair in pairs])
        source = InputNode(relation=relation, hidden=stream.hidden, has_baseline=stream.baseline is not None)
        sides.append(RouteNode(source=source) if needs_route(source.relation) else source)
    node = JoinNode(left=sides[0], right=sides[1], how=join_type(how), null_safe=flags, using=using, residual=condition)
    joined = JoinedStream(left=left, right=right, node=node)
    _check_names(joined.columns)  # making the output checks the condition as well
    return joined


def _check_names(columns: list[str]) -> None:
    lowered = [name.lower() for name in columns]
    clashing = sorted(name for name in columns if lowered.count(name.lower()) > 1)
    if clashing:
        raise PlanError(
            f"the join would have the columns {clashing}, which differ only by case; Spark takes them for one. Rename one "
            "before the join.",
            code="OUTPUT_NAMES",
            columns=clashing,
        )


def _key_pairs(left: ChangeStream, right: ChangeStream, on: Any) -> tuple[list[tuple[str, str]], bool]:
    if on is None or (isinstance(on, list | tuple) and not on):
        raise PlanError(
            f'the join of "{left.name}" and "{right.name}" names no key column; a cross join has no bounded change. Pass '
            'on="column", on=["a", "b"] or on=[("left column", "right column")].',
            code="CROSS_JOIN",
        )
    if isinstance(on, Column | Expression):
        raise OptionError(
            f'on={on!r} is an expression. Name the equal columns: on=[("left column", "right column")], and give what else '
            "must hold as condition=left(...) < right(...), with left and right from zset_join.expressions.",
            code="ON_EXPRESSION",
        )
    wanted = [on] if isinstance(on, str) else on
    if not isinstance(wanted, list | tuple) or not all(_is_key(entry) for entry in wanted):
        raise OptionError(
            f"on={on!r} is not understood; expected a column name, a list of names, or a list of pairs of names.",
            code="ON",
        )
    using = all(isinstance(entry, str) for entry in wanted)
    pairs = [(entry, entry) if isinstance(entry, str) else (entry[0], entry[1]) for entry in wanted]
    for stream, position in ((left, 0), (right, 1)):
        missing = [pair[position] for pair in pairs if pair[position] not in stream.columns]
        if missing:
            raise PlanError(
                f'on={on!r} names {missing}, which "{stream.name}" does not have; its columns are {list(stream.columns)}.',
                code="UNKNOWN_COLUMN",
                name=stream.name,
                missing=missing,
            )
    return pairs, using


def _is_key(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    return isinstance(entry, list | tuple) and len(entry) == 2 and all(isinstance(name, str) for name in entry)


def _flags(null_safe: bool | Sequence[bool], count: int) -> tuple[bool, ...]:
    flags = (null_safe,) * count if isinstance(null_safe, bool) else tuple(null_safe)
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise OptionError(
            f"null_safe={null_safe!r}; expected True, False, or one of them for each of the {count} key columns.",
            code="NULL_SAFE",
        )
    return flags
