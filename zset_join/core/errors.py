"""Every error the package raises on purpose.

    ZsetJoinError
    ├── PlanError              a description (relation, join, option) that cannot run; raised when it is built
    │   ├── OptionError        an option or argument with a value that is not allowed
    │   │   └── MissingPackageError  a package of an extra that is not installed; an ImportError too
    │   ├── KeyTypeError       a key column whose type cannot be hashed or compared
    │   ├── MissingMethodError a method that PySpark has here and this library has not; an AttributeError too
    │   └── SqlError           a statement that cannot be read, or requests what is refused
    ├── BadInputError          rows of a delta that break the relation's contract
    ├── WeightOverflowError    a weight that no longer fits an int64
    ├── ResourceError          a limit that was reached; the message names the option to change
    ├── StateError             state that does not belong here, has a gap, or is damaged
    ├── SinkError              an output that cannot take the answer
    └── LookupFailedError      an external system that could not be reached, or returned an unusable answer

Every error carries a stable `code` (documented in docs/reference/errors.md) and its facts as the mapping `facts`. Settings
behind the `?` of a store's URI are in neither, see `zset_join.core.hidden_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zset_join.core.hidden_settings import shown, shown_value

__all__ = [
    "BadInputError",
    "KeyTypeError",
    "LookupFailedError",
    "MissingMethodError",
    "MissingPackageError",
    "OptionError",
    "PlanError",
    "ResourceError",
    "SinkError",
    "SqlError",
    "StateError",
    "WeightOverflowError",
    "ZsetJoinError",
]


class ZsetJoinError(Exception):
    """The root of every error raised on purpose.

    Args:
        message: what is wrong, what was expected and what to do, in the user's own names and values.
        code: stable name of the situation, upper case with underscores.
        **facts: the values the message was made from.

    >>> str(ZsetJoinError("nothing to join", code="EMPTY"))
    '[EMPTY] nothing to join'
    """

    default_code = "ZSET_JOIN"

    def __init__(self, message: str, *, code: str | None = None, **facts: Any) -> None:
        self.message = shown(message)
        self.code = code or self.default_code
        self.facts: Mapping[str, Any] = {name: shown_value(value) for name, value in facts.items()}
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, dict(self.facts))


def _rebuild(error_type: type[ZsetJoinError], message: str, code: str, facts: dict[str, Any]) -> ZsetJoinError:
    return error_type(message, code=code, **facts)


class PlanError(ZsetJoinError):
    """A query that cannot run; raised while it is built, never while rows are processed."""

    default_code = "PLAN"


class OptionError(PlanError):
    """An option or argument whose value is not allowed."""

    default_code = "OPTION"


class MissingPackageError(OptionError, ImportError):
    """A package that a feature needs and that is not installed; the message has the line that installs it."""

    default_code = "MISSING_PACKAGE"


class KeyTypeError(PlanError):
    """A key column whose type cannot be hashed, or two key columns that cannot be compared."""

    default_code = "KEY_TYPE"


class MissingMethodError(PlanError, AttributeError):
    """A method that PySpark users look for here, and that is not here; the message names the replacement."""

    default_code = "MISSING_METHOD"


class SqlError(PlanError):
    """A statement that cannot be parsed or is rejected; the message shows the position.

    Args:
        message: as for every error.
        code: as for every error.
        at: its position; the message shows the text there.
        **facts: as for every error; `line` and `column` are among them where the place is known.
    """

    default_code = "SQL"

    def __init__(self, message: str, *, code: str | None = None, at: Any = None, **facts: Any) -> None:
        if at is not None:
            facts = {**facts, "line": at.line, "column": at.column}
            message = f"{message}\n{at}"
        super().__init__(message, code=code, **facts)


class BadInputError(ZsetJoinError):
    """Rows that break the contract of their relation; the epoch was not applied."""

    default_code = "BAD_INPUT"


class WeightOverflowError(BadInputError):
    """A weight that no longer fits an int64; the epoch was not applied."""

    default_code = "WEIGHT_OVERFLOW"


class ResourceError(ZsetJoinError):
    """A limit that was reached; the message names the option that raises it."""

    default_code = "RESOURCE"


class StateError(ZsetJoinError):
    """State that does not belong to this query, has a gap, or is damaged."""

    default_code = "STATE"


class SinkError(ZsetJoinError):
    """An output cannot store the answer of an epoch."""

    default_code = "SINK"


class LookupFailedError(ZsetJoinError):
    """An external system that could not be reached, or returned an unusable answer; the epoch was not applied."""

    default_code = "LOOKUP_FAILED"
