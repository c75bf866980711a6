"""Architectures of transformers with random weights, as programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Call, Case, Function, call
from tests.corpus.programs.architectures import SMALL, TOKENS, build_model, tokens
from tests.wild.program import Program, backpropagating, program_of_case

__all__ = [
    "GROUPED",
    "SMALL",
    "TOKENS",
    "build_model",
    "model_program",
    "only_tensors",
    "text_program",
    "tokens",
    "training_program",
]

# Two lengths make the length an expression; the third is served by the program of the second.
LENGTHS = (12, 17, 9)
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}


def only_tensors(function: Function, given: Call) -> Any:
    """A use that keeps the tensors of a model's output, and drops caches, which torch does not take apart."""
    return {name: value for name, value in given.to(function).items() if name != "past_key_values"}


def model_program(
    name: str,
    architecture: str,
    *,
    calls: Callable[[], Sequence[Call]],
    configuration: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Program:
    """Forward passes of a model in eval mode.

    Args:
        name: of the program.
        architecture: class of transformers.
        calls: makes the arguments.
        configuration: in what it differs from the architecture's own.
        options: of torch.compile.
        dtype: of the weights.
    """

    def build() -> Case:
        return Case(function=build_model(architecture, configuration).to(dtype), calls=calls(), use=only_tensors)

    return program_of_case(name, build, options=options)


def text_program(
    name: str,
    architecture: str,
    configuration: Mapping[str, Any],
    *,
    lengths: Sequence[int] = LENGTHS,
    options: Mapping[str, Any] | None = None,
) -> Program:
    """Forward passes over texts that differ in length; the last tokens of the second text are padding."""

    def calls() -> list[Call]:
        return [call(input_ids=tokens(length=length), attention_mask=_padding(length)) for length in lengths]

    return model_program(name, architecture, calls=calls, configuration=configuration, options=options)


def training_program(
    name: str, architecture: str, configuration: Mapping[str, Any], *, inputs: Callable[[], Sequence[Call]]
) -> Program:
    """Forward and backward passes with a loss. Nothing is dropped out, since eager draws other random numbers."""

    def build() -> Case:
        model = build_model(architecture, configuration).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return Case(function=model, calls=inputs(), use=_with_gradients)

    return program_of_case(name, build, training=True)


def _with_gradients(function: Function, given: Call) -> Any:
    return backpropagating(lambda: given.to(function).loss, call())


def _padding(length: int) -> torch.Tensor:
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, -3:] = 0
    return mask
