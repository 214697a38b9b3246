"""The operators under test: how each is built, what is drawn for it, how its output is read, and what it is excused from.

To put a new operator under the laws, add one `Registered` entry: a strategy of specs (a spec states the oracle's verdict),
a builder, a view that folds answers into counts, and a written reason for every law that cannot hold.

`HashJoin` is here once per join type and pair of input modes; key shapes, primary keys, null safety, residual, USING,
chunk size and hash width are drawn. `ReferenceJoin` is beside it so that a law which is itself wrong shows up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from property_tests.aggregate_reference import build_reference_aggregate
from property_tests.aggregate_shapes import AggregateSpec, aggregate_specs, build_aggregate, build_preaggregated
from property_tests.bucketed_shapes import build_bucketed_aggregate, build_bucketed_join
from property_tests.lasting_shapes import build_lasting_aggregate, build_lasting_join, lasting_live_rows
from property_tests.lookup_shapes import LookupSpec, build_lookup, lookup_specs
from property_tests.reference_join import ReferenceJoin
from property_tests.routed_join import RoutedJoin
from property_tests.shapes import HOWS, JoinSpec, LatestSpec, Mode, RouteSpec, Spec
from property_tests.strategies import join_specs, latest_specs, route_specs
from property_tests.view_shapes import VIEW_KINDS, ViewKind, ViewSpec, build_view, view_specs
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, left, right
from zset_join.operators.first_load import LoadedJoin, LoadedLatest
from zset_join.operators.join import HashJoin
from zset_join.operators.upsert_table import Latest, Route
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.testing.comparison import EmittedRows, IllegalAnswerError
from zset_join.testing.reference import Counts, row_identity
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = [
    "EXEMPT_EVERYWHERE",
    "MODE_PAIRS",
    "REGISTRY",
    "Build",
    "IllegalAnswerError",
    "Registered",
    "Subject",
    "View",
    "build_hash_join",
    "build_loaded_join",
    "build_reference_join",
    "hash_join_live_rows",
    "make_hash_join",
    "reference_live_rows",
    "registered_join",
]

EXEMPT_EVERYWHERE: Mapping[str, str] = {}

RESIDUAL_EXPRESSIONS: Mapping[str, Expression] = {
    "x_less": left("x") < right("x"),
    "f_at_most": left("f") <= right("f"),
}
_Join = TypeVar("_Join", bound=HashJoin)
_NO_UNDO = "an append relation takes no retraction, so no row can be retracted"
_NO_DUPLICATES = "without an upsert side nothing names a row: a redelivered insert is, rightly, a second copy"
_NO_BOOKS = "each stage numbers the rows of its own delta, so a row number of the input means nothing behind a route"
MODE_PAIRS: tuple[tuple[Mode, Mode], ...] = (
    ("append", "append"),
    ("upsert", "upsert"),
    ("sequenced", "sequenced"),
    ("changelog", "changelog"),
    ("keyed_changelog", "append"),
    ("append", "sequenced"),
    ("upsert", "changelog"),
)
ROUTE_MODES: tuple[Mode, ...] = ("upsert", "sequenced")
AGGREGATE_MODES: tuple[Mode, ...] = ("changelog", "keyed_changelog", "append")
VIEW_MODES: tuple[Mode, ...] = ("changelog", "append")
LOOKUP_MODES: tuple[Mode, ...] = ("append", "sequenced", "changelog")
_NO_DIRECTORY = "it maps one delta to one answer and keeps nothing, so there is no directory to open again"
_NO_ROWS = "what was reduced before the shuffle no longer has its rows, so none of them can be named"
_NO_FILES = "the reference keeps its rows in memory only; the laws about directories are the product's to obey"
_NO_MEMORY = "it remembers no row, so it cannot detect that a retraction retracts a row that was never there"
_NOT_NOTICED = "sums do not name rows: a retraction of a row that was never there shows only once its group is empty"
_NO_BUDGET = "it keeps all its state in memory: only joins, routes and groups by key take a budget, and move rows to disk"
_NOT_GUARDED = "it is put together for these tests and answers only when it is read; its operators guard themselves"
_ENDED_OR_ABSENT = "what retracts a row that is not there may retract one that has ended, and is counted, not refused"
_KEEPS_NO_VALUES = {"quarantine_keeps_the_books": _NOT_NOTICED, "errors_apply_nothing": _NOT_NOTICED}


class Build(Protocol):
    """Build the operator of a spec."""

    def __call__(self, spec: Any, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        """Return a fresh operator, or the one that `directory` holds."""
        ...


class View(Protocol):
    """What an output's reader holds after some epochs."""

    def take(self, answer: Sequence[ZSet]) -> None:
        """Fold the answer of one epoch."""
        ...

    def counts(self) -> Counts:
        """Return the rows held, by identity."""
        ...


class GroupView(EmittedRows):
    """The groups of an aggregate: the sum of the answers, one row per group.

    Args:
        key_columns: how many columns name a group.
    """

    def __init__(self, key_columns: int) -> None:
        super().__init__()
        self._key_columns = key_columns

    def take(self, answer: Sequence[ZSet]) -> None:
        """Add the answer; a group may not have two rows, nor one row twice."""
        super().take(answer)
        seen: set[tuple[Hashable, ...]] = set()
        for row, weight in self.counts().items():
            key = row[: self._key_columns]
            if weight != 1 or key in seen:
                raise IllegalAnswerError(f"group {key} has more than one row: {row} is there {weight} times")
            seen.add(key)


class RouteView:
    """The buckets behind a route: each finds a row by primary key, but only among the rows of its own join key."""

    def __init__(self, relation: Relation) -> None:
        self._key = relation.field_indices(relation.join_key)
        self._primary = relation.field_indices(relation.primary_key)
        self._rows: dict[tuple[Hashable, ...], dict[tuple[Hashable, ...], tuple[Hashable, ...]]] = {}

    def take(self, answer: Sequence[ZSet]) -> None:
        """Apply deletes and upserts bucket by bucket."""
        upserted: set[Hashable] = set()
        for row, weight in (line for chunk in answer for line in chunk.to_pylist()):
            values = row_identity(row)
            key, primary = (tuple(values[place] for place in places) for places in (self._key, self._primary))
            bucket = self._rows.setdefault(key, {})
            if weight not in (1, -1):
                raise IllegalAnswerError(f"row {values} has weight {weight}; an upsert is 1 and a delete -1")
            if weight == -1:
                if bucket.pop(primary, None) is None:
                    raise IllegalAnswerError(f"primary key {primary} is deleted at join key {key}, where it is not")
                if upserted:
                    raise IllegalAnswerError(f"primary key {primary} is deleted after an upsert of the same epoch")
                continue
            if primary in upserted:
                raise IllegalAnswerError(f"primary key {primary} is upserted twice in one epoch")
            upserted.add(primary)
            bucket[primary] = values

    def counts(self) -> Counts:
        """Return all rows of all buckets; a primary key left behind in an old bucket shows as one row too many."""
        counts: Counts = {}
        for bucket in self._rows.values():
            for values in bucket.values():
                counts[values] = counts.get(values, 0) + 1
        return counts


@dataclass(frozen=True)
class Subject:
    """One operator description under test, with the way to build it."""

    spec: Spec | AggregateSpec | ViewSpec | LookupSpec
    build: Build
    live_rows: Callable[[Operator], int]

    def operator(self, *, on_bad_input: str = "error", directory: str | None = None) -> Operator:
        """Build it."""
        return self.build(self.spec, on_bad_input=on_bad_input, directory=directory)

    def with_budget(self, budget: tuple[str, int] | None, cold_store: str = "files") -> Subject:
        """Return the same operator with another budget, and the rest on a medium."""
        knobs = dataclasses.replace(self.spec.knobs, budget=budget, cold_store=cold_store)
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, knobs=knobs))

    def view(self) -> View:
        """Return an empty reader of its output."""
        if isinstance(self.spec, AggregateSpec):
            return GroupView(len(self.spec.group_by))
        if isinstance(self.spec, RouteSpec) and self.spec.shows_upserts:
            return RouteView(self.spec.relation)
        return EmittedRows()

    def __repr__(self) -> str:
        return repr(self.spec)


@dataclass(frozen=True)
class Registered:
    """An operator in the registry.

    Args:
        name: shown as the test's parameter.
        specs: what to draw.
        build: how to build one.
        live_rows: counts the live rows an operator holds, tombstones not included.
        exemptions: law name to the reason why it cannot hold.
    """

    name: str
    specs: st.SearchStrategy[Any]
    build: Build
    live_rows: Callable[[Operator], int]
    exemptions: Mapping[str, str] = field(default_factory=dict)

    def subjects(self) -> st.SearchStrategy[Subject]:
        """Draw subjects."""
        return self.specs.map(lambda spec: Subject(spec, self.build, self.live_rows))


def build_reference_join(
    spec: JoinSpec, *, on_bad_input: str = "error", directory: str | None = None, bugs: Sequence[str] = ()
) -> ReferenceJoin:
    """Build the reference join of a spec, with or without bugs."""
    return ReferenceJoin(
        spec.left,
        spec.right,
        spec.how,
        null_safe=spec.null_safe,
        using=spec.using,
        residual=None if spec.residual is None else spec.residual.function,
        on_bad_input=on_bad_input,
        chunk_rows=spec.knobs.chunk_rows,
        directory=directory,
        bugs=bugs,
    )


def build_hash_join(spec: JoinSpec, *, on_bad_input: str = "error", directory: str | None = None) -> HashJoin:
    """Build the product's join of a spec."""
    return make_hash_join(spec, spec.knobs.options(on_bad_input, directory))


def make_hash_join(spec: JoinSpec, options: OperatorOptions) -> HashJoin:
    """Build the product's join of a spec, with these options.

    With a budget of bytes every key on disk counts as a long one, whose rows are streamed and not brought into memory.
    """
    join = _join_of(CompactingJoin if spec.knobs.compacting else HashJoin, spec, options)
    if options.budget is not None and options.budget.max_hot_bytes is not None and join._hybrid is not None:
        join._hybrid.oversized.least_bytes = [1, 1]
    return join


def build_loaded_join(
    spec: JoinSpec, *, on_bad_input: str = "error", directory: str | None = None, kind: type[LoadedJoin] = LoadedJoin
) -> LoadedJoin:
    """Build a join that works a first epoch of two rows in parts of one row."""
    join = _join_of(kind, spec, spec.knobs.options(on_bad_input, directory, may_be_hybrid=False))
    join._part_rows = 1
    return join


def _join_of(kind: type[_Join], spec: JoinSpec, options: OperatorOptions) -> _Join:
    return kind(
        spec.left,
        spec.right,
        spec.how,
        null_safe=spec.null_safe,
        using=spec.using,
        residual=None if spec.residual is None else RESIDUAL_EXPRESSIONS[spec.residual.name],
        hidden=spec.hidden,
        options=options,
    )


class CompactingJoin(HashJoin):
    """A `HashJoin` that compacts after every epoch, however few rows are dead."""

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        """Absorb, then compact."""
        super().absorb(tick, deltas)
        for side in self._sides:
            side.begin_absorb()
            side.compact()
            side.end_absorb(tick.epoch)


def build_route(spec: RouteSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Route:
    """Build the product's route of a spec."""
    return Route(
        spec.relation,
        options=spec.knobs.options(on_bad_input, directory),
    )


def build_latest(spec: LatestSpec, *, on_bad_input: str = "error", directory: str | None = None) -> Latest:
    """Build the product's table of latest rows of a spec."""
    return Latest(
        spec.relation,
        options=spec.knobs.options(on_bad_input, directory),
    )


def build_loaded_latest(spec: LatestSpec, *, on_bad_input: str = "error", directory: str | None = None) -> LoadedLatest:
    """Build a table of latest rows that works a first epoch of two rows in parts of one row."""
    table = LoadedLatest(spec.relation, options=spec.knobs.options(on_bad_input, directory, may_be_hybrid=False))
    table._part_rows = 1
    return table


def build_routed_join(spec: JoinSpec, *, on_bad_input: str = "error", directory: str | None = None) -> RoutedJoin:
    """Build routes, buckets and joins of a spec."""
    residual = None if spec.residual is None else RESIDUAL_EXPRESSIONS[spec.residual.name]
    return RoutedJoin(spec, residual=residual, on_bad_input=on_bad_input, directory=directory)


def hash_join_live_rows(operator: Operator) -> int:
    """Count the rows of the snapshot whose weight is not 0; a tombstone has weight 0."""
    tables = operator.snapshot().values()
    return sum(weight != 0 for table in tables for weight in table.column("_zset_weight").to_pylist())


def reference_live_rows(operator: Operator) -> int:
    """Count the rows of the reference's snapshot, tombstones omitted."""
    weights = [weight for table in operator.snapshot().values() for weight in table.column("_weight").to_pylist()]
    return len(weights) - weights.count(0) if not getattr(operator, "bugs", ()) else len(weights)


def registered_join(
    kind: str,
    how: str,
    modes: tuple[Mode, Mode],
    *,
    build: Build,
    live_rows: Callable[[Operator], int],
    excused: Mapping[str, str] | None = None,
    **drawn: Any,
) -> Registered:
    """Return the entry of one join type and pair of modes; `drawn` narrows what `join_specs` draws."""
    exemptions = dict(excused or {})
    if "append" in modes:
        exemptions["undo_is_complete"] = _NO_UNDO
    if not {"upsert", "sequenced"} & set(modes):
        exemptions["duplicate_delivery_is_invisible"] = _NO_DUPLICATES
    name = f"{kind}-{how}-{modes[0]}-{modes[1]}"
    return Registered(name, join_specs(how, *modes, **drawn), build, live_rows, exemptions)


def registered_aggregate(mode: Mode, *, excused: Mapping[str, str] | None = None, **drawn: Any) -> Registered:
    """Return the entry of aggregates over one mode; `drawn` narrows what `aggregate_specs` draws."""
    exemptions = {"duplicate_delivery_is_invisible": _NO_DUPLICATES, **(excused or {})}
    if mode == "append":
        exemptions["undo_is_complete"] = _NO_UNDO
    name = "-".join(
        [
            "aggregate",
            "all" if drawn.get("is_global") else "groups",
            *([] if drawn.get("keeps_values", True) else ["sums"]),
            mode,
        ]
    )
    return Registered(name, aggregate_specs(mode, **drawn), build_aggregate, hash_join_live_rows, exemptions)


def registered_view(kind: ViewKind, mode: Mode) -> Registered:
    """Return the entry of one kind of view over inputs in one mode."""
    exemptions = {"duplicate_delivery_is_invisible": _NO_DUPLICATES}
    if mode == "append":
        exemptions["undo_is_complete"] = _NO_UNDO
    if kind != "distinct":
        exemptions["reopening_is_invisible"] = _NO_DIRECTORY
        if mode != "append":
            exemptions |= {"quarantine_keeps_the_books": _NO_MEMORY, "errors_apply_nothing": _NO_MEMORY}
    return Registered(f"{kind}-{mode}", view_specs(kind, mode), build_view, hash_join_live_rows, exemptions)


def registered_lookup(mode: Mode) -> Registered:
    """Return the entry of lookup joins over a stream in one mode, over an external table that does not change."""
    exemptions = {} if mode == "sequenced" else {"duplicate_delivery_is_invisible": _NO_DUPLICATES}
    if mode == "append":
        exemptions["undo_is_complete"] = _NO_UNDO
    return Registered(f"lookup-{mode}", lookup_specs(mode), build_lookup, _lookup_live_rows, exemptions)


def registered_lasting() -> Iterator[Registered]:
    """Yield the entries of operators with `state_ttl` whose rows live longer than a history."""
    build = partial(build_lasting_join, residuals=RESIDUAL_EXPRESSIONS)
    unknown = dict.fromkeys(("quarantine_keeps_the_books", "errors_apply_nothing"), _ENDED_OR_ABSENT)
    modes: tuple[tuple[str, Mode], ...] = (("full", "append"), ("inner", "changelog"))
    for how, mode in modes:
        excused = {} if mode == "append" else unknown
        yield registered_join("lasting", how, (mode, mode), build=build, live_rows=lasting_live_rows, excused=excused)
    group = registered_aggregate("changelog", excused=unknown)
    yield dataclasses.replace(group, name=f"lasting-{group.name}", build=build_lasting_aggregate, live_rows=lasting_live_rows)


def registered_buckets() -> Iterator[Registered]:
    """Yield the entries of operators in buckets, on which several threads work."""
    build = partial(build_bucketed_join, inside=build_hash_join, residuals=RESIDUAL_EXPRESSIONS)
    modes: tuple[tuple[str, tuple[Mode, Mode]], ...] = (
        ("full", ("changelog", "append")),
        ("left", ("upsert", "upsert")),
        ("inner", ("upsert", "changelog")),
    )
    for how, pair in modes:
        yield registered_join("bucketed", how, pair, build=build, live_rows=hash_join_live_rows)
    group = registered_aggregate("changelog")
    yield dataclasses.replace(group, name=f"bucketed-{group.name}", build=build_bucketed_aggregate)


def _lookup_live_rows(operator: Operator) -> int:
    """Count the left rows of the snapshot; what each was joined with is remembered beside them."""
    return sum(weight != 0 for weight in operator.snapshot()["left"].column("_zset_weight").to_pylist())


_LOADED: tuple[tuple[str, tuple[Mode, Mode]], ...] = (
    ("full", ("upsert", "sequenced")),
    ("left_anti", ("append", "upsert")),
)
_ENTRIES: tuple[Registered, ...] = (
    *(
        registered_join("join", how, modes, build=build_hash_join, live_rows=hash_join_live_rows, hides=(False, True, True))
        for how in HOWS
        for modes in MODE_PAIRS
    ),
    *(registered_aggregate(mode, is_global=is_global) for mode in AGGREGATE_MODES for is_global in (False, True)),
    *(
        registered_aggregate("changelog", is_global=is_global, keeps_values=False, excused=_KEEPS_NO_VALUES)
        for is_global in (False, True)
    ),
    *(
        Registered(
            f"reference-aggregate-{'all' if is_global else 'groups'}",
            aggregate_specs("changelog", is_global=is_global),
            build_reference_aggregate,
            reference_live_rows,
            dict.fromkeys(("reopening_is_invisible", "replay_after_crash_is_invisible"), _NO_FILES)
            | {"duplicate_delivery_is_invisible": _NO_DUPLICATES},
        )
        for is_global in (False, True)
    ),
    *(
        Registered(
            f"preaggregated-{'sums' if sums else 'values'}-{'all' if is_global else 'groups'}",
            aggregate_specs("changelog", is_global=is_global, keeps_values=not sums),
            build_preaggregated,
            hash_join_live_rows,
            dict.fromkeys(("quarantine_keeps_the_books", "errors_apply_nothing"), _NO_ROWS)
            | {"duplicate_delivery_is_invisible": _NO_DUPLICATES},
        )
        for sums in (False, True)
        for is_global in (False, True)
    ),
    *(registered_view(kind, mode) for kind in VIEW_KINDS for mode in VIEW_MODES),
    *map(registered_lookup, LOOKUP_MODES),
    *registered_lasting(),
    *registered_buckets(),
    *(
        registered_join("loaded", how, modes, build=build_loaded_join, live_rows=hash_join_live_rows, hides=(False, True))
        for how, modes in _LOADED
    ),
    *(
        Registered(f"loaded-latest-{mode}", latest_specs(mode), build_loaded_latest, hash_join_live_rows)
        for mode in ROUTE_MODES
    ),
    *(Registered(f"route-{mode}", route_specs(mode), build_route, hash_join_live_rows) for mode in ROUTE_MODES),
    *(Registered(f"latest-{mode}", latest_specs(mode), build_latest, hash_join_live_rows) for mode in ROUTE_MODES),
    *(
        registered_join(
            "routed",
            how,
            ("upsert", "sequenced"),
            build=build_routed_join,
            live_rows=hash_join_live_rows,
            excused={"quarantine_keeps_the_books": _NO_BOOKS},
        )
        for how in HOWS
    ),
    *(
        registered_join("reference", how, ("sequenced", "changelog"), build=build_reference_join, live_rows=reference_live_rows)
        for how in HOWS
    ),
)
_SPILLING = (
    "join-",
    "latest-",
    "route-",
    "aggregate-groups-",
    "preaggregated-sums-groups",
    "preaggregated-values-groups",
)
_COMPOSED = ("reference-", "routed-", "preaggregated-")


def _excused(entry: Registered) -> Registered:
    """Return an entry with the exemptions that follow from its kind."""
    exemptions = dict(entry.exemptions)
    if not entry.name.startswith(_SPILLING):
        exemptions["budget_is_invisible"] = _NO_BUDGET
    if entry.name.startswith(_COMPOSED):
        exemptions["late_reading_is_refused"] = _NOT_GUARDED
    return dataclasses.replace(entry, exemptions=exemptions)


REGISTRY: tuple[Registered, ...] = tuple(map(_excused, _ENTRIES))
