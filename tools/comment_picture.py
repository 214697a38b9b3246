"""Draw the picture of the comment in docs/tutorial/change-a-view-in-production.md: what `zset-join diff --markdown` prints.

    bash tools/install_chromium.sh && python -m tools.comment_picture

The blocks of the tutorial are run up to the proposal; its comment is rendered as a page and photographed.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import markdown
from playwright.sync_api import sync_playwright

from tools.console_pictures import DOCS, FLAGS
from zset_join.cli import main

__all__ = ["draw"]

PAGE = DOCS / "tutorial" / "change-a-view-in-production.md"
_EXTENSIONS = ["tables", "pymdownx.superfences", "pymdownx.highlight"]
_STYLE = """
body {font: 15px/1.5 system-ui, sans-serif; margin: 0; padding: 16px; background: #fff; color: #1f2328; width: 760px}
.box {border: 1px solid #d0d7de; border-radius: 6px}
.head {background: #f6f8fa; border-bottom: 1px solid #d0d7de; padding: 8px 16px; color: #59636e}
.text {padding: 8px 16px}
table {border-collapse: collapse} td, th {border: 1px solid #d0d7de; padding: 4px 12px}
code, pre {font-family: ui-monospace, monospace; font-size: 13px; background: #f6f8fa}
pre {padding: 10px} .gd {background: #ffebe9} .gi {background: #dafbe1}
"""


def comment() -> str:
    """Return the comment, of the page's own data."""
    code = PAGE.read_text(encoding="utf-8").split("## The difference")[0]
    blocks = [block.split("```")[0] for block in code.split("```python\n")[1:]]
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for block in blocks:
            if not block.startswith(">>>"):
                exec(block, names)  # noqa: S102 - the blocks of a page of this repository
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            main(["diff", "shop", "proposal:views", "--markdown"])
        names["pipeline"].close()
    return printed.getvalue()


def draw(into: Path = DOCS) -> None:
    """Write the picture into a folder."""
    text = markdown.markdown(comment(), extensions=_EXTENSIONS)
    head = '<div class="head"><b>ci</b> commented on <i>Samples are no revenue</i></div>'
    html = f'<style>{_STYLE}</style><div class="box">{head}<div class="text">{text}</div></div>'
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 800, "height": 200}, device_scale_factor=1)
        page.set_content(html)
        page.screenshot(path=into / "change-comment.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    draw()
