"""Dead letters of a pipeline in process or of a query inside Spark: listing and replay.

    in process    <directory>/dead-letters/<epoch>.parquet
    Spark         <checkpoint>/quarantine/epoch=<epoch>/part-*.parquet, or in `deadLetterPath`

The law: a letter is listed once, and only of an epoch that counts. A record that could not be decoded has its bytes as they
came, key and value, with topic, partition and offset; a row that was refused later is present as JSON.

Letters are known by file and number in it. Which of them were sent again is in `<place>/replayed/`, one file per replay,
written after the sending: what is killed in between is sent twice, never omitted. `Pipeline.replay` keeps that in the commit
record of the epoch instead, which is exactly once.

Memory: all letters that are listed.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zset_join.checkpoint.reading import no_checkpoint, read_committed
from zset_join.core.errors import OptionError, StateError
from zset_join.core.shown_values import shown_names, shown_value
from zset_join.storage.folder import Folder, folder_below, open_folder

__all__ = [
    "LETTER_SCHEMA",
    "REPLAYED_POSITION",
    "is_program",
    "letter_lines",
    "letter_text",
    "listed",
    "mark_places",
    "pending_records",
    "places_of",
    "read_letters",
    "record_in",
    "records_of",
    "replay",
    "send_to_file",
    "send_to_kafka",
]

LETTER_SCHEMA = pa.schema(
    {
        "stream": pa.string(),
        "epoch": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "code": pa.string(),
        "reason": pa.string(),
        "key": pa.binary(),
        "value": pa.binary(),
        "row": pa.string(),
        "weight": pa.int64(),
        "file": pa.string(),
        "number": pa.int64(),
        "replayed": pa.bool_(),
    }
)
"""One line per letter: `key` and `value` of a record, or `row` as JSON and its weight; `file` and `number` identify it."""

REPLAYED_POSITION = "dead letters replayed"
"""Under this name `Pipeline.replay` keeps what it took last among the positions of the sources."""

_PIPELINE, _SPARK, _REPLAYED = "dead-letters", "quarantine", "replayed"
_PIPELINE_FILE = re.compile(r"(\d{20})\.parquet")
_SPARK_FILE = re.compile(r"epoch=(\d+)/part-[^/]*\.parquet")
_SPARK_COLUMNS = ("stream", "weight", "code", "reason")
_IN_REASON = re.compile(r"\{.*\}\Z", re.DOTALL)
_PROGRAM = re.compile(r"[\w.]+:\w+")
_SHOWN = 60
_KAFKA = "kafka://"


def read_letters(
    checkpoint: str | Path,
    *,
    path: str | Path | None = None,
    stream: str | None = None,
    epoch: int | None = None,
    code: str | None = None,
) -> pa.Table:
    """Return the letters of a checkpoint, oldest first, as `LETTER_SCHEMA`.

    Args:
        checkpoint: `checkpointLocation`, or the directory of a pipeline.
        path: where they are; needed where `deadLetterPath` put them elsewhere.
        stream: only those of one stream.
        epoch: only those of one epoch.
        code: only those with one code.

    Raises:
        StateError: there is no checkpoint, or a file cannot be read.
    """
    committed = read_committed(str(checkpoint))
    if committed is None:
        raise no_checkpoint(str(checkpoint))
    last = -1 if committed.last is None else committed.last.epoch
    reached = {} if committed.last is None else committed.last.positions
    tables = [LETTER_SCHEMA.empty_table()]
    for folder, name in _folders(checkpoint, path):
        match = _PIPELINE_FILE.fullmatch(name) or _SPARK_FILE.fullmatch(name)
        if match is None or int(match[1]) > last:
            continue  # of an attempt that does not count
        tables.append(_letters(_table(folder, name), int(match[1]), name))
    letters = pa.concat_tables(tables)
    done = {tuple(one) for folder in _places(checkpoint, path) for one in _marks(folder)}
    done |= {tuple(one) for one in reached.get(REPLAYED_POSITION, ())}
    marks = [place in done for place in zip(letters["file"].to_pylist(), letters["number"].to_pylist(), strict=True)]
    letters = letters.set_column(LETTER_SCHEMA.get_field_index("replayed"), "replayed", pa.array(marks, pa.bool_()))
    for column, wanted in (("stream", stream), ("epoch", epoch), ("code", code)):
        if wanted is not None:
            letters = letters.filter(pc.equal(letters[column], wanted))
    return letters.sort_by([("epoch", "ascending"), ("file", "ascending"), ("number", "ascending")])


def listed(letters: pa.Table) -> str:
    """Return letters as a table for users, values shortened."""
    if not letters.num_rows:
        return "no dead letters"
    titles = ("stream", "epoch", "topic", "partition", "offset", "code", "reason", "record or row", "replayed")
    lines: list[tuple[str, ...]] = [titles]
    for one in letters.to_pylist():
        place = tuple("-" if one[name] is None else str(one[name]) for name in ("topic", "partition", "offset"))
        raw = letter_text(one)
        lines.append(
            (
                str(one["stream"]),
                str(one["epoch"]),
                *place,
                str(one["code"]),
                _shortened(str(one["reason"])),
                _shortened(raw),
                "yes" if one["replayed"] else "no",
            )
        )
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    count = letters.num_rows
    return "\n".join([*texts, f"{count} dead letter{'s' if count > 1 else ''}; --json shows them whole"])


def letter_text(letter: Mapping[str, Any]) -> str:
    """Return the record of a letter as text, or its row."""
    if letter["row"] is not None:
        return str(letter["row"])
    value = letter["value"]
    return "NULL" if value is None else bytes(value).decode("utf-8", "backslashreplace")


def letter_lines(letters: pa.Table) -> Iterable[str]:
    """Yield letters as JSON, one object per line; bytes that are no UTF-8 are in `key_base64` and `value_base64`."""
    for one in letters.to_pylist():
        yield json.dumps(_with_texts(one), ensure_ascii=False)


def replay(
    checkpoint: str | Path,
    target: str,
    *,
    path: str | Path | None = None,
    stream: str | None = None,
    epoch: int | None = None,
    code: str | None = None,
    run: Callable[[str, str | None, str | None], int],
) -> int:
    """Send the letters that were not sent again yet, and mark them.

    Args:
        checkpoint: as for `read_letters`, and so `path`, `stream`, `epoch` and `code`.
        target: `kafka://HOST:PORT[/TOPIC]`, `MODULE:FUNCTION` of a pipeline, or the path of a new file.
        path: where they are.
        stream: only those of one stream.
        epoch: only those of one epoch.
        code: only those with one code.
        run: replays in a pipeline, given stream and code.

    Returns:
        How many were sent.

    Raises:
        OptionError: the target does not fit.
        StateError: Kafka did not accept them.
    """
    if is_program(target):
        if epoch is not None or path is not None:
            raise OptionError(
                f"--replay {target}: a pipeline takes all that wait in its own directory; --epoch and --path are for other "
                "targets. Choose with --stream or --code.",
                code="REPLAY",
                target=target,
            )
        return run(target, stream, code)
    letters = read_letters(checkpoint, path=path, stream=stream, epoch=epoch, code=code)
    waiting = letters.filter(pc.invert(letters["replayed"]))
    if not waiting.num_rows:
        return 0
    sent = send_to_kafka(waiting, target) if target.startswith(_KAFKA) else send_to_file(waiting, target)
    mark_places(checkpoint, places_of(waiting), path=path)
    return sent


def is_program(target: str) -> bool:
    """Return whether a target of `replay` is a pipeline, by the function that returns it."""
    return _PROGRAM.fullmatch(target) is not None


def send_to_file(letters: pa.Table, path: str | Path) -> int:
    """Write letters to a new file of JSON lines: records with key, value and place, or rows."""
    target = Path(path)
    try:
        with target.open("x", encoding="utf-8") as file:
            for line in letter_lines(letters):
                file.write(line + "\n")
    except FileExistsError as error:
        raise OptionError(
            f"--replay {target}: the file already exists; name a new one.", code="REPLAY", path=str(path)
        ) from error
    except OSError as error:
        raise OptionError(f"--replay {target}: it cannot be written: {error}.", code="REPLAY", path=str(path)) from error
    return int(letters.num_rows)


def send_to_kafka(letters: pa.Table, target: str, config: Mapping[str, Any] | None = None) -> int:
    """Send records to Kafka again, with unchanged bytes, to their original topics or to one topic."""
    from zset_join.sinks.kafka_records import send_records

    servers, _, topic = target.removeprefix(_KAFKA).partition("/")
    rows = letters.to_pylist()
    without = [one for one in rows if one["row"] is not None or not (topic or one["topic"])]
    if not servers or without:
        raise OptionError(
            f"--replay {target}: {len(without)} of {len(rows)} letters are rows of a table, or have no topic; only "
            "records can go to Kafka again, and kafka://HOST:PORT/TOPIC names a topic. Choose with --stream or --code, "
            "or replay to a file.",
            code="REPLAY",
            target=target,
        )
    records = [
        (topic or one["topic"], one["key"], one["value"], f"{one['topic']}/{one['partition']}/{one['offset']}") for one in rows
    ]
    failed = send_records({**(config or {}), "bootstrap.servers": servers}, records)
    if failed is not None:
        raise StateError(
            f"--replay {target}: Kafka did not take all records: {failed}. Nothing is marked as replayed; those that were "
            "taken will be there twice after the next try, which upserts by key ignore.",
            code="REPLAY_FAILED",
            target=target,
        )
    return len(rows)


def pending_records(letters: pa.Table) -> pa.Table:
    """Return the letters that are records and were not sent again."""
    return letters.filter(pc.and_(pc.is_null(letters["row"]), pc.invert(letters["replayed"])))


def records_of(letters: pa.Table, stream: str) -> pa.Table:
    of_stream = letters.filter(pc.equal(letters["stream"], stream))
    return of_stream.select(["key", "value", "topic", "partition", "offset"])


def places_of(letters: pa.Table) -> list[list[Any]]:
    return [list(one) for one in zip(letters["file"].to_pylist(), letters["number"].to_pylist(), strict=True)]


def mark_places(checkpoint: str | Path, places: Sequence[Sequence[Any]], *, path: str | Path | None = None) -> None:
    """Write down that letters were sent again."""
    if places:
        folder = _places(checkpoint, path)[0]
        folder.put_new(f"{_REPLAYED}/{uuid.uuid4().hex}.json", json.dumps([list(one) for one in places]).encode())


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."


def _places(checkpoint: str | Path, path: str | Path | None) -> Sequence[Folder]:
    if path is not None:
        return [open_folder(str(path), option="--path")]
    pipeline, spark = (folder_below(str(checkpoint), name) for name in (_PIPELINE, _SPARK))
    return [spark, pipeline] if any(True for _ in spark.names("")) else [pipeline, spark]


def _folders(checkpoint: str | Path, path: str | Path | None) -> Iterable[tuple[Folder, str]]:
    for folder in _places(checkpoint, path):
        for name in folder.names(""):
            yield folder, name.lstrip("/")


def _marks(folder: Folder) -> Iterable[Sequence[Any]]:
    for name in folder.names(_REPLAYED):
        data = folder.read(name)
        if data is not None and name.endswith(".json"):
            yield from json.loads(data.to_pybytes())


def _table(folder: Folder, name: str) -> pa.Table:
    data = folder.read(name)
    try:  # without threads: one that releases Python's bytes while the interpreter ends aborts the process
        return pq.ParquetFile(pa.BufferReader(data if data is not None else b"")).read(use_threads=False)
    except pa.ArrowException as error:
        raise StateError(
            f"{folder.uri(name)} cannot be read as a file of dead letters: {error}. Restore it from a copy, or remove it; "
            "the query does not need it.",
            code="DEAD_LETTERS",
            file=folder.uri(name),
        ) from error


def _letters(stored: pa.Table, epoch: int, name: str) -> pa.Table:
    """Return a file of either kind as `LETTER_SCHEMA`."""
    lines = []
    is_spark = "stream" in stored.column_names
    for number in range(stored.num_rows):
        one = {column: shown_value(stored[column], number) for column in stored.column_names}
        letter = dict.fromkeys(LETTER_SCHEMA.names) | {"epoch": epoch, "file": name, "number": number, "replayed": False}
        if is_spark:
            letter |= {column: one[column] for column in _SPARK_COLUMNS}
            letter |= record_in(one["reason"]) or {"row": _row_text(one.get(one["stream"]))}
        else:
            letter |= {column: one.get(column) for column in ("topic", "partition", "offset", "key", "value")}
            letter |= {column: one[column] for column in ("code", "reason", "row", "weight")} | {"stream": one["source"]}
        lines.append(letter)
    return pa.Table.from_pylist(lines, schema=LETTER_SCHEMA)


def record_in(reason: str) -> dict[str, Any] | None:
    """Return the record that Spark's reason ends with; None where it names none."""
    in_reason = _IN_REASON.search(reason or "")
    if in_reason is None:
        return None
    try:
        place = json.loads(in_reason[0])
    except ValueError:
        return None
    if not isinstance(place, dict) or not {"value", "offset", "said", "value_base64", "topic"} & place.keys():
        return None
    record: dict[str, Any] = {
        "reason": f"{reason[: in_reason.start()].rstrip(': ')}{_described(place)}",
        "topic": place.get("topic"),
    }
    for column in ("partition", "offset"):
        record[column] = None if place.get(column) is None else int(place[column])
    for column in ("key", "value"):
        if place.get(f"{column}_base64") is not None:
            record[column] = base64.b64decode(place[f"{column}_base64"])
        else:
            record[column] = None if place.get(column) is None else str(place[column]).encode()
    return record


def _described(letter: Mapping[str, Any]) -> str:
    emitted = letter.get("said")
    return "" if emitted is None else f" ({emitted})"


def _row_text(row: Mapping[str, Any] | None) -> str:
    shown = None if row is None else {name: row[name] for name in shown_names(row)}
    return json.dumps(shown, default=str, ensure_ascii=False)


def _with_texts(letter: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(letter)
    for column in ("key", "value"):
        data = shown.pop(column)
        try:
            shown[column] = None if data is None else bytes(data).decode()
        except UnicodeDecodeError:
            shown[f"{column}_base64"] = base64.b64encode(data).decode()
    return shown
