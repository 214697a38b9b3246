from __future__ import annotations

from typing import Any

import pytest

from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget, QueryOptions, parse_seconds


def options(**given: Any) -> QueryOptions:
    return QueryOptions.from_options({"checkpointLocation": "/data/cp", **given})


def test_defaults_are_those_of_the_documented_table() -> None:
    found = options()

    assert found == QueryOptions(checkpoint_location="/data/cp")
    assert (found.buckets, found.on_bad_input, found.tombstone_retention_seconds) == (None, "error", 172_800)


@pytest.mark.parametrize("name", ["onBadInput", "on_bad_input", "ONBADINPUT", "OnBadInput"])
def test_case_and_underscores_do_not_matter(name: str) -> None:
    assert options(**{name: "quarantine"}).on_bad_input == "quarantine"


def test_values_may_be_text_as_sparks_options_are() -> None:
    found = options(buckets="8", retainInputLog="True", tombstoneRetention="1 week", snapshotAfterBytes="0")

    assert (found.buckets, found.retain_input_log) == (8, True)
    assert (found.tombstone_retention_seconds, found.snapshot_after_bytes) == (604_800, 0)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"onBadInput": "ignore"}, r"onBadInput was given 'ignore'; expected \"error\" or \"quarantine\""),
        ({"buckets": 0}, "buckets was given 0; expected a whole number from 1"),
        ({"buckets": "many"}, "buckets was given 'many'"),
        ({"retainInputLog": "yes"}, "retainInputLog was given 'yes'; expected true or false"),
        ({"tombstoneRetention": "soon"}, "tombstoneRetention was given 'soon'; expected a duration"),
        ({"deadLetterPath": " "}, "deadLetterPath was given ' '; expected a path"),
        ({"bukets": 4}, r"'bukets' \(value 4\) is unknown; did you mean buckets"),
        ({"shade": "red"}, "'shade'.*known options: checkpointLocation"),
        ({"chunk_rows": 5, "chunkRows": 6}, "chunkRows was given twice, as 5 and as 6"),
    ],
)
def test_a_refused_option_names_itself_its_value_and_the_cure(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        options(**given)


def test_a_missing_checkpoint_location_is_taught() -> None:
    with pytest.raises(OptionError, match="checkpointLocation is missing") as caught:
        QueryOptions.from_options({})

    assert caught.value.code == "MISSING_CHECKPOINT_LOCATION"


@pytest.mark.parametrize(("text", "seconds"), [(90, 90), ("90", 90), ("2 hours", 7200), (" 1 Day ", 86_400)])
def test_durations_are_seconds_or_words(text: Any, seconds: int) -> None:
    assert parse_seconds(text, option="tombstoneRetention") == seconds


@pytest.mark.parametrize("text", [True, -1, "2 fortnights", "1.5 hours"])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(OptionError, match="expected a duration"):
        parse_seconds(text, option="tombstoneRetention")


def test_the_budget_of_a_hybrid_join_is_shared_by_its_buckets() -> None:
    options = QueryOptions.from_options(
        {"checkpointLocation": "/data/cp", "default_hash_join": "Hybrid", "max_hot_bytes": "1000", "maxHotKeys": 7}
    )

    assert options.hot_budget == HotBudget(max_hot_bytes=1000, max_hot_keys=7)
    assert options.hot_budget.share(4) == HotBudget(max_hot_bytes=250, max_hot_keys=1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"default_hash_join": "disk"}, "default_hash_join was given 'disk'"),
        ({"default_hash_join": "hybrid"}, "max_hot_bytes, max_hot_keys or both"),
        ({"max_hot_keys": "5"}, "max_hot_keys was given '5'"),
        ({"default_hash_join": "hybrid", "max_hot_bytes": "-1"}, "max_hot_bytes was given '-1'"),
        (
            {"default_hash_join": "hybrid", "max_hot_bytes": "9", "join_buffer_policy": "spill"},
            "max_hot_bytes already sets",
        ),
    ],
)
def test_a_budget_that_is_none_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        QueryOptions.from_options({"checkpointLocation": "/data/cp", **options})
