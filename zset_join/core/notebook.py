"""Tables and texts as a notebook shows them: HTML in which every name and value is escaped.

The law: nothing of a user becomes markup, and no value has more than `LONGEST` characters.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["LONGEST", "MOST_ROWS", "html_differences", "html_progress", "html_table", "html_text"]

LONGEST = 200
MOST_ROWS = 50
_COLORS = {-1: "rgba(220, 60, 60, 0.16)", 1: "rgba(40, 160, 80, 0.16)"}


def html_text(value: Any) -> str:
    """Return a value as text between tags, cut where it is long.

    >>> html_text("<script>")
    '&lt;script&gt;'
    """
    text = "NULL" if value is None else str(value)
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
    return html.escape(cut.encode("utf-8", "backslashreplace").decode())


def html_table(names: Iterable[str], rows: Iterable[Sequence[Any]], *, caption: str = "", signs: Sequence[int] = ()) -> str:
    """Return rows as a table."""
    head = "".join(f"<th>{html_text(name)}</th>" for name in names)
    lines = []
    for place, row in enumerate(rows):
        color = _COLORS.get(signs[place], "") if place < len(signs) else ""
        style = f' style="background: {color}"' if color else ""
        lines.append(f"<tr{style}>{''.join(f'<td>{html_text(value)}</td>' for value in row)}</tr>")
    above = f"<caption>{html_text(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def html_differences(verdict: str, differences: Sequence[tuple[Mapping[str, Any], int, int]]) -> str:
    """Return a report of a verification: its verdict, and rows with the weights that were expected and found."""
    if not differences:
        return f"<p>{html_text(verdict)}</p>"
    names = list(differences[0][0])
    rows = [[expected, actual, *(row.get(name) for name in names)] for row, expected, actual in differences[:MOST_ROWS]]
    return html_table(["expected", "actual", *names], rows, caption=verdict, signs=[-1] * len(rows))


def html_progress(progress: Mapping[str, Any] | None) -> str:
    """Return the progress of an epoch, of either runner: one line per count, and a table of its stages."""
    if not progress:
        return "<p>no epoch yet</p>"
    stages = {name: one for name, one in progress.get("stages", {}).items() if "seconds" in one}
    plain = [[name, _plain(value)] for name, value in progress.items() if name != "stages" or not stages]
    columns = list(dict.fromkeys(column for one in stages.values() for column in one))
    rows = [[name, *(one.get(column) for column in columns)] for name, one in stages.items()]
    table = html_table(["stage", *columns], rows) if rows else ""
    return html_table(["count", "value"], plain, caption=f"epoch {progress.get('epoch')}") + table


def _plain(value: Any) -> str:
    return ", ".join(f"{name}: {_plain(one)}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)
