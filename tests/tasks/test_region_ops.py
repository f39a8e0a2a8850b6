"""psnode.tasks.region_ops: nms and roi_align compared with loops from their definitions, and gradients with finite
differences.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from psnode.tasks import region_ops
from psnode.tasks.torchvision_ops import import_torchvision


def boxes(count: int, seed: int, size: float = 20.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * size
    return torch.cat([corner, corner + 0.3 + torch.rand(count, 2, generator=generator) * size / 2], 1)


def overlap(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
def test_nms_keeps_what_no_better_kept_box_overlaps(threshold):
    given, scores = boxes(60, seed=1), torch.rand(60, generator=torch.Generator().manual_seed(2))
    expected: list[int] = []
    for index in sorted(range(60), key=lambda i: -float(scores[i])):
        if all(overlap(given[index].tolist(), given[other].tolist()) <= threshold for other in expected):
            expected.append(index)
    assert import_torchvision("ops").nms(given, scores, threshold).tolist() == expected
    assert 0 < len(expected) <= 60


def test_nms_of_no_boxes_and_of_equal_scores():
    nms = import_torchvision("ops").nms
    assert nms(torch.zeros(0, 4), torch.zeros(0), 0.5).shape == (0,)
    assert nms(torch.tensor([[0.0, 0, 1, 1]] * 3), torch.ones(3), 0.5).tolist() == [0]


def bilinear(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """Return the value of image (C, H, W) at (y, x) by its four neighbours; 0 more than one pixel outside."""
    _, height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(image))
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = (1 - x + left) * image[:, top, left] + (x - left) * image[:, top, right]
    lower = (1 - x + left) * image[:, bottom, left] + (x - left) * image[:, bottom, right]
    return (1 - y + top) * upper + (y - top) * lower


def brute_roi_align(features, rois, scale, height, width, ratio, aligned):
    images = features.double().numpy()
    result = np.zeros((len(rois), images.shape[1], height, width))
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (side * scale - (0.5 if aligned else 0.0) for side in box)
        w, h = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        down, across = (ratio, ratio) if ratio > 0 else (math.ceil(h / height), math.ceil(w / width))
        for i, j in itertools.product(range(height), range(width)):
            points = itertools.product(range(down), range(across))
            values = [
                bilinear(images[int(image)], y1 + (i + (a + 0.5) / down) * h / height, x1 + (j + (b + 0.5) / across) * w / width)
                for a, b in points
            ]
            result[k, :, i, j] = np.mean(values, axis=0)
    return result


def regions(count: int, images: int, seed: int) -> torch.Tensor:
    """Return regions, some of which extend over an edge or lie outside."""
    outside = torch.tensor([[-6.0, -3, 2, 4], [14, 10, 40, 30], [50, 50, 60, 60], [3, 3, 3.2, 3.1]])
    given = torch.cat([boxes(count - len(outside), seed), outside])
    return torch.cat([torch.arange(count)[:, None] % images, given], 1)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [2, -1])
def test_roi_align_is_the_mean_of_bilinear_samples(ratio, aligned):
    features = torch.randn(3, 2, 9, 12, generator=torch.Generator().manual_seed(3))
    rois = regions(10, 3, seed=4)
    arguments = (0.5, 3, 4, ratio, aligned)
    mine = import_torchvision("ops").roi_align(features, rois, (3, 4), 0.5, ratio, aligned)
    np.testing.assert_allclose(mine.numpy(), brute_roi_align(features, rois, *arguments), atol=2e-5)


def test_the_gradient_of_roi_align_is_that_of_differences():
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 1, 5, 6, generator=generator).requires_grad_()
    rois = regions(6, 2, seed=6)
    weights = torch.randn(6, 1, 2, 3, generator=generator)
    align = import_torchvision("ops").roi_align
    (align(features, rois, (2, 3), 0.5, 2, True) * weights).sum().backward()
    # linear in the features: a difference over a whole unit is exact except for rounding
    with torch.no_grad():
        for place in itertools.product(range(2), [0], range(5), range(6)):
            moved = features.clone()
            moved[place] += 1
            before, after = (brute_roi_align(x, rois, 0.5, 2, 3, 2, True) for x in (features, moved))
            assert float(features.grad[place]) == pytest.approx(float(((after - before) * weights.numpy()).sum()), abs=1e-4)


def test_no_regions_make_no_features_and_types_stay():
    features = torch.randn(1, 2, 4, 4).bfloat16()
    align = import_torchvision("ops").roi_align
    assert align(features, torch.zeros(0, 5).bfloat16(), 3).shape == (0, 2, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert align(features, torch.tensor([[0.0, 0, 0, 4, 4]]).bfloat16(), 3).dtype == torch.bfloat16


def test_plain_operators_agree_with_the_compiled_ones_where_there_are_any():
    import_torchvision()
    if not hasattr(torch.ops.torchvision, "deform_conv2d"):
        pytest.skip("torchvision's compiled operators cannot be loaded beside this torch")
    features, rois = torch.randn(2, 3, 9, 9), regions(12, 2, seed=7)
    compiled = torch.ops.torchvision.roi_align(features, rois, 0.5, 3, 3, -1, True)
    torch.testing.assert_close(region_ops.roi_align(features, rois, 0.5, 3, 3, -1, True), compiled, atol=1e-4, rtol=1e-4)
    given, scores = boxes(300, 8), torch.rand(300)
    assert torch.equal(region_ops.nms(given, scores, 0.4), torch.ops.torchvision.nms(given, scores, 0.4))
