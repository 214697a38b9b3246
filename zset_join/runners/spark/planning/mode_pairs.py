"""Which state of a query on executors is which one on the driver.

The law: two states are a pair when their stages do the same to the same rows, from the sources up. A route, and an `unchanged`
stage, is looked through: its answer is the table that it is given. What is computed between stages does not count, for
both plans are of one program; where that leaves a choice, there is no pair.

Where executors have a route in front of a join, the join trusts the order of its changes; on the driver it remembers it itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from zset_join.checkpoint.other_mode import StatePair
from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.stages import Stage
from zset_join.stages.written import text_of

__all__ = ["mode_pairs"]

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
