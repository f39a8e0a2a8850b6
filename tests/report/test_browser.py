"""The page in a real browser: no complaints, no requests, and an axis that can be changed."""

from __future__ import annotations

import re
import shutil
import socketserver
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from psnode.report.page import render
from psnode.report.run import read, read_all
from tests.report.conftest import CONFIG, lines, record, write_run

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: the page is not looked at in a browser"),
]
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--hide-scrollbars",
)  # fmt: skip
CLICK = """<script>
const seen = [];
const visible = () => ["steps", "seconds", "bytes"].filter((axis) =>
  [...document.querySelectorAll(".by-" + axis)].every((each) => getComputedStyle(each).display !== "none")).join("+");
seen.push(visible());
for (const axis of ["bytes", "seconds", "steps"]) {
  document.querySelector(`label[for=axis-${axis}]`).click();
  seen.push(visible() + location.hash);
}
document.body.dataset.seen = seen.join(" ");
</script>"""


class Seen(NamedTuple):
    """A page as a browser saw it: the document after its scripts, console lines, and requested hosts."""

    dom: str
    console: list[str]
    requests: list[str]


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy that records the host of every request of a browser and answers none."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.asked: list[str] = []


class Request(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        words = self.rfile.readline(4096).decode("latin-1").split()
        host = words[1].removeprefix("http://").split("/")[0].partition(":")[0] if len(words) > 1 else "?"
        if not host.endswith((".google.com", ".googleapis.com", ".gvt1.com")):  # requests of the browser itself, for any page
            self.server.asked.append(host)


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., Seen]:
    """Return a function that loads a page from a file, with `place` appended to the address, and all requests sent to a proxy."""

    def load(content: bytes, *flags: str, place: str = "") -> Seen:
        file = tmp_path / "page.html"
        file.write_bytes(content)
        with Proxy() as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            through = [f"--proxy-server=http://127.0.0.1:{proxy.server_address[1]}", "--proxy-bypass-list=<-loopback>"]
            command = [str(CHROMIUM), *QUIET, *through, f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
            command += ["--virtual-time-budget=2000", *(flags or ("--dump-dom",)), f"{file.as_uri()}{place}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
            proxy.shutdown()
        return Seen(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line], proxy.asked)

    return load


def test_the_page_loads_without_a_complaint_or_a_request_and_takes_its_axis_from_the_address(
    browse: Callable[..., Seen], trained: Path
) -> None:
    seen = browse(render([read(trained)]), place="#axis=bytes")
    assert (seen.console, seen.requests) == ([], [])
    assert re.search(r"<html[^>]* data-axis=\"bytes\"", seen.dom)  # its script has run under the page's own policy


def test_complaints_and_requests_would_be_seen(browse: Callable[..., Seen]) -> None:
    seen = browse(b"<!DOCTYPE html><img src='http://example.invalid/x.png'><script>console.error('seen'); nothing()</script>")
    assert any("seen" in line for line in seen.console) and any("nothing" in line for line in seen.console)
    assert set(seen.requests) == {"example.invalid"}


def test_a_hostile_run_runs_nothing_and_asks_for_nothing(browse: Callable[..., Seen], tmp_path: Path) -> None:
    change = "document.body.dataset.evil=1"
    evil = f"</script><script>{change}</script><img src=http://example.invalid/ onerror={change}>"
    path = write_run(tmp_path / "run", [record(1, metrics={evil: 1}), record(2)], config={evil: evil})
    lines(path / "events.jsonl", [{"step": 1, "event": evil, "reason": evil, "time": 0, "rank": None}])
    seen = browse(render([read(path, evil)]))
    assert (seen.console, seen.requests) == ([], [])
    assert "<body>" in seen.dom and change in seen.dom


def test_a_click_changes_the_axis_of_every_curve(browse: Callable[..., Seen], tmp_path: Path) -> None:
    """Check that a click changes the axis of all curves, on a copy of the page whose policy allows another script to click."""
    runs = read_all([write_run(tmp_path / name, [record(k) for k in (1, 2, 3)]) for name in ("one", "two")])
    content = re.sub(r"<meta http-equiv=[^>]*>", "", render(runs).decode()).replace("</body>", f"{CLICK}</body>")
    seen = browse(content.encode())
    [told] = re.findall(r'data-seen="([^"]*)"', seen.dom)
    assert told.split() == ["steps", "bytes#axis=bytes", "seconds#axis=seconds", "steps#axis=steps"]
    assert seen.console == []


def test_it_is_as_wide_as_a_telephone(browse: Callable[..., Seen], trained: Path) -> None:
    """Check that the page fits into a window of 500 pixels; only the frames of tables may have wider contents."""
    told = "<script>document.body.dataset.wide = document.documentElement.scrollWidth - innerWidth;</script>"
    content = re.sub(r"<meta http-equiv=[^>]*>", "", render([read(trained)]).decode()).replace("</body>", f"{told}</body>")
    seen = browse(content.encode(), "--window-size=500,900", "--dump-dom")
    assert re.findall(r'data-wide="(-?\d+)"', seen.dom) == ["0"]


def test_it_is_drawn(browse: Callable[..., Seen], trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(render([read(trained)]), "--window-size=1200,900", f"--screenshot={picture}")
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", content[16:24]) == (1200, 900)
    assert len(content) > 20_000  # an empty page has a tenth of this size


def test_tables_of_many_runs_are_as_wide_as_a_window_of_1280(browse: Callable[..., Seen], tmp_path: Path) -> None:
    """Check that no table scrolls, and that no head of a row is broken into letters. The runs have long names and differ in
    seven settings.
    """
    paths = []
    for k in range(20):
        config = {f"setting{j}": f"{(k + 1) * j}" for j in range(1, 7)} | {"lr": 0.1 * k}
        scheme = CONFIG["scheme"] | {
            "codec": "topk:ratio=0.01,sampled=false+fp16",
            "downlink": "qsgd:levels=15,bucket=512,norm=l2",
        }
        name = f"dense---codec-blocktopk4.py:BlockTopK4---feedback-ef---downlink-topk:ratio=0.01---lr-0.{k}-1"
        paths.append(write_run(tmp_path / name, [record(j, gradient_norm=2.0) for j in (1, 2)], config=config, scheme=scheme))
    told = """<script>
    const frames = [...document.querySelectorAll(".scroll")].filter((each) => each.clientWidth);
    const heads = [...document.querySelectorAll("tbody th")].filter((each) => each.clientWidth);
    document.body.dataset.over = Math.max(...frames.map((each) => each.scrollWidth - each.clientWidth));
    document.body.dataset.head = Math.min(...heads.map((each) => each.clientWidth));
    </script>"""
    content = re.sub(r"<meta http-equiv=[^>]*>", "", render(read_all(paths)).decode()).replace("</body>", f"{told}</body>")
    seen = browse(content.encode(), "--window-size=1280,900", "--dump-dom")
    assert re.findall(r'data-over="(-?\d+)"', seen.dom) == ["0"]
    assert int(re.findall(r'data-head="(\d+)"', seen.dom)[0]) >= 100
