"""A tick names an epoch and fixes the time in it."""

from __future__ import annotations

import dataclasses

import pytest

from zset_join.core.epochs import Tick


def test_a_tick_without_a_processing_time_lets_nothing_expire() -> None:
    assert Tick(7).processing_time_us is None


def test_two_ticks_of_the_same_epoch_and_time_are_the_same_moment() -> None:
    assert Tick(7, 1_000) == Tick(7, processing_time_us=1_000)
    assert Tick(7, 1_000) != Tick(7, 2_000)


def test_a_tick_cannot_be_moved() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tick(7).epoch = 8  # type: ignore[misc]
