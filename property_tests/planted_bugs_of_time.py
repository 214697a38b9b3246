"""What planted bugs of joins by time and lookups put in the place of the product; `property_tests.mutants` has the rows.

Those of a join by time spoil an operator; those of lookups replace a method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.lookup import cache, fetcher
from zset_join.shapes import lookup as lookup_shape
from zset_join.state.join import lookup_rows
from zset_join.state.rows import side_changes
from zset_join.state.time.expiries import DueRows
from zset_join.state.time.joined_pairs import Transitions
from zset_join.zset.protocol import NOTHING_DUE


def deletes_match(operator: Any) -> None:
    rows, prepare = operator._join.right, operator._join.right.prepare
    rows.prepare = lambda new, *given, **more: prepare(replace(new, deletes=None), *given, **more)


def labels(**spoiled: Any) -> Callable[[Any], None]:
    """Return what replaces methods of the labels of times, where the operator has labels."""

    def spoil(operator: Any) -> None:
        labels = operator.join.labels
        for name, made in spoiled.items():
            if labels is not None:
                setattr(labels, name, made(labels))

    return spoil


def counts_every_look(operator: Any) -> None:
    pairs, lines = operator._join.pairs, operator._join.pairs.lines

    def counting(transitions: Transitions) -> Any:
        yield from lines(transitions)
        pairs.corrections = int(transitions.weights[transitions.corrected].sum())

    pairs.lines = counting


def shifted_release(by: int) -> Callable[[Any], None]:
    def spoil(operator: Any) -> None:
        times = operator._join.shape.times
        right = times.of_watermark
        times.of_watermark = lambda mark: None if mark is None else right(mark) + by

    return spoil


def never_released(operator: Any) -> None:
    operator._join.left.release = lambda time, numbers: np.zeros(0, np.int64)


def frees_the_valid(operator: Any) -> None:
    for one in operator._join._expiring:
        one._keeps_newest = False


def frees_what_may_change(operator: Any) -> None:
    join, expire = operator._join, operator._join._expire

    def spoiled(*given: Any) -> Any:
        horizon, join.horizon = join.horizon, join.shape.times.of_watermark
        try:
            return expire(*given)
        finally:
            join.horizon = horizon

    join._expire = spoiled


def no_corrections(operator: Any) -> None:
    join = operator._join
    join._corrections = lambda epoch: join._looked_up(epoch, join._rows_of_delta(epoch, np.flatnonzero(epoch.left.left > 0)))


def condition_of_the_nearest_only(operator: Any) -> None:
    operator.join._nearest, operator.join.pairs._is_chosen = None, False


def first_block_only(operator: Any) -> None:
    pairs, passing = operator.join.pairs, operator.join.pairs.passing
    pairs.passing = lambda refs, matches: passing(refs, matches if len(set(refs)) == len(refs) else 0 * matches)


def touches_one_row_of_a_key(operator: Any) -> None:
    nearest = operator.join._nearest
    if nearest is None:
        return
    touched = nearest._touched

    def spoiled(epoch: Any, left: Any) -> Any:
        rows = touched(epoch, left)
        first = np.unique(rows.groups, return_index=True)[1]
        return DueRows(*(column[first] for column in (rows.refs, rows.keys, rows.groups, rows.weights)))

    nearest._touched = spoiled


def weight_is_one(operator: Any) -> None:
    pairs, lines = operator._join.pairs, operator._join.pairs.lines
    pairs.lines = lambda reported: lines(
        Transitions(reported.refs, reported.befores, reported.afters, np.minimum(reported.weights, 1))
    )


def answers(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    def spoil(operator: Any) -> None:
        answer = operator.answer
        operator.answer = lambda tick, deltas: iter(change(list(answer(tick, deltas))))

    return spoil


def every_second_answer_is_turned(operator: Any) -> None:
    answer, answers = operator.answer, [0]

    def spoiled(tick: Any, deltas: Any) -> Any:
        answers[0] += 1
        chunks = list(answer(tick, deltas))
        return iter(chunks[::-1] if answers[0] % 2 else chunks)

    operator.answer = spoiled


def snapshot_without(column: str, value: Any) -> Callable[[Any], None]:
    def spoil(operator: Any) -> None:
        snapshot = operator.snapshot

        def spoiled() -> Any:
            tables = dict(snapshot())
            for name, table in tables.items():
                place = table.schema.get_field_index(column)
                field = table.schema.field(place)
                tables[name] = table.set_column(place, field, pa.array([value] * table.num_rows, field.type))
            return tables

        operator.snapshot = spoiled

    return spoil


def saves_deletes_alone(operator: Any) -> None:
    right = operator.join.right
    restored = right.restored
    right.restored = lambda table: ((rows, weights, come, marks & 1) for rows, weights, come, marks in restored(table))


def forgets_waiting(operator: Any) -> None:
    restore = operator.restore
    operator.restore = lambda tables: restore({**tables, "left": tables["left"].slice(0, 0)})


def trims_what_may_show(operator: Any) -> None:
    rows, absorb = operator._rows, operator._rows.absorb
    rows.absorb = lambda prepared, groups, *, supersedes, limit: absorb(
        prepared, groups, supersedes=supersedes, limit=operator.n
    )


def arrival_turned(operator: Any) -> None:
    rows = operator._rows if hasattr(operator, "_rows") else operator._join.right
    rows._latest_first = not rows._latest_first


def forgets_to_wait(operator: Any) -> None:
    operator.next_due = lambda: NOTHING_DUE


def keeps_its_own_dues(operator: Any) -> None:
    known: dict[int, Any] = {}
    next_due, absorb = operator.next_due, operator.absorb

    def absorbs(tick: Any, deltas: Any) -> None:
        absorb(tick, deltas)
        known[0] = next_due()

    operator.absorb, operator.next_due = absorbs, lambda: known[0] if known else next_due()


def nothing_back(chunks: list[Any]) -> list[Any]:
    return [chunk for chunk in chunks if not (chunk.weights < 0).any()]


def insertions_first(chunks: list[Any]) -> list[Any]:
    return chunks[::-1]


# ---------------------------------------------------------------- lookups


def first_copies(self, numbers):
    return np.zeros(len(numbers), np.int64)


def newest_first(self, column, numbers, kept=lookup_rows.MatchMemo.word):
    found = kept(self, column, numbers)
    return -found if column == lookup_rows.ARRIVAL else found


def one_more(found: lookup_shape.RetryPolicy) -> lookup_shape.RetryPolicy:
    return replace(found, max_retries=found.max_retries + 1)


def policy_of(fetched, kept=lookup_shape.LookupShape.policy_of):
    return one_more(kept(fetched)) if fetched.num_rows else kept(fetched)


def keeps_time(fetched, kept=lookup_shape.LookupShape.policy_of):
    found = kept(fetched)
    return replace(found, delay_us=found.delay_us + 1)


def all_pass(self, residual, left, positions, right, sources):
    return np.ones(len(positions), np.bool_)


def no_withdrawal(self, fetched, is_joined, stays_padded):
    return self.shape.joined_rows(fetched.rows, np.zeros(0, np.int64), None, np.zeros(0, np.int64)), np.zeros(0, np.int64)


def not_due(self, now_us, kept=lookup_rows.MatchMemo.due):
    return kept(self, now_us - 1)


def believes_itself(self):
    return self.lines.side.is_current()


def forgets(self, tables, kept=lookup_rows.MatchMemo.restore):
    kept(self, tables.slice(0, max(0, tables.num_rows - 1)))


def touches_nothing(self, delta, kept=side_changes.SideChanges.resolve):
    found = kept(self, delta)
    found.touched = found.touched[:0]
    return found


def comes_once(self, delta, kept=side_changes.SideChanges.resolve):
    found = kept(self, delta)
    found.after_copies = np.minimum(found.after_copies, 1)
    return found


def always_fresh(self, keys, now_us, kept=cache.PartialCache.find):
    return kept(self, keys, 0)


def keeps_absent(self, keys, rows, *, own_keys, missing, now_us, kept=cache.PartialCache.remember):
    kept(self, keys, rows, own_keys=own_keys, missing=True, now_us=now_us)


def judges_generously(self, batch, answer, kept=fetcher.Fetcher._judged):
    rows, missing = kept(self, batch, answer)
    return rows, missing.slice(0, max(0, missing.num_rows - 1))


def fetches_all_again(self, batch, answer, kept=fetcher.Fetcher._judged):
    rows, missing = kept(self, batch, answer)
    return rows, batch if missing.num_rows else missing


def forgetful(self, name):
    return None
