"""A checkpoint in the terminal, drawn again as epochs are committed: `zset-join top CHECKPOINT`.

The law: it shows `zset_join.tools.metrics`, nothing else, and changes nothing. Names and values are shown as text, without the
markup of Rich.

Cost: that of `measured` per look, two a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from zset_join.core.extras import needed_for
from zset_join.tools.metrics import Measured, measured

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["drawn", "watch"]

_TABLES = (
    ("source", (("rows in", "epoch_rows_in"), ("late rows", "epoch_late_rows"), ("watermark lag, s", "watermark_lag_seconds"))),
    ("view", (("answer rows", "epoch_answer_rows"), ("retractions", "epoch_retractions"))),
    (
        "stage",
        (
            ("seconds", "stage_seconds"),
            ("rows in", "stage_rows_in"),
            ("rows out", "stage_rows_out"),
            ("log, bytes", "stage_log_bytes"),
            ("snapshot, bytes", "stage_snapshot_bytes"),
        ),
    ),
    ("part", (("seconds of the epoch", "epoch_seconds"),)),
)


def watch(
    checkpoint: str,
    *,
    seconds: float = 1.0,
    looks: int | None = None,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Draw a checkpoint again and again, until Ctrl-C; once where the output is no terminal.

    Args:
        checkpoint: `checkpointLocation`, a path or a URI, or the directory of a pipeline.
        seconds: between two looks, at least 0.5.
        looks: how often to look at most.
        console: where to.
        sleep: waits.

    Raises:
        StateError: as `measured`, at the first look or a later one.
        MissingPackageError: Rich is not installed.
    """
    with needed_for("zset-join top"):
        from rich.console import Console
        from rich.live import Live

    screen = Console() if console is None else console
    found = measured(checkpoint)
    if not screen.is_terminal:
        screen.print(drawn(found, checkpoint))
        return
    with Live(drawn(found, checkpoint), console=screen, auto_refresh=False) as live:
        try:
            looked = 1
            while looks is None or looked < looks:
                sleep(max(0.5, seconds))
                live.update(drawn(measured(checkpoint), checkpoint), refresh=True)
                looked += 1
        except KeyboardInterrupt:
            return


def drawn(found: Measured, name: str) -> RenderableType:
    """Return the tables of one look."""
    with needed_for("zset-join top"):
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

    epoch = "no epoch yet" if found.epoch is None else f"epoch {found.epoch}"
    parts: list[RenderableType] = [Text(f"{name}: {epoch}, query {found.query_id}")]
    for label, columns in _TABLES:
        values = [(title, found.by(f"zset_join_{metric}", label)) for title, metric in columns]
        rows = dict.fromkeys(row for _, by_label in values for row in by_label)
        if not rows:
            continue
        table = Table(label)
        for title, _ in values:
            table.add_column(Text(title), justify="right")
        for row in rows:
            table.add_row(Text(row or "the view"), *(Text(_number(by_label.get(row))) for _, by_label in values))
        parts.append(table)
    return Group(*parts)


def _number(value: float | None) -> str:
    """Return a number for users.

    >>> _number(1234567), _number(0.25), _number(None)
    ('1,234,567', '0.250', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
