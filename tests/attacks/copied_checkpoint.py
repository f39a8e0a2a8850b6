"""Attack: a checkpoint is copied under the name of another step, so that an evaluator would evaluate it repeatedly."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.attacks.attack import STEP

TOLD = "it is that of step 7, not of this directory"
EVALUATED = (5, [7])


def attack(run: Path) -> None:
    shutil.copytree(run / STEP, run / "checkpoints/step-00000009")
    (run / "checkpoints/latest").write_text("step-00000009\n")
