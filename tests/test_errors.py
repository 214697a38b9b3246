"""Every error names a stable code and carries its facts, also after it has crossed a process border."""

from __future__ import annotations

import pickle

import pytest

import zset_join.core.errors
from zset_join.core.errors import (
    BadInputError,
    KeyTypeError,
    LookupFailedError,
    MissingMethodError,
    MissingPackageError,
    OptionError,
    PlanError,
    ResourceError,
    SinkError,
    SqlError,
    StateError,
    WeightOverflowError,
    ZsetJoinError,
)

CODES = {
    ZsetJoinError: "ZSET_JOIN",
    PlanError: "PLAN",
    OptionError: "OPTION",
    KeyTypeError: "KEY_TYPE",
    BadInputError: "BAD_INPUT",
    WeightOverflowError: "WEIGHT_OVERFLOW",
    ResourceError: "RESOURCE",
    StateError: "STATE",
    SinkError: "SINK",
    MissingMethodError: "MISSING_METHOD",
    MissingPackageError: "MISSING_PACKAGE",
    SqlError: "SQL",
    LookupFailedError: "LOOKUP_FAILED",
}


def test_the_tree_holds_these_errors_and_no_others() -> None:
    assert sorted(zset_join.core.errors.__all__) == sorted(error_type.__name__ for error_type in CODES)


@pytest.mark.parametrize("error_type", CODES)
def test_every_error_is_caught_as_the_root(error_type: type[ZsetJoinError]) -> None:
    with pytest.raises(ZsetJoinError):
        raise error_type("it does not fit")


@pytest.mark.parametrize(
    ("child", "parent"), [(OptionError, PlanError), (KeyTypeError, PlanError), (WeightOverflowError, BadInputError)]
)
def test_a_special_case_is_caught_as_its_concern(child: type[ZsetJoinError], parent: type[ZsetJoinError]) -> None:
    assert issubclass(child, parent)


@pytest.mark.parametrize(("error_type", "code"), CODES.items())
def test_an_error_without_a_code_of_its_own_has_the_one_of_its_concern(error_type: type[ZsetJoinError], code: str) -> None:
    assert str(error_type("it does not fit")) == f"[{code}] it does not fit"


def test_the_code_and_the_facts_can_be_read_off_the_error() -> None:
    error = BadInputError("no such row", code="ABSENT_ROW", relation="orders", epoch=17)

    assert error.code == "ABSENT_ROW"
    assert error.facts == {"relation": "orders", "epoch": 17}
    assert str(error) == "[ABSENT_ROW] no such row"


@pytest.mark.parametrize("error_type", CODES)
def test_an_error_of_a_worker_process_arrives_whole(error_type: type[ZsetJoinError]) -> None:
    sent = error_type("no such row", code="ABSENT_ROW", relation="orders", key=(42, None))

    arrived = pickle.loads(pickle.dumps(sent))

    assert type(arrived) is error_type
    assert (arrived.code, arrived.facts, str(arrived)) == (sent.code, sent.facts, str(sent))
