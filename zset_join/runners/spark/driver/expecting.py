"""How large the state of a new query is expected to be, from what is known before it starts.

| known of | by |
|---|---|
| a stream of files, a baseline of files | the bytes of its files; a compressed column counts as so many times its bytes |
| any other stream, files that are not on a file system of this machine | nothing |

The law: what is not known is not guessed; a query of which nothing is known begins on the driver, where its first batch is
measured.

Cost: one look at every file of a local directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from zset_join.runners.spark.frames.facts import reader_of
from zset_join.runners.spark.planning.source_stream import SourceStream

__all__ = ["Expectation", "expected_state"]

_COMPRESSED = {".parquet": 4, ".orc": 4, ".gz": 8, ".zst": 8, ".snappy": 3, ".avro": 2}


@dataclass(frozen=True)
class Expectation:
    size: int | None
    reason: str

    def __str__(self) -> str:
        return self.reason if self.size is None else f"expected {self.size:,} bytes of state, {self.reason}"


def expected_state(streams: Mapping[str, SourceStream]) -> Expectation:
    """Return how large the state of a query is expected to be, whose streams are given by the names of its sources."""
    known: dict[str, int] = {}
    for name, stream in streams.items():
        frames = [stream.dataframe, *([] if stream.baseline is None else [stream.baseline])]
        sizes = [_files_size(paths) for frame in frames if (paths := reader_of(frame.sparkSession).paths(frame)) is not None]
        if sizes:
            known[name] = sum(sizes)
    unknown = [name for name in streams if name not in known]
    if not known:
        return Expectation(None, f"nothing is known of the size of {', '.join(unknown)}")
    rest = f"; nothing is known of {', '.join(unknown)}" if unknown else ""
    return Expectation(sum(known.values()), f"by the files of {', '.join(known)}{rest}")


def _files_size(paths: Iterable[str]) -> int:
    return sum(_weight(file) for path in paths for file in _files(path))


def _files(path: str) -> Iterable[Path]:
    url = urlparse(path)
    if url.scheme not in ("", "file"):
        return ()
    place = Path(unquote(url.path) if url.scheme else path)
    if any(sign in str(place) for sign in "*?["):
        matching = Path(place.anchor or ".").glob(str(place.relative_to(place.anchor)))
        return [inner for one in matching for inner in _files(str(one))]
    if place.is_dir():
        return [one for one in place.rglob("*") if one.is_file() and not one.name.startswith(("_", "."))]
    return [place] if place.is_file() else ()


def _weight(file: Path) -> int:
    factor = max((times for suffix, times in _COMPRESSED.items() if suffix in file.suffixes), default=1)
    return file.stat().st_size * factor
