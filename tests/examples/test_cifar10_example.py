"""examples/cifar10.py: pixels and labels equal the files', augmentation crops, and two workers learn four colours."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import psnode
from psnode import Config
from psnode.errors import ConfigurationError
from psnode.task import load_task

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "cifar10.py")
COLORS = {"blue": (20, 20, 220), "green": (20, 200, 20), "red": (220, 20, 20), "white": (230, 230, 230)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write noisy images of one colour each, 16 per class for training and 3 for evaluation, and return their folder."""
    made, rng = tmp_path_factory.mktemp("cifar10"), np.random.default_rng(0)
    for part, count in (("train", 16), ("test", 3)):
        for name, color in COLORS.items():
            (made / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(color + rng.normal(0, 20, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(made / part / name / f"{number:04}.jpg")
    return made


def module(folder: Path) -> Any:
    return sys.modules[type(load_task(EXAMPLE, {"data": str(folder)})).__module__]


def test_images_are_the_normalised_pixels_of_the_files_and_labels_their_folders(folder: Path) -> None:
    data = load_task(EXAMPLE, {"data": str(folder)}).eval_data()
    files = sorted((folder / "test").glob("*/*.jpg"))
    assert len(data) == len(files) == 12
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    for place, path in enumerate(files):
        image, label = data[place]
        stored = np.array(Image.open(path)) / 255
        np.testing.assert_allclose(image.permute(1, 2, 0).numpy() * deviation + mean, stored, atol=1e-5)
        assert sorted(COLORS)[label] == path.parent.name


def test_augmentation_is_every_window_of_the_padded_image_and_its_mirror_image(folder: Path) -> None:
    image = torch.arange(3 * 32 * 32.0).view(3, 32, 32) + 1
    padded = torch.zeros(3, 40, 40)
    padded[:, 4:36, 4:36] = image
    windows = {padded[:, y : y + 32, x : x + 32].numpy().tobytes(): (y, x, 0) for y in range(9) for x in range(9)}
    windows |= {padded[:, y : y + 32, x : x + 32].flip(2).numpy().tobytes(): (y, x, 1) for y in range(9) for x in range(9)}
    torch.manual_seed(0)
    augment = module(folder).shifted_or_mirrored
    seen = [windows[augment(image).numpy().tobytes()] for _ in range(300)]
    # in 300 draws, a shift (one of nine) or a side is missing with a probability below 1e-14
    assert [{entry[axis] for entry in seen} for axis in range(3)] == [set(range(9)), set(range(9)), {0, 1}]


def test_two_workers_learn_colours(folder: Path, tmp_path: Path) -> None:
    task = load_task(EXAMPLE, {"data": str(folder)})
    config = Config(
        train_dir=tmp_path, local=2, scheme="topk:ratio=0.1", lr=0.05, momentum=0.0, batch_size=8, max_steps=20, eval_freq=20,
        threads=1, tensorboard=False,
    )  # fmt: skip
    assert psnode.run(task, config) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert np.mean(losses[-4:]) < 0.6 * np.mean(losses[:2])


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "add --task-option data=FOLDER"), ({"data": "x", "depth": "2"}, "unknown task option 'depth'"),
     ({"data": "x", "processes": "two"}, "a whole number, not 'two'"), ({"data": "nowhere"}, "no images CLASS")],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_task(EXAMPLE, options).train_data()
