"""Setup installs the checkout, the version that runs here, a wheel, or a pip requirement."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.preparing import package_of, without_secrets

ROOT = Path(__file__).resolve().parents[2]
# replaces an environment's Python, and prints the arguments of pip
PYTHON = '#!/bin/bash\n[[ $2 != pip ]] || printf "%s\\n" "${@: -1}" >>"$ASKED"\n'
FORMS = [
    ("psnode", "psnode", "", None),
    ("psnode==1.2", "psnode", "==1.2", None),
    ("psnode >=1.2,<2", "psnode", "<2,>=1.2", None),
    ("psnode[gpu]~=1.2", "psnode", "~=1.2", None),
    ("psnode @ git+https://example.org/a/psnode.git@main", "psnode", "", "git+https://example.org/a/psnode.git@main"),
    ("git+https://example.org/a/psnode.git", "psnode", "", "git+https://example.org/a/psnode.git"),
    ("https://example.org/psnode-1.2-py3-none-any.whl", "psnode", "", "https://example.org/psnode-1.2-py3-none-any.whl"),
]


@pytest.mark.parametrize(("form", "name", "versions", "url"), FORMS)
def test_a_requirement_in_any_form_gets_the_extras_of_a_node(
    tmp_path: Path, form: str, name: str, versions: str, url: str | None
) -> None:
    requirements = pytest.importorskip("packaging.requirements")
    with package_of(form, dry_run=False) as package:
        assert package == form
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for program, text in (("python", PYTHON), ("psnode", "#!/bin/sh\n"), ("git", "#!/bin/sh\n")):
        (tmp_path / "venv" / "bin" / program).write_text(text)
        (tmp_path / "venv" / "bin" / program).chmod(0o755)
    # a folder with the requirement's name, which pip must not install
    (tmp_path / "psnode").mkdir()
    env = {"PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked")}
    env["PSNODE_VENV"] = str(tmp_path / "venv")
    script = ROOT / "tools" / "ec2" / "pre_run.sh"
    done = subprocess.run(["bash", script, package], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    meant = requirements.Requirement(asked)
    assert (meant.name, meant.url, str(meant.specifier)) == (name, url, versions)
    assert meant.extras == {"train", "mpi"} | ({"gpu"} if "gpu" in form else set())


def test_what_is_no_requirement_is_refused() -> None:
    for package in ("--index-url=x", "two words", "a;rm"):
        with pytest.raises(SettingsError, match="is no pip requirement"), package_of(package, dry_run=False):
            pass


@pytest.mark.parametrize(
    ("who", "expected"),
    [("t0ken", "t0ken:"), ("ada:t0ken", "ada:t0ken"), ("ada:t%40ken", "ada:t@ken")],
    ids=["token", "both", "quoted"],
)
def test_git_sends_the_token_that_no_command_line_holds(tmp_path: Path, who: str, expected: str) -> None:
    """Check the token with a server that lists a repository's branches to git only if it gets the right credentials."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            right = asked[-1] == "Basic " + base64.b64encode(expected.encode()).decode()
            answer = f"{'1' * 40}\trefs/heads/main\n".encode() if right else b""
            self.send_response(200 if right else 403)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        host = f"127.0.0.1:{server.server_port}"
        bare, variables = without_secrets(f"psnode @ git+http://{who}@{host}/psnode.git@main")
        assert bare == f"psnode @ git+http://{host}/psnode.git@main"
        env = {**os.environ, "HOME": str(tmp_path), "GIT_TERMINAL_PROMPT": "0", "no_proxy": "127.0.0.1"}
        line = ["git", "ls-remote", f"http://{host}/psnode.git", "refs/heads/main"]
        refused = subprocess.run(line, env=env, capture_output=True, text=True)
        done = subprocess.run(line, env={**env, **variables}, capture_output=True, text=True)
        server.shutdown()
        thread.join()
    assert (refused.returncode, asked[0]) != (0, asked[-1])
    assert (done.returncode, done.stdout) == (0, f"{'1' * 40}\trefs/heads/main\n"), done.stderr


def test_a_url_whose_token_pip_would_take_itself_is_refused_without_showing_it() -> None:
    for package in ("https://ada:t0ken@example.org/psnode-1.2-py3-none-any.whl", "psnode @ https://t0ken@example.org/psnode.zip"):
        refusal = pytest.raises(SettingsError, match="has a password or token in its URL")
        with refusal as caught, package_of(package, dry_run=False):
            pass
        assert "t0ken" not in str(caught.value)


@pytest.mark.parametrize("package", [*(form for form, *_ in FORMS), "git+ssh://git@example.org/a/psnode.git@main"])
def test_a_package_without_a_token_stays_as_it_is(package: str) -> None:
    assert without_secrets(package) == (package, {})


def test_a_tool_that_was_installed_installs_its_own_version(ec2: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    assert ec2("launch", "--yes").code == 0
    site = tmp_path / "site"
    shutil.copytree(ROOT / "psnode_ec2", site / "psnode_ec2", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "psnode-7.8.9.dist-info").mkdir()
    (site / "psnode-7.8.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: psnode\nVersion: 7.8.9\n")
    line = [sys.executable, "-m", "psnode_ec2", "setup", "--dry-run", "--config", str(config)]
    done = subprocess.run(line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("would run pre_run.sh") == 3
    assert done.stdout.count(" psnode==7.8.9\n") == 3
    assert "would build a wheel" not in done.stdout
