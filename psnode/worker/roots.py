"""Comparison of a reported loss with the roots of the loop's backward passes, the tensors on which backward() is called.

torch has no hook for roots, so torch.autograd.backward is replaced by a function that records them.

If a loss is scaled before its backward pass (by GradScaler.scale, or divided to accumulate), its gradients have the same
scale, and they leave before the loop could scale them back. The scale is found by comparing the root with the loss passed to
s.step.

Only a factor of the whole root is checked: c in c * loss and in c * (loss + penalty), where the loss is a tensor in the
graph of the root. Weights of single terms, such as .7 * loss + .3 * other, are the loop's choice, because plain PyTorch has
the same gradients. The loop may also report only one term of a sum. If the reported loss is a number or a detached copy,
only its value is known. This value is compared with the root and with the tensors of which the root is a multiple.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from psnode.errors import ConfigurationError

_KEEP_VALUE = (
    "View",
    "UnsafeView",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "ToCopy",
    "Clone",
    "Alias",
    "Sum",
    "Mean",
)  # nodes that keep the value of a tensor with one element
_CLOSE = 1e-3  # relative tolerance of factors, since bfloat16 has only eight bits
Told = Callable[[Sequence[torch.Tensor]], None]


class Root(NamedTuple):
    """The root of a backward pass: its value, and the nodes of which it is a multiple, each with the factor root / node."""

    value: torch.Tensor
    nodes: tuple[tuple[Any, float], ...]


class Roots:
    """Records the roots of backward passes, and calls `begins` with the roots before each pass. Only one thread may use it.

    Passes with `inputs=`, and passes inside another pass (checkpointing), are ignored.
    """

    def __init__(self, begins: Told) -> None:
        self._begins, self._real, self._found = begins, torch.autograd.backward, list[Root]()
        self._seen: Any = self._watched
        self._passes = 0
        self.forgiven = False  # True during a pass that psnode itself has scaled
        torch.autograd.backward = self._seen

    def clear(self) -> None:
        """Forget the recorded roots before the next batch."""
        self._found = []

    def remove(self) -> None:
        """Restore torch.autograd.backward."""
        if torch.autograd.backward is self._seen:
            torch.autograd.backward = self._real

    def _watched(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        inputs = kwargs.get("inputs", args[3] if len(args) > 3 else None)
        if inputs is None and torch._C._current_graph_task_id() == -1:
            losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if all(isinstance(loss, torch.Tensor) for loss in losses):
                weights = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else list(grad_tensors)
                self._look(losses, weights)
        self._real(tensors, grad_tensors, *args, **kwargs)

    def _look(self, losses: list[torch.Tensor], weights: list[torch.Tensor | None]) -> None:
        self._begins(losses)
        if len(losses) == 1 and losses[0].numel() == 1 and not self.forgiven:
            self._passes += 1
            weight = 1.0 if weights[0] is None else float(weights[0])
            nodes = tuple(_peeled(losses[0], weight, thorough=not self._passes & (self._passes - 1)))
            self._found.append(Root((losses[0] * weight).detach(), nodes))

    def compare(self, told: torch.Tensor | float | None, value: float | None, batches: int) -> None:
        """Raise ConfigurationError if a recorded root is a wrong multiple of the reported loss.

        `told`: the loss passed to s.step; `value`: its value. If a step has several `batches`, the factor may be 1 / `batches`.
        """
        for root in self._found:
            factor = _factor(root, told, value, batches)
            if factor is not None and not _fits(factor, batches):
                wanted = f"that loss / {batches}" if batches > 1 else "that loss itself"
                raise ConfigurationError(
                    f"backward began from {factor:.6g} times {_within(root, told)}the loss that s.step is told, and gradients "
                    f"have that factor: begin from {wanted} (autocast with bfloat16 needs no GradScaler; batches_per_step=K with "
                    "s.backward(loss) accumulates), or tell s.step the very loss that backward begins from"
                )


def _fits(factor: float, batches: int) -> bool:
    return math.isclose(factor, 1, rel_tol=_CLOSE) or math.isclose(factor * batches, 1, rel_tol=_CLOSE)


def _factor(root: Root, told: torch.Tensor | float | None, value: float | None, batches: int) -> float | None:
    """Return the root divided by the reported loss.

    Return None if nothing has to be checked, or if the root is not a known multiple of the loss.
    """
    if value is None or (len(root.nodes) < 2 and _fits(root.nodes[0][1] if root.nodes else 1.0, batches)):
        return None
    if isinstance(told, torch.Tensor) and (own := told.grad_fn) is not None:
        exact = next((factor for node, factor in root.nodes if node is own), None)
        return root.nodes[-1][1] if exact is None and root.nodes and _reaches(root.nodes[-1][0], own) else exact
    begun = float(root.value)
    matching = [factor for _, factor in root.nodes if factor and math.isclose(begun / factor, value, rel_tol=_CLOSE)]
    return min(matching, key=lambda factor: not _fits(factor, batches), default=None)


def _within(root: Root, told: torch.Tensor | float | None) -> str:
    own = told.grad_fn if isinstance(told, torch.Tensor) else None
    return "" if own is None or any(node is own for node, _ in root.nodes) else "what has in it "


def _reaches(node: Any, wanted: Any) -> bool:
    """Return True if `wanted` is in the graph of `node`. Edges remain after a pass has freed its saved tensors."""
    nodes, seen = [node], {node}
    while nodes:
        for following, _ in nodes.pop().next_functions:
            if following is wanted:
                return True
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return False


def _peeled(loss: torch.Tensor, factor: float, *, thorough: bool) -> Iterator[tuple[Any, float]]:
    """Yield the nodes of which the root `loss` is a multiple, from the root down, each with the factor root / node.

    `factor`: the factor of the root itself. `thorough`: raise ConfigurationError if a constant is the scale of a GradScaler; this
    check takes long.
    """
    node = loss.grad_fn
    while node is not None:
        yield node, factor
        edges = [following for following, _ in node.next_functions if following is not None]
        kind = node.name().removesuffix("Backward0").removesuffix("Backward1")
        if len(edges) != 1 or not (kind in ("Mul", "Div") or kind in _KEEP_VALUE):
            return
        if kind in ("Mul", "Div"):
            constant = getattr(node, "_saved_other", None)
            constant = getattr(node, "_saved_self", None) if constant is None else constant
            if constant is None or constant.numel() != 1 or (kind == "Div" and node.next_functions[0][0] is None):
                return
            if thorough:
                _refuse_scaler(constant)
            factor = factor * float(constant) if kind == "Mul" else factor / float(constant)
        node = edges[0]


def _refuse_scaler(constant: torch.Tensor) -> None:
    """Raise ConfigurationError if `constant`, a factor of a loss, is the scale of a GradScaler."""
    if constant.dtype is not torch.float32:  # a Python number
        return
    for found in gc.get_referrers(constant):
        held = found if isinstance(found, dict) else {"_scale": getattr(found, "_scale", None)}
        if held.get("_scale") is constant:
            raise ConfigurationError(
                "the loss is scaled by a GradScaler, whose optimizer a session has not, so that gradients would keep its factor: "
                "leave the scaler out and use autocast with bfloat16, which needs none"
            )
