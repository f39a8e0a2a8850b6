"""The site made of README and docs: the strict build passes, no link is dead, and no other host is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from psnode.config import settings

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")
ROOT = Path(__file__).resolve().parents[1]
LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "srcset"), ("video", "src")}


class Page(HTMLParser):
    """The anchors and links of a page, and the files that a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places, self.links, self.loaded, self.classes = set[str](), list[str](), list[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.places.add(value or "")
            if name == "class":
                self.classes |= set((value or "").split())
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")
            if (tag, name) in LOADING:
                self.loaded.append(value or "")


def dead_links(pages: dict[Path, Page]) -> list[str]:
    """Return links in `pages`, by file, to missing files and to missing anchors."""
    found = []
    for file, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//") or not link:
                continue
            aim = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if aim.is_dir():
                aim /= "index.html"
            anchor = unquote(parts.fragment)
            if not aim.exists() or (anchor and aim in pages and anchor not in pages[aim].places):
                found.append(f"{file.name}: {link}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {file.resolve(): Page(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}
    assert len(found) > 60
    return found


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert dead_links(pages) == []


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text('<a href="b.html#here">1</a><a href="b.html#gone">2</a><img src="c.png"><a href="#no">4</a>')
    both = {file: Page(file.read_text()) for file in (tmp_path / "a.html", tmp_path / "b.html")}
    assert dead_links(both) == ["a.html: b.html#gone", "a.html: #no", "a.html: c.png"]


def test_no_page_loads_anything_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    """Check scripts, styles, pictures and fonts, and that no page has a diagram: Material loads the program that draws
    diagrams from another host.
    """
    loaded = {link for page in pages.values() for link in page.loaded}
    assert any(link.endswith(".js") for link in loaded)
    assert any(link.endswith(".css") for link in loaded)
    assert [link for link in loaded if urlsplit(link).netloc] == []
    assert not any("mermaid" in page.classes for page in pages.values())
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        assert "@import" not in text
        assert "url(http" not in text and "url(//" not in text, sheet


def test_the_first_page_shows_a_result(site: Path, pages: dict[Path, Page]) -> None:
    first = pages[(site / "index.html").resolve()]
    assert any(link.startswith("results/") and link.endswith(".png") for link in first.loaded)


def test_the_references_name_what_there_is(site: Path, pages: dict[Path, Page]) -> None:
    from psnode.cli import app

    told = (site / "settings.html").read_text()
    assert [setting.flag for setting in settings().values() if f"<td><code>{setting.flag}</code></td>" not in told] == []
    commands = (site / "cli.html").read_text()
    assert [name for name in app.commands if f">psnode {name}<" not in commands] == []
    api = pages[(site / "api" / "index.html").resolve()].places | pages[(site / "api" / "codecs.html").resolve()].places
    names = {"run", "Config", "Task", "Task.loss", "session", "jobs.sessions.session.Session.step", "ddp.comm_hook"}
    names |= {"evaluator.follow", "codecs.get_codec", "codecs.Codec.encode", "feedback.get_feedback", "errors.PayloadError"}
    assert {f"psnode.{name}" for name in names} <= api


def test_what_is_searched_is_in_the_index(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "--staleness" in index and "psnode.ddp.comm_hook" in index
    assert (site / "source" / "examples" / "own_loop.py.html").is_file()
    assert "source/examples/own_loop.py" not in index  # else the search would list whole files first for every word
