"""What queries need first is compiled beforehand, in processes of its own."""

from __future__ import annotations

import pytest

from zset_join.stages.stage import Stage
from zset_join.tools import compiling


def kinds(name: str) -> set[str]:
    views, is_hybrid = compiling.GROUPS[name]
    stages: list[Stage] = [stage for view in views() for stage in compiling._stages(view.plan(), is_hybrid=is_hybrid)]
    return {stage.kind for stage in stages}


def test_every_kind_of_stage_that_keeps_rows_is_among_the_groups() -> None:
    together = {kind for name in compiling.GROUPS for kind in kinds(name)}

    assert {"join", "aggregate", "latest", "deduplicate", "as_of_join"} <= together
    assert kinds("joins on disk") == {"join"}


def test_a_group_is_compiled_and_each_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = compiling.compile_kernels(["joins on disk"])

    reported = capsys.readouterr().out.splitlines()
    assert reported[0].startswith("compiling the kernels of this version into")
    assert reported[1].startswith("  1 of 1: joins on disk")
    assert reported[-1].startswith("done in")
    assert seconds > 0
