"""Questions about a query whose epochs run on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zset_join.core.errors import OptionError

if TYPE_CHECKING:
    from zset_join.checkpoint.row_history import RowHistory
    from zset_join.spark.tools.view_comparison import VerificationReport

__all__ = ["DriverTools"]


class DriverTools:
    """Answer questions about a query that runs on the driver."""

    def verify(self, **given: Any) -> VerificationReport:
        """Refuse: the inputs are not kept.

        Raises:
            OptionError: `INPUTS_NOT_KEPT`.
        """
        raise _not_kept(f"verify({', '.join(name for name, value in given.items() if value is not None)})")

    def explain_row(self, row: Mapping[str, Any], *, most_rows: int) -> RowHistory:
        """Refuse: the inputs are not kept.

        Raises:
            OptionError: `INPUTS_NOT_KEPT`.
        """
        raise _not_kept(f"explain_row({dict(row)}, most_rows={most_rows})")


def _not_kept(what: str) -> OptionError:
    return OptionError(
        f"{what} needs every change that came, and a query on the driver does not keep them. Run the query with "
        'option("execution", "executors") to ask.',
        code="INPUTS_NOT_KEPT",
    )
