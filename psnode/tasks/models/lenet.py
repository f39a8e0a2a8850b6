"""LeNet as in Caffe and the literature on parameter servers: 431 080 parameters at 1x28x28 and 10 classes.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998, in the wider
form of Caffe's MNIST example (20 and 50 maps, 500 hidden units, max pooling, ReLU).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def lenet(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes); sides must be at least 16."""
    channels, height, width = image_shape
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 20, 5),
        "pool1": nn.MaxPool2d(2),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(20, 50, 5),
        "pool2": nn.MaxPool2d(2),
        "relu2": nn.ReLU(),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(50 * rows * columns, 500),
        "relu3": nn.ReLU(),
        "fc2": nn.Linear(500, classes),
    }
    return nn.Sequential(OrderedDict(layers))
