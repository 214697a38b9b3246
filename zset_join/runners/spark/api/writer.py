"""The builder behind `joined.writeStream`: options, an output and a trigger, checked before anything starts.

    joined.writeStream.queryName("v").option("checkpointLocation", path).trigger(availableNow=True)
          .toDuckDB("view.duckdb", "orders").start()

A query may have several outputs: choose one after the other. Every method returns the builder itself. What PySpark's own
writer has and makes no sense here (`format`, `outputMode`, `partitionBy`) raises and names what to use instead.

Defaults of a job for its lookup joins have FLIP-234's names; the setting nearest to the join counts, option by option:

    spark.conf.set("spark.zset_join.lookup.timeout", "180s")        # every query that this session starts
    view.writeStream.option("lookup.capacity", 200)                 # this query; wins over the session
    orders.lookup_join(..., hint=Lookup(capacity=50))               # this join; wins over both
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from zset_join.changelog import ChangelogForm, encoded_schema, format_named
from zset_join.checkpoint.reading import checkpoint_folder, no_checkpoint, stored_query_id
from zset_join.core.errors import OptionError
from zset_join.core.options import QueryOptions
from zset_join.lookup import Lookup
from zset_join.query.rows import PlannedQuery
from zset_join.runners.spark.api.changing_query import ChangingOnExecutors, ChangingQuery
from zset_join.runners.spark.api.query import JoinQuery, attached_on_server, start_query, start_served
from zset_join.runners.spark.api.stored_query import QueryRunner, StoredQuery
from zset_join.runners.spark.api.unknown_methods import missing_on_writer, not_for_views
from zset_join.runners.spark.driver.choosing import Choice, choice_of_connect, chosen_mode, expected_state
from zset_join.runners.spark.driver.driver_query import DriverQuery, WrittenQuery
from zset_join.runners.spark.driver.driver_tools import called_here
from zset_join.runners.spark.driver.epochs import DriverEpochs
from zset_join.runners.spark.driver.other_modes import OtherModes
from zset_join.runners.spark.driver.served_executors import (
    ExecutorSettings,
    sent_to_executors,
    served_executor_rows,
    stored_facts,
)
from zset_join.runners.spark.driver.served_handle import ServedHandle, budget_of
from zset_join.runners.spark.driver.starting import (
    check_mode,
    dead_letters_place,
    driver_epochs,
    in_stored_order,
    make_place,
    served_rows,
    streamed_rows,
    warmed_up,
)
from zset_join.runners.spark.epoch.heartbeat import Heartbeat
from zset_join.runners.spark.epoch.named_outputs import TABLE, ChosenSink, output_named
from zset_join.runners.spark.epoch.outputs import ChosenOutput, FunctionOutput, SinkOutput, UpsertOutput
from zset_join.runners.spark.epoch.runner import EpochRunner
from zset_join.runners.spark.epoch.several_outputs import SeveralOutputs
from zset_join.runners.spark.frames.facts import is_connect, parallelism
from zset_join.runners.spark.frames.sent import frame_bytes
from zset_join.runners.spark.planning.buffer_limit import limited_join
from zset_join.runners.spark.planning.normalise import TaggedStreams, tag
from zset_join.runners.spark.planning.placed_query import PlacedQuery
from zset_join.runners.spark.rows.baseline import needs_start, with_start
from zset_join.runners.spark.session import check_session
from zset_join.sinks.sink import Sink
from zset_join.stages import LookupJoinStage, Stage, StageOptions
from zset_join.stages.lookup_join import explained_for

__all__ = [
    "PREFIX",
    "JoinStreamWriter",
    "check_connections",
    "is_lookup_option",
    "job_defaults",
    "lookup_options",
]

PREFIX = "lookup."
_CONF = "spark.zset_join.lookup."


def is_lookup_option(name: str) -> bool:
    """Return whether an option of the writer is about lookups.

    >>> is_lookup_option("lookup.capacity"), is_lookup_option("buckets")
    (True, False)
    """
    return name.lower().startswith(PREFIX)


def job_defaults(session: SparkSession, options: Mapping[str, Any]) -> Lookup | None:
    """Return the lookup settings of the session and a writer; None where there are none."""
    given = {name[len(_CONF) :]: value for name, value in session.conf.getAll.items() if name.lower().startswith(_CONF)}
    given |= {name[len(PREFIX) :]: value for name, value in options.items() if is_lookup_option(name)}
    return Lookup.from_options(given) if given else None


def lookup_options(session: SparkSession, options: Mapping[str, Any], stages: Sequence[Stage], buckets: int) -> dict[str, Any]:
    """Return the job's facts for lookup joins; refuse more tasks than connections."""
    defaults = job_defaults(session, options)
    connects = any(isinstance(stage, LookupJoinStage) for stage in stages)
    processes = min(buckets, parallelism(session)) if connects and buckets > 1 else 1
    more = {"lookup_processes": processes, **({} if defaults is None else {"lookup": defaults})}
    for stage in stages:
        if isinstance(stage, LookupJoinStage):  # of all stages these alone open connections
            settings = stage.settings(StageOptions(more=more))
            if settings.cache != "full":
                check_connections(settings.max_connections, processes=processes, source=stage.table.name)
    return more


def check_connections(max_connections: int, *, processes: int, source: str) -> None:
    """Refuse a query whose tasks could not have a connection each."""
    if processes > max_connections:
        raise OptionError(
            f'the lookup join with "{source}" may have max_connections={max_connections} connections, and {processes} tasks '
            f"run at a time, each with at least one. Set max_connections={processes} or more, or buckets={max_connections} "
            "or fewer.",
            code="LOOKUP_CONNECTIONS",
            limit=max_connections,
            source=source,
        )


class JoinStreamWriter:
    """Settings of a query; made by `View.writeStream`.

    Args:
        query: the view, or several.
    """

    def __init__(self, query: WrittenQuery) -> None:
        self._query = query
        self._on_driver = query.on_driver
        self._options: dict[str, Any] = {}
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._outputs: dict[str, list[ChosenOutput]] = {}
        self._sinks: dict[str, list[ChosenSink]] = {query.name: []}
        self._view = query.name

    def __getattr__(self, name: str) -> Any:
        raise missing_on_writer(name)

    @property
    def planned(self) -> PlannedQuery:
        """Return the query as the driver runs it, as the target of a changed checkpoint (`zset_join.runners.local.stopped`).

        Raises:
            PlanError: the driver cannot run it.
        """
        return self._here().planned

    @property
    def placed(self) -> PlacedQuery:
        return self._query.placed(QueryOptions.draft(self._query_options).keep_state)

    @property
    def udf_version(self) -> str | None:
        return QueryOptions.draft(self._query_options).udf_version

    @property
    def session(self) -> SparkSession:
        return self._query.session

    def option(self, name: str, value: Any) -> JoinStreamWriter:
        """Set one option; see `zset_join.core.options` for all of them."""
        self._options[name] = value
        return self

    def options(self, **options: Any) -> JoinStreamWriter:
        """Set several options."""
        self._options.update(options)
        return self

    def queryName(self, name: str) -> JoinStreamWriter:  # noqa: N802 - the name PySpark users type
        """Name the query; the name is shown in Spark's own pages and in progress."""
        if not str(name).strip():
            raise OptionError(f"queryName({name!r}): expected a name.", code="ARGUMENT", value=name)
        self._name = name
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803 - the name PySpark users type
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,  # noqa: N803 - the name PySpark users type
    ) -> JoinStreamWriter:
        """Set when epochs run; exactly one argument.

        Args:
            processingTime: an interval such as "5 seconds".
            once: all that is present in one epoch, then stop.
            continuous: not possible; an epoch needs a batch.
            availableNow: all that is present in as many epochs as the sources make of it, then stop.
        """
        given = {"processingTime": processingTime, "once": once, "continuous": continuous, "availableNow": availableNow}
        self._trigger = checked_trigger(given)
        return self

    def to(self, connector: str | Sink, /, **options: Any) -> JoinStreamWriter:
        """Choose an output by its name, or pass the changes to a sink of your own.

        Args:
            connector: one of the outputs of `docs/reference/outputs.md`, such as `"csv"`, or a `zset_join.sinks.sink.Sink`.
            options: those of the output; a sink has none.

        Raises:
            OptionError: no output has this name, or an option is not known, missing, or has a value that is not allowed.
        """
        if not isinstance(connector, str):
            return self._to_sink(connector, options)
        output = output_named(connector, options)
        is_of_spark = connector == TABLE
        return self._to(output, ChosenSink(output.sink) if is_of_spark else ChosenSink(output.sink, connector, options))

    def _to_sink(self, sink: Sink, options: Mapping[str, Any]) -> JoinStreamWriter:
        if options or not isinstance(sink, Sink):
            raise OptionError(
                f"to({sink!r}): expected the name of an output with its options, or an object with open, last_epoch, write and "
                "close and no options; see zset_join.sinks.sink.Sink.",
                code="ARGUMENT",
            )
        return self._to(SinkOutput(sink))

    def toDuckDB(  # noqa: N802 - in the manner of PySpark's names
        self,
        path: str | Path,
        table: str,
        *,
        key: Sequence[str] | None = None,
        hold_seconds: float | None = None,
        patience_seconds: float | None = None,
    ) -> JoinStreamWriter:
        """Keep a view in a DuckDB file equal to the join.

        Args:
            path: the DuckDB file.
            table: name of the view.
            key: columns that identify a row of the view; default: implied by the keys of the inputs.
            hold_seconds: how long the file stays open after an epoch, while other processes wait; 0 closes it at once.
            patience_seconds: how long an epoch waits for others that have the file open.
        """
        times = {"hold_seconds": hold_seconds, "patience_seconds": patience_seconds}
        return self.to("duckdb", path=path, table=table, key=key, **times)

    def toTable(  # noqa: N802 - the name PySpark users type
        self,
        name: str,
        *,
        form: str | None = None,
        key: Sequence[str] | None = None,
        format: str | None = None,  # noqa: A002 - as in PySpark
    ) -> JoinStreamWriter:
        """Keep a table of a catalog of the session equal to the view by MERGE, or, with `form`, append every change to it.

        Args:
            name: of the table in Spark SQL, such as `"lake.shop.orders"`; created if it does not exist.
            form: weight, row_kind or change_data_feed for a changelog, with the epoch in `_epoch`; None for a view.
            key: columns that identify a row of the view; default: implied by the keys of the inputs.
            format: of a created table, such as `"delta"`; default: the catalog's. A view needs a format with MERGE.
        """
        return self.to(TABLE, name=name, form=form, key=key, format=format)

    def foreachBatch(  # noqa: N802 - the name PySpark users type
        self, function: Callable[..., Any], *, form: str = "weight", key: Sequence[str] | None = None
    ) -> JoinStreamWriter:
        """Call a function with the changes of every epoch, as a DataFrame, and the epoch's number.

        The function may be called again for the same epoch, with the same rows; make it idempotent per epoch.

        Args:
            function: takes the DataFrame and the epoch; a parameter `chain` also receives the epoch's digest: another digest
                under a known number means that a checkpoint was restored.
            form: weight, row_kind or change_data_feed; or upsert, for one net change per key.
            key: for upsert, the columns that identify a row; default: implied by the keys of the inputs.
        """
        if not callable(function):
            raise OptionError(f"foreachBatch({function!r}): expected a function of (DataFrame, epoch).", code="ARGUMENT")
        if form == "upsert" and not isinstance(key, str):
            return self._to(UpsertOutput(function, key))
        if key is not None:
            raise OptionError(
                f'foreachBatch(form={form!r}, key={key!r}): a key is a list of column names, and is for form="upsert".',
                code="ARGUMENT",
                form=form,
                key=key,
            )
        format_named(form)
        return self._to(FunctionOutput(function, cast("ChangelogForm", form)))

    def format(self, source: str) -> NoReturn:
        """Refuse; an output is chosen with to(name, ...), toDuckDB, toTable or foreachBatch."""
        raise not_for_views("format", source, "choose an output with to(name, ...), toDuckDB, toTable or foreachBatch")

    def outputMode(self, mode: str) -> NoReturn:  # noqa: N802 - the name PySpark users type
        """Reject: the output always consists of the changes."""
        raise not_for_views("outputMode", mode, 'the answer is always what changed; choose how it is shown with form="..."')

    def partitionBy(self, *columns: str) -> NoReturn:  # noqa: N802 - the name PySpark users type
        """Refuse; a changelog has one directory per epoch."""
        raise not_for_views("partitionBy", columns, "a changelog has one directory per epoch; use foreachBatch for others")

    def explain(self) -> None:
        """Print the query as it would start: output, location of the state, and the plan.

        Raises:
            OptionError: an option is unknown, or its value is not allowed.
        """
        if self._of_driver():
            self._explain_on_driver()
            return
        options = QueryOptions.draft(self._query_options)
        defaults = job_defaults(self._query.session, self._options)
        output = SeveralOutputs(self._outputs).describe() if self._outputs else None
        with explained_for({} if defaults is None else {"lookup": defaults}):
            explanation = self.placed.query_explanation(output, options)
        print(explanation)  # noqa: T201 - printing is what explain() does in PySpark

    def _explain_on_driver(self) -> None:
        query = self._here()
        stages = [node.stage for node in query.plan.nodes]
        with explained_for(self._lookup_options(stages, 1)):
            outputs = [f"Output to {output.describe()}" for chosen in self._outputs.values() for output in chosen]
            budget = budget_of(query.session, QueryOptions.draft(self._query_options))
            place = f"Runs on the driver ({self._choice().reason}): budget {budget:,} bytes of state"
            print("\n".join([*outputs, place, query.plan.explain(buckets=1)]))  # noqa: T201 - as above

    def start(self) -> JoinQuery:
        """Check everything and start the query.

        Raises:
            PlanError: an option, the session or the output is not usable; the message has the cure.
            StateError: the checkpoint belongs to another query.
            SinkError: the output belongs to another query or has other columns.
        """
        return self.start_behind_change(None)

    def on_executors(self) -> EpochRunner | ExecutorSettings:
        """Return what runs the query on executors, or over Spark Connect the query as it travels."""
        runner, tagged, _ = self._prepared()
        return self._sent(runner, tagged) if is_connect(self.session) else runner

    def start_behind_change(self, given_through: int | None) -> JoinQuery:
        """Start the query, as `start` does.

        Args:
            given_through: on the driver, the last epoch passed to functions, if the query was changed to this one; else None.
        """
        if self._of_driver():
            return self._start_on_driver(given_through)
        runner, tagged, location = self._prepared(makes_place=True)
        if is_connect(self.session):
            draft = OtherModes("executors", runner.options, lambda: runner.query, self._here).draft
            one, rows = self._handle(runner, tagged), partial(served_executor_rows, runner, tagged)
            return start_served(lambda: self._of_spark(rows(), location), one, draft, ChangingOnExecutors(self, one.call))
        call, stream = called_here(runner), partial(self._stream, runner, tagged, location)
        return start_query(stream, runner, call, ChangingOnExecutors(self, call), location=location)

    def _start_on_driver(self, given_through: int | None) -> JoinQuery:
        query, epochs, options = self._prepared_on_driver()
        location = options.checkpoint_location
        if is_connect(query.session):
            handle, rows = self._handle_on_driver(epochs, query.session), partial(served_rows, query, epochs)
            draft = OtherModes("driver", options, lambda: self.placed, lambda: query).draft
            return start_served(lambda: self._of_spark(rows(), location), handle, draft, ChangingQuery(self, handle.call))
        make_place(location)
        check_mode(location, "driver")
        epochs.given_through = given_through
        call = called_here(epochs)

        def stream() -> DataStreamWriter:
            return self._of_spark(streamed_rows(query, epochs), location)

        return start_query(stream, epochs, call, ChangingQuery(self, call), location=location)

    def changed_to(self, other: JoinStreamWriter) -> JoinStreamWriter:
        """Return a writer of another query with the options, the trigger and the name of this one.

        Args:
            other: the other query. A view that has outputs in it gets these; other views keep the outputs that they have here.
        """
        after = type(other).__new__(type(other))
        vars(after).update(vars(other), _options=self._options, _trigger=self._trigger, _name=self._name)
        is_one = len(self._view_names) == len(other._view_names) == 1
        before = dict(zip(other._view_names, self._sinks.values(), strict=False)) if is_one else self._sinks
        chosen = {view: other._sinks.get(view) or before.get(view) or [] for view in other._view_names}
        after._sinks = {view: [one.again() for one in sinks] for view, sinks in chosen.items()}
        had = dict(zip(other._view_names, self._outputs.values(), strict=False)) if is_one else self._outputs
        after._outputs = {view: other._outputs.get(view) or had.get(view) or [] for view in other._view_names}
        return after

    def with_outputs_of(self, other: JoinStreamWriter) -> JoinStreamWriter:
        """Return a writer of this query whose views write to the outputs that they have in another one, if any."""
        after, is_one = type(self).__new__(type(self)), len(self._view_names) == len(other._view_names) == 1
        of = (
            dict(zip(self._view_names, other._view_names, strict=True)) if is_one else {view: view for view in self._view_names}
        )
        outputs = {view: other._outputs.get(of[view], []) for view in self._view_names}
        sinks = {view: [one.again() for one in other._sinks.get(of[view], ())] for view in self._view_names}
        vars(after).update(vars(self), _outputs=outputs, _sinks=sinks)
        return after

    def changed_to_plan(self, query: PlannedQuery) -> JoinStreamWriter:
        """Return a writer of a query of the same streams with the options, the outputs, the trigger and the name of this one.

        Args:
            query: as planned for the driver. A view without outputs here has none.
        """
        before, names = self._here(), [view.name for view in query.plan.views]
        planned = replace(before, plan=query.plan, has_several=query.has_several)
        sinks = [*self._sinks.values()] if not query.has_several else [self._sinks.get(name, []) for name in names]
        after = type(self).__new__(type(self))
        vars(after).update(vars(self), _on_driver=lambda _: planned)
        after._sinks = {name: [one.again() for one in chosen] for name, chosen in zip(names, sinks, strict=True)}
        return after

    @property
    def chosen_sinks(self) -> Mapping[str, Sequence[ChosenSink]]:
        return {view: chosen for view, chosen in self._sinks.items() if chosen}

    @property
    def _view_names(self) -> Sequence[str]:
        return (self._view,)

    def _prepared_on_driver(self) -> tuple[DriverQuery, DriverEpochs, QueryOptions]:
        """Check everything; return the query, what runs its epochs, and its options."""
        options = QueryOptions.from_options(self._query_options)
        checkpoint_folder(options.checkpoint_location)
        self._check_output()
        query = in_stored_order(self._here(), options.checkpoint_location)
        for view in query.plan.views:
            encoded_schema(query.plan.output_of(view.name).schema, format_named("weight"))
        stages = [node.stage for node in query.plan.nodes]
        warmed_up(query.session, stages, options)
        more = self._lookup_options(stages, 1)
        epochs = driver_epochs(query, options, self._sinks, name=self._name or self._query.name, more=more)
        epochs.after_begin = OtherModes("driver", options, lambda: self.placed, lambda: query).write
        return query, epochs, options

    def attach(self) -> StoredQuery:
        """Open the checkpoint and the output of the query while it does not run, to verify it or to explain a row.

        Use it in a `with` statement: as long as it is open, the query cannot be started.

        Raises:
            PlanError: as `start`.
            StateError: there is no checkpoint, it belongs to another query, or a driver runs on it.
            SinkError: as `start`.
        """
        runner: QueryRunner
        if self._of_driver():
            query, epochs, options = self._prepared_on_driver()
            if is_connect(query.session):
                return attached_on_server(self._handle_on_driver(epochs, query.session))
            check_mode(options.checkpoint_location, "driver")
            runner, call, location = epochs, called_here(epochs), options.checkpoint_location
        else:
            on_executors, tagged, location = self._prepared()
            if is_connect(self.session):
                return attached_on_server(self._handle(on_executors, tagged))
            runner, call = on_executors, called_here(on_executors)
        query_id = stored_query_id(location)
        if query_id is None:
            raise no_checkpoint(location)
        runner.attach(query_id)
        try:
            runner.begin()
        except BaseException:
            runner.close()
            raise
        return StoredQuery(runner, call)

    def _stream(self, runner: EpochRunner, tagged: TaggedStreams, location: str) -> DataStreamWriter:
        """Return Spark's own writer of the rows; a source of ours that the checkpoint needs is made."""
        rows = tagged.dataframe
        if tagged.baseline is not None or needs_start(location, is_timed=runner.is_timed):
            rows = with_start(rows, location)
        if runner.is_timed:
            runner.heartbeat = Heartbeat(checkpoint_folder(location), runner.next_due)
        return self._of_spark(rows, location)

    def _of_spark(self, rows: DataFrame, location: str) -> DataStreamWriter:
        stream = rows.writeStream.option("checkpointLocation", location)
        if self._name is not None:
            stream = stream.queryName(self._name)
        return stream.trigger(**self._trigger) if self._trigger else stream

    def _prepared(self, *, makes_place: bool = False) -> tuple[EpochRunner, TaggedStreams, str]:
        """Check everything; return the runner, its rows, and the location of the checkpoint."""
        options = QueryOptions.from_options(self._query_options)
        checkpoint_folder(options.checkpoint_location)
        plan = self.placed
        limited_join(plan.planned_stages, options.buffer_limit)
        self._check_output()
        for relation in plan.outputs.values():
            encoded_schema(relation.schema, format_named("weight"))
        session, stages = plan.session, [one.stage for one in plan.planned_stages]
        warmed_up(session, stages, options)
        check_session(session)
        if makes_place and not is_connect(session):
            make_place(options.checkpoint_location)
        facts = stored_facts(session, options.checkpoint_location)
        plan = plan.in_order(facts.streams)
        buckets = options.buckets or facts.buckets or parallelism(session)
        tagged = tag(plan.planned_stages, buckets, plan.order)
        runner = EpochRunner(
            plan,
            tagged,
            options,
            buckets=buckets,
            more=self._lookup_options(stages, buckets),
            output=SeveralOutputs({view: self._outputs.get(view, ()) for view in self._view_names}),
            dead_letter_path=dead_letters_place(options, "quarantine"),
        )
        runner.name = self._name or runner.name
        runner.after_begin = OtherModes("executors", options, lambda: plan, self._here).write
        return runner, tagged, options.checkpoint_location

    def _sent(self, runner: EpochRunner, tagged: TaggedStreams) -> ExecutorSettings:
        outputs = {view: self._outputs.get(view, []) for view in self._view_names}
        return sent_to_executors(runner, tagged, outputs, self._sinks)

    def _handle(self, runner: EpochRunner, tagged: TaggedStreams) -> ServedHandle:
        """Return the view of the query that a client of Spark Connect has."""
        settings = self._sent(runner, tagged)
        return ServedHandle(
            settings=settings, session=runner.query.session, columns=lambda: runner.schema, explanation=runner.explanation
        )

    def _handle_on_driver(self, epochs: DriverEpochs, session: SparkSession) -> ServedHandle:
        """Return `_handle` of a query on the driver."""
        baseline = None if epochs.baseline is None else frame_bytes(epochs.baseline)
        settings = replace(epochs.settings, is_served=True, baseline=baseline)
        return ServedHandle(
            settings=settings,
            session=session,
            columns=lambda: epochs.schema,
            explanation=lambda: epochs.explanation(budget_of(session, epochs.options)),
        )

    def _check_output(self) -> None:
        if not any(self._outputs.values()):
            raise OptionError(
                'no output was chosen; add .toDuckDB(path, table), .to("parquet", path=...), .toTable(name) or '
                ".foreachBatch(function).",
                code="MISSING_OUTPUT",
            )

    @property
    def _query_options(self) -> dict[str, Any]:
        return {name: value for name, value in self._options.items() if not is_lookup_option(name)}

    def _lookup_options(self, stages: Sequence[Stage], buckets: int) -> dict[str, Any]:
        return lookup_options(self._query.session, self._options, stages, buckets)

    def _here(self) -> DriverQuery:
        return self._on_driver(QueryOptions.draft(self._query_options).keep_state)

    def _of_driver(self) -> bool:
        """Return whether epochs run on the driver."""
        return self._choice().mode == "driver"

    def _choice(self) -> Choice:
        if is_connect(self._query.session):
            return choice_of_connect(self._options, QueryOptions.draft(self._query_options))
        has_place = any(name.replace("_", "").lower() == "checkpointlocation" for name in self._options)
        options = QueryOptions.draft(self._query_options)
        return chosen_mode(options, has_place=has_place, plan=self._here, expected=lambda: expected_state(self._here().streams))

    def _to(self, output: ChosenOutput, sink: ChosenSink | None = None) -> JoinStreamWriter:
        taken = [one.describe() for chosen in self._outputs.values() for one in chosen]
        if output.describe() in taken and output.at_rest():
            raise OptionError(
                f"the output {output.describe()} was chosen twice; each of several outputs has a place of its own.",
                code="SAME_OUTPUT",
            )
        self._outputs.setdefault(self._view, []).append(output)
        self._sinks.setdefault(self._view, []).append(sink or ChosenSink(output.sink))
        return self


def checked_trigger(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only argument of `trigger` that is given."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) != 1:
        raise OptionError(
            f"trigger takes exactly one of processingTime, once, availableNow; got {given or 'none'}.",
            code="TRIGGER",
            value=repr(given),
        )
    ((name, value),) = given.items()
    if name == "continuous":
        raise OptionError(
            f'trigger(continuous={value!r}): a join answers epoch by epoch. Use trigger(processingTime="1 second").',
            code="TRIGGER",
            value=value,
        )
    if value is False:
        raise OptionError(f"trigger({given}): the value must be True.", code="TRIGGER", value=repr(given))
    if name == "processingTime" and not str(value).strip():
        raise OptionError(
            f'trigger(processingTime={value!r}): expected an interval such as "5 seconds".', code="TRIGGER", value=value
        )
    return given
