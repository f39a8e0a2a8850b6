"""examples/detection.py: data in COCO's format, boxes at the positions of the shapes, and a job that learns to find shapes."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import psnode
from psnode import Config
from psnode.errors import ConfigurationError
from psnode.evaluator import evaluate
from psnode.task import Data, Task, load_task

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "detection.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 32 images for training and 12 for evaluation, of 64 x 64 pixels, and return their folder."""
    made = tmp_path_factory.mktemp("shapes")
    with pytest.raises(ConfigurationError, match="make a set with"):
        load_task(EXAMPLE, {"data": str(made)}).train_data()
    sys.modules[type(load_task(EXAMPLE, {"data": str(made)})).__module__].make(made, {"train": 32, "val": 12}, side=64)
    return made


@pytest.fixture
def task(folder: Path) -> Task:
    return load_task(EXAMPLE, {"data": str(folder), "size": "64"})


def test_the_set_is_in_cocos_format_and_boxes_hold_what_is_no_background(task: Task, folder: Path) -> None:
    parsed = json.loads((folder / "train.json").read_text())
    assert sorted(parsed) == ["annotations", "categories", "images"]
    data, images = task.train_data(), {entry["id"]: entry for entry in parsed["images"]}
    assert isinstance(data, Data)
    assert len(data) == len(images) == 32
    counts = set()
    for place, identity in enumerate(sorted(images)):
        [image], [target] = data.batch(np.array([place]), None)
        stored = np.array(Image.open(folder / "images" / images[identity]["file_name"]))
        assert np.array_equal((image * 255).round().byte().permute(1, 2, 0).numpy(), stored)
        inside = np.zeros(stored.shape[:2], bool)
        for entry in (entry for entry in parsed["annotations"] if entry["image_id"] == identity):
            x, y, width, height = entry["bbox"]
            inside[y : y + height, x : x + width] = True
        assert (stored[~inside].max(initial=0) < 60).all()
        assert not inside.any() or stored[inside].max() >= 100
        expected = [
            [x, y, x + w, y + h] for e in parsed["annotations"] if e["image_id"] == identity for x, y, w, h in [e["bbox"]]
        ]
        assert target["boxes"].tolist() == expected
        counts.add(len(target["labels"]))
    assert counts == {0, 1, 2, 3}


def test_a_flip_moves_boxes_with_their_pixels(task: Task) -> None:
    data = task.train_data()
    place = next(place for place in range(len(data)) if len(data[place][1]["labels"]) == 1)
    image, target = data[place]
    examples = [data.batch(np.array([place]), np.random.default_rng(seed)) for seed in range(12)]
    flips = [(images[0], targets[0]) for images, targets in examples if not torch.equal(images[0], image)]
    assert 0 < len(flips) < 12
    other, moved = flips[0]
    (x1, y1, x2, y2), (a1, b1, a2, b2) = target["boxes"][0].int().tolist(), moved["boxes"][0].int().tolist()
    assert torch.equal(other[:, b1:b2, a1:a2], image[:, y1:y2, x1:x2].flip(2))


def test_average_precision_of_one_image_by_hand(task: Task) -> None:
    average_precision = sys.modules[type(task).__module__].average_precision
    target = {"boxes": torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]]), "labels": torch.tensor([1, 2])}
    found = {
        "boxes": torch.tensor([[0.0, 0, 10, 9], [0, 0, 10, 10], [20, 20, 30, 30], [20, 20, 30, 31]]),
        "labels": torch.tensor([1, 1, 1, 2]),  # right, a second one of the same object, of the wrong class, right
        "scores": torch.tensor([0.9, 0.8, 0.7, 0.6]),
    }
    assert average_precision(found, target) == pytest.approx((1 / 1 + 2 / 4) / 2)
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    assert average_precision(none, target) == 0
    assert average_precision(none, none) == 1
    assert average_precision(found, none) == 0


@pytest.fixture
def masked(folder: Path) -> Task:
    return load_task(EXAMPLE, {"data": str(folder), "size": "64", "masks": "true"})


def test_masks_are_the_pixels_of_the_shapes(masked: Task, folder: Path) -> None:
    """Check that masks cover the non-background pixels, except a few along slanted edges, and that each mask fills its box
    to the edges.
    """
    data = masked.train_data()
    wrong = pixels = 0
    for place in range(len(data)):
        [image], [target] = data.batch(np.array([place]), None)
        assert target["masks"].dtype == torch.uint8
        assert target["masks"].shape == (len(target["labels"]), 64, 64)
        shapes = image.amax(0) * 255 >= 99.5
        covered = target["masks"].any(0) if len(target["labels"]) else torch.zeros(64, 64, dtype=torch.bool)
        wrong, pixels = wrong + int((shapes != covered).sum()), pixels + int(shapes.sum())
        for mask, box in zip(target["masks"], target["boxes"].int().tolist(), strict=True):
            rows, columns = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
            found = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
            assert max(abs(one - other) for one, other in zip(found, box, strict=True)) <= 2
    assert wrong < 0.05 * pixels


def test_polygons_are_filled_where_pixels_have_their_centres(task: Task) -> None:
    inside = sys.modules[type(task).__module__].inside
    square = inside([[1, 1, 3, 1, 3, 4, 1, 4]], 5, 6)
    assert np.argwhere(square).tolist() == [[row, column] for row in (1, 2, 3) for column in (1, 2)]
    # pixel centres on the diagonal may count as inside or outside, depending on how the ray meets them
    half = inside([[0, 0, 4, 4, 0, 4]], 4, 4)
    assert half[np.tril_indices(4, -1)].all()
    assert not half[np.triu_indices(4, 1)].any()
    two = inside([[0, 0, 1, 0, 1, 1, 0, 1], [2, 2, 4, 2, 4, 3, 2, 3]], 4, 4)
    assert np.argwhere(two).tolist() == [[0, 0], [2, 2], [2, 3]]
    assert not inside([], 4, 4).any()


def test_a_flip_moves_masks_with_their_pixels(masked: Task) -> None:
    flipped, data = sys.modules[type(masked).__module__].flipped, masked.train_data()
    image, target = next(data[place] for place in range(len(data)) if len(data[place][1]["labels"]) == 2)
    other, moved = flipped(image, target)
    assert torch.equal(moved["masks"], target["masks"].flip(2))
    assert torch.equal(other.flip(2), image)


def test_precision_of_masks_by_hand(masked: Task) -> None:
    """Check the overlap of a detection that covers 6 of an object's 8 pixels and 2 other pixels: 6 of 10 are common."""
    module = sys.modules[type(masked).__module__]
    target = {"boxes": torch.tensor([[0.0, 0, 4, 2]]), "labels": torch.tensor([1]), "masks": torch.zeros(1, 4, 4)}
    target["masks"][0, :2] = 1
    chances = torch.zeros(1, 1, 4, 4)
    chances[0, 0, :3, :2], chances[0, 0, :2, 2] = 0.6, 0.5
    chances[0, 0, 3, :] = 0.49
    found = {"boxes": torch.tensor([[9.0, 9, 10, 10]]), "labels": torch.tensor([1]), "scores": torch.tensor([0.9])}
    found["masks"] = chances
    assert module.mask_iou(found, target).item() == pytest.approx(6 / 10)
    assert module.average_precision(found, target, overlap=module.mask_iou) == 1
    assert module.average_precision(found, target, 0.7, module.mask_iou) == 0
    assert module.average_precision(found, target) == 0  # the boxes do not overlap


def test_annotations_without_polygons_are_refused(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "set"
    shutil.copytree(folder, made)
    parsed = json.loads((made / "train.json").read_text())
    parsed["annotations"][3]["segmentation"] = {"size": [64, 64], "counts": "x"}
    (made / "train.json").write_text(json.dumps(parsed))
    assert len(load_task(EXAMPLE, {"data": str(made)}).train_data()) == 32
    with pytest.raises(ConfigurationError, match="annotation 4 has no polygons"):
        load_task(EXAMPLE, {"data": str(made), "masks": "true"}).train_data()


@pytest.mark.long
def test_two_workers_learn_masks(masked: Task, tmp_path: Path) -> None:
    """Check that the loss, which has a fifth term for masks, falls by more than a quarter, and that the precisions of boxes
    and masks are reported.
    """
    config = Config(
        train_dir=tmp_path, local=2, scheme="topk:ratio=0.05", optimizer="adam", lr=0.003, batch_size=4, max_steps=30,
        eval_freq=30, threads=1, tensorboard=False,
    )  # fmt: skip
    assert psnode.run(masked, config) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    model = masked.model()
    assert any("mask_head" in name for name, _ in model.named_parameters())
    measured = evaluate(masked, model, masked.eval_data(), 30, 6, torch.device("cpu"))
    assert sorted(measured.metrics) == ["ap50", "mask_ap50"]
    assert all(0 <= value <= 1 for value in measured.metrics.values())


@pytest.mark.long
def test_two_workers_learn_to_detect(task: Task, tmp_path: Path) -> None:
    config = Config(
        train_dir=tmp_path, local=2, scheme="topk:ratio=0.05", optimizer="adam", lr=0.003, batch_size=4, max_steps=40,
        eval_freq=40, threads=1, tensorboard=False,
    )  # fmt: skip
    assert psnode.run(task, config) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    model = task.model()
    from safetensors.torch import load_model

    load_model(model, next(tmp_path.glob("checkpoints/*40/model.safetensors")))
    measured = evaluate(task, model, task.eval_data(), 40, 6, torch.device("cpu"))
    assert measured.examples == 12
    assert 0 <= measured.metrics["ap50"] <= 1
    assert np.isfinite(measured.loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "add --task-option data=FOLDER"), ({"data": "x", "depth": "2"}, "unknown task option 'depth'"),
     ({"data": "x", "size": "big"}, "at least 32, not 'big'"), ({"data": "x", "masks": "yes"}, "true or false, not 'yes'")],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_task(EXAMPLE, options)


@pytest.mark.parametrize("content", [None, "F", "I"])
def test_an_image_that_cannot_be_read_is_refused_before_training(folder: Path, tmp_path: Path, content: str | None) -> None:
    made = tmp_path / "set"
    shutil.copytree(folder, made)
    bad = made / "images" / "val-00003.png"
    bad.unlink()
    if content is not None:
        Image.new(content, (64, 64)).save(bad, "TIFF")
    with pytest.raises(ConfigurationError, match=r"val-00003\.png (cannot be decoded|holds)"):
        load_task(EXAMPLE, {"data": str(made)}).eval_data()
