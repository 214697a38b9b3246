"""Hypothesis profiles: how long the laws are searched.

| profile | chosen by | examples per operator, of the five laws that are drawn most | of the others | random |
|---|---|---|---|---|
| `push` (default) | | 20, which its variations share | 4; 3 of joins of many types | no: a red push means a changed engine |
| `nightly` | `HYPOTHESIS_PROFILE=nightly` | 100 of every variation | 100 | yes, so that nights add up |
| `scout` | `HYPOTHESIS_PROFILE=scout` | 20 of every variation | 20 | yes, and failures are not made smaller |
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

__all__ = ["EXAMPLES_OF_AN_OPERATOR", "EXAMPLES_OF_A_TYPE", "HUNT", "MAX_CHANGES", "examples", "load_profile", "profile_name"]

_COMMON = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], print_blob=True, database=None
)
HUNT = settings(
    max_examples=600,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
"""How a planted bug is looked for: the same examples on every run, and the first one that shows it will do."""
EXAMPLES_OF_A_TYPE = {"push": 3, "scout": 20, "nightly": 100}
"""Examples per law of one type of join over one pair of modes: a law of joins has forty times as many."""
EXAMPLES_OF_AN_OPERATOR = {"push": 20, "scout": 20, "nightly": 100}
"""Examples of the laws that are drawn most: on a push the entries of an operator share them."""
MAX_CHANGES = {"push": 18, "scout": 18, "nightly": 24}


def profile_name() -> str:
    """Return the profile that the environment requests."""
    return os.environ.get("HYPOTHESIS_PROFILE", "push")


def examples(*, push: int, nightly: int) -> int:
    """Return how many examples of a law that has settings of its own; `scout` searches as many as a push."""
    return nightly if profile_name() == "nightly" else push


def load_profile() -> None:
    """Register the profiles and load the one that was requested."""
    # Of 94 planted bugs that five examples show, four show 93, and three 72.
    settings.register_profile("push", _COMMON, max_examples=4, derandomize=True)
    settings.register_profile("scout", _COMMON, max_examples=20, phases=[Phase.generate])
    settings.register_profile("nightly", _COMMON, max_examples=100)
    settings.load_profile(profile_name())
