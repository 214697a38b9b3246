"""Random operators about time over random changes, compared with the oracle after every epoch.

    python -m property_tests.random_timed --events 5000000
    python -m property_tests.random_timed --minutes 10

A case is a temporal join in one of its three modes, an as-of join or a dedup, with drawn keys, deletes, residuals, tolerances,
ties and hash widths, over a drawn history with legal watermarks; see `property_tests.timed_histories`. A case is named by its
kind, its seed and its scale, which the message of a failure holds. Changes, epochs and cases are counted, and a run that
compared nothing does not pass.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from property_tests.timed_histories import KINDS, TimedCase
from property_tests.timed_laws import incremental_is_batch, snapshot_and_restore_are_invisible

__all__ = ["main", "run_cases"]

SCALES = (1, 10, 100, 300)
_RESTORED_EVERY = 10
_REPORT_EVERY_SECONDS = 60


def run_cases(
    *,
    events: int | None = None,
    minutes: float | None = None,
    cases: int | None = None,
    seed: int = 1,
    report: Callable[[int, int, int], None] = lambda events, epochs, cases: None,
) -> tuple[int, int, int]:
    """Compare cases until so much was done; return the changes, epochs and cases.

    Args:
        events: changes to compare.
        minutes: how long.
        cases: how many.
        seed: of the first case of every kind.
        report: receives these counts once a minute.

    Raises:
        LawBrokenError: an answer differs; the message names the case.
        AssertionError: a row differs.
    """
    begun, done_events, done_epochs, done = time.monotonic(), 0, 0, 0
    reported = begun
    while not (
        (events is not None and done_events >= events)
        or (cases is not None and done >= cases)
        or (minutes is not None and time.monotonic() - begun >= 60 * minutes)
    ):
        case = TimedCase(KINDS[done % len(KINDS)], seed + done // len(KINDS), scale=SCALES[done // len(KINDS) % len(SCALES)])
        incremental_is_batch(case, TimedCase.make)
        if done % _RESTORED_EVERY == 0:
            snapshot_and_restore_are_invisible(case, TimedCase.make)
        done += 1
        done_epochs += len(case.steps)
        done_events += sum(len(lines) for step in case.steps for lines in step.changes)
        if time.monotonic() - reported >= _REPORT_EVERY_SECONDS:
            reported = time.monotonic()
            report(done_events, done_epochs, done)
    return done_events, done_epochs, done


def _report_progress(events: int, epochs: int, cases: int) -> None:
    sys.stderr.write(f"{events:,} changes in {epochs:,} epochs of {cases:,} cases, all equal so far\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line requests; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int, default=1)
    reported = parser.parse_args(arguments)
    if reported.events is None and reported.minutes is None and reported.cases is None:
        reported.minutes = 1.0
    begun = time.monotonic()
    events, epochs, cases = run_cases(
        events=reported.events, minutes=reported.minutes, cases=reported.cases, seed=reported.seed, report=_report_progress
    )
    seconds = time.monotonic() - begun
    sys.stdout.write(f"{events:,} changes in {epochs:,} epochs of {cases:,} cases, all equal, in {seconds:,.0f} s\n")
    return 0 if events and epochs else 1


if __name__ == "__main__":
    sys.exit(main())
