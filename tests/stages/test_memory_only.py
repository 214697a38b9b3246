"""A budget of hybrid state is honoured by every kind of stage, or refused."""

from __future__ import annotations

import pytest

from tests.stages.every_stage import STAGES, registered
from zset_join.core.errors import OptionError
from zset_join.core.options import HotBudget
from zset_join.stages.stage import StageOptions

BUDGETS = {"joins": "hot_budget", "routes": "hot_budget", "groups": "table_budget"}
STATEFUL = {kind for kind in registered() if set(STAGES[kind].state_tables) != {"stateless"}}
COLD = {kind for kind in STATEFUL if STAGES[kind].cold_state is not None}
ALL_HYBRID = StageOptions(hot_budget=HotBudget(max_hot_keys=10), table_budget=HotBudget(max_hot_keys=10))


@pytest.mark.parametrize("kind", sorted(STATEFUL - COLD))
def test_a_stage_without_a_cold_store_refuses_a_budget(kind):
    with pytest.raises(OptionError, match="HYBRID_NOT_OFFERED"):
        STAGES[kind].build(ALL_HYBRID, None)


@pytest.mark.parametrize("kind", sorted(COLD))
def test_a_stage_with_a_cold_store_takes_its_budget(kind):
    budget = {BUDGETS[str(STAGES[kind].cold_state)]: HotBudget(max_hot_keys=10)}

    STAGES[kind].build(StageOptions(**budget), None).close()
