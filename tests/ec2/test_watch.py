"""The watcher on a spot node, as a process: it continues after any answer, and notifies every rank once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tools" / "ec2" / "watch_interruption.py"
# stands in for ranks, and records the signals that it gets
RANK = "import pathlib, signal, sys\nheard = pathlib.Path(sys.argv[2])\n" + (
    "signal.signal(signal.SIGTERM, lambda *args: heard.open('a').write('TERM\\n'))\n"
    "heard.touch()\nwhile True:\n    signal.pause()\n"
)


class Metadata:
    """A metadata service. `answer` is its notice of an interruption: a status and a body, or bytes that are not HTTP."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] | bytes = (404, b"")
        self.recommended: tuple[int, bytes] = (404, b"")  # the recommendation to leave
        self.asked = 0
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve()

            def do_PUT(self) -> None:
                self._serve()

            def _serve(self) -> None:
                said = metadata.recommended if self.path.endswith("/events/recommendations/rebalance") else metadata.answer
                answer = said if self.command == "GET" or isinstance(said, bytes) else (200, b"token")
                if isinstance(answer, bytes):
                    self.wfile.write(answer)
                else:
                    self.send_response(answer[0])
                    self.send_header("Content-Length", str(len(answer[1])))
                    self.end_headers()
                    self.wfile.write(answer[1])
                metadata.asked += 1

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    made = Metadata()
    yield made
    made.server.shutdown()
    made.server.server_close()


def wait_for(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture
def started(tmp_path: Path, metadata: Metadata) -> Iterator[Callable[[int], Path]]:
    """Yield a function of a number: it starts the watcher (0) or the rank with this number, and returns the file of its
    messages.
    """
    # this user may run other ranks on this machine, so ranks here have a unique name
    name = f"psnode_of_{tmp_path.name}".encode()
    text = SOURCE.read_bytes().replace(rb"-m\0psnode\0train", rb"-m\0" + name + rb"\0train")
    assert name in text
    (tmp_path / "watch.py").write_bytes(text)
    (tmp_path / f"{name.decode()}.py").write_text(RANK)
    processes = []

    def start(number: int) -> Path:
        heard = tmp_path / f"rank-{number}"
        words = ["-m", name.decode(), "train", heard] if number else [tmp_path / "watch.py", tmp_path, "0.02"]
        env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url, "PATH": "/usr/bin:/bin"}
        processes.append(subprocess.Popen([sys.executable, *map(str, words)], cwd=tmp_path, env=env))
        return heard

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_ranks_are_told_once_each_after_any_answer_and_those_that_begin_later_too(
    tmp_path: Path, metadata: Metadata, started: Callable[[int], Path]
) -> None:
    first = started(1)
    wait_for(first.exists)
    metadata.answer = b"this is no HTTP\r\n\r\n"
    started(0)
    for answer in (metadata.answer, (500, b"later"), (404, b"")):
        metadata.answer, asked = answer, metadata.asked
        wait_for(lambda asked=asked: metadata.asked > asked + 6)  # type: ignore[misc]
    assert first.read_text() == ""
    metadata.answer = (200, b'{"action": "terminate"}')
    wait_for(lambda: first.read_text() == "TERM\n")
    metadata.answer = (404, b"")
    second = started(2)
    wait_for(second.exists)
    metadata.answer = (200, b'{"action": "terminate"}')
    wait_for(lambda: second.read_text() == "TERM\n")
    asked = metadata.asked
    wait_for(lambda: metadata.asked > asked + 12)
    assert first.read_text() == second.read_text() == "TERM\n"
    (line,) = (tmp_path / "interruption.log").read_text().splitlines()
    assert line.endswith(' spot/instance-action {"action": "terminate"}')


@pytest.mark.parametrize("does", ["note", "stop"])
def test_a_recommendation_to_leave_is_noted_and_stops_what_runs_then_if_it_is_to(
    tmp_path: Path, metadata: Metadata, started: Callable[[int], Path], does: str
) -> None:
    (tmp_path / "rebalance").write_text(f"{does}\n")
    first = started(1)
    wait_for(first.exists)
    started(0)
    asked = metadata.asked
    wait_for(lambda: metadata.asked > asked + 6)
    metadata.recommended = (200, b'{"noticeTime": "2026-11-23T12:00:00Z"}')
    wait_for((tmp_path / "interruption.log").exists)
    if does == "stop":
        wait_for(lambda: first.read_text() == "TERM\n")
    # a job that starts later continues: the node may live for days
    second = started(2)
    wait_for(second.exists)
    asked = metadata.asked
    wait_for(lambda: metadata.asked > asked + 12)
    assert (first.read_text(), second.read_text()) == ("TERM\n" if does == "stop" else "", "")
    (line,) = (tmp_path / "interruption.log").read_text().splitlines()
    assert line.endswith(' events/recommendations/rebalance {"noticeTime": "2026-11-23T12:00:00Z"}')
