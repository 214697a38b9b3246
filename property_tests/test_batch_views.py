"""A pipeline's view equals the batch query of its plan over all of its input, for every kind of stage."""

from __future__ import annotations

import pytest

from property_tests.batch_views import VIEWS, ran
from property_tests.profiles import profile_name

CASES = {"push": 3, "scout": 30, "nightly": 300}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_equals_its_batch_query(name: str) -> None:
    for seed in range(CASES[profile_name()]):
        found = ran(VIEWS[name], seed).verify()

        assert found.equal, (seed, str(found))
