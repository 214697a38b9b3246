"""A question to a query on executors whose checkpoint another process holds; without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zset_join.core.errors import StateError
from zset_join.runners.spark.driver import executor_questions, on_server
from zset_join.runners.spark.driver.executor_questions import _Answer
from zset_join.runners.spark.driver.questions import Question, is_waiting, put_question, taken_answer


def test_a_question_waits_for_the_process_that_holds_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still answer another question, which takes long; only a question that has waited long is refused."""

    def attach(query_id: str) -> None:
        raise StateError(query_id, code="CHECKPOINT_IN_USE")

    monkeypatch.setattr(executor_questions, "stored_query_id", lambda _: "in use")
    monkeypatch.setattr(on_server, "_ENDING_SECONDS", -1)
    place, batch = str(tmp_path), SimpleNamespace(sparkSession=None)
    settings: Any = SimpleNamespace(
        options=SimpleNamespace(checkpoint_location=place), runner=lambda _: SimpleNamespace(attach=attach)
    )
    put_question(place, "a", Question("backup", {"directory": "b"}))

    _Answer(settings, "a", is_patient=True)(batch, 0)  # type: ignore[arg-type]
    was_waiting = is_waiting(place, "a")
    _Answer(settings, "a", is_patient=False)(batch, 0)  # type: ignore[arg-type]

    assert (was_waiting, is_waiting(place, "a")) == (True, False)
    with pytest.raises(StateError, match="in use"):
        taken_answer(place, "a")
