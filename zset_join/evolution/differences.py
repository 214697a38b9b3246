"""Difference between the answers of two plans: per view the removed and the added rows, with counts.

The law: the rows before, minus those removed, plus those added, are the rows after. A row that is the same before and after is
in neither. Where the columns of a view change, all its rows are in both.

Cost: a hash of every row that differs.

`with_lookups_of`: lookups of a plan that was read from a checkpoint, made through the sources of the program that changes it.

A plan on the disk describes the source of a lookup, and does not hold it; a stage with lookups is the same in two plans where
it makes them through the same object (`plan.fingerprints`). A source of the same description is the one that the query has
used, as at any start of its program.

The law: where several sources have one description, a stage takes the source of the stage that does the same to the same rows.
Several such stages go by their order, and only where both plans have as many: with one more or less, nothing shows which is
which, and a stage whose rows were looked up elsewhere would be taken for the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation, adds_columns, with_added_nullable
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import counted, html_table
from zset_join.plan.query_plan import QueryPlan, StageNode
from zset_join.stages.effect import has_effect
from zset_join.stages.written import text_of
from zset_join.zset import ZSet

__all__ = ["PlanDiff", "ViewDiff", "difference", "with_lookups_of"]

_ADDED = 1 << 32
_MANY_ROWS = 10_000
"""From so many rows on a report has the seconds that a stage takes."""
_LEAST_BYTES = 50_000
"""A report shows larger changes of the size of the state."""
Status = Literal["unchanged", "changed", "columns", "added", "dropped"]


@dataclass(frozen=True, eq=False)
class ViewDiff:
    """The change of one view."""

    name: str
    status: Status  # `changed` may be without a differing row; `columns`: columns or types differ
    key: tuple[str, ...]  # before and after; none where it is not known
    before: int | None  # rows with their copies; None: unchanged, and nobody has counted
    removed: ZSet  # weights are positive, columns those before
    added: ZSet  # weights are positive, columns those after

    @property
    def delta(self) -> ZSet:
        """Return the difference as one Z-set, retractions first."""
        if self.status == "columns":
            raise PlanError(
                f'view "{self.name}" changes from {_columns(self.removed)} to {_columns(self.added)}; rows of both '
                "are not one Z-set. Read `removed` and `added`.",
                code="EVOLVE_COLUMNS",
                view=self.name,
            )
        schema = self.added.schema
        return ZSet.concat([-(_under(self.removed, schema)), self.added], schema=schema)

    @property
    def adds_columns(self) -> bool:
        """Return whether the view gets columns behind those it has, and changes nothing else about them."""
        return self.status == "columns" and adds_columns(self.removed.schema, self.added.schema)

    @property
    def answer(self) -> ZSet:
        """Return the answer of the epoch of the change: `delta`; the rows before have NULL in columns that are added."""
        # Under columns that are not only added to it is all rows.
        if not self.adds_columns:
            return self.added if self.status == "columns" else self.delta
        had = len(self.removed.schema)
        schema = with_added_nullable(had, self.added.schema)
        empty = [pa.nulls(len(self.removed), kind) for kind in schema.types[had:]]
        before = pa.RecordBatch.from_arrays([*self.removed.rows.columns, *empty], schema=schema)
        gone = ZSet(before, -self.removed.weights)
        return ZSet.concat([gone, _under(self.added, schema)], schema=schema).consolidated()

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Return rows `added`, `removed` and `changed`; a row is changed where its key is present before and after."""
        removed, added = self.removed.total_weight(), self.added.total_weight()
        changed = int(self._has_both.sum())
        return {"added": added - changed, "removed": removed - changed, "changed": changed}

    @property
    def is_empty(self) -> bool:
        """Return whether no row differs and the view is present as before."""
        return self.status in ("unchanged", "changed") and not len(self.removed) and not len(self.added)

    @cached_property
    def _keys(self) -> ZSet:
        """Return the key of every row that differs: weights hold in the low half how often it goes, in the high half comes."""
        if not self.key:
            return ZSet.empty(pa.schema([]))
        before, after = (_picked(rows, self.key) for rows in (self.removed, self.added))
        sides = [before, ZSet(after.rows, after.weights * _ADDED)]
        return ZSet.concat([_under(one, before.schema) for one in sides], schema=before.schema).consolidated()

    @property
    def _has_both(self) -> Any:
        weights = self._keys.weights
        return ((weights & (_ADDED - 1)) > 0) & ((weights >> 32) > 0)

    def samples(self, most: int = 10) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
        """Return some differences as pairs of the row before and the row after; changed rows first."""
        if not self.key:
            gone, come = (_as_dicts(rows, range(min(most, len(rows)))) for rows in (self.removed, self.added))
            pairs = [*((row, None) for row in gone), *((None, row) for row in come)]
            return [pair for at in range(most) for pair in (pairs[at : at + 1])]
        order = np.argsort(~self._has_both, kind="stable")[:most]
        keys = _as_dicts(ZSet(take_rows(self._keys.rows, order), self._keys.weights[order]), range(len(order)))
        before, after = (self._found(rows, keys) for rows in (self.removed, self.added))
        return [(before.get(_value(key)), after.get(_value(key))) for key in keys]

    def _found(self, rows: ZSet, keys: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return rows by their keys; for a few keys of many rows: a pass over the key columns each."""
        found: dict[str, dict[str, Any]] = {}
        for key in keys:
            there = np.ones(len(rows), np.bool_)
            for name, value in key.items():
                column = rows.rows.column(name)
                same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
                there &= same.fill_null(False).to_numpy(zero_copy_only=False)
            places = np.flatnonzero(there)[:1]
            found |= {_value(key): row for row in _as_dicts(rows, places.tolist())}
        return found

    def __str__(self) -> str:
        counts = self.counts
        if self.status == "unchanged":
            return f'view "{self.name}" is unchanged'
        if self.status == "added":
            return f'view "{self.name}" is added, with {counted(self.added.total_weight(), "row")}'
        if self.status == "dropped":
            return f'view "{self.name}" is dropped, with its {counted(self.removed.total_weight(), "row")}'
        if self.status == "columns":
            return (
                f'view "{self.name}" changes its columns from {_columns(self.removed)} to {_columns(self.added)}: '
                f"{counted(self.removed.total_weight(), 'row')} before, {self.added.total_weight():,} after"
            )
        of = "" if self.before is None else f" of {self.before:,}"
        removed, changed = (f"{counts[name]:,}" for name in ("removed", "changed"))
        return f'view "{self.name}": adds {counted(counts["added"], "row")}, removes {removed}, changes {changed}{of}'


@dataclass(frozen=True, eq=False, repr=False)
class PlanDiff:
    """Difference between the answers of two plans, and the effect of the change."""

    epoch: int | None  # the last one of both answers; None before the first
    views: Mapping[str, ViewDiff]
    kept: Sequence[str]  # stages, as the new plan calls them
    rebuilt: Mapping[str, int]  # by stage, how many rows it is fed
    dropped: Sequence[str]  # stages, as the old plan calls them
    read: Mapping[str, int]  # what rows were read for it, and how many
    rejected: int = 0  # bad input of the new stages
    late: Mapping[str, int] = field(default_factory=dict)  # by source, rows that came too late for the plan before
    taken: int | None = None  # the epoch of the change; None: only the difference was computed
    ending: Mapping[str, int] = field(default_factory=dict)  # by stage, what a shorter `state_ttl` ends with the next epoch
    set_aside: Mapping[str, int] = field(default_factory=dict)  # by stage of the plan before, its bad input; it stays so
    ended: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by stage of the plan before, what has left
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage that is built
    state_bytes: int = 0  # more than before; less is negative
    lags: Sequence[str] = ()  # stages whose newest epoch is in neither of the last two

    @property
    def is_empty(self) -> bool:
        return all(view.is_empty for view in self.views.values())

    def answers(self, names: Iterable[str]) -> dict[str, ZSet]:
        """Return the answer of the epoch of the change, by view; see `ViewDiff.answer`."""
        return {name: self.views[name].answer for name in names}

    def lines(self) -> Iterator[str]:
        at = "before the first epoch" if self.epoch is None else f"after epoch {self.epoch}"
        yield (
            f"{at}: keeps {len(self.kept)} of {counted(len(self.kept) + len(self.rebuilt), 'stage')}"
            + _listed("builds", [f"{name} ({self._work(name)})" for name in self.rebuilt])
            + _listed("drops", self.dropped)
            + _state(self.state_bytes)
        )
        if self.read:
            yield "reads " + ", ".join(f"{what} ({rows:,})" for what, rows in self.read.items())
        yield from map(str, self.views.values())
        yield from self.notes()

    def notes(self) -> Iterator[str]:
        """Yield the lines of the report about rows that are in no view: bad input, late, ending and ended ones."""
        if self.rejected:
            yield f"bad input to the new stages, left out: {counted(self.rejected, 'row')}"
        late = {name: rows for name, rows in self.late.items() if rows}
        if self.ending:
            ended = ", ".join(f"{name} {rows:,}" for name, rows in self.ending.items())
            yield f"rows or keys that the shorter state_ttl ends with the next epoch, not shown above: {ended}"
        if late:
            yield "late rows are excluded: " + ", ".join(f"{name} {rows:,}" for name, rows in late.items())
        gone = [(name, f" {how}", rows) for name, some in self.ended.items() for how, rows in some.items()]
        for what, counts in {
            "rows set aside before stay so": [(name, "", rows) for name, rows in self.set_aside.items()],
            "rows that have ended stay so": gone,
        }.items():
            without = " (without the last epoch)" if any(name in self.lags for name, *_ in counts) else ""
            if counts:
                yield f"{what}: {', '.join(f'{name} {rows:,}{how}' for name, how, rows in counts)}{without}"

    def _work(self, name: str) -> str:
        """Return how many rows a stage is built from, and where they are many, how long that takes."""
        rows, seconds = self.rebuilt[name], self.seconds.get(name, 0.0)
        return counted(rows, "row") + (f", about {max(seconds, 0.1):,.1f} s" if rows >= _MANY_ROWS else "")

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        """Return in one line which views differ; `str` and `to_markdown` have more."""
        differing = [view.name for view in self.views.values() if not view.is_empty]
        views = f"{len(differing)} of {len(self.views)} views"
        return f"PlanDiff({views} differ{': ' if differing else ''}{', '.join(differing)})"

    def _repr_html_(self, *, samples: int = 10) -> str:
        """Return counts and some differing rows of each view for a notebook, those that go red, those that arrive green."""
        names = ("added", "removed", "changed")
        counts = [[view.name, view.status, *(view.counts[name] for name in names)] for view in self.views.values()]
        parts = [html_table(["view", "status", *names], counts, caption=next(iter(self.lines())))]
        for view in self.views.values():
            pairs = [] if view.is_empty else view.samples(samples)
            rows = [(sign, row) for pair in pairs for sign, row in zip((-1, 1), pair, strict=True) if row is not None]
            columns = list(dict.fromkeys(name for _, row in rows for name in row))
            if rows:
                shown = [["+" if sign > 0 else "-", *(row.get(name) for name in columns)] for sign, row in rows]
                parts.append(html_table(["", *columns], shown, caption=view.name, signs=[sign for sign, _ in rows]))
        return "".join(parts)

    def to_markdown(self, *, samples: int = 5) -> str:
        """Return the difference as Markdown, for the comment of a pull request."""
        parts = ["| view | adds | removes | changes | rows before |", "|---|--:|--:|--:|--:|"]
        for view in self.views.values():
            before = "" if view.before is None else f"{view.before:,}"
            shown = [f"{view.counts[name]:,}" for name in ("added", "removed", "changed")]
            parts.append(
                f"| `{view.name}`{'' if view.status == 'changed' else f' ({view.status})'} | {' | '.join(shown)} | {before} |"
            )
        parts += ["", *(f"- {line}" for line in self.lines() if not line.startswith('view "'))]
        for view in self.views.values():
            pairs = view.samples(samples) if not view.is_empty else []
            if pairs:
                parts += ["", f"`{view.name}`:", "```diff"]
                for old, new in pairs:
                    parts += [] if old is None else [f"- {_text(old)}"]
                    parts += [] if new is None else [f"+ {_text(new)}"]
                parts.append("```")
        return "\n".join(parts) + "\n"

    def write_parquet(self, directory: str | Path) -> list[Path]:
        """Write every row that differs: per view one file of rows that go and one of rows that arrive, with their copies."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for view in self.views.values():
            for what, rows in (("removed", view.removed), ("added", view.added)):
                path = folder / f"{view.name.replace('/', '_')}.{what}.parquet"
                lines = pa.Table.from_arrays(rows.rows.columns, schema=with_added_nullable(0, rows.schema))
                pq.write_table(lines.append_column("_copies", pa.array(rows.weights)), path)
                written.append(path)
        return written


def difference(name: str, before: tuple[Relation, ZSet] | None, after: tuple[Relation, ZSet] | None) -> ViewDiff:
    if before is None and after is None:
        raise ValueError("a view is there before or after")
    if before is None or after is None:
        relation, rows = after if after is not None else before  # type: ignore[misc]  # one of them is present
        none, rows = ZSet.empty(relation.schema), rows.consolidated()
        key = relation.primary_key
        if before is None:
            return ViewDiff(name, "added", key, 0, none, rows)
        return ViewDiff(name, "dropped", key, rows.total_weight(), rows, none)
    (old, gone), (new, come) = before, after
    count = gone.total_weight()
    key = old.primary_key if old.primary_key == new.primary_key else ()
    if (old.schema.names, old.schema.types) != (new.schema.names, new.schema.types):
        shared = all(old.schema.field(one).type == new.schema.field(one).type for one in key)
        return ViewDiff(name, "columns", key if shared else (), count, gone.consolidated(), come.consolidated())
    differing = ZSet.concat([-(_under(gone, new.schema)), _under(come, new.schema)], schema=new.schema).consolidated()
    return ViewDiff(name, "changed", key, count, *(_signed(differing, sign) for sign in (-1, 1)))


def _signed(rows: ZSet, sign: int) -> ZSet:
    chosen = np.flatnonzero(rows.weights * sign > 0)
    return ZSet(take_rows(rows.rows, chosen), rows.weights[chosen] * sign)


def _under(rows: ZSet, schema: pa.Schema) -> ZSet:
    """Return rows under fields that may differ in what is never NULL."""
    if rows.schema.equals(schema):
        return rows
    return ZSet(pa.RecordBatch.from_arrays(rows.rows.columns, schema=schema), rows.weights)


def _picked(rows: ZSet, names: Sequence[str]) -> ZSet:
    return ZSet(rows.rows.select(list(names)), rows.weights)


def _as_dicts(rows: ZSet, places: Sequence[int] | range) -> list[dict[str, Any]]:
    return take_rows(rows.rows, np.array(list(places), np.int64)).to_pylist() if len(places) else []


def _value(key: Mapping[str, Any]) -> str:
    return repr(tuple(key.values()))


def _columns(rows: ZSet) -> str:
    return "(" + ", ".join(f"{field.name} {field.type}" for field in rows.schema) + ")"


def _listed(verb: str, names: Sequence[str]) -> str:
    return f", {verb} {', '.join(names)}" if names else ""


def _state(difference: int) -> str:
    """Return how much more is stored, where it is worth a word."""
    return f"; state {difference / 1e6:+,.1f} MB" if abs(difference) >= _LEAST_BYTES else ""


def _text(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def with_lookups_of(written: QueryPlan, program: QueryPlan) -> QueryPlan:
    """Return a plan with the sources of another one, where its lookups use sources of the same description."""
    there = _lookups(program)
    if not there:
        return written
    before, after, found = _texts(written), _texts(program), dict[int, Any]()
    for described, nodes in _lookups(written).items():
        found |= _paired(nodes, there.get(described, []), before, after)
    through = (_through(node, found[node.number]) if node.number in found else node for node in written.nodes)
    return replace(written, nodes=tuple(through))


def _lookups(plan: QueryPlan) -> dict[str, list[StageNode]]:
    """Return the stages with lookups, by the description of their source."""
    found: dict[str, list[StageNode]] = {}
    for node in plan.nodes:
        if has_effect(node.stage):
            found.setdefault(text_of(_source(node).to_json(), names=True), []).append(node)
    return found


def _paired(
    here: Sequence[StageNode], there: Sequence[StageNode], before: Sequence[str], after: Sequence[str]
) -> dict[int, Any]:
    """Return the sources for stages whose sources have one description, by their numbers."""
    mine, its = _by_text(here, before), _by_text(there, after)
    is_only_one = len({id(_source(node)) for node in there}) == 1
    pairs = [(nodes, its[text]) for text, nodes in mine.items() if text in its]
    pairs.append((_others(mine, its), _others(its, mine)))
    found = dict[int, Any]()
    for nodes, same in pairs:
        if len(nodes) == len(same):
            found |= {node.number: _source(one) for node, one in zip(nodes, same, strict=True)}
    if is_only_one:
        found |= {nodes[0].number: _source(there[0]) for nodes in mine.values() if len(nodes) == 1}
    return found


def _by_text(nodes: Sequence[StageNode], texts: Sequence[str]) -> dict[str, list[StageNode]]:
    found: dict[str, list[StageNode]] = {}
    for node in nodes:
        found.setdefault(texts[node.number], []).append(node)
    return found


def _others(nodes: Mapping[str, Sequence[StageNode]], known: Mapping[str, Sequence[StageNode]]) -> list[StageNode]:
    """Return the stages that have no like in the other plan, as where columns of their rows change."""
    return [node for text, some in nodes.items() if text not in known for node in some]


def _texts(plan: QueryPlan) -> list[str]:
    """Return by number what each stage does to the rows of sources, whatever it looks up through."""
    texts = list[str]()
    for node in plan.nodes:
        feeds = [
            [
                [one.origin if isinstance(one.origin, str) else texts[one.origin], [step.to_json() for step in one.steps]]
                for one in feeds
            ]
            for feeds in node.feeds
        ]
        texts.append(text_of([node.stage.lasting, feeds]))
    return texts


def _source(node: StageNode) -> Any:
    stage: Any = node.stage
    return stage.source


def _through(node: StageNode, source: Any) -> StageNode:
    stage: Any = node.stage
    return replace(node, stage=replace(stage, source=source))
