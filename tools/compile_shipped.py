"""Compile all kernels for the wheel: `make dist` puts them into it, see `zset_join.kernels.machine.kept_code`.

    python -m tools.compile_shipped [--into build/shipped]

What was compiled before from the same sources is taken again. A process of its own compiles, with the settings of numba that
choose the processor; so this one's own kernels are left alone.

Cost: about 80 s of CPU where nothing is present.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from zset_join.kernels.machine.compiled import kernels_version
from zset_join.kernels.machine.kept_code import DIGESTS_FILE, PROCESSOR, versions

__all__ = ["compile_shipped", "gather"]

ROOT = Path(__file__).resolve().parent.parent


def compile_shipped(into: Path) -> int:
    """Compile what is absent yet; return the number of files."""
    compiled = ROOT / "build" / "compiled-for-the-wheel"
    compiled.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")} | {
        "NUMBA_CACHE_DIR": str(compiled),
        "NUMBA_CPU_NAME": PROCESSOR,
        "NUMBA_CPU_FEATURES": "",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-m", "zset_join.cli", "compile"], env=environment, cwd=ROOT, check=True)
    listing = "from zset_join.kernels.machine.compiled import live_modules; print(*live_modules(), sep='\\n')"
    answered = subprocess.run(
        [sys.executable, "-c", listing], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    modules = answered.stdout.splitlines()
    return gather([Path(module) for module in modules], into)


def gather(modules: list[Path], into: Path) -> int:
    """Copy the compiled files of modules, with their digests; what was there goes. Return the number of files."""
    shutil.rmtree(into, ignore_errors=True)
    place = into / versions()
    digests: dict[str, str] = {}
    for module in sorted(modules):
        for file in sorted(module.glob("*.nbc")):
            content = file.read_bytes()
            target = place / module.name / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            digests[f"{module.name}/{file.name}"] = hashlib.sha256(content).hexdigest()
    place.mkdir(parents=True, exist_ok=True)
    (place / DIGESTS_FILE).write_text(json.dumps({"kernels": kernels_version, "files": digests}, indent=1), encoding="utf-8")
    return len(digests)


def main() -> int:
    """Compile, and print what was gathered."""
    parser = argparse.ArgumentParser(prog="compile_shipped", description="compile all kernels for the wheel")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "shipped")
    into = parser.parse_args().into
    print(f"{compile_shipped(into)} compiled functions for {PROCESSOR} in {into}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
