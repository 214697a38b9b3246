"""Counts of the states of a plan: what they hold of a source, and what has left them, for refusals and reports of a change.

The law: counts are those of the operators after the last epoch. A report reads no state for them: of states that nobody read it
has the counts that the last commit record holds, which are those before the last epoch that had rows for them, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zset_join.core.read_when_used import ReadWhenUsed
from zset_join.core.shown_values import counted
from zset_join.plan.query_plan import QueryPlan, StateNode
from zset_join.zset.protocol import DurableOperator

__all__ = ["HeldCounts", "HeldRows", "ended_rows", "state_bytes"]

_NO_STATE = frozenset({"hot_bytes"})
"""Counts of bytes that are part of another count, or were dropped."""

_Counts = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """What a stage holds of a source."""

    stage: str
    rows: int
    noun: str  # `row` or `group`
    ended: Mapping[str, int]  # rows that have left it since its start, by how they went
    answered: int  # rows that a temporal join has answered, kept or not

    def __str__(self) -> str:
        answered = f" and has answered {self.answered:,}" if self.answered else ""
        return f"{self.stage} holds {counted(self.rows, self.noun)}{answered}"


@dataclass(frozen=True, kw_only=True)
class HeldCounts:
    plan: QueryPlan
    states: Mapping[int, DurableOperator]
    counted: Mapping[str, _Counts]  # at the last commit, by the name of a state; for states that wait to be read

    def of_sources(self, names: Collection[str | int]) -> list[HeldRows]:
        """Return what stages that are fed the rows of sources, or answers of stages, hold of them. Cost: these are read."""
        found, there = [], {*self.states}  # `in` would read one
        for state in self.plan.states:
            if state.number not in there:
                continue
            inputs = {
                given if not state.is_shared else 0 if given else 1 + place  # the table is the first input of a shared state
                for place, number in enumerate(state.readers)
                for given, feeds in enumerate(self.plan.nodes[number].feeds)
                if any(feed.origin in names for feed in feeds)
            }
            if inputs:
                found.append(_held(state, inputs, self.states[state.number].statistics()))
        return found

    def upstream(self, plan: QueryPlan, number: int) -> list[str]:
        """Return the names of the sources from which rows come to a stage of a plan."""
        origins = [feed.origin for feeds in plan.nodes[number].feeds for feed in feeds]
        names = [[one] if isinstance(one, str) else self.upstream(plan, one) for one in origins]
        return list(dict.fromkeys(name for some in names for name in some))

    @property
    def _read(self) -> Mapping[int, DurableOperator]:
        return self.states.used if isinstance(self.states, ReadWhenUsed) else self.states

    def unread(self) -> list[str]:
        """Return the names of states that nobody has read."""
        there = {*self.states} - self._read.keys()  # `in` would read one
        return [state.name for state in self.plan.states if state.number in there]

    def known(self) -> dict[str, _Counts]:
        """Return by name the counts of all states that are known without reading one."""
        read = self._read
        own = {state.name: read[state.number].statistics() for state in self.plan.states if state.number in read}
        return {state.name: own.get(state.name, self.counted.get(state.name, {})) for state in self.plan.states}

    def ended(self) -> dict[str, dict[str, int]]:
        """Return by state how many rows have left it, by how they went."""
        found = {name: ended_rows(counts) for name, counts in self.known().items()}
        return {name: counts for name, counts in found.items() if counts}

    def bytes_of(self, states: Collection[int]) -> int:
        known = self.known()
        return sum(state_bytes(known[state.name]) for state in self.plan.states if state.number in states)

    def set_aside(self) -> dict[str, int]:
        """Return by state how many rows it has set aside as bad input."""
        found = {name: counts.get("rejected_rows", counts.get("rejected", 0)) for name, counts in self.known().items()}
        return {name: rows for name, rows in found.items() if rows}


def state_bytes(counts: _Counts) -> int:
    """Return from the counts of an operator the bytes of its state, in memory and on disk.

    >>> state_bytes({"left_rows": 2, "left_bytes": 80, "right_bytes": 40, "hot_bytes": 60, "cold_disk_bytes": 10})
    130
    """
    return sum(size for name, size in counts.items() if name.endswith("_bytes") and name not in _NO_STATE)


def ended_rows(counts: _Counts) -> dict[str, int]:
    """Return from the counts of an operator how many rows have left it: by time, or as past versions.

    >>> ended_rows({"left_rows": 2, "ttl_0_expired": 3, "freed_rows": 1, "freed_versions": 4})
    {'ended by time': 3, 'versions freed': 4}
    """
    # Rows that a temporal join has answered and does not keep are none of them: they are in its answer.
    found = {
        "ended by time": sum(rows for name, rows in counts.items() if name.endswith("_expired")),
        "versions freed": counts.get("freed_versions", 0),
    }
    return {how: rows for how, rows in found.items() if rows}


def _held(state: StateNode, inputs: Collection[int], counts: _Counts) -> HeldRows:
    """Return what an operator holds of some inputs: of the tables of an input that with most rows."""
    tables = state.stage.state_tables
    of_input = {name: [at for at in inputs if key.of_input in (None, at)] for name, key in tables.items()}
    rows: dict[int, int] = {}
    for name, places in of_input.items():
        for at in places:
            if f"{name}_rows" in counts:
                rows[at] = max(rows.get(at, 0), counts[f"{name}_rows"])
    others = {f"{name}_expired" for name, places in of_input.items() if not places}
    others |= set() if of_input.get("right", [0]) else {"freed_versions"}
    ended = ended_rows({name: count for name, count in counts.items() if name not in others})
    answered = counts.get("answered_rows", 0) if 0 in inputs and not state.is_shared else 0
    held, noun = (counts["groups"], "group") if not rows and "groups" in counts else (sum(rows.values()), "row")
    return HeldRows(stage=state.name, rows=held, noun=noun, ended=ended, answered=answered)
