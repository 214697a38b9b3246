"""Group the pairs of a join without making them: sums per key of both sides, joined and multiplied.

    count(*), sum(l.x)  over  l JOIN r ON l.k = r.k  GROUP BY l.k

    l by k: n, s          r by k: m          count = sum of n * m,  sum(l.x) = sum of s * m

The law: the groups are those of the join's pairs. A key with `n` rows on one side and `m` on the other costs one row per side
instead of `n * m` pairs, and a change of one row costs as much as a change of its key.

It is done to an inner join by plain columns that meet under `=` or `<=>` and nothing else, where neither side is known to have
one row per key, behind which selections only rename, and which nobody else reads; to groups by columns of either side, of
`count`, `sum` and `avg` of integers, `min` and `max`, without FILTER. Anything else is left to pairs: sums of floats would be
rounded in another order, and a global group has a row without pairs. A source in changelog mode is left to pairs as well: its
`-1` is compared with the row that it retracts.

Only sums are kept: the rows of the sides are absent for an evolution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from zset_join.expressions import Expression
from zset_join.expressions.rows import named, plain_column
from zset_join.expressions.tree import Call, Literal
from zset_join.plan.columns_kept import PAIRS, why_not_summed
from zset_join.plan.row_steps import SelectStep, name_after
from zset_join.plan.tree import Apply, Node, Operate, Root, each_node, is_derived, rebuilt
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.join import JoinRequest

__all__ = ["sum_pairs"]

_SIDES = ("left", "right")
_COUNT = "rows"


def sum_pairs(root: Root) -> Root:
    """Return a tree whose groups over many-to-many joins are fed products of sums."""
    parents = Counter(id(child) for node in each_node(root) for child in node.children)

    def change(node: Node) -> Node:
        pairs = _Pairs.below(node, parents)
        return node if pairs is None else pairs.summed()

    return rebuilt(root, change)


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """A group over a join, as the pass reads it."""

    group: AggregateRequest
    join: JoinRequest
    sides: tuple[Node, Node]
    keys: tuple[tuple[str, str], ...]
    columns: Mapping[str, tuple[int, str]]  # per column that the group reads, side and column of the input
    types: Mapping[str, pa.DataType]

    @classmethod
    def below(cls, node: Node, parents: Mapping[int, int]) -> _Pairs | None:
        """Return the pairs that a node groups; None where they have to be made."""
        if not isinstance(node, Operate) or not isinstance(node.request, AggregateRequest):
            return None
        group, below = node.request, node.inputs[0]
        steps: list[SelectStep] = []
        while isinstance(below, Apply) and isinstance(below.step, SelectStep) and parents[id(below)] == 1:
            steps.insert(0, below.step)
            below = below.child
        if not isinstance(below, Operate) or not isinstance(below.request, JoinRequest) or parents[id(below)] != 1:
            return None
        join = below.request
        keys = [tuple(map(plain_column, pair)) for pair in join.keys]
        if join.how != "inner" or join.condition is not None or any(None in pair for pair in keys):
            return None
        if not group.group_by or not group.calls or any(_has_rows_kept(side) for side in below.inputs):
            return None
        plain = tuple((str(one), str(other)) for one, other in keys)
        if any(_is_unique(side, [pair[at] for pair in plain]) for at, side in enumerate(below.inputs)):
            return None
        schema = node.inputs[0].relation.schema
        shown: dict[str, tuple[int, str]] = {}
        for name, (side, column) in below.stage.shown_columns:  # type: ignore[attr-defined]
            after = name_after(steps, name)
            if after is not None:
                shown[after] = _SIDES.index(side), column
        read = [*group.group_by, *(name for call in group.calls for name in call.columns)]
        if any(name not in shown for name in read) or any(why_not_summed(call, schema) for call in group.calls):
            return None
        return cls(
            group=group,
            join=join,
            sides=(below.inputs[0], below.inputs[1]),
            keys=plain,
            columns={name: shown[name] for name in read},
            types={name: schema.field(name).type for name in read},
        )

    def summed(self) -> Node:
        """Return the groups out of sums per key."""
        joined = Operate(
            JoinRequest(
                keys=tuple((named(_of(0, one)), named(_of(1, other))) for one, other in self.keys),
                how="inner",
                null_safe=self.join.null_safe,
                names=self.join.names,
            ),
            (self._grouped(0), self._grouped(1)),
        )
        products = [(name, named(_of(*self.columns[name]))) for name in self.group.group_by]
        calls: list[AggregateCall] = []
        shown: list[tuple[str, Expression]] = [(name, named(name)) for name in self.group.group_by]
        for call in self.group.calls:
            parts = self._products(call)
            products += [(f"{PAIRS}{name}", product) for name, _, product in parts]
            calls += [AggregateCall(function, f"{PAIRS}{name}", name=f"{PAIRS}{name}") for name, function, _ in parts]
            shown.append((call.name, _result(call, [named(f"{PAIRS}{name}") for name, _, _ in parts])))
        once = tuple(dict(products).items())
        of_pairs = AggregateRequest(self.group.group_by, tuple({call.name: call for call in calls}.values()))
        return Apply(Operate(of_pairs, (Apply(joined, SelectStep(once)),)), SelectStep(tuple(shown)))

    def _grouped(self, side: int) -> Node:
        """Return the sums of a side by its keys, and by those of its columns that the groups are by."""
        keys = [pair[side] for pair in self.keys]
        by = list(
            dict.fromkeys([*keys, *(self.columns[name][1] for name in self.group.group_by if self.columns[name][0] == side)])
        )
        calls = {_of(side, _COUNT): AggregateCall("count", name=_of(side, _COUNT))}
        read = list(by)
        for call in self.group.calls:
            if call.columns and self.columns[call.columns[0]][0] == side:
                column = self.columns[call.columns[0]][1]
                read.append(column)
                for function in _parts_of(call):
                    name = _of(side, f"{function}({column})")
                    calls[name] = AggregateCall(function, _of(side, column), name=name)
        step = SelectStep(tuple((_of(side, name), named(name)) for name in dict.fromkeys(read)))
        request = AggregateRequest(tuple(_of(side, name) for name in by), tuple(calls.values()))
        return Operate(request, (Apply(self.sides[side], step),))

    def _products(self, call: AggregateCall) -> list[tuple[str, str, Expression]]:
        """Return the sums of every pair of groups: a name, how it is brought together, and its value."""
        if not call.columns:
            return [(_COUNT, "sum", named(_of(0, _COUNT)) * named(_of(1, _COUNT)))]
        side, column = self.columns[call.columns[0]]
        found: list[tuple[str, str, Expression]] = []
        for function in _parts_of(call):
            part = named(_of(side, f"{function}({column})"))
            is_sum = function in ("sum", "count")
            value = part * named(_of(1 - side, _COUNT)) if is_sum else part
            found.append((_of(side, f"{function}({column})"), "sum" if is_sum else function, value))
        return found


def _of(side: int, name: str) -> str:
    """Return the name in this pass for a column of one side; no column of a user has such a name by accident."""
    return f"{_SIDES[side]}: {name}"


def _parts_of(call: AggregateCall) -> tuple[str, ...]:
    """Return the functions per side that an output column is made of."""
    return ("sum", "count") if call.kind == "avg" else (call.kind,)


def _result(call: AggregateCall, parts: Sequence[Expression]) -> Expression:
    """Return an output column out of what was brought together; a group without pairs does not exist."""
    match call.kind:
        case "count":
            return Call("coalesce", (parts[0], Literal(0, pa.int64())))
        case "avg":
            return parts[0].cast(pa.float64()) / parts[1].cast(pa.float64())
        case _:
            return parts[0]


def _has_rows_kept(node: Node) -> bool:
    """Return whether rows arrive straight from a source in changelog mode."""
    return node.relation.mode == "changelog" and not is_derived(node)


def _is_unique(node: Node, keys: Sequence[str]) -> bool:
    """Return whether a side is known to have one row per key."""
    known = node.relation.primary_key
    return bool(known) and set(known) <= set(keys)
