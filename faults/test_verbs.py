"""A verb that meets an error of the disk ends with a coded error, and is right when it is called again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults.profiles import IS_LONG, chosen
from faults.tally import Tally
from faults.verbs import VERBS, fail_and_call_again, operations_of

pytestmark = pytest.mark.timeout(chosen(short=300, long=0))


def _of_each_kind(operations: list[str], few: int) -> list[int]:
    """Return some operations, of different kinds as far as there are any."""
    shuffled = Random(3).sample(range(len(operations)), len(operations))
    first = {operations[at].partition(" ")[0]: at for at in shuffled}
    return sorted(list(first.values())[:few])


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_meets_an_error_of_the_disk_ends_with_a_code_and_can_be_called_again(
    verb: str, scratch: Path, tally: Tally
) -> None:
    operations = operations_of(verb, scratch / "life")
    wanted = list(range(len(operations))) if IS_LONG else _of_each_kind(operations, 14 if verb == "undo" else 3)

    for number in wanted:
        fail_and_call_again(verb, scratch / "life", number, tally)

    assert tally.problems == []
    assert tally.of("errors observed") == len(wanted)
