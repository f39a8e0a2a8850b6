"""He initialisation, shared by the families of convolutional networks."""

from __future__ import annotations

from torch import nn


def he_normal(model: nn.Module) -> nn.Module:
    """Draw the weights of every convolution from N(0, 2 / fan-out) in place, set its bias to zero, and return `model`.

    He, Zhang, Ren, Sun: Delving deep into rectifiers, ICCV 2015. Batch norm and linear layers keep torch's defaults.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
