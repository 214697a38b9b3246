"""Every registered operator obeys every law it is not excused from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from property_tests.laws import LAWS, Law
from property_tests.profiles import EXAMPLES_OF_A_TYPE, MAX_CHANGES, profile_name
from property_tests.registry import EXEMPT_EVERYWHERE, REGISTRY, Registered
from property_tests.strategies import histories
from tests.sweeps import some_of

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
_OF_MANY_TYPES = ("join-", "routed-", "reference-")
_PAIRS = [(entry, law) for entry in REGISTRY for law in LAWS.values() if law.name not in entry.exemptions]
_ON_EVERY_PUSH = "incremental_is_batch"
_OF_A_GROUP = 1
_EXEMPTIONS = [
    (entry.name, law, reason) for entry in REGISTRY for law, reason in {**entry.exemptions, **EXEMPT_EVERYWHERE}.items()
]


def pushed() -> set[tuple[str, str]]:
    """Return the pairs of operator and law that a push searches; `make soak` searches all of them.

    Joins are present in six types and seven pairs of modes: beside the law that is searched on all of them, a law takes one
    pair of modes of every type, and one type of the joins behind a route and of the reference; another law takes another one.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    chosen: set[tuple[str, str]] = set()
    for entry, law in _PAIRS:
        if (
            law.name == _ON_EVERY_PUSH
            or not entry.name.startswith(_OF_MANY_TYPES)
            or entry.name.startswith("reference-aggregate")
        ):
            chosen.add((entry.name, law.name))
        else:
            family, how, *_ = entry.name.split("-")
            groups.setdefault((law.name, f"join of {how}" if family == "join" else family), []).append(entry.name)
    for number, ((law_name, _), names) in enumerate(groups.items()):
        chosen |= {(names[(_OF_A_GROUP * number + place) % len(names)], law_name) for place in range(_OF_A_GROUP)}
    return chosen


def searched(law: Law, entry: Registered) -> Callable[[], None]:
    """Return a function that searches for a history which breaks the law."""
    is_of_many = entry.name.startswith(_OF_MANY_TYPES)
    examples = EXAMPLES_OF_A_TYPE[profile_name()] if is_of_many else settings.default.max_examples

    @settings(max_examples=examples)
    @given(st.data())
    def search(data: st.DataObject) -> None:
        subject = data.draw(entry.subjects(), label="subject")
        history = data.draw(
            histories(subject.spec, max_changes=MAX_CHANGES[profile_name()], with_bad_lines=law.with_bad_lines), label="history"
        )
        note(f"law {law.name}")
        law.check(subject, history)

    return search


@pytest.mark.parametrize(
    ("entry", "law"),
    some_of(
        {f"{entry.name}-{law.name}": (entry, law) for entry, law in _PAIRS},
        short=[f"{entry}-{law}" for entry, law in pushed()],
    ),
)
def test_the_operator_obeys_the_law(entry: Registered, law: Law) -> None:
    searched(law, entry)()


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


def test_a_push_searches_every_law_on_every_type_of_join() -> None:
    def types(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
        return {(entry.split("-")[1], law) for entry, law in pairs if entry.startswith("join-")}

    assert types(pushed()) == types({(entry.name, law.name) for entry, law in _PAIRS})
