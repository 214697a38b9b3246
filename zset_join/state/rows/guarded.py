"""Usage checks in front of an operator, the same for all operators.

    @guarded("the dedup")
    class Deduplicate: ...

The law: another number of deltas than inputs, tables that are no snapshot, and use after `close` are errors with a code
(see `check_deltas`), before anything is changed. So is an answer, or a list of all answers, that is read once the
epoch was absorbed or the state was restored or closed (`ANSWER_OUTDATED`): it is made while it is read, and never from another
state than the one it is about. An epoch that is refused, or a snapshot, leaves answers that were requested readable.

An operator's own `answer` is called when the answer is read, as a generator's body is. Closing twice is allowed.

Cost: a comparison per chunk.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.state.rows.directories import check_deltas, check_tables, closed
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT
from zset_join.zset import ZSet

__all__ = ["Answers", "guarded"]


class Answers:
    """Guard the answers of one operator.

    >>> answers = Answers()
    >>> late = answers.guarded(iter([ZSet.of({"k": [1]})]))
    >>> answers.outdate()
    >>> next(late)
    Traceback (most recent call last):
        ...
    zset_join.core.errors.StateError: [ANSWER_OUTDATED] ...
    """

    def __init__(self) -> None:
        self._moment = 0

    def outdate(self) -> None:
        """Let no answer that was requested before be read on: the state is about to change."""
        self._moment += 1

    def guarded(self, chunks: Iterator[ZSet]) -> Iterator[ZSet]:
        """Return the chunks of an answer that is requested now, as long as it may be read."""
        return self._read(lambda: chunks, self._moment)

    def guarded_when_read(self, begin: Callable[[], Iterator[ZSet]]) -> Iterator[ZSet]:
        """Return the chunks of an answer that is requested now, and begun when its first chunk is read."""
        return self._read(begin, self._moment)

    def _read(self, begin: Callable[[], Iterator[ZSet]], moment: int) -> Iterator[ZSet]:
        self._check(moment)
        chunks = begin()
        for chunk in chunks:
            yield chunk
            self._check(moment)

    def _check(self, moment: int) -> None:
        if self._moment != moment:
            raise StateError(
                "an answer was read after its epoch had been absorbed, or after the state had been restored or closed. An "
                "answer is made while it is read: read it to its end first, for example with list(operator.answer(...)).",
                code="ANSWER_OUTDATED",
            )


_OURS = "_zset_"
_NAMES = "_guard_names"
_ANSWERING = ("answer", "rejections", "listed")
_Class = TypeVar("_Class", bound=type[Any])


class _Guard:
    def __init__(self) -> None:
        self.answers = Answers()
        self.is_closed = False


def guarded(title: str) -> Callable[[_Class], _Class]:

    def guard_of(operator: Any, name: str) -> _Guard:
        guard: _Guard | None = operator.__dict__.get(name)
        if guard is None:
            guard = operator.__dict__.setdefault(name, _Guard())
        if guard.is_closed:
            raise closed(title)
        return guard

    def with_guards(operator_class: _Class) -> _Class:
        name = f"_guard_of_{operator_class.__qualname__}"  # a class and one derived from it have guards of their own
        names = (*getattr(operator_class, _NAMES, ()), name)
        setattr(operator_class, _NAMES, names)
        answer, absorb, rejections = operator_class.answer, operator_class.absorb, operator_class.rejections
        restore, close = operator_class.restore, operator_class.close
        listed = getattr(operator_class, "listed", None)

        @functools.wraps(answer)
        def guarded_answer(self: Any, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
            guard = guard_of(self, name)
            check_deltas(title, self.inputs, deltas)
            return guard.answers.guarded_when_read(functools.partial(answer, self, tick, deltas))

        @functools.wraps(absorb)
        def guarded_absorb(self: Any, tick: Tick, deltas: Sequence[ZSet]) -> None:
            guard_of(self, name)
            check_deltas(title, self.inputs, deltas)
            absorb(self, tick, deltas)
            for one in names:  # an answer may have the guard of the class below, whose `absorb` need not have been called
                guard_of(self, one).answers.outdate()

        @functools.wraps(rejections)
        def guarded_rejections(self: Any, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:
            guard_of(self, name)
            check_deltas(title, self.inputs, deltas)
            return rejections(self, tick, deltas)

        @functools.wraps(restore)
        def guarded_restore(self: Any, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
            guard = guard_of(self, name)
            check_tables(title, _wanted(self), tables)
            guard.answers.outdate()
            restore(self, tables)

        @functools.wraps(close)
        def guarded_close(self: Any) -> None:
            guard: _Guard = self.__dict__.setdefault(name, _Guard())
            if not guard.is_closed:
                guard.is_closed = True
                guard.answers.outdate()
                close(self)

        methods: dict[str, Callable[..., Any]] = {
            "answer": guarded_answer,
            "absorb": guarded_absorb,
            "rejections": guarded_rejections,
            "restore": guarded_restore,
            "close": guarded_close,
        }
        if listed is not None:

            @functools.wraps(listed)
            def guarded_listed(self: Any, columns: Collection[str] | None = None) -> Iterator[ZSet]:
                return guard_of(self, name).answers.guarded_when_read(functools.partial(listed, self, columns))

            methods["listed"] = guarded_listed
        for method, guarded_method in methods.items():
            if method not in _ANSWERING or not hasattr(getattr(operator_class, method), "__wrapped__"):
                guarded_method.__doc__ = inspect.getdoc(getattr(operator_class, method))
                setattr(operator_class, method, guarded_method)  # an inherited one may be guarded already
        return operator_class

    return with_guards


def _wanted(operator: Any) -> dict[str, list[str]]:
    """Return the tables of an operator's snapshot and their columns; of ours, that of the weights."""
    readers = getattr(operator, "snapshot_readers", operator.snapshot)
    tables = readers()
    return {
        name: [one for one in table.schema.names if one == SNAPSHOT_WEIGHT or not one.startswith(_OURS)]
        for name, table in tables.items()
    }
