"""Detection: torchvision's Faster R-CNN or Mask R-CNN on a data set in COCO's format.

python examples/detection.py data/shapes
psnode train --local 2 --task examples/detection.py --task-option data=data/shapes --batch-size 8 \
    --optimizer adam --lr 0.002 --max-steps 400 --eval-freq 100 --train-dir runs/detection
psnode evaluate --train-dir runs/detection --task examples/detection.py

The first command makes the data set: images of coloured shapes, train.json and val.json. Your own data set needs the same layout.

Options, as --task-option KEY=VALUE
    data     the folder with images/, train.json and val.json
    size     number of pixels to which the shorter side of an image is scaled (96)
    masks    true: use Mask R-CNN, which also finds the pixels of objects, and learns them from polygons (false)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from torch import nn

from psnode.errors import ConfigurationError
from psnode.task import Batch, Task
from psnode.tasks.data.image_files import check_readable, open_image
from psnode.tasks.data.pixels import rgb
from psnode.tasks.torchvision_ops import import_torchvision

import_torchvision()  # in place of `import torchvision`, whose operators may be built for another torch

from torchvision.models.detection import FasterRCNN, MaskRCNN  # noqa: E402
from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead  # noqa: E402
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor  # noqa: E402
from torchvision.ops import MultiScaleRoIAlign, box_iou  # noqa: E402

SHAPES = ("rectangle", "ellipse", "triangle")


def make(folder: Path, images: Mapping[str, int], side: int = 96) -> None:
    """Write a data set in COCO's format, with 0 to 3 shapes in each image.

    `images`: the numbers of images for train and for val.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for part, count in images.items():
        rng = np.random.default_rng(list(images).index(part))
        entries: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for image_id in range(count):
            picture = Image.new("RGB", (side, side), tuple(rng.integers(0, 60, 3).tolist()))
            for _ in range(rng.choice(4, p=[0.1, 0.4, 0.3, 0.2])):
                width, height = rng.integers(side // 5, side // 2, 2).tolist()
                x, y = int(rng.integers(side - width)), int(rng.integers(side - height))
                kind, color = int(rng.integers(len(SHAPES))), tuple(rng.integers(100, 256, 3).tolist())
                draw = ImageDraw.Draw(picture)
                corners = (x, y, x + width - 1, y + height - 1)
                if SHAPES[kind] == "triangle":
                    draw.polygon([(x, corners[3]), (x + width // 2, y), (corners[2], corners[3])], color)
                else:
                    getattr(draw, SHAPES[kind])(corners, color)
                box: dict[str, Any] = {"bbox": [x, y, width, height], "area": width * height, "iscrowd": 0}
                box["segmentation"] = [outline(SHAPES[kind], x, y, width, height)]
                annotations.append({"id": len(annotations) + 1, "image_id": image_id, "category_id": kind + 1, **box})
            name = f"{part}-{image_id:05d}.png"
            picture.save(folder / "images" / name)
            entries.append({"id": image_id, "file_name": name, "width": side, "height": side})
        categories = [{"id": kind + 1, "name": name} for kind, name in enumerate(SHAPES)]
        text = json.dumps({"images": entries, "annotations": annotations, "categories": categories})
        (folder / f"{part}.json").write_text(text)


def outline(shape: str, x: int, y: int, width: int, height: int) -> list[float]:
    """Return the outline of a shape in a box, as corners x, y, x, y, ... in a system in which pixel i reaches from i to i + 1."""
    if shape == "triangle":
        return [x, y + height, x + width / 2, y, x + width, y + height]
    if shape == "rectangle":
        return [x, y, x + width, y, x + width, y + height, x, y + height]
    turns = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    corners = np.stack([x + width / 2 * (1 + np.cos(turns)), y + height / 2 * (1 + np.sin(turns))], 1)
    return [float(each) for each in corners.round(2).reshape(-1)]


def inside(polygons: Sequence[Sequence[float]], height: int, width: int) -> npt.NDArray[np.bool_]:
    """Return a mask (height, width) of the pixels whose centres are inside one of the polygons of an object."""
    found = np.zeros((height, width), bool)
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    for polygon in polygons:
        corners, odd = np.asarray(polygon, float).reshape(-1, 2), np.zeros((height, width), bool)
        for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, 0), strict=True):
            if y1 != y2:  # does a ray to the right cross this side of the polygon?
                odd ^= ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
        found |= odd
    return found


class Coco:
    """Images and their boxes; implements psnode.task.Data.

    A batch is (images, targets), two lists with an entry for each image. An image is float32 (3, height, width) in 0..1. A
    target is {"boxes": (n, 4) corners in pixels, "labels": (n,)}; with `masks` it also has "masks": uint8 (n, height, width).
    Images may have different sizes, and n may be 0. If there is an rng, half of the images are flipped.
    """

    def __init__(self, folder: Path, part: str, masks: bool = False) -> None:
        if not (folder / f"{part}.json").is_file():
            raise ConfigurationError(f"no {part}.json in {folder}: make a set with python examples/detection.py {folder}")
        parsed = json.loads((folder / f"{part}.json").read_text())
        self.labels = {entry["id"]: 1 + place for place, entry in enumerate(parsed["categories"])}  # 0 is the background
        self._files = {entry["id"]: folder / "images" / entry["file_name"] for entry in parsed["images"]}
        self._ids = sorted(self._files)
        for path in self._files.values():
            check_readable(str(path))  # reads only its head, so that a bad file is found before the training
        self._objects: dict[int, list[Any]] = {image: [] for image in self._ids}
        for entry in parsed["annotations"]:
            if not entry.get("iscrowd"):
                self._objects[entry["image_id"]].append(entry)
                if masks and not isinstance(entry.get("segmentation"), list):
                    raise ConfigurationError(f"{part}.json: annotation {entry['id']} has no polygons: leave masks=true out")
        self._masks = masks

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        path = self._files[self._ids[index]]
        with open_image(str(path)) as file:
            image = torch.from_numpy(np.array(rgb(file, str(path)))).permute(2, 0, 1) / 255
        objects = self._objects[self._ids[index]]
        boxes = torch.tensor([entry["bbox"] for entry in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]  # COCO's boxes are x, y, width, height
        labels = torch.tensor([self.labels[entry["category_id"]] for entry in objects], dtype=torch.int64)
        target = {"boxes": boxes, "labels": labels}
        if self._masks:
            found = [inside(entry["segmentation"], *image.shape[1:]) for entry in objects]
            target["masks"] = torch.from_numpy(np.array(found, np.uint8).reshape(-1, *image.shape[1:]))
        return image, target

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """Return lists instead of tensors, since images and targets have different shapes."""
        examples = [self[int(index)] for index in indices]
        if rng is not None:
            examples = [flipped(*example) if rng.random() < 0.5 else example for example in examples]
        return [image for image, _ in examples], [target for _, target in examples]


def flipped(image: torch.Tensor, target: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the image and the target, mirrored from left to right."""
    x1, y1, x2, y2 = target["boxes"].unbind(1)
    width = image.shape[2]
    masks = {"masks": target["masks"].flip(2)} if "masks" in target else {}
    return image.flip(2), {**target, **masks, "boxes": torch.stack([width - x2, y1, width - x1, y2], 1)}


def backbone(width: int) -> nn.Sequential:
    """Return a network from (B, 3, H, W) to (B, width, H/8, W/8). It uses group norm, which suits a few images per worker."""
    layers: list[nn.Module] = []
    for into, out in ((3, width // 2), (width // 2, width), (width, width)):
        layers += [nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, out), nn.ReLU()]
    return nn.Sequential(*layers)


class Detection(Task):
    """A detection task. Its loss is the sum of Faster R-CNN's four losses or Mask R-CNN's five, and its metric is ap50."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        if unknown := sorted(set(self.options) - {"data", "size", "masks"}):
            raise ConfigurationError(f"unknown task option {unknown[0]!r}: the choices are data, size, masks")
        if "data" not in self.options:
            raise ConfigurationError("add --task-option data=FOLDER; python examples/detection.py FOLDER makes one")
        self.folder, self.side = Path(self.options["data"]), self.options.get("size", "96")
        if not self.side.isdecimal() or int(self.side) < 32:
            raise ConfigurationError(f"task option size must be a whole number of at least 32, not {self.side!r}")
        if self.options.get("masks", "false") not in ("true", "false"):
            raise ConfigurationError(f"task option masks must be true or false, not {self.options['masks']!r}")
        self.masks = self.options.get("masks") == "true"

    def model(self) -> nn.Module:
        """Return a small model, which can be trained on a processor.

        If you have pretrained weights on disk, use fasterrcnn_resnet50_fpn or maskrcnn_resnet50_fpn instead.
        """
        width, side, bins = 32, int(self.side), 5
        body = backbone(width)
        body.out_channels = width  # type: ignore[assignment]  # FasterRCNN asks for it
        classes = 1 + len(Coco(self.folder, "train").labels)
        heads: dict[str, nn.Module] = {}
        if self.masks:
            heads["mask_roi_pool"] = MultiScaleRoIAlign(["0"], 2 * bins, sampling_ratio=2)
            heads["mask_head"] = MaskRCNNHeads(width, (width, width), 1)
            heads["mask_predictor"] = MaskRCNNPredictor(width, width, classes)
        return (MaskRCNN if self.masks else FasterRCNN)(
            body,
            min_size=side,
            max_size=2 * side,
            rpn_anchor_generator=AnchorGenerator(((side // 5, side // 3, side // 2),), ((0.5, 1.0, 2.0),)),
            rpn_pre_nms_top_n_train=300,
            rpn_pre_nms_top_n_test=300,
            rpn_post_nms_top_n_train=64,
            rpn_post_nms_top_n_test=64,
            box_roi_pool=MultiScaleRoIAlign(["0"], bins, sampling_ratio=2),
            box_head=TwoMLPHead(width * bins**2, 128),
            box_predictor=FastRCNNPredictor(128, classes),
            box_batch_size_per_image=32,
            **heads,
        )

    def train_data(self) -> Coco:
        return Coco(self.folder, "train", self.masks)

    def eval_data(self) -> Coco:
        return Coco(self.folder, "val", self.masks)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Return the loss and, in evaluation, the detections.

        torchvision's models return losses only in training mode, and detections only in evaluation mode. So in evaluation the
        model runs twice.
        """
        images, targets = batch
        training = model.training
        losses = model.train()(images, targets)
        found = None if training else model.eval()(images)
        total: torch.Tensor = sum(losses.values())
        return total, found

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        if outputs is None:
            return {}
        pairs = list(zip(outputs, batch[1], strict=True))
        found = {"ap50": sum(average_precision(*pair) for pair in pairs)}
        if self.masks:
            found["mask_ap50"] = sum(average_precision(*pair, overlap=mask_iou) for pair in pairs)
        return found

    def size(self, batch: Batch) -> int:
        return len(batch[0])


Tensors = Mapping[str, torch.Tensor]


def boxes_iou(found: Tensors, target: Tensors) -> torch.Tensor:
    """Return the intersection over union of each detected box with each box of the target."""
    return box_iou(found["boxes"], target["boxes"])


def mask_iou(found: Tensors, target: Tensors) -> torch.Tensor:
    """Return the intersection over union of each detected mask with each mask of the target.

    A detected mask contains the pixels with a probability of at least 1/2.
    """
    one, other = (found["masks"][:, 0] >= 0.5).flatten(1).float(), target["masks"].flatten(1).float()
    both = one @ other.T
    return both / (one.sum(1)[:, None] + other.sum(1) - both).clamp(min=1)


def average_precision(
    found: Tensors,
    target: Tensors,
    least: float = 0.5,
    overlap: Callable[[Tensors, Tensors], torch.Tensor] = boxes_iou,
) -> float:
    """Return the area under the curve of precision over recall, for the detections in one image.

    This differs from COCO, which pools all images and averages over classes. In the order of falling scores, each detection is
    matched with the object of its class that it overlaps most. The detection is wrong if this object is already matched, or if
    the overlap is less than `least`. For an image without objects the result is 1 if no detection scores 1/2 or more, otherwise
    0.
    """
    objects = len(target["boxes"])
    if not objects:
        return float(not (found["scores"] >= 0.5).any())
    if not len(found["scores"]):
        return 0.0
    overlaps = overlap(found, target) * (found["labels"][:, None] == target["labels"])
    taken: set[int] = set()
    area = 0.0
    for rank, index in enumerate(found["scores"].argsort(descending=True).tolist(), 1):
        best = int(overlaps[index].argmax())
        if overlaps[index, best] >= least and best not in taken:
            taken.add(best)
            area += len(taken) / rank / objects
    return area


if __name__ == "__main__":
    make(Path(sys.argv[1]), {"train": 400, "val": 100})
