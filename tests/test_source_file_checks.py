"""The check of source files finds what it promises to find, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_source_files import breaches, source_files


def written(path: Path, source: str) -> Path:
    """Write a file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def test_a_file_of_900_lines_passes(tmp_path: Path) -> None:
    assert list(breaches(written(tmp_path / "long.py", "x = 1\n" * 900))) == []


def test_a_file_of_901_lines_is_too_long(tmp_path: Path) -> None:
    assert "901 lines" in next(breaches(written(tmp_path / "long.py", "x = 1\n" * 901)))


def test_a_room_without_places_names_none(tmp_path: Path) -> None:
    written(tmp_path / "zset_join" / "__init__.py", "")
    source = "class OnDriver:\n    held: int\n\ndef move(to_executors): ...\n"

    found = list(breaches(written(tmp_path / "zset_join" / "plan" / "moved.py", source)))

    assert [one.split(" is named")[0] for one in found] == ["line 1: OnDriver", "line 4: to_executors"]
    assert list(breaches(written(tmp_path / "zset_join" / "runners" / "moved.py", source))) == []
    (found_flags,) = breaches(written(tmp_path / "zset_join" / "flags.py", "def go(a: bool, b: bool, *, c: bool): ...\n"))
    assert "go has more than 2 flags" in found_flags


@pytest.mark.parametrize("name", ["common.py", "helpers.py", "utils.py"])
def test_a_meaningless_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "does not describe" in next(breaches(written(tmp_path / name, "")))


def test_an_init_file_of_imports_and_names_passes(tmp_path: Path) -> None:
    source = '"""Doc."""\nfrom __future__ import annotations\nimport os\n__all__ = ["os"]\n__version__ = "1"\n'

    assert list(breaches(written(tmp_path / "__init__.py", source))) == []


def test_logic_in_an_init_file_is_named_with_its_line(tmp_path: Path) -> None:
    found = list(breaches(written(tmp_path / "__init__.py", "import os\nos.getcwd()\n")))

    assert found == ["line 2: logic in __init__.py; move it to a module and import it"]


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


def test_a_docstring_may_name_it(tmp_path: Path) -> None:
    (tmp_path / "zset_join").mkdir()
    (tmp_path / "zset_join" / "__init__.py").write_text('"""Nothing here uses sparkContext."""\n')

    assert list(breaches(tmp_path / "zset_join" / "__init__.py")) == []
