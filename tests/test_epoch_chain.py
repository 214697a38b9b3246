"""A digest represents everything that came before it."""

from __future__ import annotations

from functools import reduce

import pytest

from zset_join.core.epochs import accepts_argument, chained_digest


def chain(*reads: str) -> str | None:
    start: str | None = None
    return reduce(lambda before, numbered: chained_digest(before, "query", *numbered), enumerate(reads), start)


def test_the_same_input_gives_the_same_digest() -> None:
    assert chain("a", "b") == chain("a", "b")


@pytest.mark.parametrize("other", [("a", "x"), ("x", "b"), ("b", "a"), ("ab",), ("a", "b", "")])
def test_any_other_input_at_any_time_gives_another_digest(other: tuple[str, ...]) -> None:
    assert chain(*other) != chain("a", "b")


def test_another_query_or_epoch_has_another_digest() -> None:
    assert (
        len(
            {
                chained_digest(None, "query", 0, "a"),
                chained_digest(None, "other", 0, "a"),
                chained_digest(None, "query", 1, "a"),
            }
        )
        == 3
    )


def test_a_function_is_given_what_it_has_an_argument_for() -> None:
    def plain(_rows: object, _epoch: int) -> None: ...

    def wants_chain(_rows: object, _epoch: int, *, chain: str) -> None: ...

    def takes_all(_rows: object, **_rest: object) -> None: ...

    def only_by_position(chain: str, /) -> None: ...

    assert [accepts_argument(one, "chain") for one in (plain, wants_chain, takes_all, only_by_position)] == [
        False,
        True,
        True,
        False,
    ]
