"""Write the tables of options into docs/reference/options.md, from the headers of the modules that check them.

    python -m tools.option_tables

Each table is between two comments of the page; a test compares the page with the source.
"""

from __future__ import annotations

import re

from tools.import_graph import ROOT
from zset_join.core import options
from zset_join.lookup import options as lookup_options

__all__ = ["PAGE", "with_tables"]

PAGE = ROOT / "docs" / "reference" / "options.md"
_SOURCES = {"zset_join.core.options": options, "zset_join.lookup.options": lookup_options}
_MARK = re.compile(r"(?P<begin><!-- options: (?P<module>\S+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the text of the page with the current tables.

    Args:
        page: the text between whose `<!-- options: MODULE -->` and `<!-- end -->` the table of that module goes.
    """
    return _MARK.sub(lambda found: f"{found['begin']}{_table(found['module'])}{found['end']}", page)


def _table(module: str) -> str:
    header = _SOURCES[module].__doc__ or ""
    return "".join(f"{line}\n" for line in header.splitlines() if line.startswith("|"))


def main() -> None:
    """Write the tables."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
