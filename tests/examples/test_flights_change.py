"""The example that changes a view of real data while its streams run: a join is added, then its groups change."""

from __future__ import annotations

import pytest

from examples.flights_change import main


@pytest.mark.parametrize("runner", ["process", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.timeout(1800)
def test_the_changed_view_equals_a_fresh_build(runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--runner", runner, "--rows", "2000", "--epochs", "9"])
    printed = capsys.readouterr().out

    assert code == 0, printed
    assert "DuckDB: equal" in printed
    assert printed.count("keeps 2 of 4 stages, builds join-2") == 1
    assert printed.count("keeps 3 of 4 stages, builds aggregate-3") == 1
    assert "changed in the epochs 3 7" in printed
