"""An append-only join at its limit obeys its laws, for every join type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.append_buffer_laws import BUFFER_LAWS, BufferLaw, buffer_cases
from property_tests.append_buffer_oracle import row_size
from property_tests.profiles import MAX_CHANGES, profile_name
from property_tests.shapes import HOWS
from property_tests.strategies import histories

_OF_A_PUSH = 2


def _hows(number: int) -> tuple[str, ...]:
    """Return the join types to search: a push takes two for a law in a mode, and others for the next one."""
    taken = range(_OF_A_PUSH * number, _OF_A_PUSH * (number + 1))
    return tuple(HOWS[place % len(HOWS)] for place in taken) if profile_name() == "push" else tuple(HOWS)


_MODES = [(law, mode) for law, (modes, _) in BUFFER_LAWS.items() for mode in modes]
_CASES = [(law, mode, how) for number, (law, mode) in enumerate(_MODES) for how in _hows(number)]


@pytest.mark.parametrize(("name", "mode", "how"), _CASES, ids=["-".join(case) for case in _CASES])
def test_the_limit_obeys_the_law(name: str, mode: str, how: str) -> None:
    law: BufferLaw = BUFFER_LAWS[name][1]

    @given(st.data())
    def search(data: st.DataObject) -> None:
        case = data.draw(buffer_cases(how, mode), label="case")
        law(case, data.draw(histories(case.spec, max_changes=MAX_CHANGES[profile_name()]), label="history"))

    search()


@pytest.mark.parametrize(("length", "block"), [(12, 0), (13, 16), (16, 16), (17, 32), (256, 256), (257, 320), (513, 640)])
def test_a_long_value_counts_the_block_it_lies_in(length: int, block: int) -> None:
    assert row_size(40, {"v": "x" * length}) == 40 + block
