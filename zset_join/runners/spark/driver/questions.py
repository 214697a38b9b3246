"""Questions to the process that holds the checkpoint of a query: a verb and plain arguments.

    <checkpoint>/zset/questions/<name>.question  the question; DataFrames travel as plans
    <checkpoint>/zset/questions/<name>.claimed   the process that holds the checkpoint has read it
    <checkpoint>/zset/questions/<name>.answer    the answer, or the error

Jobs of a client of Spark Connect put the first and take the last; nothing else that the two processes can reach is shared.
Where no process takes a question, the client starts a stream of one row, whose `foreachBatch` function opens the checkpoint,
answers, and releases it; see `zset_join.runners.spark.driver.served`.

The law: a question is answered between two epochs, by the process that holds the checkpoint, and once; what a client that
died left behind is removed by the next process, and a change that was requested a minute ago is not made. Behind a change
that counts the process releases the checkpoint; an error that comes then carries the fact `changed`.

Cost: a thread that lists one folder twice a second, every two seconds where it is not on a local disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from pyspark.sql import SparkSession

from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.runners.spark.driver.on_server import packed, unpacked
from zset_join.runners.spark.frames.sent import unpacked_with_frames
from zset_join.storage.folder import Folder, is_local

__all__ = [
    "CHANGES",
    "HAS_CHANGED",
    "IN_USE_SECONDS",
    "Question",
    "QuestionWatch",
    "Verbs",
    "answer_question",
    "ended_by_change",
    "lost_question",
    "put_question",
    "taken_answer",
]

Verbs: TypeAlias = Mapping[str, Callable[..., Any]]
"""What a query answers, by name; the arguments are those of `StoredQuery` and `JoinQuery`, as plain values."""

CHANGES = ("evolve", "undo")
HAS_CHANGED = "changed"
"""The fact of an error that arrived behind the commit of a change."""
IN_USE_SECONDS = 60.0
_FOLDER = "questions"
_QUESTION, _TAKEN, _ANSWER = ".question", ".claimed", ".answer"
_PAUSE_SECONDS = 0.1


class Changing(Protocol):
    """What runs the epochs of a query, until a change ends it."""

    @property
    def has_ended(self) -> bool:
        """Return whether a change counts."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Question:
    verb: str
    given: bytes  # arguments by name, as `packed_with_frames` writes them
    put_at: float = 0.0  # in seconds of the server's clock

    def answered(self, verbs: Verbs, held: Changing, session: SparkSession | None) -> Any:
        with ended_by_change(held):
            return verbs[self.verb](**unpacked_with_frames(self.given, session))


@contextmanager
def ended_by_change(epochs: Changing) -> Iterator[None]:
    """Release a checkpoint behind a change of its query that counts; an error that comes then carries that fact."""
    try:
        yield
    except ZsetJoinError as error:
        if epochs.has_ended:
            error.facts = {**error.facts, HAS_CHANGED: True}
        raise
    finally:
        if epochs.has_ended:
            epochs.close()


def lost_question(location: str, verb: str) -> StateError:
    """Return the error of a question whose process ended before it had answered."""
    then = (
        "Whether the change was committed is not seen from here. Start the new query on the checkpoint: it is accepted if the "
        "change was committed, and brings the outputs up to date; if it is rejected, start the query of before."
        if verb in CHANGES
        else "Call it again."
    )
    return StateError(
        f"the process of the server that runs {location} ended before it had answered {verb}(). {then}",
        code="QUESTION_FAILED",
        location=location,
    )


class QuestionWatch:
    """Answer the questions that are put into a checkpoint, in a thread."""

    def __init__(self, location: str, answer: Callable[[Question], Any], has_ended: Callable[[], bool]) -> None:
        self._answer = answer
        self._has_ended = has_ended
        self._folder = checkpoint_folder(location)
        self._pause = 0.5 if is_local(location) else 2.0
        self._thread = threading.Thread(target=self._run, name="zset_join-questions", daemon=True)

    def start(self) -> None:
        """Begin; it ends with the process, or when the query has changed."""
        for name in list(self._folder.names(_FOLDER)):
            if name.endswith((_ANSWER, _TAKEN)):
                self._folder.remove(name)
        self._thread.start()

    def answer_all(self) -> int:
        """Answer the questions that are present, until the query has changed; return how many there were."""
        waiting = [name for name in self._folder.names(_FOLDER) if name.endswith(_QUESTION)]
        for name in waiting:
            if self._has_ended():  # the checkpoint is released: the rest is for its next owner
                break
            name_only = name.removeprefix(f"{_FOLDER}/").removesuffix(_QUESTION)
            answer_question(self._folder, name_only, self._answer, self._has_ended)
        return len(waiting)

    def _run(self) -> None:
        while not self._has_ended():
            self.answer_all()
            time.sleep(self._pause)


def put_question(location: str, name: str, verb: str, given: bytes) -> None:
    """Put a question where the process looks that holds the checkpoint."""
    content = packed(lambda: (verb, given, time.time()))
    checkpoint_folder(location).put(f"{_FOLDER}/{name}{_QUESTION}", content)


def answer_question(folder: Folder, name: str, answer: Callable[[Question], Any], has_ended: Callable[[], bool]) -> None:
    content = folder.read(f"{_FOLDER}/{name}{_QUESTION}")
    if content is None:
        return
    question = Question(*unpacked(content.to_pybytes()))
    if question.verb in CHANGES and time.time() > question.put_at + IN_USE_SECONDS:  # its client is gone
        folder.remove(f"{_FOLDER}/{name}{_QUESTION}")
        return
    folder.put(f"{_FOLDER}/{name}{_TAKEN}", b"")
    folder.remove(f"{_FOLDER}/{name}{_QUESTION}")
    folder.put(f"{_FOLDER}/{name}{_ANSWER}", _whatever_comes(question, answer, has_ended))
    folder.remove(f"{_FOLDER}/{name}{_TAKEN}")


def _whatever_comes(question: Question, answer: Callable[[Question], Any], has_ended: Callable[[], bool]) -> bytes:
    """Return an answer as bytes, or the error, of whatever kind: the thread continues."""

    def answered() -> Any:
        try:
            return answer(question)
        except ZsetJoinError:
            raise
        except Exception as error:
            raise StateError(
                f"{question.verb}() failed in the process of the server: {type(error).__name__}: {error}. The query "
                f"continues; its log on the server has more.",
                code="QUESTION_FAILED",
                **({HAS_CHANGED: True} if has_ended() else {}),
            ) from error

    return packed(answered)


def taken_answer(location: str, name: str, seconds: float) -> tuple[Literal["answer", "waiting", "taken", "lost"], Any]:
    """Return the answer, and remove it; where it does not come in time, what has become of the question.

    Returns:
        "waiting": no process has taken it. "lost": neither was it answered nor is any process about to.
    """
    folder, path = checkpoint_folder(location), f"{_FOLDER}/{name}"
    ends = time.monotonic() + seconds
    while True:
        content = folder.read(f"{path}{_ANSWER}")
        if content is not None:
            folder.remove(f"{path}{_ANSWER}")
            return "answer", unpacked(content.to_pybytes())
        if time.monotonic() > ends:
            break
        time.sleep(_PAUSE_SECONDS)
    # In the order in which the files are made, so that one of them is seen of a question that is being answered.
    is_there, is_taken = (folder.size(f"{path}{kind}") is not None for kind in (_QUESTION, _TAKEN))
    owner = owner_seen(folder) if is_taken else None
    has_answer = folder.size(f"{path}{_ANSWER}") is not None
    if is_there:
        return "waiting", None
    is_lost = not has_answer and (not is_taken or (owner is not None and owner[1] == "gone"))
    return "lost" if is_lost else "taken", None
