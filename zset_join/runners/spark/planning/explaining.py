"""The output of `explain` for a query inside Spark: a tree of its stages, each with what it must remember and what travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zset_join.core.shown_values import shown_buckets
from zset_join.plan.passes.fuse_stages import Fusing
from zset_join.plan.row_steps import RowStep, relation_after
from zset_join.runners.spark.planning.stages import PlannedStage, Stream, Use, ends_of, senders_of
from zset_join.stages import Stage
from zset_join.stages.stage import EquiJoin

__all__ = ["explained_query"]


def explained_query(
    planned_stages: Sequence[PlannedStage], fusings: Sequence[Fusing], *, buckets: int | None = None, views: Sequence[str]
) -> list[str]:
    explanation, lines = _Explanation(planned_stages, fusings, buckets), list[str]()
    for view in views:
        rows = explanation.rows(ends_of(planned_stages, view))
        lines += rows if len(views) == 1 else [f'View "{view}"', *_branch(rows, is_last=True)]
    return lines


class _Explanation:
    def __init__(self, planned_stages: Sequence[PlannedStage], fusings: Sequence[Fusing], buckets: int | None) -> None:
        self._stages = planned_stages
        self._fusings = {(one.target, one.side): one for one in fusings}
        self._buckets = buckets
        self._shown: set[int] = set()

    def rows(self, senders: Sequence[tuple[PlannedStage, Use]]) -> list[str]:
        """Return the lines for the rows of an input, or of a view."""
        if len(senders) == 1:
            return self._chain(*senders[0])
        lines = ["Union"]
        for at, sender in enumerate(senders):
            lines += _branch(self._chain(*sender), is_last=at == len(senders) - 1)
        return lines

    def _before(self, planned: PlannedStage, side: int) -> list[tuple[PlannedStage, Use]]:
        return senders_of(self._stages, planned.number, side)

    def _chain(self, end: PlannedStage, use: Use) -> list[str]:
        """Return the steps behind a stage, and those before it for as long as one input leads to the next."""
        steps: list[tuple[RowStep | None, PlannedStage]] = []  # None: the stage itself
        source, of_source = end, use
        senders: Sequence[tuple[PlannedStage, Use]] | None = None
        while True:
            steps += [(step, source) for step in reversed(of_source.steps)]
            if source.streams or len(source.stage.inputs) > 1 or source.number in self._shown:
                break
            steps.append((None, source))
            senders = self._before(source, 0)
            if len(senders) != 1:
                break
            ((source, of_source),), senders = senders, None
        lines: list[str] = []
        if steps:
            key = ", ".join(relation_after(end.stage.output, use.steps).primary_key)
            lines.append(f"key: {key}" if key else "key: none; the view may hold equal rows")
        for depth, (step, planned) in enumerate(steps):
            branch = f"{'   ' * (depth - 1)}└─ " if depth else ""
            title, *facts = [step.describe()] if step is not None else planned.stage.explain(self._buckets)
            lines.append(f"{branch}{title}")
            if step is None:
                self._shown.add(planned.number)
                facts = [line.strip() for line in facts]
                lines += [f"{'   ' * depth}   {line}" for line in (*facts, *self._shuffles(planned))]
        found = self._stage(source) if senders is None else self.rows(senders)
        indent = "   " * len(steps)
        first = f"{indent[3:]}└─ {found[0]}" if steps else found[0]
        return [*lines, first, *(f"{indent}{line}" for line in found[1:])]

    def _shuffles(self, planned: PlannedStage) -> list[str]:
        fusing = self._fusings[planned.number, 0]
        shuffled = _shuffled(planned.stage) if fusing.why_not is not None else "nothing"
        return [f"shuffles: {shuffled}", fusing.line(planned.stage.inputs[0].relation.name)]

    def _stage(self, planned: PlannedStage) -> list[str]:
        """Return a stage with what it is fed; the first line where another use has shown it."""
        stage = planned.stage
        if planned.number in self._shown:
            return [f"{stage.explain(self._buckets)[0]} (shown above, used again)"]
        self._shown.add(planned.number)
        sides = range(len(stage.inputs))
        join = stage.equi_join
        lines = stage.explain(self._buckets) if join is None else self._join(planned, join)
        for side in sides:
            lines += _branch(self._side(planned, side), is_last=side == sides[-1])
        return lines

    def _join(self, planned: PlannedStage, stage: EquiJoin) -> list[str]:
        condition = " and ".join(
            f"{left} {'<=>' if safe else '='} {right}" for (left, right), safe in zip(stage.key_pairs, stage.flags, strict=True)
        )
        if stage.residual is not None:
            condition += f" and {stage.residual!r}"
        fusings = [self._fusings.get((planned.number, side)) for side in (0, 1)]
        shuffled = [
            f'changes of "{given.relation.name}" by {"primary key, then by " if self._route(planned, side) else ""}join key'
            for side, given in enumerate(stage.inputs)
            if fusings[side] is None or fusings[side].why_not is not None  # type: ignore[union-attr]
        ]
        return [
            f"Join {stage.how.replace('_', ' ')} on {condition}",
            f"  remembers: {_join_memory(stage)}; {shown_buckets(self._buckets, 'join key')}",
            f"  shuffles: {', '.join(shuffled) or 'nothing'}",
            *(
                f"  {one.line(stage.inputs[side].relation.name)}"
                for side, one in enumerate(fusings)
                if one is not None and not self._route(planned, side)
            ),
        ]

    def _route(self, planned: PlannedStage, side: int) -> PlannedStage | None:
        """Return the route before an input; None where there is none."""
        before = [one for one, use in self._before(planned, side) if one.stage.forwards and not use.steps]
        return before[0] if len(before) == len(self._before(planned, side)) == 1 else None

    def _side(self, planned: PlannedStage, side: int) -> list[str]:
        if side in planned.streams:
            return [_explained(planned.streams[side])]
        route = self._route(planned, side)
        if route is None:
            return self.rows(self._before(planned, side))
        inner = route.streams.get(0)
        below = self.rows(self._before(route, 0)) if inner is None else [_explained(inner)]
        return [*route.stage.explain(self._buckets), *_branch(below, is_last=True)]


def _shuffled(stage: Stage) -> str:
    """Return the rows that are shuffled to a stage of one input."""
    (one,) = stage.inputs
    if one.reduce is None:
        return "the changed rows"
    is_partial = not set(one.fed.schema.names) <= set(one.relation.schema.names)
    columns = ", ".join(one.fed.schema.names)
    return "one line of sums per group and task" if is_partial else f"the changed rows, cut down to {columns}"


def _branch(lines: Sequence[str], *, is_last: bool) -> list[str]:
    first, *rest = lines
    return [f"{'└─ ' if is_last else '├─ '}{first}", *(f"{'   ' if is_last else '│  '}{line}" for line in rest)]


def _explained(stream: Stream) -> str:
    described: Any = stream
    return str(described.explained())


def _join_memory(stage: EquiJoin) -> str:
    kept = []
    for given, preserved in zip(stage.inputs, (("left", "full", "left_anti"), ("right", "full")), strict=True):
        what = "all live rows" if stage.how in preserved or all(stage.flags) else "live rows with a complete key"
        kept.append(f'{what} of "{given.relation.name}"')
    bound = ", together less than join_max_buffered_bytes" if stage.is_append_buffer else ""
    return ", ".join(kept) + bound
