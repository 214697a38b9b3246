"""Every code block of the documentation runs, and every link between its pages resolves.

A ```python block of *.md or docs/**/*.md is one test. The blocks of a page share one namespace and one scratch
directory, in order; picking one block runs those before it first. A block written as a Python session (`>>>`) has its
output compared. Below the comment `<!-- spark -->`, that block and all later ones of the page are given the session of
the tests as `spark`; they are one test, which two workers cannot both run. Those below `<!-- services -->` run with `make test-services`. Blocks in any other language are only read,
never run.
"""

from __future__ import annotations

import ast
import doctest
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tools.site_hooks import COPIED, navigation

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w+-]*)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *#*$")
LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?P<target>[^)\s]+)(?: +\"[^\"]*\")?\)|^\[[^\]]+\]: +(?P<reference>\S+)")
SPARK_MARK = "<!-- spark -->"
SERVICES_MARK = "<!-- services -->"


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line of the page its text begins on."""

    language: str
    text: str
    line: int
    below_spark_mark: bool
    below_services_mark: bool = False


@dataclass
class Page:
    """One page, and what its blocks have left behind so far."""

    path: Path
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    blocks_run: int = 0
    directory: Path | None = None
    runs_services: bool = False

    @property
    def name(self) -> str:
        """Return the path as the reader of the repository writes it."""
        return self.path.relative_to(ROOT).as_posix()

    def python_blocks(self) -> list[Block]:
        """Return the blocks that run, in order."""
        found = [block for block in blocks(self.path) if block.language == "python"]
        return [block for block in found if self.runs_services or not block.below_services_mark]

    def run_through(self, index: int) -> None:
        """Run the blocks up to and including `index` that have not run yet."""
        for block in self.python_blocks()[self.blocks_run : index + 1]:
            self.blocks_run += 1
            self._run(block)

    def _run(self, block: Block) -> None:
        if block.text.lstrip().startswith(">>>"):
            session = doctest.DocTestParser().get_doctest(block.text, self.namespace, self.name, self.name, block.line - 1)
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            doctest.DebugRunner(optionflags=flags).run(session, clear_globs=False)
            self.namespace.update(session.globs)
        else:
            # Blank lines in front make the line numbers of a traceback those of the page.
            exec(compile("\n" * (block.line - 1) + block.text, self.name, "exec"), self.namespace)


def pages() -> list[Path]:
    """Return README.md and its neighbours, and every page below docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> Iterator[Block]:
    """Yield every fenced block of a page."""
    below_spark_mark = below_services_mark = False
    language, indent, closing, first, text = "", 0, "", 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if closing and line.strip() == closing:
            yield Block(language, "\n".join(text) + "\n", first, below_spark_mark, below_services_mark)
            closing = ""
        elif closing:
            text.append(line[indent:])
        elif fence:
            language, indent, closing = fence["language"], len(fence["indent"]), fence["fence"]
            first, text = number + 1, []
        elif line.strip() == SPARK_MARK:
            below_spark_mark = True
        elif line.strip() == SERVICES_MARK:
            below_services_mark = True


def prose(path: Path) -> Iterator[str]:
    """Yield the lines of a page that are not inside a fenced block."""
    closing = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        if closing:
            closing = "" if line.strip() == closing else closing
        elif fence:
            closing = fence["fence"]
        else:
            yield line


def anchors(path: Path) -> set[str]:
    """Return what `#...` may name on a page: GitHub's names for its headings."""
    found: dict[str, int] = {}
    for heading in filter(None, map(HEADING.match, prose(path))):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["title"])
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        repeats = found.get(slug, 0)
        found[slug] = repeats + 1
        found[f"{slug}-{repeats}" if repeats else slug] = repeats + 1
    return set(found)


def undefined_session(path: Path) -> int | None:
    """Return the line of the first block that uses a name `spark` which no block of its page has defined; None for none."""
    for block in blocks(path):
        if block.language != "python" or block.text.lstrip().startswith(">>>"):
            continue
        names = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Name) and node.id == "spark"]
        if any(isinstance(node.ctx, ast.Store) for node in names):
            return None
        if names:
            return block.line
    return None


def broken_links(path: Path) -> list[str]:
    """Return the links of a page, to files and headings of this repository, that lead nowhere."""
    matches = [match for line in prose(path) for match in LINK.finditer(re.sub(r"`[^`]*`", "``", line))]
    targets = [match["target"] or match["reference"] for match in matches]
    return [target for target in targets if not re.match(r"[a-z]+:", target) and not resolves(path, target)]


def resolves(path: Path, target: str) -> bool:
    """Return whether a link written on the page at `path` leads to a file or heading that exists."""
    file_part, _, anchor = target.partition("#")
    linked = (path.parent / file_part).resolve() if file_part else path
    if not linked.exists():
        return False
    return not anchor or linked.suffix != ".md" or anchor in anchors(linked)


def empty(directory: Path) -> Path:
    """Remove everything inside a directory and return it; the directory itself stays, the JVM runs in it."""
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return directory


def cases() -> list[Any]:
    """Return one case per block that runs without Spark."""
    return [
        pytest.param(page, index, id=f"{page.name}:{block.line}")
        for page in PAGES
        for index, block in enumerate(page.python_blocks())
        if not block.below_spark_mark
    ]


def spark_pages() -> list[Any]:
    """Return the pages with a block that runs with Spark."""
    return [pytest.param(page, id=page.name) for page in PAGES if any(block.below_spark_mark for block in page.python_blocks())]


PAGES = [Page(path) for path in pages()]


@pytest.mark.parametrize(("page", "index"), cases())
def test_code_block_runs(
    page: Page, index: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.directory = page.directory or tmp_path_factory.mktemp("page")
    monkeypatch.chdir(page.directory)
    page.run_through(index)


@pytest.mark.parametrize("page", spark_pages())
def test_code_blocks_with_spark_run(page: Page, spark: Any, spark_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Relative paths mean the same to Python and to the JVM, and each page begins with an empty directory.
    monkeypatch.chdir(empty(spark_directory))
    page.namespace.setdefault("spark", spark)
    page.run_through(len(page.python_blocks()) - 1)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_page_defines_its_session_where_it_first_uses_it(path: Path) -> None:
    assert undefined_session(path) is None


def test_the_index_links_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    linked = [
        page for section in navigation(index.read_text(encoding="utf-8")) for page in chain.from_iterable(section.values())
    ]
    written = {path.relative_to(index.parent).as_posix() for path in pages() if index.parent in path.parents}

    assert sorted(linked) == sorted(set(linked))
    shelved = {page for page in written if page.startswith("decisions/")} - {"decisions/README.md"}
    assert written - shelved == {"README.md", *linked} - set(COPIED.values())


def test_the_shelf_of_decisions_links_each_of_its_pages_once() -> None:
    shelf = ROOT / "docs" / "decisions"
    linked = re.findall(r"\]\(([a-z0-9-]+\.md)\)", (shelf / "README.md").read_text(encoding="utf-8"))

    assert sorted(linked) == sorted(path.name for path in shelf.glob("*.md") if path.name != "README.md")


def test_the_glossary_has_each_word_of_the_design_once() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    heads = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| **")]
    terms = [term for head in heads for term in re.findall(r"\*\*(.+?)\*\*", head)]
    words = (
        "relation weight delta answer epoch tick operator stage plan pipeline runner bucket route view output sink binding "
        "watermark due parked spill fetch retraction insertion changelog unmatched_row late_row dead_letter snapshot log "
        "commit_record receipt fingerprint"
    ).replace("_", "\0")
    meanings = (
        " ".join(re.findall(r"\*\*(.+?)\*\*", page)).replace("retractions", "retraction").replace("insertions", "insertion")
    )

    assert sorted(terms) == sorted(set(terms))
    assert [word for word in words.split() if word.replace("\0", " ") not in meanings] == []


def test_prose_has_no_line_over_120_characters() -> None:
    long = [
        f"{path.name}: {line}" for path in pages() if path.parent.name != "decisions" for line in prose(path) if len(line) > 120
    ]

    assert [line for line in long if not re.match(r"[^:]+: (\||    |!\[)", line)] == []
