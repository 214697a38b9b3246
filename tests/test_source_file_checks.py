"""The check of source files finds what it promises to find, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest
from typing_extensions import override

from tools.check_source_files import breaches, breaches_of_class, source_files


def written(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def test_a_file_has_at_most_900_lines(tmp_path: Path) -> None:
    assert list(breaches(written(tmp_path / "long.py", "x = 1\n" * 900))) == []
    assert "901 lines" in next(breaches(written(tmp_path / "long.py", "x = 1\n" * 901)))


def test_a_room_without_places_names_none(tmp_path: Path) -> None:
    written(tmp_path / "zset_join" / "__init__.py", "")
    source = "class OnDriver:\n    held: int\n\ndef move(to_executors):\n    self.rows_in_memory = connects = 1\n"

    found = list(breaches(written(tmp_path / "zset_join" / "plan" / "moved.py", source)))

    assert [one.split(" is named")[0] for one in found] == [
        "line 1: OnDriver",
        "line 4: to_executors",
        "line 5: rows_in_memory",
    ]
    assert list(breaches(written(tmp_path / "zset_join" / "runners" / "moved.py", source))) == []
    (found_flags,) = breaches(written(tmp_path / "zset_join" / "flags.py", "def go(a: bool, b: bool, *, c: bool): ...\n"))
    assert "go has more than 2 flags" in found_flags


@pytest.mark.parametrize("name", ["common.py", "helpers.py", "utils.py"])
def test_a_meaningless_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "does not describe" in next(breaches(written(tmp_path / name, "")))


def test_an_init_file_has_imports_and_names_alone(tmp_path: Path) -> None:
    source = '"""No sparkContext."""\nfrom __future__ import annotations\nimport os\n__all__ = ["os"]\n__version__ = "1"\n'

    assert list(breaches(written(tmp_path / "zset_join" / "__init__.py", source))) == []
    found = list(breaches(written(tmp_path / "__init__.py", "import os\nos.getcwd()\n")))
    assert found == ["line 2: logic in __init__.py; move it to a module and import it"]


class Shape(Protocol):
    def size(self) -> int:
        """Return the size."""


class Marked(Shape):
    @override
    def size(self) -> int:
        return 1


class Unmarked(Shape):
    def size(self) -> int:
        """Return the size again."""
        return 1


def test_an_implementation_is_marked_and_documented_once() -> None:
    package = (__name__.partition(".")[0],)
    found = [*breaches_of_class(Unmarked, package)]

    assert [one.split(";")[1] for one in found] == [" mark it with @override", " drop its docstring"]
    assert [*breaches_of_class(Marked, package), *breaches_of_class(Shape, package), *breaches_of_class(Unmarked)] == []


class Declaring(Marked):
    shown: int

    @override
    def size(self) -> int:
        return self.shown


class Deep(Declaring):
    @override
    def size(self) -> int:
        return 2


def test_a_class_is_two_below_a_protocol_and_sets_what_it_declares() -> None:
    package = (__name__.partition(".")[0],)
    found = [*breaches_of_class(Declaring, package), *breaches_of_class(Deep, package)]
    assert [one.split(" ")[1] for one in found] == ["declares", "is"]


def test_hidden_and_generated_directories_are_left_out(tmp_path: Path) -> None:
    kept = written(tmp_path / "package" / "module.py", "")
    written(tmp_path / ".venv" / "lib.py", "")
    written(tmp_path / "build" / "copy.py", "")

    assert list(source_files(tmp_path)) == [kept]


@pytest.mark.parametrize(
    "source",
    [
        "rows._jdf\n",
        "import py4j.protocol\n",
        "from py4j import protocol\n",
        'getattr(rows, "_jdf")\n',
        "session.sparkContext.master\n",
    ],
)
def test_the_gateway_of_a_jvm_is_for_one_package(tmp_path: Path, source: str) -> None:
    package = tmp_path / "zset_join"
    runner = package / "runners" / "spark"
    allowed = runner / "frames" / "classic"
    allowed.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for place in (runner, allowed, tmp_path):
        (place / "reading.py").write_text(source)

    (found,) = breaches(runner / "reading.py")
    assert "line 1" in found
    assert [*breaches(allowed / "reading.py"), *breaches(tmp_path / "reading.py")] == []
