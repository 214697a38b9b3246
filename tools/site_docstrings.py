"""A griffe extension for the site: Python sessions inside docstrings become code blocks.

A docstring ends with a bare `>>>` session, which the doctests run. Markdown would render it as a quotation, and `[...]` inside
it as a link.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["FencedSessions", "fenced"]

_SESSION = re.compile(r"(?:^ *>>> .*\n?(?:^(?! *$).*\n?)*)+", re.MULTILINE)


def fenced(text: str) -> str:
    r"""Return a docstring with each Python session, up to the next blank line, inside a fence.

    >>> print(fenced("Add.\n\n>>> [1] + [2]\n[1, 2]\n\nDone."))
    Add.
    <BLANKLINE>
    ```pycon
    >>> [1] + [2]
    [1, 2]
    ```
    <BLANKLINE>
    Done.
    """
    return _SESSION.sub(lambda session: f"```pycon\n{session[0].rstrip()}\n```\n", text)


class FencedSessions(griffe.Extension):
    """Fence the sessions of every docstring that griffe loads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
