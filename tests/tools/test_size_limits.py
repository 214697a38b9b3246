from __future__ import annotations

import copy
import tomllib
from typing import Any

from tools.size_limits import ROOMS, breaches, written

COUNTED = dict.fromkeys(ROOMS, (10_000, 50))
MEASURED: dict[str, Any] = {
    "short_files": ["zset_join/a.py"],
    "parameters": {"zset_join/a.py kernel": 12},
    "verbs": {"verify": ["zset_join/a.py verify"]},
}
LIMITS = {
    "rooms": {room: {"lines": 10_000, "files": 50} for room in ROOMS},
    "short_files": {"names": MEASURED["short_files"]},
    "parameters": MEASURED["parameters"],
    "verbs": MEASURED["verbs"],
}


def changed(values: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copied = copy.deepcopy(values)
    *parents, last = path.split("/")
    inner = copied
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return copied


def test_limits_that_are_written_and_read_back_allow_what_was_counted() -> None:
    assert list(breaches(tomllib.loads(written(LIMITS)), COUNTED, MEASURED)) == []


def test_a_room_with_one_line_more_than_its_limit_and_what_raised_it_is_a_breach() -> None:
    raised = changed(LIMITS, "rooms/product/raised", [{"lines": 99, "reason": "window functions"}])
    assert list(breaches(raised, {**COUNTED, "product": (10_099, 50)}, MEASURED)) == []
    (breach,) = breaches(raised, {**COUNTED, "product": (10_100, 50)}, MEASURED)
    assert breach == "product has 10,100 lines, 10,099 are allowed"


def test_a_limit_far_above_what_is_there_is_to_be_lowered() -> None:
    (breach,) = breaches(LIMITS, {**COUNTED, "tests": (9_000, 50)}, MEASURED)
    assert breach == "tests may have 10,000 lines and has 9,000: lower the limit (--lower)"


def test_what_is_not_listed_and_what_is_listed_without_need_are_breaches() -> None:
    moved = {**MEASURED, "short_files": ["zset_join/b.py"]}
    assert list(breaches(LIMITS, COUNTED, moved)) == [
        "zset_join/b.py is shorter than 100 lines",
        "zset_join/a.py is no longer needed in tools/size_limits.toml (--lower)",
    ]
    second = changed(MEASURED, "verbs/verify", ["zset_join/a.py verify", "zset_join/b.py verify"])
    assert list(breaches(LIMITS, COUNTED, second)) == ["zset_join/b.py verify is one more implementation of verify"]


def test_a_listed_function_may_not_take_more_parameters_than_its_entry() -> None:
    (breach,) = breaches(LIMITS, COUNTED, {**MEASURED, "parameters": {"zset_join/a.py kernel": 13}})
    assert breach == "zset_join/a.py kernel takes 13 parameters, 12 are allowed"
