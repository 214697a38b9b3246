"""Every registered operator obeys every law it is not excused from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from property_tests.laws import LAWS, Law
from property_tests.profiles import EXAMPLES_OF_A_TYPE, EXAMPLES_OF_AN_OPERATOR, MAX_CHANGES, profile_name
from property_tests.registry import EXEMPT_EVERYWHERE, REGISTRY, Registered
from property_tests.strategies import histories

_DESIGN_LAWS = {
    "incremental_is_batch",
    "epochs_are_invisible",
    "undo_is_complete",
    "quiet_on_quiet",
    "answer_is_pure",
    "snapshot_and_restore_are_invisible",
    "budget_is_invisible",
    "duplicate_delivery_is_invisible",
    "legal_in_legal_out",
    "answers_are_tidy",
}
_DRAWN_MOST = (
    "incremental_is_batch",
    "epochs_are_invisible",
    "undo_is_complete",
    "snapshot_and_restore_are_invisible",
    "quarantine_keeps_the_books",
)
_OF_MANY_TYPES = ("join-", "routed-", "reference-")
_PAIRS = [(entry, law) for entry in REGISTRY for law in LAWS.values() if law.name not in entry.exemptions]
_EXEMPTIONS = [
    (entry.name, law, reason) for entry in REGISTRY for law, reason in {**entry.exemptions, **EXEMPT_EVERYWHERE}.items()
]


def is_of_many_types(entry: Registered) -> bool:
    """Return whether an entry is one of many types and pairs of modes of a join."""
    return entry.name.startswith(_OF_MANY_TYPES) and not entry.name.startswith("reference-aggregate")


def operator_of(entry: Registered) -> str:
    """Return the operator of which an entry is a variation: of joins every type is one, of aggregates those with a key."""
    first, second, *_ = entry.name.split("-")
    names_two = first in ("join", "aggregate") or entry.name.startswith(("reference-aggregate", "loaded-latest"))
    return f"{first}-{second}" if names_two else first


def drawn_most(entry: Registered) -> int:
    """Return how many histories of an entry show the laws that are drawn most.

    The entries of an operator share its examples: each has as many as the law needs that has the fewest entries.
    """
    each = EXAMPLES_OF_AN_OPERATOR[profile_name()]
    if profile_name() != "push":
        return each
    sharing = [
        [one.name for one, law in _PAIRS if law.name == name and operator_of(one) == operator_of(entry)] for name in _DRAWN_MOST
    ]
    return max(math.ceil(each / len(names)) for names in sharing if entry.name in names)


def other_laws() -> dict[str, list[Law]]:
    """Return which of the other laws each entry is searched for: on a push, types of joins share them.

    Joins are present in six types and seven pairs of modes: a law takes one pair of modes of every type, and one type of the
    joins behind a route and of the reference; another law takes another one.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    laws: dict[str, list[Law]] = {entry.name: [] for entry in REGISTRY}
    for entry, law in _PAIRS:
        if law.name in _DRAWN_MOST:
            continue
        if profile_name() != "push" or not is_of_many_types(entry):
            laws[entry.name].append(law)
        else:
            groups.setdefault((law.name, operator_of(entry)), []).append(entry.name)
    for number, ((law_name, _), names) in enumerate(groups.items()):
        laws[names[number % len(names)]].append(LAWS[law_name])
    return {name: of_entry for name, of_entry in laws.items() if of_entry}


def searched(laws: Sequence[Law], entry: Registered, examples: int | None = None) -> Callable[[], None]:
    """Return a function that searches for a history which breaks one of the laws."""
    fewer = EXAMPLES_OF_A_TYPE[profile_name()] if is_of_many_types(entry) else settings.default.max_examples
    with_bad_lines = any(law.with_bad_lines for law in laws)

    @settings(max_examples=examples or fewer)
    @given(st.data())
    def search(data: st.DataObject) -> None:
        subject = data.draw(entry.subjects(), label="subject")
        history = data.draw(
            histories(subject.spec, max_changes=MAX_CHANGES[profile_name()], with_bad_lines=with_bad_lines), label="history"
        )
        for law in laws:
            note(f"law {law.name}")
            law.check(subject, history)

    return search


@pytest.mark.parametrize("entry", REGISTRY, ids=lambda entry: entry.name)
def test_the_operator_obeys_the_laws_that_are_drawn_most(entry: Registered) -> None:
    searched([LAWS[name] for name in _DRAWN_MOST if name not in entry.exemptions], entry, drawn_most(entry))()


_BY_NAME = {entry.name: entry for entry in REGISTRY}


@pytest.mark.parametrize(
    ("entry", "laws"), [pytest.param(_BY_NAME[name], laws, id=name) for name, laws in other_laws().items()]
)
def test_the_operator_obeys_its_other_laws(entry: Registered, laws: list[Law]) -> None:
    searched(laws, entry)()


def test_every_law_of_the_design_is_checked_or_waits_with_a_reason() -> None:
    missing = _DESIGN_LAWS - LAWS.keys() - EXEMPT_EVERYWHERE.keys()

    assert missing == set()


def test_no_law_is_both_checked_and_waiting() -> None:
    both = LAWS.keys() & EXEMPT_EVERYWHERE.keys()

    assert both == set()


@pytest.mark.parametrize(("entry", "law", "reason"), _EXEMPTIONS, ids=[f"{name}-{law}" for name, law, _ in _EXEMPTIONS])
def test_an_exemption_names_a_law_and_carries_a_written_reason(entry: str, law: str, reason: str) -> None:
    assert law in LAWS.keys() | EXEMPT_EVERYWHERE.keys(), entry
    assert len(reason.split()) >= 8, entry


def test_a_push_draws_twenty_histories_per_operator_for_the_laws_that_are_drawn_most() -> None:
    drawn: dict[tuple[str, str], int] = {}
    for entry, law in _PAIRS:
        if law.name in _DRAWN_MOST:
            drawn[operator_of(entry), law.name] = drawn.get((operator_of(entry), law.name), 0) + drawn_most(entry)

    assert {name for _, name in drawn} == set(_DRAWN_MOST)
    assert {pair: count for pair, count in drawn.items() if count < 20} == {}


def test_every_other_law_is_searched_on_every_operator_that_has_it() -> None:
    searched_on = {(operator_of(_BY_NAME[name]), law.name) for name, laws in other_laws().items() for law in laws}

    assert searched_on == {(operator_of(entry), law.name) for entry, law in _PAIRS if law.name not in _DRAWN_MOST}
