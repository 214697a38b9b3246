"""What a join lists of its state is the sum of its answers, for every type, pair of modes, key type and residual predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.laws import Law, LawBrokenError, Run, compare
from property_tests.profiles import HUNT, MAX_CHANGES, profile_name
from property_tests.registry import REGISTRY, Registered, Subject
from property_tests.strategies import History, histories
from property_tests.test_laws import searched
from tests.sweeps import some_of
from zset_join.state.join import joined_rows
from zset_join.testing.reference import total

JOINS = {entry.name: entry for entry in REGISTRY if entry.name.startswith("join-")}


def listing_is_the_sum(subject: Subject, history: History) -> None:
    """After every epoch, what the join lists is the batch join of everything that arrived, whole and cut to some columns."""
    run = Run(subject)
    operator: Any = run.operator
    if not operator.lists_answer:
        return
    for changes in history.epochs():
        run.step(changes)
        chunks = list(operator.listed())
        listed = total(line for chunk in chunks for line in chunk.to_pylist())
        compare(listed, run.expected(), f"listed after epoch {run.epoch - 1}", subject, history)
        for some in operator.listed(columns := operator.output.schema.names[1::2]):
            if some.schema.names != columns or not 0 < len(some) <= subject.spec.knobs.chunk_rows:
                raise LawBrokenError(f"a chunk of {len(some)} rows has the columns {some.schema.names}, not {columns}")


LISTS = Law("listing_is_the_sum", listing_is_the_sum)
_EMIT = joined_rows.emit_listed_rows


@pytest.mark.parametrize("entry", some_of(JOINS, short=list(JOINS)[::7]))
def test_what_a_join_lists_is_the_sum_of_its_answers(entry: Registered) -> None:
    searched([LISTS], entry)()


def _with(place: int, value: Callable[[int], int]) -> Callable[..., int]:
    def emit(*given: Any) -> int:
        return _EMIT(*given[:place], value(given[place]), *given[place + 1 :])

    return emit


BUGS: dict[str, tuple[str, Any]] = {
    "rows alone are not listed": ("emit_listed_rows", _with(7, lambda kind: 0)),
    "rows alone are the matched ones": ("emit_listed_rows", _with(7, lambda kind: kind and 3 - kind)),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_of_listing_is_found(name: str) -> None:
    what, bug = BUGS[name]
    entry = JOINS[next(one for one in JOINS if one.startswith("join-full"))]

    @HUNT
    @given(st.data())
    def hunt(data: st.DataObject) -> None:
        subject = data.draw(entry.subjects())
        listing_is_the_sum(subject, data.draw(histories(subject.spec, max_changes=MAX_CHANGES[profile_name()])))

    with mock.patch.object(joined_rows, what, bug), pytest.raises(LawBrokenError):
        hunt()
