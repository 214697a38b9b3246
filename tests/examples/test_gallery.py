"""Every example of the gallery shows what it promises, and its picture in the documentation is of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from examples.gallery.__main__ import main
from examples.gallery.picture import picture
from examples.gallery.stories import STORIES
from examples.gallery.story import run

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "gallery"


@pytest.mark.parametrize("name", list(STORIES))
def test_an_example_shows_what_it_promises_and_has_a_picture(name: str) -> None:
    lines: list[str] = []

    outcome = run(STORIES[name], lines.append)

    assert outcome.wrong == ()
    assert sum("equal:" in line for line in lines) >= 1
    texts = [text.text for text in ET.fromstring(picture(STORIES[name], outcome)).iter("{http://www.w3.org/2000/svg}text")]
    kept = [text.text for text in ET.parse(PICTURES / f"{name}.svg").getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if "keeps" not in str(text)] == [text for text in kept if "keeps" not in str(text)]


def test_an_example_that_is_wrong_ends_with_1_and_an_unknown_one_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("examples.gallery.fraud.WITHIN", 0)

    assert main(["fraud"]) == 1
    assert "WRONG: 0 cards are alerted on" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])


def test_the_page_names_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")

    assert all(f"gallery/{name}.svg" in page and f"examples.gallery {name}" in page for name in STORIES)
