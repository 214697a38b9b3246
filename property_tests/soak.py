"""Random histories with big epochs, for as long as you like: `python -m property_tests.soak --minutes 10`.

Each round draws a join (or a join behind routes), a history of some thousand changes with forced collisions or without, and
compares the sum of the answers with the dict oracle after every epoch. On the way the operator is restored from its own
snapshot or closed and reopened at random, and at the end everything that can be retracted is retracted and the state must
be empty.

A round is named by its seed: `--seed S --rounds 1` repeats it. What was compared is counted and held against a floor, so
that a soak which compared nothing does not pass.
Cost: about 20 microseconds per change, most of it in the oracle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random

from property_tests.laws import LawBrokenError, Run, compare, undo_changes
from property_tests.registry import MODE_PAIRS, Build, Subject, build_hash_join, build_routed_join, hash_join_live_rows
from property_tests.shapes import HOWS, KEY_SHAPES, WIDE_IDS, WIDE_KEY_SHAPES
from property_tests.strategies import Epoch, History, make_join_spec, random_history

__all__ = ["Tally", "held_against_floors", "main", "soak_round"]

_FLOOR_EPOCHS_PER_MINUTE = 20
_FLOOR_ROWS_PER_MINUTE = 20_000
_SHAPES = (*WIDE_KEY_SHAPES, *WIDE_KEY_SHAPES, *KEY_SHAPES)  # two rounds in three or so have many keys


@dataclass
class Tally:
    """What has been compared so far."""

    rounds: int = 0
    changes: int = 0
    epochs: int = 0
    rows: int = 0
    restores: int = 0
    reopenings: int = 0
    undone: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name):,} {field.name}" for field in fields(self))


def _draw(rng: Random) -> tuple[Subject, list[Epoch]]:
    shape = rng.choice(_SHAPES)
    narrow = shape in KEY_SHAPES
    build: Build = build_routed_join if rng.random() < 0.15 else build_hash_join
    spec = make_join_spec(
        lambda choices: rng.choice(choices),
        rng.choice(HOWS),
        *rng.choice(MODE_PAIRS),
        hash_bits=(32, 32, 16, 8),
        key_shapes=(shape,),
        id_types=(WIDE_IDS,),
        chunk_rows=(65536, 1000, 37),
    )
    changes = rng.choice((50, 300) if narrow or build is build_routed_join else (300, 1000, 4000))
    epochs = random_history(spec, rng, changes=changes, epochs=rng.choice((1, 3, 8)), identifiers=rng.choice((20, 500, 5000)))
    return Subject(spec, build, hash_join_live_rows), epochs


def soak_round(seed: int, tally: Tally) -> None:
    """Run one round and add to the tally.

    Raises:
        LawBrokenError: an answer that is not the change of the plain join.
    """
    rng = Random(seed)
    subject, epochs = _draw(rng)
    history = History((), 0, 0, 0)
    with tempfile.TemporaryDirectory() as directory:
        kept_in = directory if rng.random() < 0.4 else None
        run = Run(subject, directory=kept_in)
        for changes in epochs:
            _shake(run, kept_in, rng, tally)
            run.step(changes)
            run.check(history)
            tally.changes += len(changes)
            tally.epochs += 1
            tally.rows += len(run.view.counts())
        if "append" not in {relation.mode for relation in subject.spec.inputs}:
            run.step(tuple(undo_changes(subject, run.seen)))
            compare(run.view.counts(), {}, "after retracting everything", subject, history)
            if subject.live_rows(run.operator):
                raise LawBrokenError(
                    f"{subject.live_rows(run.operator)} live rows are left after everything was retracted\n{subject!r}"
                )
            tally.undone += 1
        run.close()
    tally.rounds += 1


def _shake(run: Run, directory: str | None, rng: Random, tally: Tally) -> None:
    """Restore the operator from its own snapshot, reopen its directory, or leave it alone."""
    turn = rng.random()
    if turn < 0.15 and directory is not None:
        run.close()
        run.operator = run.subject.operator(directory=directory)
        tally.reopenings += 1
    elif turn < 0.3 and directory is None:
        snapshot = dict(run.operator.snapshot())
        run.operator = run.subject.operator()
        run.operator.restore(snapshot)
        tally.restores += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; return 0 when every comparison held and there were enough of them."""
    parser = argparse.ArgumentParser(prog="property_tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first round (default: from the clock)")
    parser.add_argument("--rounds", type=int, default=None, help="stop after so many rounds, at any time")
    options = parser.parse_args(arguments)
    first = options.seed if options.seed is not None else time.time_ns() % 1_000_000_000
    tally, begin, reported = Tally(), time.monotonic(), 0.0
    seed = first
    while time.monotonic() - begin < 60 * options.minutes and (options.rounds is None or tally.rounds < options.rounds):
        try:
            soak_round(seed, tally)
        except AssertionError as error:
            sys.stdout.write(
                f"seed {seed} broke a law: {error}\nrepeat: python -m property_tests.soak --seed {seed} --rounds 1\n"
            )
            return 1
        seed += 1
        if time.monotonic() - begin - reported > 30:
            reported = time.monotonic() - begin
            sys.stdout.write(f"{reported:6.0f} s  {tally}\n")
            sys.stdout.flush()
    sys.stdout.write(f"seeds {first}..{seed - 1}: {tally}\n")
    return 0 if options.rounds is not None else held_against_floors(tally, options.minutes)


def held_against_floors(tally: Tally, minutes: float) -> int:
    """Return 0 when enough was compared for so many minutes, else print what is missing and return 1."""
    wanted = {"epochs": int(_FLOOR_EPOCHS_PER_MINUTE * minutes), "rows": int(_FLOOR_ROWS_PER_MINUTE * minutes)}
    missed = {name: floor for name, floor in wanted.items() if getattr(tally, name) < floor}
    for name, floor in missed.items():
        sys.stdout.write(f"only {getattr(tally, name):,} {name} were compared; the floor is {floor:,}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
