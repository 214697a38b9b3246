"""The joins of one SELECT, in the order in which they are written: which rows each keeps, shows and pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from zset_join.expressions import Expression
from zset_join.sql.bind.scopes import Item, Merged
from zset_join.sql.bind.timed_joins import Version

__all__ = ["KEEPS_LEFT", "KEEPS_RIGHT", "SHOWS_LEFT", "SIDES", "Step", "padded"]

SIDES = {
    ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left", ("LEFT", "OUTER"): "left",
    ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right", ("FULL", ""): "full", ("FULL", "OUTER"): "full", ("", "OUTER"): "full",
    ("LEFT", "SEMI"): "left_semi", ("", "SEMI"): "left_semi", ("LEFT", "ANTI"): "left_anti", ("", "ANTI"): "left_anti",
}  # fmt: skip
KEEPS_LEFT = frozenset({"inner", "right", "left_semi"})
KEEPS_RIGHT = frozenset({"inner", "left", "left_semi", "left_anti"})
SHOWS_LEFT = frozenset({"left_semi", "left_anti"})


@dataclass
class Step:
    """One join."""

    item: Item
    node: exp.Join
    how: str
    version: Version | None = None
    on: list[exp.Expr] = field(default_factory=list)
    using: list[Expression] = field(default_factory=list)
    merged: dict[str, Merged] = field(default_factory=dict)

    @property
    def is_comma(self) -> bool:
        """Return whether its condition is to be looked for in WHERE."""
        return self.node.args.get("on") is None and not self.node.args.get("using")

    @property
    def is_timed(self) -> bool:
        """Return whether it requests rows of a time."""
        return self.version is not None or self.item.time_expression is not None or bool(self.node.args.get("method"))


def padded(items: Sequence[Item], steps: Sequence[Step]) -> set[str]:
    """Return the items whose conditions cannot be evaluated before the joins: those that are padded, or read as of a time."""
    fixed = {step.item.alias for step in steps if step.is_timed}
    fixed |= {item.alias for item in items if item.lookup is not None}
    for place, step in enumerate(steps):
        if step.how in {"left", "full"}:
            fixed.add(step.item.alias)
        if step.how in {"right", "full"}:
            fixed |= {item.alias for item in items[: place + 1]}
    return fixed
