"""Write the tables of connectors and of options into the reference, from `zset_join.connectors` and from headers of modules.

    python -m tools.connector_tables

Each is between two comments of its page, of which that of options names the module; a test holds the pages against the source.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from zset_join.connectors import CONNECTORS, Option, OutputSide, tables

__all__ = ["PAGES", "with_table"]

_REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
_PASSED_ON = {
    "fields.": "`fields.c.kind`, `.start`, `.min`, `.max`, `.length`",
    "lookup.": "[`lookup.*`](#how-a-table-is-looked-up)",
    "properties.": "`properties.*` for Kafka's client",
}
_MARK = re.compile(r"(<!-- (?:connectors: python -m|options:) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def outputs_table(_: str) -> str:
    """Return the table of outputs."""
    lines = [
        _line(
            f"`{connector.name}`",
            output.keeps,
            output.promise,
            ", ".join(_shown(one) for one in _options(output) if one.is_required),
            ", ".join(_shown(one) for one in _options(output) if not one.is_required),
            f"`{output.extra}`" if output.extra else "",
        )
        for connector in CONNECTORS.values()
        if (output := connector.output) is not None
    ]
    return _table(("name", "keeps", "an epoch arrives", "needs", "may have", "extra"), lines)


def tables_table(_: str) -> str:
    """Return the table of tables of SQL."""
    lines = [
        _line(
            f"`{name}`",
            table.as_read,
            table.as_written,
            table.as_looked_up,
            ", ".join(_shown(one) for one in table.options if one.is_required),
            ", ".join(
                [*(_shown(one) for one in table.options if not one.is_required), *map(_PASSED_ON.__getitem__, table.prefixes)]
            ),
        )
        for name, table in tables().items()
    ]
    written = "written by `INSERT INTO ... SELECT`, `CREATE SINK`"
    return _table(("connector", "read as", written, "looked up", "needs", "may have"), lines)


def options_table(module: str) -> str:
    """Return the table in the header of the module that checks options."""
    header = importlib.import_module(module).__doc__ or ""
    return "".join(f"{line}\n" for line in header.splitlines() if line.startswith("|"))


PAGES = {
    _REFERENCE / "options.md": options_table,
    _REFERENCE / "outputs.md": outputs_table,
    _REFERENCE / "sql.md": tables_table,
}


def with_table(page: Path) -> str:
    """Return the text of a page, with its table as it should be."""
    return _MARK.sub(lambda found: f"{found[1]}{PAGES[page](found[2])}{found[3]}", page.read_text(encoding="utf-8"))


def _options(output: OutputSide) -> list[Option]:
    """Return the options of an output with the values they may have."""
    return [replace(option, choices=output.choices[option.name]) for option in output.options.values()]


def _shown(option: Option) -> str:
    """Return an option, its default behind `=`, its other values in brackets."""
    given = "" if option.is_required or option.default is None else f"={option.default!r}"
    others = [f"`{choice}`" for choice in option.choices if choice != option.default]
    return f"`{option.name}{given}`" + (f" ({', '.join(others)})" if others else "")


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _table(head: tuple[str, ...], lines: Iterable[str]) -> str:
    return "\n".join([_line(*head), f"|{'---|' * len(head)}", *lines, ""])


def main(pages: Mapping[Path, object] = PAGES) -> None:
    """Write the tables."""
    for page in pages:
        page.write_text(with_table(page), encoding="utf-8")


if __name__ == "__main__":
    main()
