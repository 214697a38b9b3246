"""Hooks of the documentation site: its navigation is the index, and links to other files of the repository resolve.

MkDocs loads this file by the name in `mkdocs.yml`. `docs/README.md` is the only list of pages: its headings are the sections of
the navigation, its links the pages. A page that the index does not name fails the build. The pages outside `docs/` that a
reader needs (changelog, contributing, benchmarks) are copied into the site; a link to any other file of the repository becomes
its path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["INDEX", "navigation", "on_config", "on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "README.md"
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "benchmarks/README.md": "benchmarks.md"}
_HEADING = re.compile(r"^## +(?P<title>.+)$")
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def navigation(index: str) -> list[dict[str, Any]]:
    r"""Return the sections of the index with the paths of their pages, relative to `docs/`.

    >>> navigation("# Docs\n## Learn\n- [a view](tutorial/view.md): first\n## Develop\n- [all](../CHANGELOG.md)\n")
    [{'Learn': ['tutorial/view.md']}, {'Develop': ['changelog.md']}]
    """
    sections: list[dict[str, Any]] = []
    for line in index.splitlines():
        if heading := _HEADING.match(line):
            sections.append({heading["title"]: []})
        elif sections:
            pages = next(iter(sections[-1].values()))
            for link in _LINK.finditer(line):
                target = COPIED.get(link["target"].removeprefix("../"), link["target"])
                if target.endswith(".md") and target not in pages:
                    pages.append(target)
    return [section for section in sections if next(iter(section.values()))]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the index."""
    config.nav = [{"Home": "README.md"}, *navigation(INDEX.read_text(encoding="utf-8"))]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the copied pages."""
    from mkdocs.structure.files import File  # noqa: PLC0415, RUF100 - only the site needs MkDocs

    for source, name in COPIED.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Rewrite links that leave `docs/`: to the copied page, or else to the path as text."""
    source = next((path for path, name in COPIED.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    folder = posixpath.dirname(source)

    def rewritten(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = COPIED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is None:
            return f"{link['text']} (`{path}`)"
        here = posixpath.dirname(page.file.src_uri)
        return f"[{link['text']}]({posixpath.relpath(inside, here or '.')}{link['anchor'] or ''})"

    return "".join(part if inside_fence else _LINK.sub(rewritten, part) for inside_fence, part in _parts(markdown))


def _parts(markdown: str) -> list[tuple[bool, str]]:
    """Return the text cut at its fences, each part with whether it lies inside one."""
    pieces = re.split(r"(^ *```.*?^ *```[^\n]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return [(piece.lstrip().startswith("```"), piece) for piece in pieces]
