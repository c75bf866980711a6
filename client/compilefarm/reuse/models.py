"""The structure of a model: what its parts are, what they hold, what hangs on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from compilefarm.reuse.description_texts import name_of, shortened
from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.modules import tensors_of


def describe_models(variables: Mapping[str, Any], describer: Describer) -> dict[str, str]:
    """Describes every model among the variables of a frame, by the variable's name."""
    models = {name: value for name, value in variables.items() if isinstance(value, torch.nn.Module)}
    return {name: describe_model(model, describer) for name, model in models.items()}


def describe_model(model: torch.nn.Module, describer: Describer) -> str:
    """Describes a model by its parts: their places, classes, overrides, hooks and modes, parameters and buffers, and
    which of these are the same tensor."""
    numbers: dict[int, int] = {}
    lines = (line for name, part in model.named_modules() for line in _part(name, part, describer, numbers))
    return shortened("\n".join(lines))


def _part(name: str, part: torch.nn.Module, describer: Describer, numbers: dict[int, int]) -> Iterator[str]:
    children = [f"{own}={_number(child, numbers)}" for own, child in part.named_children()]
    yield f"{name}:{_number(part, numbers)}:{describer.of_place(part)}:{part.training}:{','.join(children)}"
    for own, tensor in tensors_of(part):
        yield f"{name}.{own}:{_tensor(tensor)}:{_number(tensor, numbers)}"


def _number(thing: object, numbers: dict[int, int]) -> int:
    return numbers.setdefault(id(thing), len(numbers))


def _tensor(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    if is_lazy(tensor):
        raise Unsayable("a model that makes its weights at its first call (lazy modules)")
    facts = (tensor.dtype, tensor.device, tensor.layout, tuple(tensor.shape), tensor.requires_grad)
    return f"{name_of(type(tensor))}:{','.join(map(str, facts))}"
