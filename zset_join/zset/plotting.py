"""A delta as a bar chart, by altair or matplotlib, whichever is installed.

Cost: as `to_pylist` of two columns; altair refuses more than 5,000 rows unless it is configured otherwise.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from zset_join.core.errors import PlanError
from zset_join.core.extras import needed_for
from zset_join.core.shown_values import shown_column

__all__ = ["bars"]

_COLORS = {"comes": "#1c8042", "goes": "#c23a3a"}


def bars(delta: Any, x: str, y: str) -> Any:
    """Return the chart of a `ZSet`; see its `plot`."""
    missing = [name for name in (x, y) if name not in delta.schema.names]
    if missing:
        raise PlanError(
            f"plot: there is no column {missing[0]!r}; the columns are {delta.schema.names}.",
            code="DELTA_COLUMNS",
            missing=missing,
        )
    across = [value if isinstance(value, int | float) else str(value) for value in shown_column(delta.rows.column(x))]
    weights = delta.weights.tolist()
    up = [_number(value) * weight for value, weight in zip(delta.rows.column(y).to_pylist(), weights, strict=True)]
    signs = ["goes" if weight < 0 else "comes" for weight in weights]
    if importlib.util.find_spec("altair") is not None:
        return _by_altair(x, y, across, up, signs)
    return _by_matplotlib(x, y, across, up, signs)


def _by_altair(x: str, y: str, across: list[Any], up: list[float], signs: list[str]) -> Any:
    altair: Any = importlib.import_module("altair")
    rows = [{"x": place, "y": value, "change": sign} for place, value, sign in zip(across, up, signs, strict=True)]
    kind = "Q" if all(isinstance(one, int | float) for one in across) else "N"
    colors = altair.Scale(domain=list(_COLORS), range=list(_COLORS.values()))
    encoded = {
        "x": altair.X(f"x:{kind}", title=x),
        "y": altair.Y("y:Q", title=y),
        "color": altair.Color("change:N", scale=colors),
    }
    return altair.Chart(altair.Data(values=rows)).mark_bar().encode(**encoded)


def _by_matplotlib(x: str, y: str, across: list[Any], up: list[float], signs: list[str]) -> Any:
    with needed_for("plot()"):
        plt: Any = importlib.import_module("matplotlib.pyplot")
    _, axes = plt.subplots()
    axes.bar(across, up, color=[_COLORS[sign] for sign in signs])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def _number(value: Any) -> float:
    return 0.0 if value is None else float(value)
