"""Export of a job to another launcher, SkyPilot, for users who need more than this tool offers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from psnode_ec2.cluster import counted
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.settings import Settings

_STOP_SECONDS = 120  # seconds from the stop signal to the end, enough for a checkpoint


def skypilot(settings: Settings, words: Sequence[str]) -> str:
    """Return the SkyPilot task of the job `psnode WORDS...`. Raises SettingsError if the command is not a training."""
    if not words or words[0] != "train":
        raise SettingsError("export needs a training command: export skypilot -- train --train-dir runs/first")
    setup = "scripts/pre_run.sh .\n"
    run = f"""[[ $SKYPILOT_NODE_RANK == 0 ]] || exit 0
PATH=$HOME/psnode/.venv/bin:$PATH
echo "$SKYPILOT_NODE_IPS" >hosts_address
{_launch(settings, words)}
"""
    spot = "true" if settings.method == "spot" else "false"
    place = f"aws/{settings.region}" if settings.region else "aws"
    workers = counted(settings.n_workers, "worker")
    return f"""# A master and {workers}, all of the workers' type. From a checkout of psnode: sky launch FILE
name: {settings.name}
num_nodes: {settings.n_workers + 1}
workdir: .
resources:
  infra: {place}
  instance_type: {settings.worker_type}
  use_spot: {spot}
  disk_size: {settings.volume_gib}
setup: |
{_indented(setup)}
run: |
{_indented(run)}
"""


def train_dir(words: Sequence[str]) -> str:
    """Return the --train-dir of a command.

    Raises SettingsError for a command without it, since its job could not be resumed.
    """
    for index, word in enumerate(words):
        if word == "--train-dir" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--train-dir="):
            return word.partition("=")[2]
    raise SettingsError("the command has no --train-dir: name one, for the job goes on there when it was stopped")


def _launch(settings: Settings, words: Sequence[str]) -> str:
    """Return the shell lines that start the job, or resume it if it has a checkpoint."""
    kept = [word for word in words[1:] if word != "--resume"]
    return f"""resume=()
[[ ! -e {shlex.quote(train_dir(words))}/checkpoints/latest ]] || resume=(--resume)
psnode launch -n {settings.n_workers} --hostfile hosts_address --kill-after {_STOP_SECONDS - 10} -- \\
    train {shlex.join(kept)} "${{resume[@]}}\""""


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.rstrip("\n").split("\n"))
