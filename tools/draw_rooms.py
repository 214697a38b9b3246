"""Draw the rooms of the code, its packages and what they import, as docs/explanation/rooms.svg.

    python -m tools.draw_rooms

A room is above all rooms it imports. A line's width shows how many imports there are; one that other lines imply is omitted; a
red line leads upward. Nothing is drawn by hand: the picture follows the code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape

from tools.import_graph import ROOT, circles, import_graph, package_graph, reached

__all__ = ["drawing"]

_PICTURE = ROOT / "docs" / "explanation" / "rooms.svg"
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 150, 44, 22, 46
_TOP = 54


def drawing() -> str:
    """Return the picture as SVG."""
    graph = import_graph()
    rooms = package_graph({module: targets for module, targets in graph.items() if module != "zset_join"})
    rooms = {room: {to: count for to, count in targets.items() if to in rooms} for room, targets in rooms.items()}
    levels = _levels(rooms)
    rows: dict[int, list[str]] = {}
    for room in sorted(rooms):
        rows.setdefault(levels[room], []).append(room)
    highest, widest = max(rows), max(map(len, rows.values()))
    width = widest * (_WIDTH + _GAP_X) + _GAP_X
    places = {}
    for level, row in rows.items():
        left = (width - len(row) * (_WIDTH + _GAP_X) + _GAP_X) / 2
        for at, room in enumerate(row):
            places[room] = (left + at * (_WIDTH + _GAP_X), _TOP + (highest - level) * (_HEIGHT + _GAP_Y))
    sizes = {room: sum(1 for module in graph if module == room or module.startswith(f"{room}.")) for room in rooms}
    tied = circles(graph)
    title = f"{len(graph)} modules in {len(rooms)} rooms, {len(tied)} circles of imports"
    height = _TOP + (highest + 1) * (_HEIGHT + _GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{_GAP_X}" y="28" font-size="16">{escape(title)}</text>',
    ]
    for room, targets in sorted(rooms.items()):
        for target, count in sorted(targets.items()):
            if not any(target in reached(rooms, other) for other in targets if other != target):
                parts.append(_line(places[room], places[target], count))
    for room, (x, y) in sorted(places.items()):
        name = room.removeprefix("zset_join.")
        parts.append(
            f'<rect x="{x:.0f}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#f4f6fa" stroke="#334"/>'
            f'<text x="{x + _WIDTH / 2:.0f}" y="{y + 19}" text-anchor="middle">{escape(name)}</text>'
            f'<text x="{x + _WIDTH / 2:.0f}" y="{y + 35}" text-anchor="middle" font-size="10" fill="#667">'
            f"{sizes[room]} module{'' if sizes[room] == 1 else 's'}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _levels(rooms: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the height of each room: above what it imports, but for rooms that import it too."""
    levels = dict.fromkeys(rooms, 0)
    for _ in rooms:
        for room, targets in rooms.items():
            below = [levels[to] + 1 for to in targets if room not in rooms[to]]
            levels[room] = max([levels[room], *(level for level in below if level <= len(rooms))])
    return levels


def _line(start: tuple[float, int], end: tuple[float, int], count: int) -> str:
    color = "#8899bb" if end[1] > start[1] else "#cc2222"
    x1, y1 = start[0] + _WIDTH / 2, start[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH / 2, end[1]
    width = min(6.0, 0.6 + count / 12)
    return (
        f'<path d="M{x1:.0f},{y1} C{x1:.0f},{y1 + 30} {x2:.0f},{y2 - 30} {x2:.0f},{y2}" fill="none" stroke="{color}" '
        f'stroke-width="{width:.1f}" stroke-opacity="0.55"/>'
    )


def main() -> int:
    """Write the picture."""
    _PICTURE.write_text(drawing(), encoding="utf-8")
    print(f"drawn: {_PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
