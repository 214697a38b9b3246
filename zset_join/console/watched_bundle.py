"""A bundle: the answers about a checkpoint in one file, for readers without access to the checkpoint or the machine.

    bundle.tar.gz    answers.json: format, `with_rows`, and the answers of `Watched` by name

The law: without `rows=True` no value of a row is in it: no changelog, no keys, no dead letters' contents, no positions. The
plan is in it with the constants of its conditions, and so are options, counts, names and times.

A bundle is data: reading one runs nothing and writes nothing, and refuses what is larger than `MOST_BYTES`.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zset_join.console.shown import MOST_ROWS
from zset_join.console.watched import ANSWERS, Answer, Watched
from zset_join.core.errors import OptionError, StateError, ZsetJoinError

__all__ = ["WatchedBundle", "is_bundle", "write_bundle"]

MOST_BYTES = 256 << 20
_FORMAT = 1
_MEMBER = "answers.json"
_WITH_ROWS = ("changes", "diff", "hot_keys")


def write_bundle(watched: Watched, path: str | Path, *, rows: bool = False) -> dict[str, Any]:
    """Write a bundle, and return its summary: `path`, `bytes`, `questions`.

    Args:
        watched: the query.
        path: the file to create; it must not exist.
        rows: also include values of rows: the newest rows of the changelog and of the first table, hottest keys, dead letters.

    Raises:
        OptionError: the file is present, or cannot be made.
    """
    answers: dict[str, Any] = {}
    for name in ANSWERS:
        if rows or name not in _WITH_ROWS:
            answers[name] = _tried(getattr(watched, name))
    if not watched.overview()["can"].get("diff"):
        answers.pop("diff", None)
    answers["epochs"] = _tried(lambda: {"epochs": list(watched.epochs(-1))})
    if rows:
        answers["rows"] = _tried(lambda: watched.rows(None, {}))
    else:
        _without_values(answers)
    body = {"format": _FORMAT, "with_rows": rows, "made_at": time.time(), "answers": answers}
    data = json.dumps(body).encode()
    try:
        with open(path, "xb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:  # noqa: PTH123 - "x" refuses an old one
            member = tarfile.TarInfo(_MEMBER)
            member.size, member.mtime = len(data), int(time.time())
            tar.addfile(member, io.BytesIO(data))
    except OSError as error:
        raise OptionError(
            f"the bundle {path} cannot be made: {error}. Name a new file in a directory where this process may write.",
            code="BUNDLE",
            path=str(path),
        ) from error
    return {"path": str(path), "bytes": os.path.getsize(path), "questions": sorted(answers)}  # noqa: PTH202 - a str or a Path


def is_bundle(path: str | Path) -> bool:
    """Return whether a path is a file, and so no checkpoint."""
    return Path(path).is_file()


class WatchedBundle:
    """Answer from a bundle.

    Args:
        path: the file.

    Raises:
        StateError: it is not a bundle, or one of another format.
    """

    def __init__(self, path: str | Path) -> None:
        body = _read(path)
        self._path, self._with_rows, self._made_at = str(path), bool(body["with_rows"]), float(body["made_at"])
        self._answers: Mapping[str, Any] = body["answers"]

    def overview(self) -> Answer:
        """Return a description of the query."""
        overview = dict(self._answer("overview"))
        can = {"verify": False, "explain_row": False, "search": self._with_rows, "diff": "diff" in self._answers}
        return {**overview, "kind": "bundle", "made_at": self._made_at, "with_rows": self._with_rows, "can": can}

    def epochs(self, after: int) -> Sequence[Answer]:
        """Return the epochs that were known."""
        return [one for one in self._answer("epochs")["epochs"] if one["epoch"] > after]

    def changes(self, *, after: int = -1) -> Answer:
        """Return the rows of the changelog that were put in."""
        if not self._with_rows:
            return {"epochs": []}
        return {"epochs": [one for one in self._answer("changes")["epochs"] if one["epoch"] > after]}

    def rows(self, table: str | None, where: Mapping[str, str]) -> Answer:
        """Return the rows that were put in, which are the first of one table."""
        kept = dict(self._answer("rows"))
        wanted = {kept["columns"].index(name): text for name, text in where.items() if name in kept["columns"]}
        chosen = [at for at, row in enumerate(kept["rows"]) if all(_text(row[place]) == text for place, text in wanted.items())]
        if table not in (None, kept["table"]) or len(wanted) < len(where):
            raise self._missing("rows")
        weights = kept["weights"]
        found = {"rows": [kept["rows"][at] for at in chosen], "weights": weights and [weights[at] for at in chosen]}
        return {**kept, "tables": [kept["table"]], **found, "total": len(chosen) if where else kept["total"], "most": MOST_ROWS}

    def explain_row(self, view: str | None, where: Mapping[str, str]) -> Answer:  # noqa: ARG002 - as the protocol has it
        """Refuse: a bundle has no inputs."""
        raise self._missing("explain_row")

    def verify(self, view: str | None, report: Callable[[str], None]) -> Answer:  # noqa: ARG002 - as the protocol has it
        """Refuse: a bundle has no inputs."""
        raise self._missing("verify")

    def hot_keys(self) -> Answer:
        """Return the hottest keys, where rows were put in."""
        return self._answer("hot_keys")

    def dead_letters(self) -> Answer:
        """Return the dead letters, without their contents where rows were not put in."""
        return self._answer("dead_letters")

    def waiting(self) -> Answer:
        """Return the rows that waited for time."""
        return self._answer("waiting")

    def files(self) -> Answer:
        """Return the files."""
        return self._answer("files")

    def damage(self) -> Answer:
        """Return the damage found when the bundle was made."""
        return self._answer("damage")

    def diff(self) -> Answer:
        """Return how the answers of a changed query would have differed, if rows are included."""
        return self._answer("diff")

    def metrics(self) -> str:
        """Refuse: a bundle is no query."""
        raise self._missing("metrics")

    def _answer(self, name: str) -> Answer:
        found = self._answers.get(name)
        if found is None:
            raise self._missing(name)
        if "error" in found:
            raise StateError(f"when the bundle was made: {found['error']['message']}", code=found["error"]["code"], what=name)
        return dict(found)

    def _missing(self, name: str) -> OptionError:
        cure = "" if self._with_rows else " Make one with --rows, or"
        return OptionError(
            f"the bundle {self._path} has no answer to {name}.{cure or ' To see it,'} open the checkpoint itself.",
            code="NOT_FROM_HERE",
            what=name,
        )


def _tried(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except (ZsetJoinError, OSError) as error:
        return {"error": {"code": getattr(error, "code", "OS_ERROR"), "message": str(error)}}


def _without_values(answers: dict[str, Any]) -> None:
    """Take the values of rows out of answers."""
    letters = answers["dead_letters"]
    if "letters" in letters:
        codes = Counter((one["stream"], one["epoch"], one["code"]) for one in letters["letters"])
        answers["dead_letters"] = {
            "total": letters["total"],
            "letters": [
                {"stream": stream, "epoch": epoch, "code": code, "reason": f"{count} of them; contents left out", "raw": None}
                for (stream, epoch, code), count in codes.items()
            ],
        }
    for one in answers["epochs"].get("epochs", ()):
        if one.get("fan_out"):
            one["fan_out"] = {"pairs": one["fan_out"].get("pairs")}
    if "positions" in answers["files"]:
        answers["files"]["positions"] = {}


def _read(path: str | Path) -> dict[str, Any]:
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            member = tar.next()
            if member is None or member.name != _MEMBER or not member.isreg() or member.size > MOST_BYTES:
                raise ValueError("it is not a bundle")
            file = tar.extractfile(member)
            body = json.loads(b"" if file is None else file.read(MOST_BYTES))
        if body["format"] != _FORMAT or not isinstance(body["answers"], dict):
            raise ValueError(f"it is of format {body['format']}, this version reads {_FORMAT}")
        float(body["made_at"]), bool(body["with_rows"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, tarfile.TarError, zlib.error) as error:
        raise StateError(
            f"{path} cannot be read as a bundle: {error}. Expected what zset-join bundle CHECKPOINT wrote.",
            code="DAMAGED_FILE",
            file=str(path),
        ) from error
    return dict(body)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
