"""Steps of training: forward and loss are compiled, and with them the backward pass; the optimizer runs after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.corpus.program import Call, Case, Function, Program, call

from .architectures import SMALL, build_model, tokens
from .convolutional import Residual

_STEPS = 2
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Classifier(nn.Module):
    """A model and its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.model(x), labels, label_smoothing=0.1)


def mlp(*, dropout: float = 0.0) -> nn.Module:
    """A classifier of 8 numbers."""
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4))


def _labelled(*shape: int) -> Call:
    return call(torch.randn(shape), torch.randint(0, 4, shape[:1]))


def _training(
    name: str,
    build: Callable[[], nn.Module],
    make_optimizer: MakeOptimizer,
    batch: Callable[[], Call],
    *,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    random: bool = False,
    precision: torch.dtype = torch.float64,
) -> Program:
    """Some steps of training; what is compiled returns the loss, and is called inside `around`."""

    def case() -> Case:
        function = build().train()
        optimizer = make_optimizer(function.parameters())

        def step(compiled: Function, given: Call) -> Any:
            optimizer.zero_grad()
            with around():
                loss = given.to(compiled)
            loss.backward()
            optimizer.step()
            return loss

        return Case(function=function, calls=[batch() for _ in range(_STEPS)], use=step)

    return Program(name=name, build=case, training=True, random=random, precision=precision)


def _convolutional() -> nn.Module:
    return Classifier(nn.Sequential(Residual(3, 4, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)))


def _attention(*, dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=dropout, batch_first=True)
    return Classifier(nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 4)))


class _Language(nn.Module):
    """A decoder and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = build_model("GPT2LMHeadModel", {**_GPT2, "use_cache": False})

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.decoder(input_ids=numbers, labels=numbers).loss
        return loss


_GPT2 = {"vocab_size": SMALL["vocab_size"], "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
_GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def _sgd_foreach(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)


def _adamw_foreach(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, foreach=True)


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def _compiled_optimizer(make_optimizer: MakeOptimizer) -> Callable[[], Case]:
    """The optimizer itself is what is compiled."""

    def build() -> Case:
        model = mlp()
        optimizer = make_optimizer(model.parameters())

        def function() -> None:
            optimizer.step()

        def step(compiled: Function, given: Call) -> list[torch.Tensor]:
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            compiled()
            return [parameter.detach() for parameter in model.parameters()]

        return Case(function=function, calls=[call() for _ in range(_STEPS)], use=step)

    return build


def _clipped() -> Case:
    """Gradients are made, clipped and added up inside what is compiled."""
    model = Classifier(mlp())
    parameters = list(model.parameters())

    def function(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        loss = model(x, labels)
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
        return loss.detach(), [gradient * (0.1 / (norm + 1e-6)).clamp(max=1.0) for gradient in gradients]

    return Case(function=function, calls=[_labelled(4, 8)])


def _mixed_precision() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


PROGRAMS = (
    _training("train_mlp_sgd", lambda: Classifier(mlp()), _sgd, lambda: _labelled(4, 8)),
    _training(
        "train_mlp_dropout_adam", lambda: Classifier(mlp(dropout=0.5)), _adam, lambda: _labelled(4, 8), random=True
    ),
    _training("train_batch_norm_adamw", _convolutional, _adamw, lambda: _labelled(4, 3, 8, 8)),
    _training("train_attention", _attention, _sgd, lambda: _labelled(4, 3, 8)),
    _training(
        "train_attention_dropout", lambda: _attention(dropout=0.1), _adamw, lambda: _labelled(4, 3, 8), random=True
    ),
    _training("train_gpt2", _Language, _sgd, lambda: call(tokens())),
    _training(
        "train_mixed_precision",
        lambda: Classifier(mlp()),
        _sgd,
        lambda: _labelled(4, 8),
        around=_mixed_precision,
        precision=torch.bfloat16,
    ),
    Program(name="optimizer_sgd", build=_compiled_optimizer(_sgd)),
    Program(name="optimizer_adam", build=_compiled_optimizer(_adam)),
    # As on GPUs, where it is the default: all parameters in one call.
    Program(name="optimizer_sgd_foreach", build=_compiled_optimizer(_sgd_foreach)),
    Program(name="optimizer_adamw_foreach", build=_compiled_optimizer(_adamw_foreach)),
    Program(name="gradients_inside", build=_clipped, training=True),
)
