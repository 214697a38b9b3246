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

    >>> fenced("Add.\n\n>>> [1] + [2]\n[3]\n\nDone.").splitlines()
    ['Add.', '', '```pycon', '>>> [1] + [2]', '[3]', '```', '', 'Done.']
    """
    return _SESSION.sub(lambda session: f"```pycon\n{session[0].rstrip()}\n```\n", text)


class FencedSessions(griffe.Extension):
    """Fence the sessions of every docstring that griffe loads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
