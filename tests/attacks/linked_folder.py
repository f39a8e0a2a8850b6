"""Attack: the folder of the optimizer's state is a link that leads out of the checkpoint."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.attack import STEP

TOLD = "its directory is a link"
EVALUATED = (0, [7])  # an evaluation needs only the model


def attack(run: Path) -> None:
    (run / STEP / "state").rename(run / "elsewhere")
    (run / STEP / "state").symlink_to(run / "elsewhere")
