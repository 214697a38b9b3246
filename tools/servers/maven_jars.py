"""Bring jars from Maven's repository into a folder of the user's cache, once per list of artifacts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["POSTGRES_JDBC", "SPARK_KAFKA", "jars_of"]

SPARK_KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""Spark's connector for Kafka, to be brought without what it depends on; 4.2.0 works on PySpark 4.3.0, and is the newest."""

POSTGRES_JDBC = ("org.postgresql:postgresql:42.7.13",)
"""The driver by which Spark reads tables of PostgreSQL."""

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>zset_join.tests</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def jars_of(artifacts: Sequence[str], *, with_dependencies: bool = True) -> Path:
    """Return the folder that holds artifacts, and all they depend on."""
    digest = hashlib.sha256("\n".join([*sorted(artifacts), *([] if with_dependencies else ["alone"])]).encode()).hexdigest()[
        :16
    ]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zset_join-test-services"
    folder = cache / f"jars-{digest}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two of Maven may not fill one repository at the same time
        if not folder.is_dir():
            _bring(artifacts, folder, with_dependencies=with_dependencies)
    return folder


def _bring(artifacts: Sequence[str], folder: Path, *, with_dependencies: bool) -> None:
    """Make the folder with artifacts, and all they depend on."""
    if shutil.which("mvn") is None:
        raise RuntimeError(
            "mvn is not on the PATH; the servers of `make test-services` that run on Java come by Maven 3.8 or newer."
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as project:
        dependencies = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        (Path(project) / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
        alone = [] if with_dependencies else ["-DexcludeTransitive=true"]
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy-dependencies",
            "-DoutputDirectory=jars",
            "-DincludeScope=runtime",
            *alone,
        ]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Maven could not bring {list(artifacts)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        (Path(project) / "jars").rename(folder)
