"""nms and roi_align in plain torch, for detection models on systems where torchvision's compiled operators cannot be loaded.

`declare` registers them under the names of torchvision's own operators, with the same arguments.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

_ROI_ALIGN = (
    "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor"
)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes that non-maximum suppression keeps.

    Of overlapping boxes, it keeps only the box with the highest score. boxes: (N, 4), corners x1, y1, x2, y2; scores: (N,).
    Two boxes overlap if their intersection is more than `iou_threshold` times their union. The indices are int64, by
    descending score; of equal scores, the first counts as higher. The computation takes memory for N^2 values.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order].float()
    corner, opposite = boxes[:, :2], boxes[:, 2:]
    common = torch.minimum(opposite[:, None], opposite) - torch.maximum(corner[:, None], corner)
    shared = common.clamp_(min=0).prod(-1)
    areas = (opposite - corner).prod(-1)
    overlaps = (shared > iou_threshold * (areas[:, None] + areas - shared)).cpu().numpy()
    kept: list[int] = []
    for index in range(len(order)):
        if not overlaps[index, kept].any():
            kept.append(index)
    return order[torch.tensor(kept, dtype=torch.int64, device=order.device)]


def roi_align(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Return the mean of bilinearly interpolated samples in each bin of each region (He et al.: Mask R-CNN, ICCV 2017).

    features: (N, C, H, W); rois: (K, 5), the index of the image and the corners x1, y1, x2, y2. Corners times
    `spatial_scale` are in pixels of `features`. Returns (K, C, pooled_height, pooled_width) in the type of `features`, with
    a gradient only for `features`. sampling_ratio: samples per bin and axis; if 0 or less, the width of a bin in pixels,
    rounded up. aligned: True if pixel centres are at one half.

    Interpolation along y and x is independent, so each region is computed with two matrices: rows * features * columns.
    """
    rois = rois.detach().float()
    images = rois[:, 0].long()
    starts, ends = (rois[:, pair] * spatial_scale - (0.5 if aligned else 0.0) for pair in ((1, 2), (3, 4)))
    sides = ends - starts if aligned else (ends - starts).clamp(min=1)
    result = features.new_empty((len(rois), features.shape[1], pooled_height, pooled_width), dtype=torch.float32)
    with torch.autocast(features.device.type, enabled=False):
        columns = _weights(starts[:, 0], sides[:, 0], pooled_width, features.shape[3], sampling_ratio)
        rows = _weights(starts[:, 1], sides[:, 1], pooled_height, features.shape[2], sampling_ratio)
        for image in sorted(set(images.tolist())):
            [here] = (images == image).nonzero(as_tuple=True)
            lines = torch.einsum("kph,chw->kcpw", rows[here], features[image].float())
            result = result.index_copy(0, here, torch.einsum("kcpw,kqw->kcpq", lines, columns[here]))
    return result.to(features.dtype)


def _weights(starts: Tensor, sides: Tensor, bins: int, size: int, sampling_ratio: int) -> Tensor:
    """Return the weight of each of `size` pixels in each bin of each region along one axis: (K, bins, size).

    A sample below -1 or above `size` counts as 0. A sample between such a limit and the outermost pixel has the value of this
    pixel.
    """
    wanted = torch.full_like(sides, float(sampling_ratio)) if sampling_ratio > 0 else (sides / bins).ceil()
    most = int(wanted.max().clamp(min=1)) if len(wanted) else 1
    sample = torch.arange(most, device=sides.device)
    step = torch.arange(bins, device=sides.device)[:, None] + (sample + 0.5) / wanted[:, None, None].clamp(min=1)
    at = starts[:, None, None] + step * (sides / bins)[:, None, None]  # (K, bins, samples)
    counted = (sample < wanted[:, None, None]) & (at >= -1) & (at <= size)
    pixels = torch.arange(size, device=sides.device)
    shares = (1 - (at.clamp(0, size - 1)[..., None] - pixels).abs()).clamp(min=0)
    return (shares * counted[..., None]).sum(2) / wanted[:, None, None].clamp(min=1)


def declare() -> None:
    """Register with torch the implementation of nms, whose schema is already declared, and roi_align with its schema."""
    for device in ("CPU", "CUDA"):
        torch.library.impl("torchvision::nms", device)(nms)
    if not hasattr(torch.ops.torchvision, "roi_align"):
        torch.library.define("torchvision::roi_align", _ROI_ALIGN)
        torch.library.impl("torchvision::roi_align", "CompositeImplicitAutograd")(roi_align)


def lend(boxes: ModuleType, regions: ModuleType) -> None:
    """Mark the operators of torchvision.ops.boxes and torchvision.ops.roi_align as available.

    Both modules check before each call that the operators are available.
    """
    for module in (boxes, regions):
        vars(module)["_assert_has_ops"] = lambda: None
    vars(regions)["_has_ops"] = lambda: True
