"""Optimizers of torch, with their ways of computing a step, learning rates and schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import optim
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, OneCycleLR

from tests.wild.program import Compiler, Lacking, Program

Schedule = Callable[[optim.Optimizer], LRScheduler]
_STEPS = 5
_SCHEDULES: dict[str, Schedule] = {
    "exponential": lambda optimizer: ExponentialLR(optimizer, gamma=0.9),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=10),
    # It changes the momentum, too.
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
}


# torch/optim/optimizer.py: _disable_dynamo_if_unsupported
_FUSED = {"uncaptured": "torch keeps Dynamo out of fused optimizers"}
# torch/optim/_adafactor.py: _single_tensor_adafactor. With capture_scalar_outputs there is a graph, at which Inductor
# ends with an error: it decides by the weight of a mean (torch/_inductor/decomposition.py: _lerp_scalar).
_READING = {"uncaptured": "it reads norms as numbers, which Dynamo does not trace"}
_IN_BFLOAT16 = {"precision": torch.bfloat16}


def _program(
    name: str,
    kind: str,
    *,
    schedule: str = "",
    rate_tensor: bool = False,
    capturable: bool = False,
    flags: Mapping[str, Any] = MappingProxyType({}),
    **arguments: Any,
) -> Program:
    def run(compiler: Compiler) -> Any:
        if not hasattr(optim, kind):
            raise Lacking(f"torch.optim has no {kind}")
        with compiler.device:
            weights = [torch.nn.Parameter(torch.randn(*shape)) for shape in ((16, 8), (4, 16), (8, 8))]
        rate = {"lr": torch.tensor(0.01)} if rate_tensor else {"lr": 0.01}
        # Uncompiled, these take tensors on GPUs alone.
        on_device = {"capturable": True} if capturable and (compiler.backend or compiler.device.type != "cpu") else {}
        optimizer = getattr(optim, kind)(weights, **rate, **on_device, **arguments)
        _train(compiler, optimizer, weights, schedule=schedule)
        return [weight.detach() for weight in weights]

    return Program(name=name, run=run, training=True, **flags)


def _train(compiler: Compiler, optimizer: Any, weights: list[torch.nn.Parameter], *, schedule: str) -> None:
    scheduler = _SCHEDULES[schedule](optimizer) if schedule else None
    step = compiler(optimizer.step)
    for number in range(_STEPS):
        for weight in weights:
            weight.grad = torch.sin(weight.detach() * (number + 1))
        step()
        if scheduler is not None:
            scheduler.step()


PROGRAMS = (
    _program("adam", "Adam"),
    _program("adam, amsgrad", "Adam", amsgrad=True, weight_decay=0.1),
    _program("adamw", "AdamW"),
    _program("adamw, foreach", "AdamW", foreach=True),
    _program("adamw, single", "AdamW", foreach=False),
    _program("adamw, fused", "AdamW", fused=True, flags=_FUSED),
    _program("adamw, foreach, scheduled", "AdamW", foreach=True, schedule="cosine"),
    _program("adamw, scheduled", "AdamW", schedule="exponential"),
    _program("adamw, one cycle", "AdamW", schedule="one cycle"),
    _program("adamw, a tensor for the rate", "AdamW", rate_tensor=True),
    _program("adamw, a tensor for the rate, scheduled", "AdamW", rate_tensor=True, schedule="exponential"),
    _program("adam, capturable", "Adam", capturable=True, foreach=True),
    _program("adamw, capturable, a tensor for the rate", "AdamW", capturable=True, rate_tensor=True),
    _program("sgd", "SGD"),
    _program("sgd, nesterov, scheduled", "SGD", momentum=0.9, nesterov=True, schedule="exponential"),
    _program("sgd, foreach", "SGD", momentum=0.9, foreach=True),
    _program("sgd, fused", "SGD", momentum=0.9, fused=True, flags=_FUSED),
    _program("adafactor", "Adafactor", flags=_READING),
    # It makes updates orthogonal in bfloat16, whatever the weights are (torch/optim/_muon.py).
    _program("muon", "Muon", flags=_IN_BFLOAT16),
    _program("muon, scheduled", "Muon", schedule="cosine", flags=_IN_BFLOAT16),
    _program("rmsprop", "RMSprop", momentum=0.5, centered=True),
    _program("rmsprop, foreach, scheduled", "RMSprop", foreach=True, schedule="exponential"),
    _program("nadam, scheduled", "NAdam", schedule="cosine"),
    _program("radam", "RAdam"),
    _program("adagrad, scheduled", "Adagrad", schedule="exponential"),
    _program("asgd", "ASGD"),
)
