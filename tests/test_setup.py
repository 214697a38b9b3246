"""On a machine that lacks something the error names it and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHELL_TOOLS = ("bash", "head", "rm", "sed")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """Give a PATH directory with a shell in it, and neither Java nor Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in SHELL_TOOLS:
        (directory / tool).symlink_to(str(shutil.which(tool)))
    return directory


@pytest.fixture
def run(bare_machine: Path) -> Run:
    """Give a function that runs a script of tools/ on the bare machine, with the given variables set."""

    def run_script(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(bare_machine / "bash"), str(ROOT / "tools" / script), *arguments],
            cwd=ROOT,
            env={"PATH": str(bare_machine), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_script


def fake(directory: Path, name: str, body: str) -> Path:
    """Write an executable shell script."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_machine_without_java_is_reported_with_the_cure(run: Run) -> None:
    done = run("check_java.sh")

    assert done.returncode == 1
    assert "no Java found" in done.stderr
    assert "sudo apt-get install openjdk-17-jdk-headless" in done.stderr
    assert "brew install openjdk@17" in done.stderr
    assert "sdk install java" in done.stderr


@pytest.mark.parametrize(("banner", "version"), [('openjdk version "11.0.2"', "11"), ('java version "1.8.0_392"', "8")])
def test_a_java_that_is_too_old_is_named_with_its_version(run: Run, bare_machine: Path, banner: str, version: str) -> None:
    java = fake(bare_machine, "java", f"echo '{banner}' >&2")

    done = run("check_java.sh")

    assert done.returncode == 1
    assert f"the Java found ({java}, from the PATH) is version {version}." in done.stderr


def test_a_java_home_without_java_is_named(run: Run) -> None:
    done = run("check_java.sh", JAVA_HOME="/no/such/jdk")

    assert done.returncode == 1
    assert "JAVA_HOME is /no/such/jdk" in done.stderr


def test_a_java_that_does_not_run_is_named(run: Run, bare_machine: Path) -> None:
    fake(bare_machine, "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")

    done = run("check_java.sh")

    assert done.returncode == 1
    assert "does not run: Unable to locate a Java Runtime." in done.stderr


@pytest.mark.parametrize("banner", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16 LTS'])
def test_a_new_enough_java_passes_in_silence(run: Run, tmp_path: Path, banner: str) -> None:
    fake(tmp_path / "jdk", "bin/java", f"echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2; echo '{banner}' >&2")

    done = run("check_java.sh", JAVA_HOME=str(tmp_path / "jdk"))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_machine_without_python_is_reported_with_the_cure(run: Run, tmp_path: Path) -> None:
    done = run("make_venv.sh", str(tmp_path / "venv"))

    assert done.returncode == 1
    assert "no Python 3.11 or newer found" in done.stderr
    assert "sudo apt-get install python3 python3-venv" in done.stderr


def test_a_python_that_is_too_old_is_named(run: Run, bare_machine: Path, tmp_path: Path) -> None:
    old = fake(bare_machine, "python3.9", "echo 9")

    done = run("make_venv.sh", str(tmp_path / "venv"), PYTHON=str(old))

    assert done.returncode == 1
    assert f"PYTHON={old} is not a Python 3.11 or newer." in done.stderr


def test_every_verb_of_the_makefile_is_in_its_help() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)

    verbs = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"setup", "test", "test-services", "demo", "lint", "bench", "soak", "docs", "help"} <= verbs


def test_the_server_runs_the_tests_and_those_against_real_servers() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert (ROOT / ".ci" / "run").read_text().endswith("make test\nmake test-services\nmake dist ARGS=--without-kernels\n")
