"""The networks compared with published parameter counts, their depth, and the images that they accept."""

import pytest
import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.tasks.models import build, check, networks, resolve

CIFAR = (3, 32, 32)

# torchvision publishes the counts of the ImageNet networks. The CIFAR stem has a 3x3 instead of a 7x7 convolution of 3 -> 64
# maps, and the head has 10 instead of 1000 classes, so the difference can be computed.
STEM = 64 * 3 * (49 - 9)
HEAD = {512: 513 * 990, 2048: 2049 * 990}
# torchvision's VGG classifier is 25088-4096-4096-1000 instead of 512-10
VGG_HEAD = 25089 * 4096 + 4097 * 4096 + 4097 * 1000 - 513 * 10


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(name: str, image_shape=CIFAR, classes=10) -> nn.Module:
    with torch.device("meta"):
        return build(name, image_shape, classes)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet-18", 11_689_512 - STEM - HEAD[512]),
        ("resnet-34", 21_797_672 - STEM - HEAD[512]),
        ("resnet-50", 25_557_032 - STEM - HEAD[2048]),
        ("resnet-101", 44_549_160 - STEM - HEAD[2048]),
        ("resnet-152", 60_192_808 - STEM - HEAD[2048]),
        ("vgg-11", 132_868_840 - VGG_HEAD),
        ("vgg-13", 133_053_736 - VGG_HEAD),
        ("vgg-16", 138_365_992 - VGG_HEAD),
        ("vgg-19", 143_678_248 - VGG_HEAD),
    ],
)
def test_parameters_equal_torchvisions_but_for_stem_and_head(name, published):
    assert parameters(on_meta(name)) == published


@pytest.mark.parametrize(
    ("name", "millions", "digits"),
    [
        ("resnet-18", 11.17, 2),
        ("resnet-20", 0.27, 2),  # He et al. 2016, table 6
        ("resnet-32", 0.46, 2),
        ("resnet-56", 0.85, 2),
        ("resnet-110", 1.7, 1),
        ("densenet-40", 1.0, 1),  # Huang et al. 2017, table 2: L=40 k=12; BC L=100 k=12; BC L=190 k=40
        ("densenet", 0.8, 1),
        ("densenet-190", 25.6, 1),
        ("alexnet", 2.47, 2),  # the small AlexNet of the CIFAR-10 model zoos
    ],
)
def test_parameters_round_to_the_published_millions(name, millions, digits):
    assert round(parameters(on_meta(name)) / 1e6, digits) == millions


def test_lenet_has_431080_parameters_on_mnist():
    layers = {"conv1": (1 * 25 + 1) * 20, "conv2": (20 * 25 + 1) * 50, "fc1": (50 * 4 * 4 + 1) * 500, "fc2": 501 * 10}
    model = on_meta("LeNet", (1, 28, 28))
    assert {name: parameters(getattr(model, name)) for name in layers} == layers
    assert parameters(model) == 431_080


@pytest.mark.parametrize(
    ("name", "layers"),
    [(f"resnet-{depth}", depth) for depth in (18, 20, 32, 34, 50, 56, 101, 110, 152)]
    + [(f"vgg-{depth}", depth - 2) for depth in (11, 13, 16, 19)]  # one linear layer instead of three
    + [("densenet-40", 40), ("densenet", 100), ("lenet", 4), ("fc", 3)],
)
def test_depth_counts_weighted_layers_outside_shortcuts(name, layers):
    modules = dict(on_meta(name).named_modules())
    counted = [key for key, module in modules.items() if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in key]
    assert len(counted) == layers


@pytest.mark.sweep
@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("image_shape", [(3, 32, 32), (1, 40, 33)])
def test_logits_have_one_column_a_class(name, image_shape):
    images = torch.empty((2, *image_shape), device="meta")
    assert on_meta(name, image_shape, 7)(images).shape == (2, 7)


@pytest.mark.sweep
@pytest.mark.parametrize("name", networks())
def test_smallest_accepted_image_goes_through(name):
    smallest = next(side for side in range(1, 65) if accepts(name, (3, side, side)))
    assert on_meta(name, (3, smallest, smallest))(torch.empty((2, 3, smallest, smallest), device="meta")).shape == (2, 10)


@pytest.mark.parametrize(("name", "limit"), [("lenet", 16), ("vgg-16", 32), ("alexnet", 29)])
def test_sizes_below_the_limit_are_refused_because_nothing_would_be_left(name, limit):
    assert accepts(name, (3, limit, limit))
    with pytest.raises(ConfigurationError, match=f"at least {limit}x{limit}.*are {limit - 1}x40.*fc"):
        build(name, (3, limit - 1, 40), 10)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        on_meta(name, (3, limit, limit))(torch.empty((2, 3, limit - 1, limit - 1), device="meta"))


@pytest.mark.parametrize("name", ["lenet", "fc", "resnet-20", "resnet-18", "vgg-11", "alexnet", "densenet-40"])
def test_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    model = build(name, CIFAR, 10)
    torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, key
        assert parameter.grad is not None, key


def test_weights_come_from_torchs_generator():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(build("resnet-20", CIFAR, 10))
    first, same, other = (model.head.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_shortcuts_of_the_thin_family_subsample_and_pad_with_zeros():
    from psnode.tasks.models.resnet_cifar import ThinResidual

    block = ThinResidual(2, 6).eval()
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.arange(2 * 16.0).reshape(1, 2, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 2:4], x[:, :, ::2, ::2])
    assert not out[:, [0, 1, 4, 5]].any()


def test_he_initialisation_has_its_variance():
    torch.manual_seed(0)
    weight = build("resnet-18", CIFAR, 10).stage4[1].residual[0].weight.detach()  # 512 x 512 x 3 x 3
    # the standard deviation of the sample variance over n draws is var * sqrt(2 / n), here 0.1 %: five of them
    assert float(weight.var()) == pytest.approx(2 / (512 * 9), rel=0.005)


@pytest.mark.parametrize("name", ["ResNet18", "resnet_18", "RESNET-18", "resnet-18"])
def test_names_ignore_case_hyphens_and_underscores(name):
    assert resolve(name) == "resnet-18"


def test_an_unknown_network_is_answered_with_the_nearest_and_all_others():
    with pytest.raises(ConfigurationError) as caught:
        build("ResNet19", CIFAR, 10)
    message = str(caught.value)
    assert "'ResNet19'" in message
    assert "did you mean resnet-18?" in message or "did you mean vgg-19?" in message
    assert all(name in message for name in (*networks(), "torchvision:NAME"))
    assert "\n" not in message


def accepts(name: str, image_shape) -> bool:
    try:
        check(name, image_shape)
    except ConfigurationError:
        return False
    return True
