"""Rows of the table in docs/own-loop.md: each line trains as in plain PyTorch, or is refused with the row's error."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from psnode.errors import ConfigurationError
from tests.worker.test_stepwise import CLASSES, WIDTH, batches, stepping

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
STEPS = 3


class Row(NamedTuple):
    """A row of the page: the code, its place in the loop, the verdict, and the words in backticks in the last column."""

    code: str
    place: str
    holds: bool
    honoured: bool
    instead: list[str]


def rows() -> Iterator[Row]:
    table = PAGE.read_text().partition("## Lines of your loop")[2].partition("\n## ")[0]
    for line in table.splitlines():
        if line.startswith("| `"):
            code, place, verdict, why = (cell.strip() for cell in line.strip("|").split(" | ", 3))
            where, _, setting = place.partition(", ")
            assert setting in ("", '`gradients="step"`')
            assert verdict in ("honoured", "refused")
            yield Row(
                code.replace("<br>", "\n").replace("`", ""),
                where,
                bool(setting),
                verdict == "honoured",
                re.findall("`([^`]+)`", why),
            )


ROWS = list(rows())


def network() -> nn.Module:
    torch.manual_seed(4)
    net = nn.Sequential()
    net.add_module("body", nn.Linear(WIDTH, 8))
    net.add_module("head", nn.Linear(8, CLASSES))
    return net


class Margin(nn.Module):
    """A criterion with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        return (self.scale * output).mean()


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net(x), y)


def variables(net: nn.Module) -> dict[str, Any]:
    """Return objects that a program has outside its loop, such as the optimizer that it used before."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    other = nn.Linear(CLASSES, 1)
    return {
        "torch": torch, "nn": nn, "copy": copy, "net": net, "loss_of": loss_of, "margin": Margin(), "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5), "scaler": torch.amp.GradScaler("cpu"),
        "teacher": network(), "ema": network(), "other": other, "other_optimizer": torch.optim.SGD(other.parameters(), lr=0.1),
    }  # fmt: skip


def loop(row: Row, net: nn.Module, draw: Callable[[], Any], step: Callable[[Any], object]) -> None:
    known = variables(net)
    for _ in range(STEPS):
        x, y = draw()
        known |= {"x": x.clone(), "y": y}
        known["loss"] = loss_of(net, known["x"], y)
        for place in ("before", "backward", "between"):
            if place == row.place:
                exec(row.code, known)  # noqa: S102  # the page's
            elif place == "backward":
                known["loss"].backward()
        step(known["loss"])
        if row.place == "after":
            exec(row.code, known)  # noqa: S102


def plain(row: Row) -> nn.Module:
    net, data = network(), iter(batches())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(loss: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()

    loop(row, net, lambda: next(data), step)
    return net


def test_the_page_has_lines_of_both_kinds() -> None:
    assert len({row.code for row in ROWS if row.honoured}) >= 15
    assert len({row.code for row in ROWS if not row.honoured}) >= 25


@pytest.mark.sweep
# torch's own warning about the same mistake
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.place}{'-step' * row.holds}-{row.code[:40]}")
def test_a_line_trains_as_in_plain_pytorch_or_is_refused_by_what_there_is_instead(row: Row, tmp_path: Path) -> None:
    net = network()

    def run() -> None:
        with stepping(tmp_path, net, holds=row.holds, max_steps=STEPS, momentum=0.0) as worker:
            loop(row, net, worker.draw, lambda loss: worker.step(loss, {}))
            assert worker.draw() is None

    if row.honoured:
        run()
        for name, value in plain(row).state_dict().items():
            torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(ConfigurationError) as caught:
            run()
        assert "\n" not in str(caught.value)
        assert any(word in str(caught.value) for word in row.instead), (row.instead, str(caught.value))
    assert all(parameter.grad is None or type(parameter.grad) is torch.Tensor for parameter in net.parameters())
