"""Questions to the process that holds a checkpoint: who took one and died, and what is left behind a change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.test_owner import leave_behind
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import StateError
from zset_join.runners.spark.driver.questions import (
    HAS_CHANGED,
    Question,
    QuestionWatch,
    lost_question,
    put_question,
    taken_answer,
)


class _Process:
    """Answer every question by a change of the query."""

    def __init__(self, then: Callable[[], Any] = dict) -> None:
        self.has_ended = False
        self._then = then

    def answer(self, _question: Question) -> Any:
        self.has_ended = True
        return self._then()

    def watch(self, location: str) -> QuestionWatch:
        return QuestionWatch(location, self.answer, lambda: self.has_ended)


def _failing() -> Any:
    raise AssertionError("a fault of the program")


def test_what_fails_behind_the_commit_of_a_change_has_the_fact_that_it_counts(tmp_path: Path) -> None:
    location = str(tmp_path)
    put_question(location, "one", "evolve", b"")

    _Process(_failing).watch(location).answer_all()

    with pytest.raises(StateError, match=r"QUESTION_FAILED.*a fault of the program") as failed:
        taken_answer(location, "one", 0.0)
    assert failed.value.facts[HAS_CHANGED] is True


def test_a_question_behind_a_change_is_left_to_the_next_owner_of_the_checkpoint(tmp_path: Path) -> None:
    location = str(tmp_path)
    for name in ("one", "two"):
        put_question(location, name, "evolve", b"")

    _Process().watch(location).answer_all()

    assert sorted(taken_answer(location, name, 0.0)[0] for name in ("one", "two")) == ["answer", "waiting"]


@pytest.mark.parametrize(("started", "state"), [({}, "taken"), ({"process_started": "0"}, "lost")], ids=["released", "dead"])
def test_a_question_is_lost_once_the_process_that_took_it_is_dead(tmp_path: Path, started: Any, state: str) -> None:
    location, seen = str(tmp_path), []
    put_question(location, "one", "evolve", b"")
    folder = checkpoint_folder(location)
    leave_behind(folder, **started)

    def looked() -> None:
        seen.append(taken_answer(location, "one", 0.0)[0])

    _Process(looked).watch(location).answer_all()

    assert seen == [state]
    assert taken_answer(location, "one", 0.0)[0] == "answer"


def test_a_change_that_was_lost_may_have_been_committed() -> None:
    assert "Start the new query on the checkpoint" in str(lost_question("/cp", "evolve"))
    assert "Call it again" in str(lost_question("/cp", "verify"))
