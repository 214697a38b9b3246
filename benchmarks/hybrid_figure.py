"""Draw the speed of hybrid joins: `python -m benchmarks.hybrid_figure`, from `results/hybrid.txt` into the page about sizing.

Bars are changes per CPU second with a tenth of the state in memory, as a share of those with all of it, measured in turns; the
line is what was wanted. Nothing is measured here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.hybrid import RESULTS

__all__ = ["drawn", "main", "shares"]

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "size-the-state.svg"
WANTED = {"zipf": 40, "uniform": 15}
_FONT = 'font-family="sans-serif" font-size="13"'
_WIDTH, _LEFT, _ROW, _FULL = 640, 190, 34, 400


def shares(lines: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield keys, changes per epoch and percent of the speed in memory, of joins that were measured in turns.

    >>> list(shares(["a tenth, in turns with one in memory, zipf, 10000: 37% of its speed, median 43%"]))
    [('zipf', 10000, 37)]
    """
    for line in lines:
        what, _, share = line.partition(": ")
        if what.startswith("a tenth, in turns"):
            keys, changes = what.split(", ")[2:]
            yield keys, int(changes), int(share.split("%")[0])


def drawn(found: Sequence[tuple[str, int, int]]) -> str:
    """Return the figure as SVG."""
    bottom = 30 + _ROW * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 40}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{bottom + 40}" fill="white"/>',
        '<text x="10" y="18">Speed with a tenth of the state in memory, percent of that with all of it</text>',
    ]
    for number, (keys, changes, percent) in enumerate(found):
        top = 30 + _ROW * number
        wanted = _LEFT + _FULL * WANTED[keys] // 100
        parts += [
            f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end">{keys} keys, {changes:,} changes</text>',
            f'<rect x="{_LEFT}" y="{top + 3}" width="{_FULL * percent // 100}" height="20" fill="#4477aa"/>',
            f'<text x="{_LEFT + _FULL * percent // 100 + 6}" y="{top + 18}" fill="#4477aa">{percent} %</text>',
            f'<line x1="{wanted}" y1="{top}" x2="{wanted}" y2="{top + 26}" stroke="#cc3311" stroke-width="2"/>',
        ]
    for percent in (0, 25, 50, 75, 100):
        x = _LEFT + _FULL * percent // 100
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="#555555">{percent}</text>')
    parts.append(f'<text x="{_LEFT}" y="{bottom + 33}" fill="#cc3311">red: what was wanted</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Draw the figure."""
    found = list(shares(RESULTS.read_text(encoding="utf-8").splitlines()))
    if not found:
        raise ValueError(f"{RESULTS} holds no cell that spills: run python -m benchmarks.hybrid first")
    FIGURE.write_text(drawn(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
