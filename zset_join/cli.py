"""The command line: verify, explain, inspect and change a query without writing a program for each task.

    zset-join verify shop:view                     does the view equal Spark's batch query?
    zset-join explain shop:view                    the plan, its shuffles, and what each stage stores
    zset-join explain-row shop:view order_id=1     the input changes that made and retracted a row
    zset-join plan CHECKPOINT                      the same without the program; --json for tools
    zset-join state CHECKPOINT "SELECT ..."        the stored rows, as SQL; without a query, a list of the tables
    zset-join console CHECKPOINT                   a page in the browser
    zset-join dead-letters CHECKPOINT              quarantined rows with their reasons; --replay sends records again
    zset-join diff DIRECTORY shop:view             the rows that another query would change; --markdown, --all
    zset-join evolve DIRECTORY shop:view           continue the directory with another query; also a .sql file
    zset-join position OUTPUT...                   the epoch of each output, and the newest common one; --json
    zset-join rescale CHECKPOINT 8                 another number of buckets; --execution driver: the other mode

SQL in this process, without Java:

    zset-join run pipeline.sql --once              run its statements, read its files, print the changes
    zset-join check pipeline.sql                   parse, bind and plan its statements; print what they will store
    zset-join explain pipeline.sql                 the plans of its queries
    zset-join sql                                  a shell
    zset-join backup CHECKPOINT DIR --output PATH  a savepoint: checkpoint and outputs, copied together
    zset-join restore DIR                          bring both back
    zset-join metrics CHECKPOINT                   the counts of the newest epoch, for Prometheus

to begin with:

    zset-join demo                                 three tables change and a view follows, in seconds
    zset-join doctor                               installed parts, missing parts, and their cure

`shop:view` names a function `view(spark)` in `shop.py` that returns the query as it would be started, without `.start()`. So
what is verified is the program's own query, its expressions and functions included. The working directory is searched first.
Exit codes: 0 all is well, 1 a view differs, outputs share no epoch, `doctor` found a fault, or the engine refused (its
message has the reason), 2 the command line is wrong, or `diff` could not compare.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from zset_join.core.errors import OptionError, PlanError, ZsetJoinError
from zset_join.core.extras import needed_for, raising_interrupts
from zset_join.storage.operations import no_epoch, reporting_full_disk
from zset_join.tools.change_options import add_change_options, add_column_options, change_terms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zset_join.runners.spark.api.writer import JoinStreamWriter

__all__ = ["main"]

_CHECKPOINT = "checkpointLocation, or directory of a pipeline"
_DIRECTORY = "directory of a stopped pipeline, or checkpointLocation of a stopped query on the driver"
_OTHER_QUERY = (
    "the other query: MODULE:NAME of a view, of views by name, or of a function that returns one; or a .sql file with one "
    "SELECT, or a CREATE MATERIALIZED VIEW for each view"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        with reporting_full_disk("the files lie", {"none": "run it again"}, no_epoch), raising_interrupts():
            return run(options)
    except ZsetJoinError as error:
        _print_line(error, sys.stderr)
    except Exception:
        if options.verb != "diff":
            raise
        sys.excepthook(*sys.exc_info())
    return 2 if options.verb == "diff" else 1  # 1 is the answer that rows differ


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zset-join", description="Verify, explain, inspect and change queries; run SQL.")
    parser.add_argument("--version", action="version", version=f"zset-join {_version()}")
    verbs = parser.add_subparsers(dest="verb", required=True)

    verify = _program_verb(verbs, "verify", "compare the view with Spark's batch query", _verify)
    verify.add_argument("--most-differences", type=int, default=20, help="differing rows to print (20)")
    verify.add_argument("--sample", type=float, help="share of the view to check, such as 0.01 (all of it)")
    explain = _program_verb(
        verbs,
        "explain",
        "print the plan, its shuffles, and what each stage stores; of a .sql file, the plans of its queries",
        _explain,
    )
    explain.epilog = "MODULE:FUNCTION may be a .sql file: its statements are planned, and nothing runs."
    _dialect_option(explain)
    row = _program_verb(verbs, "explain-row", "print the input changes that made and retracted a row", _explain_row)
    row.add_argument("values", nargs="+", metavar="COLUMN=VALUE", help="columns of the output; an empty value is NULL")
    row.add_argument("--most-rows", type=int, default=1_000, help="maximum input changes of an epoch to print (1000)")

    plan = verbs.add_parser("plan", help="print the plan in a checkpoint, without the query's program")
    plan.add_argument("checkpoint", help=_CHECKPOINT)
    plan.add_argument("--json", action="store_true", help="as JSON, which QueryPlan.from_json reads")
    plan.set_defaults(run=_plan)

    state = verbs.add_parser("state", help="query the stored rows of a checkpoint, as SQL")
    state.add_argument("checkpoint", help="checkpointLocation")
    state.add_argument("sql", nargs="?", default="SELECT * FROM about", help="a query (a list of the tables)")
    state.set_defaults(run=_state)

    letters = verbs.add_parser("dead-letters", help="list quarantined rows, and send records again")
    letters.add_argument("checkpoint", help=_CHECKPOINT)
    letters.add_argument("--path", help="the query's option deadLetterPath")
    letters.add_argument("--stream", help="dead letters of one stream")
    letters.add_argument("--epoch", type=int, help="dead letters of one epoch")
    letters.add_argument("--code", help="dead letters with one code")
    letters.add_argument("--json", action="store_true", help="print whole dead letters, one JSON object per line")
    letters.add_argument(
        "--replay",
        metavar="TARGET",
        help="send the dead letters that were not sent yet to kafka://HOST:PORT[/TOPIC], to a new file of JSON lines, or, with "
        "MODULE:FUNCTION that returns the pipeline, through its decoder",
    )
    letters.set_defaults(run=_dead_letters)

    position = verbs.add_parser("position", help="print the epoch of each output, and the newest common one")
    position.add_argument(
        "outputs",
        nargs="+",
        metavar="OUTPUT",
        help="DuckDB file, Delta table, Parquet changelog, directory of JSON lines, rows or CSV, postgresql://HOST/DATABASE "
        "or kafka://HOST:PORT/TOPIC; #TABLE selects one view of a file or database",
    )
    position.add_argument("--json", action="store_true", help="as JSON")
    position.set_defaults(run=_position)

    diff = verbs.add_parser("diff", help="print the rows that another query would change; changes nothing")
    diff.add_argument("directory", help="directory of a pipeline, or checkpointLocation of a query on the driver; it may run")
    diff.add_argument("program", metavar="QUERY", help=_OTHER_QUERY)
    _dialect_option(diff)
    add_column_options(diff)
    diff.add_argument("--markdown", action="store_true", help="print Markdown for a pull request, with samples")
    diff.add_argument("--lease-seconds", type=float, default=600.0, help="of a running query: maximum seconds of a read (600)")
    diff.add_argument("--all", metavar="PATH", help="write every differing row as Parquet to this directory")
    diff.set_defaults(run=_diff)

    evolve = verbs.add_parser("evolve", help="continue a directory with another query; outputs get the difference")
    evolve.add_argument("directory", help=_DIRECTORY)
    evolve.add_argument("program", metavar="QUERY", help=_OTHER_QUERY)
    _dialect_option(evolve)
    add_column_options(evolve)
    add_change_options(evolve)
    evolve.add_argument("--undo-epochs", type=int, help="for how many epochs `undo` can return (1000, or as it was)")
    evolve.set_defaults(run=_evolve)
    undo = verbs.add_parser("undo", help="return a directory to the query before its last change")
    undo.add_argument("directory", help=_DIRECTORY)
    add_change_options(undo)
    undo.set_defaults(run=_evolve, program=None)
    rescale = verbs.add_parser("rescale", help="change the number of buckets of a checkpoint, or move it to the other mode")
    rescale.add_argument("checkpoint", help="checkpointLocation")
    chosen = rescale.add_mutually_exclusive_group(required=True)
    chosen.add_argument("buckets", type=int, nargs="?", help="the new number, 1 to 4096")
    chosen.add_argument("--execution", choices=("driver", "executors"), help="the new mode, with one bucket")
    rescale.add_argument("--local-state-dir", help="the query's option localStateDir")
    rescale.add_argument("--cores", type=int, help="cores of the session (all)")
    rescale.set_defaults(run=_rescale)
    backup = verbs.add_parser("backup", help="copy a checkpoint and its outputs together")
    backup.add_argument("checkpoint", help="checkpointLocation of a stopped query")
    backup.add_argument("directory", help="directory of the new savepoint; empty or missing")
    backup.add_argument("--output", action="append", default=[], help="DuckDB file, Delta or Parquet; repeatable")
    backup.set_defaults(run=_backup)

    restore = verbs.add_parser("restore", help="restore a checkpoint and its outputs")
    restore.add_argument("directory", help="directory of the savepoint")
    restore.add_argument("--checkpoint", help="new location of the checkpoint (its old one)")
    restore.add_argument("--output", action="append", help="new location of an output (its old one); repeatable")
    restore.add_argument("--replace", action="store_true", help="move the present files aside")
    restore.set_defaults(run=_restore)
    console = verbs.add_parser("console", help="serve a page about a query to this machine, until Ctrl-C")
    console.add_argument("checkpoint", help=_CHECKPOINT)
    console.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (a free one)")
    console.add_argument("--dead-letters", metavar="PATH", help="the query's option deadLetterPath")
    console.add_argument("--metrics-token-file", metavar="FILE", help="file with the token for /metrics; created if missing")
    console.add_argument("--allow-actions", action="store_true", help="let the page do what --replay names; else it only reads")
    console.add_argument("--replay", metavar="TARGET", help="with --allow-actions: where to send dead letters again")
    console.add_argument(
        "--diff",
        metavar="QUERY",
        help="a changed query, FILE.sql or MODULE:FUNCTION: show the rows it would change; the query may run",
    )
    _dialect_option(console)
    console.set_defaults(run=_console)
    for name, text, run in (
        ("run", "run the statements of a .sql file", _run_sql),
        ("check", "parse, bind and plan the statements of a .sql file; run nothing", _check_sql),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("file", help="a .sql file; semicolons separate statements")
        _dialect_option(verb)
        verb.set_defaults(run=run)
        if name == "run":
            _run_options(verb)
    verbs.add_parser("compile", help="compile the kernels that queries need first, in parallel").set_defaults(run=_compile)
    metrics = verbs.add_parser("metrics", help="print the counts of the newest epoch, for Prometheus")
    metrics.add_argument("checkpoint", help=_CHECKPOINT)
    metrics.set_defaults(run=_metrics)
    verbs.add_parser("demo", help="three tables change and a view follows, in seconds").set_defaults(run=_demo)
    verbs.add_parser("doctor", help="print installed parts, missing parts, and their cure").set_defaults(run=_doctor)
    shell = verbs.add_parser("sql", help="start a SQL shell")
    _dialect_option(shell)
    shell.set_defaults(run=_sql_shell)
    return parser


def _run_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--engine", default="local", help="local (this process) or spark (local)")
    verb.add_argument("--once", action="store_true", help="end after the present rows; else at Ctrl-C")
    verb.add_argument("--directory", help="directory of rows, checkpoints and state; a later run resumes")
    verb.add_argument(
        "--allow-env",
        action="append",
        default=[],
        metavar="NAME",
        help="an environment variable that statements of others in the directory may use; repeatable",
    )
    verb.add_argument("--trigger", help='inside Spark: interval between epochs, such as "5 seconds"')
    verb.add_argument("--progress-seconds", type=float, default=10.0, help="seconds between lines of progress; 0 for none (10)")
    verb.add_argument("--cores", type=int, help="cores of a local Spark (all)")
    verb.add_argument("--conf", action="append", default=[], help="a Spark setting, NAME=VALUE; repeatable")


def _dialect_option(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--dialect", default="spark", help="spark, flink, timeplus, risingwave or laminardb (spark)")


def _compile(options: argparse.Namespace) -> int:  # noqa: ARG001 - as every verb
    from zset_join.tools.compiling import compile_kernels

    compile_kernels(report=_print_now)
    return 0


def _demo(options: argparse.Namespace) -> int:  # noqa: ARG001 - as every verb
    from zset_join.demo import run_demo

    is_terminal = sys.stdout.isatty()
    return 0 if run_demo(_print_now, is_colored=is_terminal and "NO_COLOR" not in os.environ, waits=is_terminal) else 1


def _metrics(options: argparse.Namespace) -> int:
    from zset_join.tools.metrics import metrics_text

    sys.stdout.write(metrics_text(options.checkpoint))
    return 0


def _doctor(options: argparse.Namespace) -> int:  # noqa: ARG001 - as every verb
    from zset_join.tools.doctor import checks, report

    found = checks()
    _print_line(report(found))
    return 1 if any(one.outcome == "wrong" for one in found) else 0


def _print_now(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program's output


def _run_sql(options: argparse.Namespace) -> int:
    from zset_join.sql.commands import run_file

    wrong = [one for one in options.conf if "=" not in one]
    if wrong:
        raise OptionError(f"--conf {wrong[0]}: expected NAME=VALUE.", code="OPTION_VALUE", name="conf")
    conf = dict(one.split("=", 1) for one in options.conf)
    return run_file(
        options.file,
        engine=options.engine,
        dialect=options.dialect,
        once=options.once,
        directory=options.directory,
        allow_env=options.allow_env,
        trigger=options.trigger,
        progress_seconds=options.progress_seconds,
        spark=lambda: _session(options.cores, conf),
    )


def _check_sql(options: argparse.Namespace) -> int:
    from zset_join.sql.commands import check_file

    return check_file(options.file, dialect=options.dialect)


def _sql_shell(options: argparse.Namespace) -> int:
    from zset_join.sql.commands import run_shell

    return run_shell(dialect=options.dialect)


def _version() -> str:
    try:
        return importlib.metadata.version("zset-join")
    except importlib.metadata.PackageNotFoundError:
        return "of a source tree that is not installed"


def _print_line(text: object, stream: TextIO | None = None) -> None:
    print(text, file=stream)


def _program_verb(verbs: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    parser.add_argument(
        "program", metavar="MODULE:FUNCTION", help="a function that takes a session and returns the query, not started"
    )
    parser.add_argument("--cores", type=int, help="cores of the session (all)")
    parser.set_defaults(run=run)
    return parser


def _verify(options: argparse.Namespace) -> int:
    _refuse_statements(options.program, "verify")
    with _writer(options).attach() as stored:
        report = stored.verify(most_differences=options.most_differences, sample=options.sample)
    _print_line(report)
    return 0 if report.equal else 1


def _explain(options: argparse.Namespace) -> int:
    if options.program.endswith(".sql"):
        from zset_join.sql.commands import explain_file

        return explain_file(options.program, dialect=options.dialect)
    _writer(options).explain()
    return 0


def _plan(options: argparse.Namespace) -> int:
    from zset_join.checkpoint.reading import query_plan, stored_buckets

    plan = query_plan(options.checkpoint)
    _print_line(json.dumps(plan.to_json()) if options.json else plan.explain(buckets=stored_buckets(options.checkpoint)))
    return 0


def _explain_row(options: argparse.Namespace) -> int:
    _refuse_statements(options.program, "explain-row")
    from zset_join.tools.change_options import row_values

    writer = _writer(options)
    with writer.attach() as stored:
        _print_line(stored.explain_row(row_values(options.values, stored.schema), most_rows=options.most_rows))
    return 0


def _state(options: argparse.Namespace) -> int:
    from zset_join.tools.inspection import open_state

    with needed_for("looking into the state"):
        import duckdb

    connection = open_state(options.checkpoint)
    try:
        _print_line(connection.sql(options.sql))
    except duckdb.Error as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise OptionError(f"DuckDB rejected the query: {reason}", code="SQL_QUERY", sql=options.sql) from error
    finally:
        connection.close()
    return 0


def _dead_letters(options: argparse.Namespace) -> int:
    from zset_join.tools.dead_letters import letter_lines, listed, read_letters, replay

    chosen = {"stream": options.stream, "epoch": options.epoch, "code": options.code}
    if options.replay is not None:
        sent = replay(options.checkpoint, options.replay, path=options.path, run=_replay_in_pipeline, **chosen)
        _print_line(f"{sent} sent again to {options.replay}")
        return 0
    letters = read_letters(options.checkpoint, path=options.path, **chosen)
    if not options.json:
        _print_line(listed(letters))
        return 0
    for line in letter_lines(letters):
        _print_line(line)
    return 0


def _replay_in_pipeline(program: str, stream: str | None, code: str | None) -> int:
    from zset_join.pipeline import Pipeline

    given = _function(program)()
    if not isinstance(given, Pipeline):
        raise OptionError(
            f"{program!r} returned {given!r}; expected a Pipeline with its directory. A query inside Spark takes records from "
            "its source again: replay to kafka://HOST:PORT, or to a file that its source reads.",
            code="PROGRAM",
            program=program,
        )
    with given as pipeline:
        return pipeline.replay(stream=stream, code=code)


def _position(options: argparse.Namespace) -> int:
    from zset_join.tools.position import positions

    found = positions(options.outputs)
    _print_line(json.dumps(found.to_json()) if options.json else found)
    return 0 if found.is_well else 1


def _diff(options: argparse.Namespace) -> int:
    terms = change_terms(options)
    diff = _diff_of(options.directory, options.program, options.dialect, options.lease_seconds, terms=terms)
    if options.all is not None:
        diff.write_parquet(options.all)
    _print_line(diff.to_markdown() if options.markdown else diff)
    return 0 if diff.is_empty else 1


def _evolve(options: argparse.Namespace) -> int:
    from zset_join.runners.any_mode import evolve_wherever, undo_wherever

    if options.program is None:
        diff = undo_wherever(options.directory, lambda: _session(None), new_tables=options.new_table)
    else:
        query = _other_query(options.directory, options.program, options.dialect)
        given = {"new_tables": options.new_table, "undo_epochs": options.undo_epochs}
        diff = evolve_wherever(options.directory, query, terms=change_terms(options), **given)
    _print_line(diff)
    at = "before its first epoch" if diff.taken is None else f"in epoch {diff.taken}"
    _print_line(f"changed {at}; start it with the new query: its outputs get the difference")
    return 0


def _other_query(directory: str, program: str, dialect: str) -> Any:
    """Return the query that a directory is compared with, or changed to: a view, or views by name."""
    from zset_join.evolution.refusals import of_taken_rows
    from zset_join.runners.any_mode import most_held

    try:
        return _query_of(directory, program, dialect)
    except PlanError as error:
        raise of_taken_rows(error, lambda: (most_held(directory), f"the query in {directory}")) from error.__cause__


def _query_of(directory: str, program: str, dialect: str) -> Any:
    from zset_join.checkpoint.reading import stored_description

    if program.lower().endswith(".sql"):
        from zset_join.checkpoint.reading import query_plan
        from zset_join.sql.commands import views_of_file

        return views_of_file(program, query_plan(directory), dialect=dialect)
    found: Any = _function(program)
    if not callable(found):
        return found
    if "inputs" not in (stored_description(directory) or {}):
        return found()
    written = found(_session(None))
    return getattr(written, "writeStream", written)


def _rescale(options: argparse.Namespace) -> int:
    from zset_join.spark import move, rescale

    where, local = options.checkpoint, options.local_state_dir
    if options.execution is None:
        _print_line(rescale(where, buckets=options.buckets, session=_session(options.cores), local_state_dir=local))
    else:
        _print_line(move(where, execution=options.execution, local_state_dir=local))
    return 0


def _backup(options: argparse.Namespace) -> int:
    from zset_join.tools.savepoint import backup

    _print_line(backup(options.checkpoint, options.directory, outputs=options.output))
    return 0


def _restore(options: argparse.Namespace) -> int:
    from zset_join.tools.savepoint import restore

    _print_line(restore(options.directory, checkpoint=options.checkpoint, outputs=options.output, replace=options.replace))
    return 0


def _console(options: argparse.Namespace) -> int:
    from zset_join.console.running import serve_console

    diff = None if options.diff is None else partial(_diff_of, options.checkpoint, options.diff, options.dialect, 600.0)
    return serve_console(options, diff=diff, run=_replay_in_pipeline, print_line=_print_line)


def _diff_of(checkpoint: str, program: str, dialect: str, lease_seconds: float, **given: Any) -> Any:
    """Return how the answers of another query would differ over a directory, whose query may run."""
    from zset_join.runners.any_mode import diff_wherever

    def on_pinned(epoch: int) -> None:
        _print_line(f"comparing at epoch {epoch}, held for {lease_seconds:.0f} seconds at most", sys.stderr)

    query = _other_query(checkpoint, program, dialect)
    return diff_wherever(checkpoint, query, **given, lease_seconds=lease_seconds, on_pinned=on_pinned)


def _session(cores: int | None, conf: dict[str, str] | None = None) -> SparkSession:
    with needed_for("this verb"):
        from pyspark.sql import SparkSession

        from zset_join.spark import local_session
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has set where and how
        return SparkSession.builder.getOrCreate()
    return SparkSession.getActiveSession() or local_session(cores=cores, options=conf)


def _writer(options: argparse.Namespace) -> JoinStreamWriter:
    """Call the user's function."""
    function = _function(options.program)
    session = _session(options.cores)  # takes seconds: only for a program that is present
    from zset_join.runners.spark.api.writer import JoinStreamWriter

    writer = function(session)
    if not isinstance(writer, JoinStreamWriter):
        raise _no_program(options.program, f"it returned {writer!r}")
    return writer


def _refuse_statements(program: str, verb: str) -> None:
    """Refuse a file of SQL where a query inside Spark is wanted, with what does the same for SQL."""
    if not program.lower().endswith(".sql"):
        return
    cure = {
        "verify": "start them in Python, session = connect(keep_inputs=True) of zset_join.sql, and call verify() of the query",
        "explain-row": "describe the query as a Pipeline with keep_inputs=True, and call its explain_row({...})",
    }[verb]
    raise OptionError(
        f"{program}: {verb} takes MODULE:FUNCTION, a query inside Spark, and not a file of SQL. For statements, {cure}; "
        "zset-join check and explain take the file as it is.",
        code="PROGRAM",
        program=program,
    )


def _function(program: str) -> Callable[..., Any]:
    """Return the function that MODULE:FUNCTION names."""
    module, _, name = program.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with needed_for(f"the program {program}"):
            function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ZsetJoinError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise _no_program(program, str(error)) from error
    return function


def _no_program(program: str, why: str) -> OptionError:
    return OptionError(
        f"{program!r} does not name a query ({why}); expected MODULE:FUNCTION, where FUNCTION(spark) returns "
        "joined.writeStream with its options and output, without .start().",
        code="PROGRAM",
        program=program,
    )


if __name__ == "__main__":
    sys.exit(main())
