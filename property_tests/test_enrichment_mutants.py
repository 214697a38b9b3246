"""Bugs planted in the operators, the fetch step and the journal: each is caught by the law named beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.profiles import HUNT, profile_name
from property_tests.test_enrichment import SECOND, draw_histories, draw_right_changes, run_lookups, run_process_time
from property_tests.test_fetching import run_fetches
from zset_join.core.errors import ZsetJoinError
from zset_join.lookup import cache, fetcher, journal
from zset_join.operators import lookup_join
from zset_join.shapes import lookup as lookup_shape
from zset_join.state.join import match_memo
from zset_join.state.rows import side_changes


def hunt_lookups() -> None:
    """Search for a history on which a lookup join and its model differ."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from(["append", "upsert", "changelog"]))
        how = data.draw(st.sampled_from(["inner", "left"]))
        run_lookups(
            mode,
            how,
            data.draw(draw_histories(mode)),
            residual=data.draw(st.booleans()),
            reload=data.draw(st.sampled_from(["never", "snapshot", "turns"])),
            max_retries=data.draw(st.integers(0, 2)),
            delay=data.draw(st.sampled_from([0, 1, 3])) * SECOND,
            padded_first=how == "left" and data.draw(st.booleans()),
        )

    search()


def hunt_process_time() -> None:
    """Search for a history on which a join by processing time and its model differ."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        left_mode, right_mode = (data.draw(st.sampled_from(["append", "upsert", "changelog"])) for _ in range(2))
        epochs = data.draw(draw_histories(left_mode))
        held: dict = {}
        run_process_time(
            left_mode,
            right_mode,
            data.draw(st.sampled_from(["inner", "left"])),
            epochs,
            [data.draw(draw_right_changes(right_mode, held)) for _ in epochs],
            snapshot=data.draw(st.sampled_from(["current", "previous"])),
            residual=data.draw(st.booleans()),
            reload=data.draw(st.sampled_from(["never", "snapshot"])),
        )

    search()


def hunt_fetches() -> None:
    """Search for a script on which the fetch step makes other calls, or finds other rows, than it should."""

    @HUNT
    @given(st.data())
    def search(data: st.DataObject) -> None:
        run_fetches(data)

    search()


def _first_copies(self, numbers):
    return np.zeros(len(numbers), np.int64)


def _newest_first(self, column, numbers, kept=match_memo.MatchMemo.word):
    found = kept(self, column, numbers)
    return -found if column == match_memo.ARRIVAL else found


def _one_more(found: lookup_shape.RetryPolicy) -> lookup_shape.RetryPolicy:
    return replace(found, max_retries=found.max_retries + 1)


def _policy_of(fetched, kept=lookup_shape.LookupShape.policy_of):
    return _one_more(kept(fetched)) if fetched.num_rows else kept(fetched)


def _keeps_time(fetched, kept=lookup_shape.LookupShape.policy_of):
    found = kept(fetched)
    return replace(found, delay_us=found.delay_us + 1)


def _all_pass(self, residual, left, positions, right, sources):
    return np.ones(len(positions), np.bool_)


def _no_withdrawal(self, fetched, is_joined, stays_padded):
    return self.shape.joined_rows(fetched.rows, np.zeros(0, np.int64), None, np.zeros(0, np.int64)), np.zeros(0, np.int64)


def _not_due(self, now_us, kept=match_memo.MatchMemo.due):
    return kept(self, now_us - 1)


def _believes_itself(self):
    return self.lines.side.is_current()


def _forgets(self, tables, kept=match_memo.MatchMemo.restore):
    kept(self, tables.slice(0, max(0, tables.num_rows - 1)))


def _touches_nothing(self, delta, kept=side_changes.SideChanges.resolve):
    found = kept(self, delta)
    found.touched = found.touched[:0]
    return found


def _comes_once(self, delta, kept=side_changes.SideChanges.resolve):
    found = kept(self, delta)
    found.after_copies = np.minimum(found.after_copies, 1)
    return found


def _always_fresh(self, keys, now_us, kept=cache.PartialCache.find):
    return kept(self, keys, 0)


def _keeps_absent(self, keys, rows, *, own_keys, missing, now_us, kept=cache.PartialCache.remember):
    kept(self, keys, rows, own_keys=own_keys, missing=True, now_us=now_us)


def _judges_generously(self, batch, answer, kept=fetcher.Fetcher._judged):
    rows, missing = kept(self, batch, answer)
    return rows, missing.slice(0, max(0, missing.num_rows - 1))


def _fetches_all_again(self, batch, answer, kept=fetcher.Fetcher._judged):
    rows, missing = kept(self, batch, answer)
    return rows, batch if missing.num_rows else missing


def _forgetful(self, name):
    return None


MUTANTS: dict[str, tuple[Callable[[], None], object, str, object]] = {
    "a retraction retracts the newest arrival": (hunt_lookups, match_memo.MatchMemo, "word", _newest_first),
    "copies that were retracted are due all the same": (hunt_lookups, match_memo.Retracted, "copies_of", _first_copies),
    "one attempt too many": (hunt_lookups, lookup_join.LookupShape, "policy_of", staticmethod(_policy_of)),
    "a row waits a moment too long": (hunt_lookups, lookup_join.LookupShape, "policy_of", staticmethod(_keeps_time)),
    "the residual predicate is not evaluated": (hunt_lookups, lookup_shape.LookupShape, "passing_pairs", _all_pass),
    "the padded row stays beside its partner": (hunt_lookups, lookup_join.LookupJoin, "_withdrawn", _no_withdrawal),
    "a row that is due now is not due": (hunt_lookups, match_memo.MatchMemo, "due", _not_due),
    "who was overtaken by another process goes on": (hunt_lookups, match_memo.MatchMemo, "is_current", _believes_itself),
    "a snapshot loses its last line": (hunt_lookups, match_memo.MatchMemo, "restore", _forgets),
    "an updated right row is met as it was and as it is": (
        hunt_process_time,
        side_changes.SideChanges,
        "resolve",
        _touches_nothing,
    ),
    "copies of a new right row count once": (hunt_process_time, side_changes.SideChanges, "resolve", _comes_once),
    "the cache believes a row for ever": (hunt_fetches, cache.PartialCache, "find", _always_fresh),
    "the cache keeps that a key is absent unasked": (hunt_fetches, cache.PartialCache, "remember", _keeps_absent),
    "a miss is given up": (hunt_fetches, fetcher.Fetcher, "_judged", _judges_generously),
    "keys that were found are requested again": (hunt_fetches, fetcher.Fetcher, "_judged", _fetches_all_again),
    "the journal is not read": (hunt_fetches, journal.FetchJournal, "_kept", _forgetful),
}


LONG = {
    "a retraction retracts the newest arrival",
    "copies of a new right row count once",
    "the padded row stays beside its partner",
}
"""Those that take more than ten seconds to find; a push leaves them to the night."""


@pytest.mark.parametrize("story", [story for story in MUTANTS if profile_name() != "push" or story not in LONG])
def test_the_planted_bug_is_caught(story: str) -> None:
    hunt, owner, name, bug = MUTANTS[story]
    with mock.patch.object(owner, name, bug), pytest.raises((AssertionError, ZsetJoinError)):
        hunt()
