"""Description of a query inside Spark in its other mode, driver or executors, written by its program.

    zset/other_mode.json        description and plan of the other mode, and which of its states is which

The law: it holds for the description that it names, of the mode in which the checkpoint runs; beside another description it
counts for nothing. It is written at a start, before anything is answered, and nothing that an epoch does depends on it.

`zset-join rescale CHECKPOINT --execution ...` has no program, so all that it needs of the plan is here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.stages import Stage
from zset_join.stages.written import text_of
from zset_join.storage.folder import Folder
from zset_join.storage.trusted_files import seal, unseal

__all__ = [
    "READS_OTHERWISE",
    "SEVERAL_VIEWS",
    "WAITS_FOR_TIME",
    "OtherMode",
    "StatePair",
    "description_digest",
    "is_comparable",
    "mode_pairs",
    "other_mode_of",
    "read_other_mode",
    "write_other_mode",
]

_HOW_FED = "reduces"
"""The field of an aggregate for whether it is fed rows or their sums; its state is the same."""
_ORDER = "sequence_by"
_ROUTE = "route"
_LOOKED_THROUGH = frozenset({_ROUTE, "unchanged"})


def mode_pairs(executors: QueryPlan, names: Mapping[int, str], driver: QueryPlan) -> tuple[StatePair, ...] | str:
    """Return the states of both modes; text: why they cannot be paired."""
    if executors.shared or driver.shared:
        return "several joins look up in one table"
    there, here = _prints(executors), _prints(driver)
    kept_there, kept_here = _with_state(executors), _with_state(driver)
    for plan, kept, prints in ((executors, kept_there, there), (driver, kept_here, here)):
        doubled = sorted(plan.nodes[number].name for number in kept if [prints[one] for one in kept].count(prints[number]) > 1)
        if doubled:
            return f"its stages {doubled} do the same to the same sources"
    number_of = {there[number]: number for number in kept_there}
    state_names = {state.number: state.name for state in driver.states}
    unused = {node.number for node in executors.nodes if node.stage.kind == _ROUTE}
    pairs = []
    for number in kept_here:
        node = driver.nodes[number]
        other = number_of.pop(here[number], None)
        if other is None:
            return f"executors have no state like that of {node.name}"
        routes = _routes(executors, executors.nodes[other], node.stage)
        if isinstance(routes, str):
            return routes
        unused -= {*routes.values()}
        tables = {table: names[route] for table, route in routes.items()}
        pairs.append(StatePair(executors=names[other], driver=state_names[number], routes=tables))
    left = sorted(executors.nodes[number].name for number in {*number_of.values(), *unused})
    return f"the driver has no state like those of {left}" if left else tuple(pairs)


def _with_state(plan: QueryPlan) -> list[int]:
    return [node.number for node in plan.nodes if node.stage.state_tables and node.stage.kind not in _LOOKED_THROUGH]


def _prints(plan: QueryPlan) -> list[str]:
    """Return, per stage, what is equal for stages that do the same to the same rows in both modes."""
    prints: list[str] = []
    for node in plan.nodes:
        fed = [[_looked_through(plan, feed, prints) for feed in feeds] for feeds in node.feeds]
        written = text_of([_plain(node.stage.to_json()), fed])
        prints.append(hashlib.blake2b(written.encode(), digest_size=16).hexdigest())
    return prints


def _looked_through(plan: QueryPlan, feed: Feed, prints: Sequence[str]) -> Any:
    if isinstance(feed.origin, str):
        return ["source", feed.origin]
    stage = plan.nodes[feed.origin].stage
    if stage.kind in _LOOKED_THROUGH:
        return _looked_through(plan, plan.nodes[feed.origin].feeds[0][0], prints)
    return ["stage", prints[feed.origin]]


def _plain(written: Any) -> Any:
    """Return the description of a stage without its feeds and the order of its changes."""
    if isinstance(written, list | tuple):
        return [_plain(one) for one in written]
    if not isinstance(written, dict):
        return written
    return {key: _plain(inner) for key, inner in written.items() if key not in (_HOW_FED, _ORDER)}


def _routes(plan: QueryPlan, node: StageNode, wanted: Stage) -> dict[str, int] | str:
    """Return the routes that remember what orders the rows of a stage, by its tables; text: why they cannot be paired."""
    found: dict[str, int] = {}
    for table, key in wanted.state_tables.items():
        if key.of_input is None:
            continue
        before, after = node.stage.inputs[key.of_input].relation, wanted.inputs[key.of_input].relation
        feeds = node.feeds[key.of_input]
        route = feeds[0].origin if len(feeds) == 1 and not feeds[0].steps else None
        is_routed = isinstance(route, int) and plan.nodes[route].stage.kind == _ROUTE
        if is_routed and isinstance(route, int):
            if plan.nodes[route].stage.inputs[0].relation.sequence_by != after.sequence_by:
                return f"the changes of {node.name} have another order there"
            found[table] = route
        elif before.sequence_by != after.sequence_by:
            return f"the changes of {node.name} have another order there"
    return found


SEVERAL_VIEWS = "it has several views, whose outputs are known by other names there"
WAITS_FOR_TIME = "it has stages that wait for a time"
"""Why a state is not moved, though all of it has a form in the other mode: it is compared and changed there."""
READS_OTHERWISE = "Spark counts the sources of a query, and "
"""What such a reason begins with where only Spark's own files prevent a move; what each mode reads follows."""
_FILE = "other_mode.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePair:
    """Name one state in both modes."""

    executors: str
    driver: str
    routes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMode:
    """Hold what a query would be in the other mode."""

    of: str
    mode: str
    refused: str | None = None
    description: Mapping[str, Any]
    plan: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...] = ()
    pairs: tuple[StatePair, ...] = ()


def description_digest(description: Mapping[str, Any]) -> str:
    """Return what is equal for equal descriptions."""
    return hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16).hexdigest()


def is_comparable(refused: str | None) -> bool:
    """Return whether a query is compared and changed in the form of the other mode, where a move is refused for a reason.

    >>> is_comparable(None), is_comparable(SEVERAL_VIEWS), is_comparable("several joins look up in one table")
    (True, True, False)
    >>> is_comparable(f"{READS_OTHERWISE}executors read ['a', 'b'], the driver ['b', 'a']")
    True
    """
    return refused in (None, WAITS_FOR_TIME, SEVERAL_VIEWS) or refused.startswith(READS_OTHERWISE)


def write_other_mode(folder: Folder, other: OtherMode) -> None:
    """Write it down; what was there is replaced."""
    folder.put(_FILE, seal(asdict(other), version=_FORMAT, name=_FILE))


def read_other_mode(folder: Folder) -> OtherMode | None:
    """Return what was written down; None where nothing was, or not so that this version can read it."""
    data = folder.read(_FILE)
    if data is None:
        return None
    try:
        written = unseal(data.to_pybytes(), version=_FORMAT, name=_FILE)
    except ValueError:  # damaged, or of another version: the next start writes it again
        return None
    return other_mode_of(written)


def other_mode_of(written: Mapping[str, Any]) -> OtherMode:
    """Return what `dataclasses.asdict` made of one."""
    pairs = tuple(StatePair(**pair) for pair in written["pairs"])
    return OtherMode(**{**written, "pairs": pairs, "sources": tuple(written["sources"])})
