"""A start that is refused leaves every file of the directory as it was, and the program before it continues."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import zset_join
from zset_join.checkpoint.descriptions import SESSION
from zset_join.checkpoint.files import CHECKPOINT_FORMAT
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, stored_description, stored_query_id
from zset_join.core.errors import SinkError, StateError, ZsetJoinError
from zset_join.core.options import HotBudget
from zset_join.pipeline import FunctionSink, Pipeline, appends
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.runners.local.directory_plans import place_of
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sinks.json_lines import JsonLinesSink
from zset_join.sinks.parquet_changelog import ParquetChangelogSink
from zset_join.stages.stage import StageOptions
from zset_join.storage.folder import LocalFolder
from zset_join.storage.operations import observe
from zset_join.storage.trusted_files import seal, unseal

COLUMNS = {"k": pa.int64(), "v": pa.int64()}
ODD = {"_weight": pa.int64(), "epoch": pa.int64(), "lasts": pa.duration("us")}

SUMS = StageOptions(hot_budget=HotBudget(max_hot_keys=9))  # a view over such a state is summed from its log at the start


def view(**more):
    return appends("rows", {**COLUMNS, **more}).groupBy("k").agg(F.sum("v").alias("v"))


def latest(**more):
    rows = appends("rows", {**COLUMNS, **more})
    return rows.join(appends("names", {"id": pa.int64(), "name": pa.string()}), [("k", "id")])


class Refusing(FunctionSink):
    """An output that refuses when it is opened, when it is opened for an epoch, or when it is given one."""

    def __init__(self, where, error=None):
        super().__init__(print)
        self.where = where
        self.error = error or SinkError("the columns are others", code="SINK_SCHEMA")

    def open(self, output, query_id, **options):
        if self.where == "open":
            raise self.error
        super().open(output, query_id, **options)

    def has(self, epoch, link):  # noqa: ARG002 - as the protocol has it
        if self.where == "has":
            raise self.error
        return False

    def write(self, epoch, chunks, *, link=None):  # noqa: ARG002 - as the protocol has it
        raise self.error


def files_below(directory: Path):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def start(at: Path, *outputs, **arguments):
    """Start from another kind of session, which an accepted start would write down."""
    return Pipeline(latest(), of_session(at), outputs=outputs, **arguments)


def of_session(at: Path):
    return replace(place_of(at), described=lambda _: {SESSION: "connect"})


def start_with(column: str, at: Path):
    """Start the query of a directory beside it that has a column which files do not take."""
    place, files = of_session(at.with_name(column)), ParquetChangelogSink(at.with_name("o"), "weight")
    return Pipeline(latest(**{column: ODD[column]}), place, outputs=(files,))


def beside(pattern: str, changed, opened=start):
    """Return a start while the last file of a pattern holds something else; None: while it is absent."""

    def started(at: Path):
        file = max((at / "zset").rglob(pattern))
        whole = file.read_bytes()
        file.unlink()
        if changed is not None:
            file.write_bytes(changed(whole))
        try:
            opened(at)
        finally:
            file.write_bytes(whole)

    return started


def format_with(version=CHECKPOINT_FORMAT, **facts):
    def changed(whole: bytes) -> bytes:
        stored = unseal(whole, version=CHECKPOINT_FORMAT, name="format.json")
        return seal({**stored, **facts}, version=version, name="format.json")

    return beside("format.json", changed)


def refuse(*_):
    raise StateError("the rows of the source are gone", code="SOURCE_LOST_ROWS")


def foreign(directory: Path):
    """Return a changelog of another query."""
    sink = ParquetChangelogSink(directory, "weight")
    sink.open(Pipeline(latest()).plan.output, "another query")
    return sink


def without_header(directory: Path):
    """Return a changelog whose header cannot be read."""
    sink = ParquetChangelogSink(directory, "weight")
    directory.mkdir()
    (directory / "_changelog.json").write_bytes(b"{")
    return sink


def taken_name(directory: Path):
    """Return a view whose name is that of a table."""
    directory.mkdir()
    with duckdb.connect(str(directory / "v.duckdb")) as connection:
        connection.execute("CREATE TABLE v (k INT)")
    return DuckDBViewSink(directory / "v.duckdb", "v")


REFUSALS = {
    "QUERY_CHANGED": lambda at: Pipeline(view(), at),
    "DIRECTORY": lambda at: start(at / "zset" / "format.json"),
    "OPTION_RANGE": lambda at: start(at, options=StageOptions(chunk_rows=0)),
    "BUCKETS_CHANGED": format_with(buckets=2),
    "STATE_FORMAT": format_with(version=CHECKPOINT_FORMAT + 1),
    "FOREIGN_STATE": format_with(query_id="another"),
    "DAMAGED_FILE: the answer": beside("*.arrows", lambda whole: whole[:-1], lambda at: start(at, FunctionSink(print))),
    "DAMAGED_FILE: the record": beside("commits/*.json", lambda whole: whole[:-1]),
    "COMMIT_RECORD_MISSING": beside(f"commits/{2:020d}.json", None),
    "DAMAGED_FILE: no format": beside("format.json", None),
    "DAMAGED_FILE: the view": beside("log/view-0/*", lambda whole: whole[:-1], lambda at: start(at, options=SUMS)),
    "SOURCE_LOST_ROWS": lambda at: start(at, before_begin=refuse),
    "FORM": lambda at: start(at, FunctionSink(print, form="weights")),
    "UNKNOWN_COLUMN": lambda at: start(at, FunctionSink(print, form="upsert", key=["x"])),
    "MISSING_PRIMARY_KEY": lambda at: start(at, FunctionSink(print, form="upsert")),
    "DUPLICATE_COLUMN": partial(start_with, "_weight"),
    "SINK_SCHEMA": lambda at: start(at, Refusing("open")),
    "SINK_SCHEMA of a second output": lambda at: start(at, FunctionSink(print), Refusing("open")),
    "the output is full": lambda at: start(at, Refusing("write", OSError("the output is full"))),
    "SINK_COLUMNS": partial(start_with, "epoch"),
    "SINK_TYPE": partial(start_with, "lasts"),
    "SINK_QUERY_ID": lambda at: start(at, foreign(at.with_name("o"))),
    "SINK_HEADER": lambda at: start(at, without_header(at.with_name("o"))),
    "SINK_NAME_TAKEN": lambda at: start(at, taken_name(at.with_name("o"))),
    "SINK_IO": lambda at: start(at, JsonLinesSink(at / "zset" / "format.json" / "o", "weight")),
    "SINK_EPOCH_GAP": lambda at: start(at, ParquetChangelogSink(at.with_name("o"), "weight")),
    # What follows is raised by outputs in places where others have changed them, or of what the last epoch has.
    **{
        code: lambda at, code=code, where=where: start(at, Refusing(where, SinkError("refused", code=code)))
        for where, codes in {
            "open": ["SINK_BUSY", "SINK_FEATURES", "SINK_KEY", "SINK_OPTION"],
            "has": ["SINK_OTHER_CHAIN", "SINK_PART"],
            "write": [
                "KEY_CLAIMED_TWICE",
                "RETRACTION_IN_APPEND",
                "SINK_CONFLICT",
                "SINK_RETRACTION",
                "SINK_VALUE",
                "TOO_MANY_ROWS",
            ],
        }.items()
        for code in codes
    },
}
OTHERWISE = {
    "CHECKPOINT_IN_USE": "has a test of its own, below",
    "EVOLVE_OUTPUT": "raised by an evolution, not by a start",
    "VIEW_NAME": "of arguments alone; has a test among those of several views",
    "STORE_UNCONDITIONAL": "of a store's own answers; has a test among those of object stores",
    "OWNER_LOST": "the files are those of the driver that has taken over",
    **dict.fromkeys(["COMMITTED_TWICE", "EPOCH_GAP", "EPOCH_REPLANNED", "REPLAY_DIFFERS"], "raised by an epoch"),
    **dict.fromkeys(["MISSING_EPOCH", "SINK_CLOSED", "SINK_MODE"], "raised for a caller that is none of ours"),
    **dict.fromkeys(["NOTHING_COMMITTED", "NO_CHECKPOINT", "PLAN_MISSING"], "raised by tools that look into a checkpoint"),
}


def test_every_code_that_checkpoint_and_outputs_raise_is_among_the_refusals():
    package = Path(zset_join.__file__).parent
    places = ["sinks/*", "changelog/encoding", "runners/local/outputs", "runners/local/durable"]
    places += [f"checkpoint/{name}" for name in ("checkpoint", "files", "log", "owner", "reading", "record", "rescaling")]
    texts = [file.read_text() for place in places for file in package.glob(f"{place}.py")]
    raised = {code for text in texts for code in re.findall(r'code="([A-Z_]+)"', text)}

    assert raised - {re.match("[A-Z_]*", name)[0] for name in REFUSALS} == OTHERWISE.keys()


def run_three_epochs(place, **more):
    with Pipeline(latest(**more), place) as pipeline:
        for number in range(3):
            pipeline.step({"rows": [{"k": 1, "v": number}], "names": [{"id": 1, "name": "Ann"}]})
        return sorted(pipeline.contents().to_pylist())


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Give directories of three epochs that no start may change."""
    directory = tmp_path_factory.mktemp("ran")
    run_three_epochs(directory / "d")
    for name, kind in ODD.items():
        run_three_epochs(directory / name, **{name: kind})
    return directory


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_start_leaves_every_file_as_it_was(refusal, ran):
    before = files_below(ran)

    with pytest.raises((ZsetJoinError, OSError)) as refused:
        REFUSALS[refusal](ran / "d")

    assert refusal.startswith(getattr(refused.value, "code", str(refused.value)))
    shutil.rmtree(ran / "o", ignore_errors=True)
    assert files_below(ran) == before


@pytest.mark.parametrize("refusal", ["DAMAGED_FILE: the view", "SINK_SCHEMA", "SOURCE_LOST_ROWS"])
def test_the_program_before_a_refused_start_goes_on(refusal, tmp_path):
    place = tmp_path / "d"
    held = run_three_epochs(place)
    with pytest.raises(ZsetJoinError):
        REFUSALS[refusal](place)

    with Pipeline(latest(), place) as again:
        assert sorted(again.contents().to_pylist()) == held
        assert again.step({"rows": [{"k": 1, "v": 9}]}).weights.sum() == 3
    with start(place) as other:
        assert other.epoch == 4


def test_a_damaged_view_that_a_start_need_not_read_is_refused_where_it_is_read(tmp_path):
    run_three_epochs(tmp_path)

    def opened(at: Path):
        with Pipeline(latest(), at) as pipeline:
            pipeline.contents()

    with pytest.raises(StateError) as refused:
        beside("log/view-0/*", lambda whole: whole[:-1], opened)(tmp_path)
    assert refused.value.code == "DAMAGED_FILE"


@pytest.mark.parametrize(("operation", "name"), [("put", "format.json"), ("remove_unfinished", "")])
def test_a_start_that_cannot_write_or_tidy_up_is_refused_and_the_program_before_it_goes_on(
    operation, name, tmp_path, monkeypatch
):
    usual, failed = getattr(LocalFolder, operation), []

    def fail_once(self, file, *more):
        if file == name and not failed:
            failed.append(file)
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(self, file, *more)

    run_three_epochs(tmp_path)
    written = [tmp_path / "zset" / name for name in ("format.json", "stages.json")]
    before = [path.read_bytes() for path in written]
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, operation, fail_once)
        with pytest.raises(StateError) as refused:
            start(tmp_path)

    assert (refused.value.code, failed) == ("STORAGE_FAILED", [name])
    assert [path.read_bytes() for path in written] == before
    with Pipeline(latest(), tmp_path) as again:
        assert again.epoch == 3


@pytest.mark.parametrize("is_behind", [False, True], ids=["before the change", "behind it"])
def test_a_disk_that_stays_full_leaves_no_new_query_with_an_old_plan(is_behind, tmp_path):
    run_three_epochs(tmp_path)
    changes = []

    def fails(operation, act):
        """Fail every change of these files; `is_behind` lets the first one pass."""
        target = operation.target or operation.path
        if operation.kind not in ("rename", "replace") or not target.endswith(".json") or "owners" in target:
            return act()
        changes.append(target)
        if is_behind and len(changes) == 1:
            return act()
        raise OSError(errno.ENOSPC, "No space left on device")

    with observe(fails), contextlib.suppress(StateError):  # a start that one change is enough for is accepted
        start(tmp_path).close()

    assert ("connect" in (stored_description(str(tmp_path)) or {}).values()) == is_behind
    with Pipeline(latest(), tmp_path) as again:
        assert again.epoch == 3


def test_a_start_beside_a_running_one_is_refused_and_changes_no_file(tmp_path):
    with Pipeline(view(), tmp_path) as pipeline:
        pipeline.step({"rows": [{"k": 1, "v": 1}]})
        before = files_below(tmp_path)

        with pytest.raises(ZsetJoinError) as refused:
            Pipeline(view(), tmp_path)

        assert refused.value.code == "CHECKPOINT_IN_USE"
        assert files_below(tmp_path) == before


def test_a_first_start_that_is_refused_lets_another_query_begin_under_the_same_name(tmp_path):
    first = ParquetChangelogSink(tmp_path / "out", "weight")
    with pytest.raises(SinkError):
        Pipeline(view(), tmp_path / "d", outputs=[first, Refusing("open")])

    seen = []
    with Pipeline(view(), tmp_path / "d", outputs=[first, FunctionSink(lambda epoch, _delta: seen.append(epoch))]) as pipeline:
        pipeline.step({"rows": [{"k": 1, "v": 1}]})

    assert seen == [0]
    assert stored_query_id(str(tmp_path / "d")) is not None


def test_a_claim_on_trial_that_is_released_leaves_the_one_before_as_it_was(tmp_path):
    folder = checkpoint_folder(str(tmp_path))
    Ownership.claim(folder, "q").release()
    before = files_below(tmp_path)

    Ownership.claim(folder, "q", on_trial=True).release()

    assert files_below(tmp_path) == before
