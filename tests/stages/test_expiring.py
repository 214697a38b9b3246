"""What `state_ttl=` accepts, and its effect on a stage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.stages import JoinStage, StageOptions, StateTtl, expiring_stage, read_stage, state_ttls

ROWS = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC")})


def stage(given: Any, how: str = "inner", delay: int | None = 0) -> Any:
    left, right = (
        Relation(name=name, schema=ROWS, join_key=("k",), mode="append", event_time="at", watermark_delay=delay)
        for name in ("l", "r")
    )
    changing = [Relation(name=name, schema=ROWS, join_key=("k",), mode="changelog") for name in ("l", "r")]
    return expiring_stage(JoinStage(left=changing[0], right=changing[1], how=how), [left, right], state_ttls(given, 2))


def test_it_is_written_down_and_read_again() -> None:
    made = stage((StateTtl("1 day", by="event", refreshed_by="read"), None))

    assert read_stage(made.to_json()).to_json() == made.to_json()
    assert list(made.state_tables) == ["left", "right", "ttl_0", "ttl_0_keys"]


def test_explain_shows_what_ends_when_and_that_forgetting_loses() -> None:
    reported = "\n".join(stage((StateTtl("1 hour", on_expire="forget"), StateTtl("1 day", by="event"))).explain(2))

    assert 'rows of "l" are forgotten' in reported
    assert "lossy" in reported
    assert 'rows of "r" are retracted from the answer, 86400 seconds after at' in reported


def test_a_clock_is_needed_where_rows_end_by_processing_time() -> None:
    waiting = [stage(given).waits_for_clock for given in (("1 day", None), (StateTtl("1 day", by="event"), None))]

    assert waiting == [True, False]


def test_nothing_ends_by_default() -> None:
    assert isinstance(stage(None), JoinStage)


def test_an_answer_whose_rows_are_forgotten_has_no_key() -> None:
    assert stage("1 day").output_key == stage(None).output_key
    assert stage(StateTtl("1 day", on_expire="forget")).output.primary_key == ()


@pytest.mark.parametrize(
    ("given", "more", "code"),
    [
        (StateTtl("1 day", by="event"), {"delay": None}, "STATE_TTL_NO_EVENT_TIME"),
        (StateTtl("1 day", on_expire="forget"), {"how": "left"}, "STATE_TTL_FORGET"),
        (("1 day",), {}, "OPTION_VALUE"),
        ("soon", {}, "OPTION_VALUE"),
    ],
)
def test_what_would_be_wrong_is_refused(given: Any, more: dict[str, Any], code: str) -> None:
    with pytest.raises((OptionError, PlanError)) as caught:
        stage(given, **more)
    assert caught.value.code == code


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(OptionError, match="on_expire='drop'"):
        StateTtl("1 day", on_expire="drop")  # type: ignore[arg-type]


def test_hybrid_state_is_refused() -> None:
    budget = HotBudget(max_hot_keys=10)

    with pytest.raises(OptionError, match="HYBRID_NOT_OFFERED"):
        stage("1 day").build(StageOptions(hot_budget=budget), None)
