"""What a query will do, as a frozen tree that can be printed before anything runs.

    JoinNode
    ├── RouteNode | InputNode | ViewNode     left
    └── RouteNode | InputNode | ViewNode     right

A node holds descriptions only: relations, join keys, conditions. It checks what can be checked without rows, so a key
that is missing or cannot be compared fails when the query is written. `explain` says, for each node, what it must
remember.

An `InputNode` may carry hidden columns: columns that order its changes without being part of its table. They are kept
behind the visible ones and do not reach the output.

Why `RouteNode` exists: changes of an upsert input are keyed by its primary key, the join by its join key. When the
join key of a row moves, only a table kept by primary key knows where the row was. An input whose join key lies inside
its primary key cannot move, and one that carries full before-images says itself where the row was: these need no
route. Nor does a `ViewNode`, the answer of an earlier join: its retractions are whole rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from zset_join.errors import OptionError, PlanError
from zset_join.expressions.written import read_expression, write_expression
from zset_join.key_types import check_key_type, common_key_type
from zset_join.relation import Relation
from zset_join.stages.join import JoinStage
from zset_join.stages.route import RouteStage, needs_route
from zset_join.stages.written import read_schema, write_schema

__all__ = [
    "InputNode",
    "JoinNode",
    "RouteNode",
    "SideNode",
    "ViewNode",
    "explain",
    "needs_route",
]


@dataclass(frozen=True, kw_only=True)
class InputNode:
    """Describe a stream of changes.

    Args:
        relation: its columns, keys and changelog mode, hidden columns included.
        hidden: columns that are in the relation only to order its changes.
        has_baseline: the table starts from a baseline, loaded in epoch 0.
    """

    relation: Relation
    hidden: tuple[str, ...] = ()
    has_baseline: bool = False

    @property
    def visible(self) -> tuple[str, ...]:
        """Return the columns that are part of the table."""
        return tuple(name for name in self.relation.schema.names if name not in self.hidden)


@dataclass(frozen=True, kw_only=True)
class RouteNode:
    """Turn each upsert whose join key moved into a delete at the old key and an upsert at the new one."""

    source: InputNode

    @property
    def relation(self) -> Relation:
        """Return what comes out: at most one change per primary key and epoch, already in order."""
        inner = self.source.relation
        return Relation(
            name=inner.name,
            schema=inner.schema,
            join_key=inner.join_key,
            primary_key=inner.primary_key,
            mode=inner.mode,
        )

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return the hidden columns of the source."""
        return self.source.hidden

    @property
    def stage(self) -> RouteStage:
        """Return it as a stage."""
        return RouteStage(source=self.source.relation)


@dataclass(frozen=True, kw_only=True)
class ViewNode:
    """Describe what comes from an earlier join, and from what is done with its rows, as an input of the next join.

    Args:
        relation: its columns, as a changelog. It names no primary key: rows are told apart by all they hold, so a key that may
            be NULL, as behind an outer join, needs no exception.
        key: the columns that identify a row, NULL taken for a value; none where that is not known.
    """

    relation: Relation
    key: tuple[str, ...] = ()

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return nothing: the columns that order the inputs of a join do not leave it."""
        return ()


SideNode = InputNode | RouteNode | ViewNode


@dataclass(frozen=True, kw_only=True)
class JoinNode:
    """Describe a join of two inputs.

    Args:
        left: the left input.
        right: the right input.
        how: inner, left, right, full, left_semi or left_anti.
        null_safe: per key column, True for `<=>`.
        using: both sides name their key columns alike and the output shows them once.
        residual: a condition over both rows beside the keys, or None.

    Raises:
        PlanError: there is no key column, the sides have not the same number of them, or a name is used by both
            sides.
        KeyTypeError: a pair of key columns cannot be compared.
    """

    left: SideNode
    right: SideNode
    how: str = "inner"
    null_safe: tuple[bool, ...] = ()
    using: bool = False
    residual: Any = None

    def __post_init__(self) -> None:
        left, right = self.left.relation, self.right.relation
        if left.name == right.name:
            raise OptionError(
                f'both sides of the join are called "{left.name}"; give each its own name=..., messages and the '
                "dead-letter table tell them apart by it.",
                code="SAME_NAME",
                name=left.name,
            )
        if not left.join_key:
            raise PlanError(
                f'the join of "{left.name}" and "{right.name}" has no key column; a cross join has no bounded change. '
                "Name at least one pair of equal columns in on=...",
                code="CROSS_JOIN",
                left=left.name,
                right=right.name,
            )
        if not len(left.join_key) == len(right.join_key) == len(self.null_safe):
            raise PlanError(
                f'on= gives {len(left.join_key)} key columns for "{left.name}", {len(right.join_key)} for '
                f'"{right.name}" and {len(self.null_safe)} null_safe flags; they must be as many.',
                code="KEY_COUNT",
                left=left.join_key,
                right=right.join_key,
            )
        for relation in (left, right):
            for column in dict.fromkeys(relation.join_key + relation.primary_key):
                check_key_type(relation.schema.field(column).type, relation=relation.name, column=column)
        for left_column, right_column in self.key_pairs:
            common_key_type(
                left.schema.field(left_column).type,
                right.schema.field(right_column).type,
                left_column=f"{left.name}.{left_column}",
                right_column=f"{right.name}.{right_column}",
            )

    @cached_property
    def stage(self) -> JoinStage:
        """Return it as a stage."""
        left, right = (side.key if isinstance(side, ViewNode) else None for side in self.sides)
        return JoinStage(
            left=self.left.relation,
            right=self.right.relation,
            how=self.how,
            null_safe=self.null_safe,
            using=self.using,
            residual=self.residual,
            hidden=(self.left.hidden, self.right.hidden),
            row_keys=(left, right),
        )

    @property
    def sides(self) -> tuple[SideNode, SideNode]:
        """Return the two inputs, left first."""
        return self.left, self.right

    @property
    def keyed(self) -> tuple[Relation, Relation]:
        """Return the relations of both sides, each with the key that its rows are known to have."""
        left, right = (
            replace(side.relation, primary_key=side.key) if isinstance(side, ViewNode) else side.relation for side in self.sides
        )
        return left, right

    @property
    def is_append_only(self) -> bool:
        """Say whether rows are only ever added, on both sides."""
        return self.left.relation.mode == self.right.relation.mode == "append"

    @property
    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of columns that are compared."""
        return tuple(zip(self.left.relation.join_key, self.right.relation.join_key, strict=True))

    def fingerprint(self) -> dict[str, Any]:
        """Return a JSON-ready description; a checkpoint refuses a query whose description differs."""
        return {
            "how": self.how,
            "null_safe": list(self.null_safe),
            "using": self.using,
            "residual": None if self.residual is None else repr(self.residual),
            "left": _describe_side(self.left),
            "right": _describe_side(self.right),
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything about the join, JSON-ready, so that its operators can be built without the query's program."""
        return {
            "how": self.how,
            "null_safe": list(self.null_safe),
            "using": self.using,
            "residual": None if self.residual is None else write_expression(self.residual),
            "left": _write_side(self.left),
            "right": _write_side(self.right),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> JoinNode:
        """Build from what `to_json` gave.

        Raises:
            PlanError: it describes no join that this version knows.
        """
        residual = written["residual"]
        return cls(
            left=_read_side(written["left"]),
            right=_read_side(written["right"]),
            how=written["how"],
            null_safe=tuple(written["null_safe"]),
            using=written["using"],
            residual=None if residual is None else read_expression(residual),
        )


def explain(
    node: JoinNode,
    *,
    buckets: int | None = None,
    output: str | None = None,
    views: Mapping[int, Sequence[str]] | None = None,
    fusings: Mapping[int, str] | None = None,
    fused: Collection[int] = (),
) -> str:
    """Return the plan as a tree of lines, each with what it must remember.

    Args:
        node: the join.
        buckets: how many parts the state has; None when not yet known.
        output: where the answer goes, in the sink's words.
        views: side to the lines of the view that is its input.
        fusings: side to what is said of fusing with the stage that makes its rows.
        fused: the sides whose rows stay where they are made.
    """
    condition = " and ".join(
        f"{left} {'<=>' if safe else '='} {right}" for (left, right), safe in zip(node.key_pairs, node.null_safe, strict=True)
    )
    if node.residual is not None:
        condition += f" and {node.residual!r}"
    lines = [] if output is None else [f"Output to {output}"]
    lines.append(f"Join {node.how.replace('_', ' ')} on {condition}")
    lines.append(f"  remembers: {_join_memory(node)}; in {buckets or 'one per core'} buckets by join key")
    shuffled = [_shuffles(side) for number, side in enumerate(node.sides) if number not in fused]
    lines.append(f"  shuffles: {', '.join(shuffled) or 'nothing'}")
    lines += [f"  {line}" for _, line in sorted((fusings or {}).items())]
    for number, side in enumerate(node.sides):
        branch, below = ("└─ ", "   ") if number else ("├─ ", "│  ")
        if isinstance(side, ViewNode):
            first, *rest = (views or {}).get(number, [f'View "{side.relation.name}"'])
            lines += [f"{branch}{first}", *(f"{below}{line}" for line in rest)]
        elif isinstance(side, RouteNode):
            inner = side.source.relation
            lines.append(f"{branch}Route by primary key ({', '.join(inner.primary_key)})")
            moving = " or ".join(name for name in inner.join_key if name not in inner.primary_key)
            lines.append(f"{below}  why: {moving} may change, and only a table kept by primary key knows where the row was")
            kept = ", ".join(inner.join_key + inner.sequence_by)
            lines.append(f'{below}  remembers: primary key -> {kept}, one entry per key of "{inner.name}"')
            lines.append(f"{below}└─ {_explain_input(side.source)}")
        else:
            lines.append(f"{branch}{_explain_input(side)}")
    return "\n".join(lines)


def _shuffles(side: SideNode) -> str:
    first = "primary key, then by " if isinstance(side, RouteNode) else ""
    return f'changes of "{side.relation.name}" by {first}join key'


def _join_memory(node: JoinNode) -> str:
    kept = []
    for side, preserved in zip(node.sides, (("left", "full", "left_anti"), ("right", "full")), strict=True):
        what = "all live rows" if node.how in preserved or all(node.null_safe) else "live rows with a complete key"
        kept.append(f'{what} of "{side.relation.name}"')
    bound = ", all told less than join_max_buffered_bytes" if node.is_append_only else ""
    return ", ".join(kept) + bound


def _explain_input(node: InputNode) -> str:
    relation = node.relation
    facts: list[str] = [relation.mode]
    if relation.primary_key:
        facts.append(f"keys=[{', '.join(relation.primary_key)}]")
    if relation.sequence_by:
        facts.append(f"sequence_by=[{', '.join(relation.sequence_by)}]")
    beginning = " from a baseline" if node.has_baseline else ""
    return f'Input "{relation.name}" {" ".join(facts)} columns=[{", ".join(node.visible)}]{beginning}'


def _describe_side(side: SideNode) -> dict[str, Any]:
    source = side.source if isinstance(side, RouteNode) else side
    relation = source.relation
    described = {
        "name": relation.name,
        "mode": relation.mode,
        "columns": _describe_columns(relation, relation.schema.names),
        "hidden": list(source.hidden),
        "join_key": list(relation.join_key),
        "primary_key": list(relation.primary_key),
        "sequence_by": list(relation.sequence_by),
        "routed": isinstance(side, RouteNode),
    }
    if isinstance(source, ViewNode):
        return {**described, "is_view": True, "key": list(source.key)}
    return {**described, "baseline": True} if source.has_baseline else described


def _write_side(side: SideNode) -> dict[str, Any]:
    """Return what `_describe_side` does, with the columns as Arrow's own bytes."""
    source = side.source if isinstance(side, RouteNode) else side
    return {**_describe_side(side), "columns": write_schema(source.relation.schema)}


def _read_side(written: Mapping[str, Any]) -> SideNode:
    relation = Relation(
        name=written["name"],
        schema=read_schema(written["columns"]),
        join_key=tuple(written["join_key"]),
        primary_key=tuple(written["primary_key"]),
        sequence_by=tuple(written["sequence_by"]),
        mode=written["mode"],
    )
    if written.get("is_view", False):
        return ViewNode(relation=relation, key=tuple(written["key"]))
    source = InputNode(relation=relation, hidden=tuple(written["hidden"]), has_baseline=written.get("baseline", False))
    return RouteNode(source=source) if written["routed"] else source


def _describe_columns(relation: Relation, names: Sequence[str]) -> list[str]:
    return [f"{name}: {relation.schema.field(name).type}" for name in names]
