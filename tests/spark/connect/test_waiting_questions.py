"""A question to a query whose checkpoint another process holds; without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zset_join.core.errors import StateError
from zset_join.runners.spark.driver import on_server, served
from zset_join.runners.spark.driver.questions import put_question, taken_answer
from zset_join.runners.spark.driver.served import _Answer


def test_a_question_waits_for_the_process_that_holds_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still answer another question, which takes long; only a question that has waited long is refused."""

    def attach(query_id: str) -> None:
        raise StateError(query_id, code="CHECKPOINT_IN_USE")

    monkeypatch.setattr(served, "stored_query_id", lambda _: "in use")
    monkeypatch.setattr(on_server, "_ENDING_SECONDS", -1)
    place, batch = str(tmp_path), SimpleNamespace(sparkSession=None)
    settings: Any = SimpleNamespace(
        options=SimpleNamespace(checkpoint_location=place),
        execution="executors",
        runner=lambda _: SimpleNamespace(attach=attach),
    )
    settings.with_local_state = lambda _: settings
    put_question(place, "a", "backup", b"")

    _Answer(settings, "a", is_patient=True)(batch, 0)  # type: ignore[arg-type]
    was_waiting = taken_answer(place, "a", 0.0)
    _Answer(settings, "a", is_patient=False)(batch, 0)  # type: ignore[arg-type]

    assert was_waiting == ("waiting", None)
    with pytest.raises(StateError, match="in use"):
        taken_answer(place, "a", 0.0)
