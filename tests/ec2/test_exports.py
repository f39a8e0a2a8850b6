"""Files that the tool exports: it loads its own example of settings, and a SkyPilot task has the documented fields."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.exports import skypilot
from psnode_ec2.settings import FIELDS, Settings, load

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ("train", "--network", "LeNet", "--dataset", "digits", "--train-dir", "runs/a run", "--threads", "1")


@pytest.fixture
def example(ec2: Callable[..., Any]) -> str:
    done = ec2("export", "config")
    assert done.code == 0, done.err
    return str(done.out)


def test_the_example_has_every_setting_with_its_explanation(example: str) -> None:
    for name, setting in FIELDS.items():
        (comment,) = re.findall(rf"^# (.+)\n(?:# )?{name} = ", example, re.M)
        assert comment.startswith(setting.rules.help)


def test_the_example_is_loaded_as_it_is_and_sets_only_defaults(example: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(example)
    settings = load(tmp_path / "cluster.toml", {})
    assert settings == Settings(name="atomo", region="us-west-2")


def test_every_line_of_the_example_can_be_taken_in(example: str, tmp_path: Path) -> None:
    lines = re.sub(r"^# (?=[a-z_]+ = )", "", example, flags=re.M)
    assert set(tomllib.loads(lines)) == set(FIELDS)
    # except settings that exclude each other or mean nothing when empty
    usable = "\n".join(line for line in lines.splitlines() if not re.match(r'(nfs_ip_address|spot_price)|\w+ = ""$', line))
    (tmp_path / "cluster.toml").write_text(usable.replace("nfs_mount_point", "# nfs_mount_point"))
    assert load(tmp_path / "cluster.toml", {}).name == "atomo"


def shellcheck(path: Path) -> None:
    done = subprocess.run(["shellcheck", "-x", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    import shutil
    import sys

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck")
    return shellcheck


def test_the_skypilot_task_is_yaml_of_the_right_fields_and_clean_shell(checker: Callable[[Path], None], tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = skypilot(Settings(name="many", n_workers=3, region="eu-west-1", method="spot"), TRAIN)
    task = yaml.safe_load(text)
    # the fields and their types, as in SkyPilot's documentation of a task
    assert {name: type(value) for name, value in task.items()} == {
        "name": str, "num_nodes": int, "workdir": str, "resources": dict, "setup": str, "run": str
    }  # fmt: skip
    assert (task["name"], task["num_nodes"]) == ("many", 4)
    assert task["resources"] == {"infra": "aws/eu-west-1", "instance_type": "m5.2xlarge", "use_spot": True, "disk_size": 50}
    for part in ("setup", "run"):
        (tmp_path / part).write_text(f"#!/usr/bin/env bash\n{task[part]}")
        checker(tmp_path / part)


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "needs a training command"), (("evaluate",), "needs a training command"), (("train",), "has no --train-dir")],
)
def test_a_job_that_could_not_go_on_is_not_written(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        skypilot(Settings(name="many"), words)
