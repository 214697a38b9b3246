"""Questions of a client of Spark Connect to the process of the server that runs the epochs of a query.

    <checkpoint>/zset/questions/<name>.question  the question, and with it the rows that were emitted, where they are given
    <checkpoint>/zset/questions/<name>.claimed   the process that runs the epochs has read it
    <checkpoint>/zset/questions/<name>.answer    the answer, or the error

Jobs of the client put the first and take the last; nothing else that the two processes can reach is shared. Where no process
takes a question, the job that puts it opens the checkpoint, answers it, and releases it.

The law: a question is answered between two epochs, by the process that holds the checkpoint, and once; what a client that died
left behind is removed by the next process, and a change that was requested a minute ago is not made.

Cost: a thread that lists one folder twice a second, every two seconds where it is not on a local disk.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import checkpoint_folder, no_checkpoint, stored_query_id
from zset_join.core.errors import OptionError, StateError, ZsetJoinError
from zset_join.runners.spark.driver.driver_tools import DriverTools
from zset_join.runners.spark.driver.epochs import DriverEpochs, DriverSettings
from zset_join.runners.spark.driver.on_server import (
    on_server,
    on_server_with,
    once_free,
    packed,
    table_bytes,
    table_of,
    unpacked,
)
from zset_join.runners.spark.driver.served_changes import CHANGES, HAS_CHANGED, changed, changed_beside
from zset_join.runners.spark.driver.starting import check_mode
from zset_join.runners.spark.epoch.frame_sink import TakesSession
from zset_join.storage.folder import Folder, is_local

__all__ = [
    "WAITS",
    "Question",
    "QuestionWatch",
    "answer_of",
    "answer_question",
    "is_lost",
    "is_waiting",
    "lost_question",
    "opened_for_a_look",
    "put_question",
    "taken_answer",
]

_FOLDER = "questions"
_QUESTION, _TAKEN, _ANSWER = ".question", ".claimed", ".answer"
_UNTAKEN_SECONDS, _LOOK_SECONDS, _PAUSE_SECONDS = 3.0, 1.5, 0.1
_IN_USE_SECONDS = 60.0
WAITS = "waits"
"""In the place of an answer that is not there yet."""


@dataclass(frozen=True)
class Question:
    about: str
    given: Mapping[str, Any]
    rows: bytes | None = None
    put_at: float = 0.0  # in seconds of the server's clock

    def answered(self, epochs: DriverEpochs) -> Any:
        tools, given = DriverTools(epochs), dict(self.given)
        if self.about in CHANGES:
            return changed(self.about, given, epochs)
        if self.about == "explain_row":
            return tools.explain_row(given["row"], most_rows=given["most_rows"])
        if self.about == "view_rows":
            held, count = tools.view_rows(given["view"], given["values"], most_rows=given["most_rows"])
            return table_bytes(pa.Table.from_batches([held.rows])), held.weights.tolist(), count
        if self.about == "backup":
            return epochs.backup(given["directory"])
        rows = self.rows
        return tools.verify(actual=None if rows is None else lambda: table_of(rows), **given)


def answer_of(
    question: Question,
    settings: DriverSettings,
    session: SparkSession,
    *,
    rows: DataFrame | None,
    is_active: Callable[[], bool],
) -> Any:
    """Return the answer to a question, from the process that runs the epochs, or from a task that opens the checkpoint."""
    name = uuid.uuid4().hex
    location, waits = settings.options.checkpoint_location, is_active()

    def put(given: Question) -> Any:
        if waits:
            put_question(location, name, given)
            return taken_answer(location, name)
        return _answer_beside(settings, given)

    def first() -> Any:
        return put(question)

    def first_with(table: Any) -> Any:
        return put(replace(question, rows=table_bytes(table)))

    began = time.monotonic()
    found = once_free(lambda: on_server(session, first) if rows is None else on_server_with(rows, first_with))
    while found == WAITS:
        is_late = time.monotonic() > began + _UNTAKEN_SECONDS

        waits = is_active()

        def again(is_late: bool = is_late, runs: bool = waits) -> Any:
            return _answered_later(settings, name, question.about, is_late=is_late, runs=runs)

        try:
            found = on_server(session, again)
        except StateError as error:
            if error.code != "CHECKPOINT_IN_USE" or time.monotonic() > began + _IN_USE_SECONDS:
                raise
            found = WAITS
    return found


def is_waiting(location: str, name: str) -> bool:
    """Return whether no process has taken a question."""
    return checkpoint_folder(location).size(f"{_FOLDER}/{name}{_QUESTION}") is not None


def is_lost(location: str, name: str) -> bool:
    """Return whether a question was neither answered nor is any process about to: nobody has it, or who took it has died."""
    folder = checkpoint_folder(location)
    # In the order in which the files are made, so that one of them is seen of a question that is being answered.
    is_there, is_taken = (folder.size(f"{_FOLDER}/{name}{kind}") is not None for kind in (_QUESTION, _TAKEN))
    owner = owner_seen(folder) if is_taken else None
    has_answer = folder.size(f"{_FOLDER}/{name}{_ANSWER}") is not None
    return not (is_there or has_answer) and (not is_taken or (owner is not None and owner[1] == "gone"))


def lost_question(location: str, about: str) -> StateError:
    """Return the error of a question whose process ended before it had answered."""
    then = (
        "Whether the change was committed is not seen from here. Start the new query on the checkpoint: it is accepted if the "
        "change was committed, and brings the outputs up to date; if it is rejected, start the query of before."
        if about in CHANGES
        else "Call it again."
    )
    return StateError(
        f"the process of the server that runs {location} ended before it had answered {about}(). {then}",
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


def opened_for_a_look(settings: DriverSettings) -> DriverEpochs:
    """Return a runner attached to an existing checkpoint, with a separate state directory."""
    # Outputs that write by Spark are omitted: a task has no session.
    location = settings.options.checkpoint_location
    query_id = stored_query_id(location)
    if query_id is None:
        raise no_checkpoint(location)
    check_mode(location, "driver")
    directory = tempfile.TemporaryDirectory(prefix="zset_join-look-")
    sinks = {view: [one for one in chosen if not isinstance(one.sink, TakesSession)] for view, chosen in settings.sinks.items()}
    options = replace(settings.options, local_state_dir=directory.name)
    epochs = _Looking(replace(settings, options=options, sinks=sinks), directory)
    try:
        epochs.attach(query_id)
    except BaseException:
        epochs.close()
        raise
    return epochs


class _Looking(DriverEpochs):
    """Epochs that do not run; they remove their state when they are closed."""

    def __init__(self, settings: DriverSettings, directory: tempfile.TemporaryDirectory[str]) -> None:
        super().__init__(settings)
        self._directory = directory

    def close(self) -> None:
        super().close()
        self._directory.cleanup()


def put_question(location: str, name: str, question: Question) -> None:
    """Put a question where the process looks that runs the epochs."""
    folder = checkpoint_folder(location)
    content = packed(lambda: (question.about, dict(question.given), question.rows, time.time()))
    folder.put(f"{_FOLDER}/{name}{_QUESTION}", content)


def _read(folder: Folder, name: str) -> Question | None:
    content = folder.read(f"{_FOLDER}/{name}{_QUESTION}")
    return None if content is None else Question(*unpacked(content.to_pybytes()))


def answer_question(folder: Folder, name: str, answer: Callable[[Question], Any], has_ended: Callable[[], bool]) -> None:
    question = _read(folder, name)
    if question is None:
        return
    if question.about in CHANGES and time.time() > question.put_at + _IN_USE_SECONDS:  # its client is gone
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
                f"{question.about}() failed in the process of the server: {type(error).__name__}: {error}. The query "
                f"continues; its log on the server has more.",
                code="QUESTION_FAILED",
                **({HAS_CHANGED: True} if has_ended() else {}),
            ) from error

    return packed(answered)


def _answer_beside(settings: DriverSettings, question: Question) -> Any:
    """Return the answer from a checkpoint that nobody holds."""
    if any(isinstance(one.sink, TakesSession) for chosen in settings.sinks.values() for one in chosen):
        readable = any(not isinstance(one.sink, TakesSession) for chosen in settings.sinks.values() for one in chosen)
        if question.about == "verify" and question.rows is None and not readable:
            raise OptionError(
                "the output is written by Spark, and a query that does not run has no session on the server to read it. Pass "
                "verify(actual_df=...) with the emitted changes and their column _weight, or call it while the query runs.",
                code="VERIFY_OUTPUT",
            )
    if question.about in CHANGES:
        return changed_beside(question.about, question.given, settings, opened_for_a_look)
    epochs = opened_for_a_look(settings)
    try:
        return question.answered(epochs)
    finally:
        epochs.close()


def _answered_later(settings: DriverSettings, name: str, about: str, *, is_late: bool, runs: bool) -> Any:
    """Return the answer to a question that was put; where nobody takes it, open the checkpoint and answer it here."""
    location = settings.options.checkpoint_location
    folder = checkpoint_folder(location)
    if (is_late or not runs) and folder.size(f"{_FOLDER}/{name}{_ANSWER}") is None:
        question = _read(folder, name)
        if question is not None:
            try:
                found = _answer_beside(settings, question)
            except StateError as error:
                if error.code != "CHECKPOINT_IN_USE":  # a process is about to take it
                    folder.remove(f"{_FOLDER}/{name}{_QUESTION}")
                raise
            folder.remove(f"{_FOLDER}/{name}{_QUESTION}")
            return found
    found = taken_answer(location, name)
    if found != WAITS:
        return found
    if is_lost(location, name) or (not runs and folder.size(f"{_FOLDER}/{name}{_TAKEN}") is not None):
        raise lost_question(location, about)
    return found


def taken_answer(location: str, name: str) -> Any:
    """Return the answer, and remove it; `WAITS` where it does not come soon."""
    folder, path = checkpoint_folder(location), f"{_FOLDER}/{name}{_ANSWER}"
    ends = time.monotonic() + _LOOK_SECONDS
    while True:
        content = folder.read(path)
        if content is not None:
            folder.remove(path)
            return unpacked(content.to_pybytes())
        if time.monotonic() > ends:
            return WAITS
        time.sleep(_PAUSE_SECONDS)
