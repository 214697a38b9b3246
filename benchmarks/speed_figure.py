"""Draw the speed of the join beside others: `python -m benchmarks.speed_figure`, from `results/latest.json`.

The figure is `docs/speed.svg`: one row per cell, one dot per contestant on a logarithmic axis of changes per CPU second. A cell
in which a baseline is ahead is marked in red. Nothing is measured here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.run import RESULTS

__all__ = ["cells", "drawn", "main"]

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "speed.svg"
COLOURS = {"zset_join": "#1f5fa8", "zset_join_view": "#6fa8dc", "dict": "#888888", "polars": "#d98600", "duckdb": "#3c9d4e"}
NAMES = {"zset_join": "zset_join, operator", "zset_join_view": "zset_join, SQL view", "dict": "Python dicts",
         "polars": "polars, recomputing", "duckdb": "DuckDB, delta by SQL"}  # fmt: skip
_FONT = 'font-family="sans-serif" font-size="13"'
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 860, 220, 800, 60, 34
_DECADES = (3, 7)

Rates = dict[str, float]


def cells(rows: Sequence[Mapping[str, Any]]) -> dict[str, Rates]:
    """Return the rates of the contestants by the title of their cell, without cells of one contestant.

    >>> one = {"workload": "many_to_many", "state_rows": 40_000, "epoch_changes": 1_000}
    >>> rates = {"dict": 2.0, "zset_join": 8.0}
    >>> cells([{**one, "engine": name, "changes_per_cpu_second": rate} for name, rate in rates.items()])
    {'many to many, 1,000 changes': {'dict': 2.0, 'zset_join': 8.0}}
    """
    found: dict[str, Rates] = {}
    for row in rows:
        state = "many to many" if row["workload"] == "many_to_many" else f"{row['state_rows'] / 1e6:g} M rows"
        if row["engine"] in COLOURS:
            rates = found.setdefault(f"{state}, {row['epoch_changes']:,} changes", {})
            rates[row["engine"]] = row["changes_per_cpu_second"]
    return {title: rates for title, rates in found.items() if len(rates) > 1}


def drawn(found: Mapping[str, Rates]) -> str:
    """Return the figure as SVG."""
    bottom = _TOP + _ROW * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 50}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{bottom + 50}" fill="white"/>',
        f'<text x="{_WIDTH / 2}" y="20" text-anchor="middle">Changes per CPU second, one thread (logarithmic)</text>',
    ]
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = 20 + 168 * number
        parts.append(f'<circle cx="{x}" cy="40" r="6" fill="{colour}"/><text x="{x + 10}" y="45">{NAMES[name]}</text>')
    for decade in range(_DECADES[0], _DECADES[1] + 1):
        x = _x(10.0**decade)
        parts += [
            f'<line x1="{x:.0f}" y1="{_TOP}" x2="{x:.0f}" y2="{bottom}" stroke="#dddddd"/>',
            f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle" fill="#555555">{10**decade:,}</text>',
        ]
    for number, (title, rates) in enumerate(found.items()):
        middle = _TOP + _ROW * number + _ROW // 2
        ahead = [name for name in rates if not name.startswith("zset_join") and rates[name] > rates["zset_join"]]
        colour = "#cc3311" if ahead else "black"
        parts += [
            f'<text x="{_LEFT - 10}" y="{middle + 5}" text-anchor="end" fill="{colour}">{title}</text>',
            f'<line x1="{_LEFT}" y1="{middle}" x2="{_RIGHT}" y2="{middle}" stroke="#eeeeee"/>',
        ]
        # The engine is drawn last, above dots that it covers.
        parts += [
            f'<circle cx="{_x(rates[name]):.1f}" cy="{middle}" r="6" fill="{COLOURS[name]}"/>'
            for name in reversed(COLOURS)
            if name in rates
        ]
    parts.append(f'<text x="20" y="{bottom + 40}" fill="#cc3311">red: another is ahead</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Draw the figure."""
    FIGURE.write_text(drawn(cells(json.loads((RESULTS / "latest.json").read_text(encoding="utf-8")))), encoding="utf-8")
    return 0


def _x(rate: float) -> float:
    low, high = _DECADES
    share = (math.log10(rate) - low) / (high - low)
    return _LEFT + (_RIGHT - _LEFT) * min(max(share, 0.0), 1.0)


if __name__ == "__main__":
    sys.exit(main())
