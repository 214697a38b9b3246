"""The picture of an example: its plan with the rows that went through it, and what every epoch added and retracted."""

from __future__ import annotations

from html import escape

from examples.gallery.story import Outcome, Story

__all__ = ["picture"]

_WIDE, _HIGH, _GAP_X, _GAP_Y, _TOP = 150, 40, 60, 12, 36
_BARS, _BAR = 110, 14
_STYLE = """
text { font: 12px sans-serif; fill: #333 } .small { font-size: 10px; fill: #666 } .title { font-size: 14px; font-weight: bold }
.source { fill: #e3eefa; stroke: #4a7fb5 } .stage { fill: #f1f1f1; stroke: #888 } .view { fill: #e4f3e6; stroke: #4b9560 }
.feed { fill: none; stroke: #999 } .came { fill: #4b9560 } .went { fill: #c25b4e }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .small { fill: #aaa }
.source { fill: #24384d } .stage { fill: #333 } .view { fill: #243d2a } }
"""


def picture(story: Story, outcome: Outcome) -> str:
    """Return it as SVG: drawn from the plan and the changes of one run, nothing by hand."""
    plan = outcome.plan
    changed = _changed(outcome)
    columns: list[list[tuple[str, str, str, str]]] = [
        [(source.name, "source", source.name, f"{outcome.rows.get(source.name, 0):,} rows came") for source in plan.sources]
    ]
    level: dict[str | int, int] = {source.name: 0 for source in plan.sources}
    for node in plan.nodes:
        level[node.number] = 1 + max(level[feed.origin] for feeds in node.feeds for feed in feeds)
        while len(columns) <= level[node.number]:
            columns.append([])
        kept = outcome.statistics.get(node.name, {}).get("bytes")
        columns[level[node.number]].append(
            (str(node.number), "stage", node.name, "" if kept is None else f"keeps {kept:,} bytes")
        )
    columns.append(
        [
            (f"view {view.name}", "view", view.name, f"+{changed[view.name][0]:,}  -{changed[view.name][1]:,}")
            for view in plan.views
        ]
    )
    places: dict[str, tuple[float, float]] = {}
    highest = max(len(column) for column in columns) * (_HIGH + _GAP_Y)
    boxes: list[str] = []
    for at, column in enumerate(columns):
        top = _TOP + (highest - len(column) * (_HIGH + _GAP_Y)) / 2
        for row, (identity, kind, name, fact) in enumerate(column):
            x, y = 10 + at * (_WIDE + _GAP_X), top + row * (_HIGH + _GAP_Y)
            places[identity] = (x, y + _HIGH / 2)
            boxes.append(f'<rect class="{kind}" x="{x}" y="{y:g}" width="{_WIDE}" height="{_HIGH}" rx="5"/>')
            boxes.append(f'<text x="{x + 8}" y="{y + 17:g}">{escape(_short(name))}</text>')
            boxes.append(f'<text class="small" x="{x + 8}" y="{y + 32:g}">{escape(fact)}</text>')
    feeds = {(str(feed.origin), str(node.number)) for node in plan.nodes for given in node.feeds for feed in given}
    feeds |= {(str(feed.origin), f"view {view.name}") for view in plan.views for feed in view.feeds}
    lines = [_line(places[origin], places[target]) for origin, target in sorted(feeds)]
    width = max(10 + len(columns) * (_WIDE + _GAP_X) - _GAP_X + 10, 20 + 8 * len(story.title))
    bars, below = _bars(outcome, _TOP + highest + 14, width)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {below:g}" role="img" '
        f'aria-label="{escape(story.title)}">\n'
        f'<style>{_STYLE}</style>\n<text class="title" x="10" y="20">{escape(story.title)}</text>\n'
        + "\n".join([*lines, *boxes, *bars])
        + "\n</svg>\n"
    )


def _changed(outcome: Outcome) -> dict[str, tuple[int, int]]:
    """Return per view how many rows were added and retracted."""
    return {
        view.name: (
            sum(weight for answer in outcome.answers for _, weight in answer[view.name].to_pylist() if weight > 0),
            -sum(weight for answer in outcome.answers for _, weight in answer[view.name].to_pylist() if weight < 0),
        )
        for view in outcome.plan.views
    }


def _bars(outcome: Outcome, top: float, width: float) -> tuple[list[str], float]:
    """Return a bar up and one down per epoch, all views together, and where the picture ends."""
    epochs = [[weight for delta in answer.values() for _, weight in delta.to_pylist()] for answer in outcome.answers]
    came = [sum(weight for weight in weights if weight > 0) for weights in epochs]
    went = [-sum(weight for weight in weights if weight < 0) for weights in epochs]
    most = max(1, *came, *went)
    middle = top + 18 + _BARS / 2
    step = min(3 * _BAR, (width - 20) / len(epochs))
    legend = f"changes of all views, epoch by epoch: added (up), retracted (down); most: {most:,}"
    lines = [f'<text class="small" x="10" y="{top + 8:g}">{legend}</text>']
    for at, (up, down) in enumerate(zip(came, went, strict=True)):
        x = 10 + at * step
        for height, kind, y in ((up, "came", middle - up * _BARS / 2 / most), (down, "went", middle)):
            size = f'width="{step * 0.7:.1f}" height="{height * _BARS / 2 / most:.1f}"'
            lines.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size}/>')
    lines.append(f'<line class="feed" x1="10" y1="{middle:g}" x2="{10 + step * len(epochs):.1f}" y2="{middle:g}"/>')
    return lines, middle + _BARS / 2 + 8


def _line(origin: tuple[float, float], target: tuple[float, float]) -> str:
    x, y = origin[0] + _WIDE, origin[1]
    half = (x + target[0]) / 2
    return f'<path class="feed" d="M{x:g} {y:g} C{half:g} {y:g} {half:g} {target[1]:g} {target[0]:g} {target[1]:g}"/>'


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"
