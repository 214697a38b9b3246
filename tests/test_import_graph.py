"""No circle of imports ties modules of the library, and the picture of its rooms follows the code."""

from __future__ import annotations

from pathlib import Path

from tools.draw_rooms import drawing
from tools.import_graph import circles, import_graph, package_graph


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "p" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_imports_for_types_and_inside_functions_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import b\n",
        b="def later():\n    from p.c import x\n",
        c="import p.a\n",
        d="from p import a\n",
    )

    graph = import_graph(root, ("p",))

    assert graph["p.d"] == {"p.a"}
    assert circles(graph) == [["p.a", "p.b", "p.c"]]


def test_no_circle_of_imports_ties_modules_of_the_library() -> None:
    assert circles(import_graph()) == []


def test_modules_that_do_not_import_each_other_make_no_circle(tmp_path: Path) -> None:
    root = write(tmp_path, a="from p import b, c\n", b="from p import c\n", c="import os\n")

    assert circles(import_graph(root, ("p",))) == []


def test_rooms_count_the_imports_between_them() -> None:
    graph = {
        "zset_join.a.x": {"zset_join.b", "zset_join.a.y"},
        "zset_join.a.y": {"zset_join.b"},
        "zset_join.b": {"spill.z"},
        "spill.z": set(),
    }

    rooms = package_graph(graph)

    assert rooms == {"zset_join.a": {"zset_join.b": 2}, "zset_join.b": {"spill": 1}, "spill": {}}


def test_the_picture_names_every_room() -> None:
    picture = drawing()

    assert picture.startswith("<svg")
    assert all(
        f">{room.removeprefix('zset_join.')}<" in picture for room in package_graph(import_graph()) if room != "zset_join"
    )
