"""A plan as a picture for a notebook: static SVG, sources on the left, views on the right.

The law: every name is text; the picture has one box per source, stage and view, and one arrow per feed; an arrow over more
than one column runs below the boxes. It takes the colors of the page it is shown in, light or dark, and needs no script.

Cost: linear in boxes and arrows. Boxes are in the column of their longest way from a source, in the order of the plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from zset_join.core.shown_values import html_text

__all__ = ["plan_svg"]

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 190, 46, 56, 18, 8
_LANE = 12
_LETTERS = 27


class _Box(NamedTuple):
    kind: str
    title: str
    text: str
    full: str
    column: int


def plan_svg(plan: Any) -> str:
    boxes: dict[str, _Box] = {}
    for source in plan.sources:
        names = ", ".join(source.visible)
        boxes[_source(source.name)] = _Box("source", source.name, names, f"Source {source.name}: {names}", 0)
    arrows: list[tuple[str, str]] = []
    for node in plan.nodes:
        feeds = [_origin(feed) for fed in node.feeds for feed in fed]
        title = node.stage.explain(None)[0]
        column = 1 + max((boxes[one].column for one in feeds), default=0)
        boxes[_stage(node.number)] = _Box("stage", node.name, title, title, column)
        arrows += [(one, _stage(node.number)) for one in feeds]
    last = 1 + max(box.column for box in boxes.values())
    for view in plan.views:
        names = ", ".join(plan.output_of(view.name).schema.names)
        boxes[f"view {view.name}"] = _Box("view", view.name, names, f"View {view.name}: {names}", last)
        arrows += [(_origin(feed), f"view {view.name}") for feed in view.feeds]
    return _drawn(boxes, list(dict.fromkeys(arrows)))


def _drawn(boxes: dict[str, _Box], arrows: list[tuple[str, str]]) -> str:
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, box in boxes.items():
        row = rows.get(box.column, 0)
        rows[box.column] = row + 1
        places[name] = (_MARGIN + box.column * (_WIDTH + _ACROSS), _MARGIN + row * (_HEIGHT + _DOWN))
    width = 2 * _MARGIN + max(x for x, _ in places.values()) - _MARGIN + _WIDTH
    below = _MARGIN + max(y for _, y in places.values()) + _HEIGHT
    long = [arrow for arrow in arrows if boxes[arrow[1]].column - boxes[arrow[0]].column > 1]
    height = below + _LANE * len(long)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="plan" style="max-width: 100%; font: 12px system-ui, sans-serif">'
    )
    parts = [head]
    for begin, end in arrows:
        (x, y), (to_x, to_y) = places[begin], places[end]
        x, y, to_y = x + _WIDTH, y + _HEIGHT // 2, to_y + _HEIGHT // 2
        half = _ACROSS // 2
        way = f"M{x} {y}C{x + half} {y} {to_x - half} {to_y} {to_x - 6} {to_y}"
        if (begin, end) in long:  # below the boxes between
            lane = below + _LANE * long.index((begin, end)) + _LANE // 2
            way = (
                f"M{x} {y}C{x + half} {y} {x + half} {lane} {x + _ACROSS} {lane}H{to_x - _ACROSS}"
                f"C{to_x - half} {lane} {to_x - half} {to_y} {to_x - 6} {to_y}"
            )
        parts.append(
            f'<path d="{way}" fill="none" stroke="currentColor" opacity="0.6"/>'
            f'<path d="M{to_x} {to_y}l-7 -4v8z" fill="currentColor" opacity="0.6"/>'
        )
    for name, box in boxes.items():
        x, y = places[name]
        round_by, fill = (5, "rgba(70, 130, 220, 0.16)") if box.kind == "stage" else (16, "none")
        parts.append(
            f"<g><title>{html_text(box.full)}</title>"
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{round_by}" fill="{fill}" stroke="currentColor"/>'
            f'<text x="{x + 12}" y="{y + 19}" fill="currentColor" font-weight="600">{html_text(_cut(box.title))}</text>'
            f'<text x="{x + 12}" y="{y + 36}" fill="currentColor" opacity="0.75">{html_text(_cut(box.text))}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _source(name: str) -> str:
    return f"source {name}"


def _stage(number: int) -> str:
    return f"stage {number}"


def _origin(feed: Any) -> str:
    return _source(feed.origin) if isinstance(feed.origin, str) else _stage(feed.origin)
