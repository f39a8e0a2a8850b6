"""torchvision's classifiers, and the import of torchvision with a torch that lacks its compiled operators."""

import subprocess
import sys

import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.tasks.models import build, resolve
from psnode.tasks.models.from_torchvision import torchvision_names

CIFAR = (3, 32, 32)


def test_resnet18_has_the_published_count_with_ten_classes():
    model = build("torchvision:ResNet18", CIFAR, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512 - 513 * 1000 + 513 * 10
    assert model.eval()(torch.zeros(2, *CIFAR)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "side"),
    [("googlenet", 64), ("regnet_x_400mf", 32), ("shufflenet_v2_x0_5", 32), ("swin_t", 32), ("squeezenet1_1", 32)],
)
def test_classifiers_return_plain_logits_in_training(name, side):
    model = build(f"torchvision:{name}", (3, side, side), 7).train()
    assert model(torch.randn(2, 3, side, side)).shape == (2, 7)


def test_inception_is_refused_below_its_smallest_image():
    with pytest.raises(ConfigurationError, match="inception_v3 cannot take images of 32x32") as caught:
        build("torchvision:inception_v3", CIFAR, 10)
    taken = str(caught.value).rpartition("it takes ")[2].split(", ")
    assert "299" in taken
    assert "64" not in taken  # Szegedy et al. 2016: five reductions; torchvision states a minimum of 75
    assert "\n" not in str(caught.value)


def test_a_vision_transformer_takes_its_one_size_only():
    with pytest.raises(ConfigurationError, match=r"it takes 224$"):
        build("torchvision:vit_b_32", CIFAR, 10)


def test_grey_images_are_refused():
    with pytest.raises(ConfigurationError, match="takes images of 3 channels, but the data set's have 1"):
        build("torchvision:resnet18", (1, 28, 28), 10)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean resnext50_32x4d"):
        resolve("torchvision:resnext50_32x4")


def test_every_name_of_torchvision_resolves_to_itself():
    assert len(torchvision_names()) >= 70
    assert all(resolve(f"torchvision:{name}") == f"torchvision:{name}" for name in torchvision_names())


def test_a_name_that_two_networks_share_but_for_underscores_is_refused():
    assert {"regnet_x_16gf", "regnet_x_1_6gf"} <= set(torchvision_names())
    with pytest.raises(ConfigurationError, match="write regnet_x_16gf or regnet_x_1_6gf"):
        resolve("torchvision:RegNetX16GF")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True).stdout


def test_torchvision_is_imported_without_a_warning_and_twice():
    code = "from psnode.tasks.torchvision_ops import import_torchvision as i; i(); print(i('datasets').__name__, i().__name__)"
    assert run(code).split() == ["torchvision.datasets", "torchvision"]


def test_operators_that_are_there_are_not_declared_again():
    code = (
        "import torch; schema = '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'\n"
        "torch.ops.load_library = lambda path: [torch.library.define(f'torchvision::{n}', schema) for n in ('nms', 'qnms')]\n"
        "from psnode.tasks.torchvision_ops import import_torchvision\n"
        "import psnode.tasks.torchvision_ops as module; from pathlib import Path\n"
        "import importlib.util; module._declare_missing(Path(importlib.util.find_spec('torchvision').origin).parent)\n"
        "print(torch.ops.torchvision.nms)"
    )
    assert run(code).strip() == "torchvision.nms"


def test_names_are_known_without_torch():
    code = "import sys; from psnode.tasks import data, models; models.check('lenet', (1, 28, 28)); print('torch' in sys.modules)"
    assert run(code).strip() == "False"
