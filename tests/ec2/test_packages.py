"""Setup installs the checkout, the version that runs here, a wheel, or any requirement that pip takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.errors import ConfigurationError
from psnode_ec2.preparing import package_of

ROOT = Path(__file__).resolve().parents[2]
# instead of an environment's Python: it prints the arguments of pip
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
    # one that pip must not be led to by the name of the requirement
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
        with pytest.raises(ConfigurationError, match="is no pip requirement"), package_of(package, dry_run=False):
            pass


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
