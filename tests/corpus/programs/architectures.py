"""Architectures of transformers with random weights, small enough to be traced in a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.corpus.program import Call, Case, Lacking, Program, call, require_module

TOKENS = 128
LENGTH = 12
# Names that most configurations share. One layer, since the next says nothing new about a graph and takes as long to
# trace; architectures that alternate have two.
SMALL = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}


def tokens(*, batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    """Token numbers, none of them special."""
    return torch.randint(3, TOKENS, (batch, length))


def image(*, size: int = 32) -> torch.Tensor:
    """Pixels, (batch, channels, height, width)."""
    return torch.randn(2, 3, size, size)


def text() -> Call:
    """Tokens of which the last ones of the second row are padding."""
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    return call(input_ids=tokens(), attention_mask=mask)


def build_model(architecture: str, configuration: Mapping[str, Any]) -> Any:
    """A model in eval mode.

    Raises:
        Lacking: this release of transformers does not know the architecture.
    """
    transformers = require_module("transformers")
    architecture_type = getattr(transformers, architecture, None)
    if architecture_type is None:
        raise Lacking(f"transformers {transformers.__version__} has no {architecture}")
    return architecture_type(architecture_type.config_class(**configuration)).eval()


def architecture(
    name: str,
    architecture: str,
    *,
    inputs: Callable[[], Call] = text,
    small: bool = True,
    dtype: torch.dtype = torch.float32,
    **configuration: Any,
) -> Program:
    """A forward pass of a model.

    Args:
        name: of the program.
        architecture: class of transformers.
        inputs: makes the arguments.
        dtype: of the weights.
        small: whether the shared names of sizes apply.
        configuration: what differs from the architecture's own.
    """
    merged = {**(SMALL if small else {}), **configuration}

    def build() -> Case:
        return Case(function=build_model(architecture, merged).to(dtype), calls=[inputs()])

    return Program(name=name, build=build)
