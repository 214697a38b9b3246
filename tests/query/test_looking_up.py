"""Lookup joins and joins by processing time in the fluent API: rows in, rows out, and which calls were made for them."""

from __future__ import annotations

import json
import warnings

import pyarrow as pa
import pytest

from zset_join.core.errors import LookupFailedError, OptionError, PlanError, ResourceError
from zset_join.expressions import left
from zset_join.lookup import ArrowSource, Lookup, LookupHintWarning, TransientLookupError
from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, changes
from zset_join.plan.query_plan import QueryPlan
from zset_join.stages.stage import StageOptions
from zset_join.testing.lookups import FakeClock, ScriptedSource

ORDERS = {"o": pa.int64(), "who": pa.int64(), "total": pa.int64()}
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string(), "limit": pa.int64()})
PARKED = {
    "retry_predicate": "lookup_miss",
    "retry_strategy": "fixed_delay",
    "fixed_delay": "10s",
    "max_attempts": 2,
    "park": "epochs",
}
SECOND = 1_000_000


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def customers(clock):
    source = ScriptedSource("customers", CUSTOMERS, clock=clock)
    source.put({"id": 7, "name": "Ada", "limit": 50})
    return source


class Run:
    """A pipeline on a fake clock."""

    def __init__(self, view, clock, directory=None, **defaults):
        self.view, self.clock, self.directory = view, clock, directory
        more = {"lookup_clock": clock, **({"lookup": Lookup(**defaults)} if defaults else {})}
        self.options = StageOptions(more=more)
        self.pipeline = Pipeline(view, directory, options=self.options)

    def at(self, second, **rows):
        """Take an epoch at a time, and return its answer."""
        self.clock.sleep(second - self.clock.now_us() / SECOND)
        return self.pipeline.step(rows, processing_time=int(second * SECOND)).to_pylist()

    def reopen(self, view=None):
        """Let the process end, and continue in another one."""
        self.pipeline.close()
        self.pipeline = Pipeline(view or self.view, self.directory, options=self.options)


def order(o, who, total=1):
    return {"o": o, "who": who, "total": total}


@pytest.fixture(params=["memory", "directory"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "lasting"


def test_rows_are_enriched_and_a_miss_is_dropped_or_padded(clock, customers):
    orders = appends("orders", ORDERS)
    inner = Run(orders.lookup_join(customers, on=[("who", "id")], columns=["name"]), clock)
    outer = Run(orders.lookup_join(customers, on=[("who", "id")], how="left", columns=["name"]), clock)
    rows = [order(1, 7), order(2, 8), order(3, None)]
    assert inner.at(0, orders=rows) == [((1, 7, 1, 7, "Ada"), 1)]
    assert outer.at(0, orders=rows) == [((1, 7, 1, 7, "Ada"), 1), ((2, 8, 1, None, None), 1), ((3, None, 1, None, None), 1)]


def test_constants_and_expressions_are_part_of_the_key(clock, customers):
    orders = appends("orders", ORDERS)
    view = orders.lookup_join(customers, on=[(left("who") + 1, "id")], constants={"limit": 50}, columns=["name"])
    run = Run(view, clock)
    assert run.at(0, orders=[order(1, 6), order(2, 7)]) == [((1, 6, 1, 7, "Ada", 50), 1)]
    assert {key for call in customers.calls for key in call.keys} == {(7, 50), (8, 50)}


class TestParkedRows:
    def test_a_padded_row_that_was_shown_first_is_retracted_when_its_partner_comes(self, clock, customers, place):
        hint = Lookup(**PARKED, emit_padded_first=True)
        run = Run(
            appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], how="left", hint=hint, columns=["name"]),
            clock,
            place,
        )
        customers.put({"id": 8, "name": "Bob", "limit": 1}, at=15)
        padded = (2, 8, 1, None, None)
        assert [run.at(second, orders=[order(2, 8)] if second == 0 else []) for second in (0, 10, 20, 30)] == [
            [(padded, 1)],
            [],
            [(padded, -1), ((2, 8, 1, 8, "Bob"), 1)],
            [],
        ]

    def test_options_may_change_between_starts(self, clock, customers, tmp_path):
        orders = appends("orders", ORDERS)
        run = Run(
            orders.lookup_join(customers, on=[("who", "id")], how="left", hint=Lookup(**PARKED), columns=["name"]),
            clock,
            tmp_path / "lasting",
        )
        assert run.at(0, orders=[order(2, 8)]) == []
        run.reopen(orders.lookup_join(customers, on=[("who", "id")], how="left", columns=["name"]))
        assert run.at(5) == []
        assert run.at(10) == [((2, 8, 1, None, None), 1)]

    def test_they_are_bounded_by_an_error_that_names_the_option(self, clock, customers):
        run = Run(
            appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], hint=Lookup(**PARKED, max_parked_rows=1)),
            clock,
        )
        with pytest.raises(ResourceError, match="max_parked_rows leaves room for 1"):
            run.at(0, orders=[order(1, 8), order(2, 9)])
        assert run.at(0, orders=[order(1, 8)]) == []

    def test_or_further_misses_are_final_and_counted_since_the_process_began(self, clock, customers, place):
        hint = Lookup(**PARKED, max_parked_rows=1, on_parked_limit="pad")
        view = appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], how="left", hint=hint, columns=["name"])
        run = Run(view, clock, place)
        assert run.at(0, orders=[order(1, 8), order(2, 9)]) == [((2, 9, 1, None, None), 1)]
        assert run.at(1, orders=[order(3, 9), order(4, 9)]) == [((3, 9, 1, None, None), 1), ((4, 9, 1, None, None), 1)]
        assert self.counts(run) == (1, 3)

    def test_what_was_final_for_the_limit_is_counted_again_after_a_restart_as_calls_are(self, clock, customers, tmp_path):
        hint = Lookup(**PARKED, max_parked_rows=1, on_parked_limit="pad")
        view = appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], how="left", hint=hint, columns=["name"])
        run = Run(view, clock, tmp_path / "lasting")
        run.at(0, orders=[order(1, 8), order(2, 9)])
        run.reopen()
        assert run.at(1, orders=[order(3, 9)]) == [((3, 9, 1, None, None), 1)]
        assert self.counts(run) == (1, 1)

    def counts(self, run):
        (lookups,) = run.pipeline.progress["lookups"].values()
        return lookups["parked_rows"], lookups["padded_at_limit"]

    def test_they_show_in_progress(self, clock, customers):
        run = Run(appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], hint=Lookup(**PARKED)), clock)
        run.at(0, orders=[order(1, 8)])
        run.at(1, orders=[order(2, 7)])
        (lookups,) = run.pipeline.progress["lookups"].values()
        assert (lookups["parked_rows"], lookups["calls"], lookups["misses"]) == (1, 2, 1)


class TestTheJournal:
    def test_an_epoch_that_failed_after_its_fetch_does_not_fetch_again(self, clock, customers, tmp_path, monkeypatch):
        from zset_join.checkpoint.checkpoint import Checkpoint

        run = Run(
            appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], columns=["name"]), clock, tmp_path / "lasting"
        )
        run.at(0, orders=[order(1, 7)])
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "commit", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
            with pytest.raises(OSError, match="disk"):
                run.at(1, orders=[order(2, 8), order(3, 7)])
        customers.put({"id": 8, "name": "Too late", "limit": 1})
        run.reopen()
        assert run.at(2, orders=[order(3, 7), order(2, 8)]) == [((3, 7, 1, 7, "Ada"), 1)]
        assert len(customers.calls) == 2

    def test_it_is_forgotten_once_the_epoch_is_logged(self, clock, customers, tmp_path):
        run = Run(appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")]), clock, tmp_path / "lasting")
        run.at(0, orders=[order(1, 7)])
        assert list((tmp_path / "lasting" / "zset").rglob("fetched/**/*.arrow")) == []
        run.reopen()
        run.at(1, orders=[order(2, 7)])
        assert len(customers.calls) == 2

    def test_an_epoch_without_an_answer_leaves_no_trace(self, clock, customers, place):
        run = Run(
            appends("orders", ORDERS).lookup_join(
                customers, on=[("who", "id")], columns=["name"], hint=Lookup(error_attempts=1, circuit_open="1s")
            ),
            clock,
            place,
        )
        customers.failures = [TransientLookupError("refused")]
        with pytest.raises(LookupFailedError, match="refused"):
            run.at(0, orders=[order(1, 7)])
        assert run.at(2, orders=[order(1, 7)]) == [((1, 7, 1, 7, "Ada"), 1)]


class TestHints:
    def test_defaults_of_the_job_are_overridden_per_join(self, clock, customers):
        orders = appends("orders", ORDERS)
        view = orders.lookup_join(customers, on=[("who", "id")], hint=Lookup(batch_keys=1, async_=False))
        Run(view, clock, batch_keys=5, cache="partial").at(0, orders=[order(1, 7), order(2, 8)])
        run = Run(view, clock, batch_keys=5, cache="partial")
        run.at(0, orders=[order(1, 7), order(2, 8)])
        run.at(1, orders=[order(1, 7)])
        (lookups,) = run.pipeline.progress["lookups"].values()
        assert (lookups["calls"], lookups["cache_hits"]) == (2, 1)

    def test_explain_reports_the_options_in_force_and_which_are_the_jobs(self, clock, customers):
        view = appends("orders", ORDERS).lookup_join(customers, on=[("who", "id")], hint=Lookup(capacity=7))

        reported = Run(view, clock, capacity=9, timeout="20s", batch_keys=5).pipeline.explanation()

        assert (
            "fetches: async, ordered, capacity 7; timeout 20 s; no retry; 5 keys per call, at most 16 connections" in reported
        )
        assert reported.count("of the job: batch-keys=5, timeout=20s") == 1
        assert "of the job" not in view.plan().explain()

    def test_two_joins_with_one_table_have_each_their_own_retry(self, customers):
        orders = appends("orders", ORDERS)
        once = orders.lookup_join(customers, on=[("who", "id")], hint=Lookup(table="c1"), alias="c1", columns=["name"])
        twice = once.lookup_join(
            customers, on=[("total", "id")], hint=Lookup(table="c2", **PARKED), alias="c2", columns=["name"]
        )
        assert "no retry" in twice.plan().explain()
        assert "requested 2 more times" in twice.plan().explain()

    @pytest.mark.parametrize(
        ("hint", "emitted"),
        [
            (Lookup(table="nobody", cache="partial"), "the table 'nobody' is not looked up here"),
            (Lookup(async_=True), "async=true changes nothing"),
            (
                Lookup(retry_predicate="lookup_miss"),
                "nothing is retried: retry-strategy, fixed-delay, max-attempts must be given too",
            ),
            (Lookup(park="epochs"), "park='epochs' changes nothing"),
            (Lookup(emit_padded_first=True), "emit-padded-first changes nothing"),
            (Lookup(cache="full"), "cache='full' changes nothing"),
        ],
    )
    def test_what_cannot_be_honoured_warns_once_and_changes_nothing(self, clock, hint, emitted):
        source = ScriptedSource("customers", CUSTOMERS, clock=clock, modes=frozenset({"sync"}))
        orders = appends("orders", ORDERS)
        plain = orders.lookup_join(source, on=[("who", "id")]).plan().explain()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            view = orders.lookup_join(source, on=[("who", "id")], hint=hint)
        assert [warning.category for warning in caught] == [LookupHintWarning]
        assert emitted in str(caught[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert view.plan().explain() == plain


@pytest.mark.parametrize(
    ("refused", "error", "shown"),
    [
        *(({"on": [("who", "id")], "how": how}, PlanError, "INNER or LEFT") for how in ("right", "full", "left_semi")),
        ({}, PlanError, "has no key"),
        ({"on": [("who", "nope")]}, PlanError, '"nope", which "customers"'),
        ({"other": appends("orders", ORDERS), "on": "who"}, OptionError, "expects an external table"),
    ],
)
def test_a_lookup_that_cannot_be_is_refused(customers, refused, error, shown):
    with pytest.raises(error, match=shown):
        appends("orders", ORDERS).lookup_join(refused.pop("other", customers), **refused)


class TestJoinsByProcessingTime:
    def _view(self, **more):
        orders = appends("orders", ORDERS)
        prices = changes("prices", {"who": pa.int64(), "price": pa.int64()}, keys="who")
        return orders.temporal_join(prices, on="who", as_of=PROCESSING_TIME, **more)

    def test_the_previous_snapshot_is_the_table_of_the_epoch_before(self, clock, place):
        run = Run(self._view(snapshot="previous", how="left"), clock, place)
        assert run.at(0, orders=[order(1, 7)], prices=[{"who": 7, "price": 3}]) == [((7, 1, 1, None), 1)]
        assert run.at(1, orders=[order(2, 7)], prices=[{"who": 7, "price": 4}]) == [((7, 2, 1, 3), 1)]

    def test_right_and_full_are_refused(self):
        with pytest.raises(PlanError, match="INNER or LEFT"):
            self._view(how="full")

    def test_explain_names_the_moment_that_counts_and_what_is_kept(self):
        text = self._view().plan().explain()
        assert 'nothing of "orders", which is append-only' in text
        assert "after the changes of the same epoch" in text

    def test_a_plan_survives_json(self):
        plan = self._view(how="left").plan()
        assert QueryPlan.from_json(json.loads(json.dumps(plan.to_json()))).explain() == plan.explain()


def test_a_table_on_the_right_of_a_join_by_processing_time_is_loaded_again_when_its_interval_has_passed(clock, place):
    loaded = []

    def codes():
        loaded.append(clock.now_us())
        return pa.table({"code": ["a"], "name": [f"name {len(loaded)}"]})

    source = ArrowSource(name="codes", table=codes, schema=pa.schema({"code": pa.string(), "name": pa.string()}))
    rows = changes("rows", {"id": pa.int64(), "code": pa.string()}, keys="id")
    view = rows.temporal_join(source, on="code", how="left", as_of=PROCESSING_TIME, reload_interval="10 min")
    answers = []
    with Pipeline(view, place, options=StageOptions(more={"lookup_clock": clock})) as pipeline:
        for minutes, row in ((0, {"id": 1, "code": "a"}), (9, {"id": 2, "code": "a"}), (1, {"id": 1, "code": "b"})):
            clock.sleep(60.0 * minutes)
            answers.append(pipeline.step({"rows": [row]}).to_pylist())
        answers.append(pipeline.step({"rows": [{"id": 3, "code": "a"}]}).to_pylist())

    assert answers == [
        [(("a", 1, "name 1"), 1)],
        [(("a", 2, "name 1"), 1)],
        [(("a", 1, "name 1"), -1), (("b", 1, None), 1)],
        [(("a", 3, "name 2"), 1)],
    ]
    assert len(loaded) == 2
    assert "fully cached, reloaded every" in view.plan().explain(buckets=1)


def test_an_arrow_table_may_be_on_the_right_and_what_it_cannot_honour_is_refused():
    rows = appends("rows", {"id": pa.int64(), "code": pa.string()})
    table = pa.table({"code": ["a", "b"], "name": ["A", "B"]})
    pipeline = Pipeline(rows.temporal_join(table, on="code", as_of=PROCESSING_TIME))

    assert pipeline.step({"rows": [{"id": 1, "code": "b"}]}).to_pylist() == [(("b", 1, "B"), 1)]
    for refused in ({"snapshot": "previous"}, {"null_safe": True}, {"index": "by_code"}):
        with pytest.raises(OptionError, match="is for a view"):
            rows.temporal_join(table, on="code", as_of=PROCESSING_TIME, **refused)
    with pytest.raises(OptionError, match="by event time joins with a view"):
        rows.temporal_join(table, on="code", as_of="id")
    with pytest.raises(OptionError, match="follows its changes"):
        rows.temporal_join(rows.alias("others"), on="code", as_of=PROCESSING_TIME, reload_interval="1 min")
    with pytest.raises(OptionError, match="expects another view"):
        rows.temporal_join([("a", "A")], on="code", as_of=PROCESSING_TIME)


def hidden_sequence():
    return changes("orders", {**ORDERS, "ts": pa.int64()}, keys="o", sequence_by="ts", except_column_list=["ts"])


def at(ts, total=5):
    return [{"o": 1, "who": 7, "total": total, "ts": ts}]


def test_an_update_of_a_hidden_sequence_alone_fetches_nothing_and_emits_nothing(clock, customers):
    run = Run(hidden_sequence().lookup_join(customers, on=[("who", "id")], columns=["name"]), clock)
    run.at(1, orders=at(10))
    requested = len(customers.calls)

    assert run.at(2, orders=at(20)) == []
    assert run.at(3, orders=at(15, total=9)) == []  # stale
    assert len(customers.calls) == requested
    assert run.at(4, orders=at(30, total=6)) == [((1, 7, 5, 7, "Ada"), -1), ((1, 7, 6, 7, "Ada"), 1)]


def test_an_update_of_a_hidden_sequence_alone_is_not_joined_again_by_processing_time(clock):
    people = changes("people", {"who": pa.int64(), "name": pa.string()}, keys="who")
    run = Run(hidden_sequence().temporal_join(people, "who", as_of=PROCESSING_TIME), clock)
    run.at(1, orders=at(10), people=[{"who": 7, "name": "Ada"}])

    assert run.at(2, orders=at(20)) == []
    assert run.at(3, orders=at(15, total=9)) == []
    assert run.at(4, orders=at(30, total=6)) == [((7, 1, 5, "Ada"), -1), ((7, 1, 6, "Ada"), 1)]
