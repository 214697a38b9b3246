"""Run examples of the gallery: python -m examples.gallery [NAME...] [--pictures DIRECTORY]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.gallery.picture import picture
from examples.gallery.stories import STORIES
from examples.gallery.story import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named examples, or all of them; the exit code is 1 where one shows something wrong."""
    parser = argparse.ArgumentParser(prog="gallery", description="run examples, each with its own check and verify()")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STORIES)} (all)")
    parser.add_argument("--pictures", type=Path, help="write NAME.svg into this directory")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in STORIES]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(STORIES)}")
    wrong = 0
    for name in given.names or STORIES:
        outcome = run(STORIES[name])
        wrong += len(outcome.wrong)
        if given.pictures is not None:
            (given.pictures / f"{name}.svg").write_text(picture(STORIES[name], outcome), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
