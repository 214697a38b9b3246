"""The columns of a join's output, gathered from pairs of record addresses.

Order: left columns, then right columns (semi and anti joins: left only). With `using`, the key columns stand first and once,
as Spark's `USING` puts them; where either side may be missing (FULL) they are coalesced.
"""

from __future__ import annotations

from collections.abc import Sequence
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.errors import PlanError
from zset_join.relation import Relation
from zset_join.state.side import SideState

__all__ = ["JoinedRows", "joined_schema"]

_PADS_RIGHT = ("left", "full")
_PADS_LEFT = ("right", "full")


def joined_schema(
    left: Relation, right: Relation, how: str, *, using: bool, output_names: Sequence[str] | None
) -> tuple[pa.Schema, list[tuple[str, str]]]:
    """Return the output's schema and, per column, (side, source column); side `both` is a coalesced key.

    Raises:
        PlanError: two output columns of one name, or a wrong number of `output_names`.
    """
    sources: list[tuple[str, str]] = []
    if how in ("left_semi", "left_anti"):
        sources = [("left", name) for name in left.schema.names]
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
    fields = [
        _output_field(side, source, name, left, right, how) for (side, source), name in zip(sources, names, strict=True)
    ]
    return pa.schema(fields), sources


def _output_field(side: str, source: str, name: str, left: Relation, right: Relation, how: str) -> pa.Field:
    relation = right if side == "right" else left
    field = relation.schema.field(source)
    padded = side != "both" and how in (_PADS_LEFT if side == "left" else _PADS_RIGHT)
    nullable = field.nullable or padded or (side == "both" and right.schema.field(source).nullable)
    return pa.field(name, field.type, nullable)


class JoinedRows:
    """Gather output columns.

    Args:
        left: state of the left side.
        right: state of the right side.
        schema: the output's schema.
        sources: per output column, (side, source column), from `joined_schema`.
    """

    def __init__(
        self, left: SideState, right: SideState, schema: pa.Schema, sources: Sequence[tuple[str, str]]
    ) -> None:
        self._left, self._right, self._schema = left, right, schema
        self._plan: list[tuple[int, int]] = []
        self._left_positions: list[int] = []
        self._right_positions: list[int] = []
        for side, name in sources:
            left_at = right_at = -1
            if side != "right":
                left_at = len(self._left_positions)
                self._left_positions.append(left.relation.schema.get_field_index(name))
            if side != "left":
                right_at = len(self._right_positions)
                self._right_positions.append(right.relation.schema.get_field_index(name))
            self._plan.append((left_at, right_at))

        self._left_plan = left.layout.gather_plan(self._left_positions)
        self._right_plan = right.layout.gather_plan(self._right_positions)

    def gather(self, left_refs: int, right_refs: int, count: int) -> pa.RecordBatch:
        """Return the output rows of `count` pairs whose record addresses stand at two addresses; 0 is a padded side."""
        left = self._left_plan.gather(left_refs, count, self._left.arena.heap_address)
        right = self._right_plan.gather(right_refs, count, self._right.arena.heap_address)
        columns = []
        for left_at, right_at in self._plan:
            if right_at < 0:
                columns.append(left[left_at])
            elif left_at < 0:
                columns.append(right[right_at])
            else:
                own = left[left_at]
                columns.append(pc.coalesce(own, right[right_at].cast(own.type)) if own.null_count else own)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
