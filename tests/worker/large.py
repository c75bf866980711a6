"""Right programs of the size that production has, for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.farm.models import convolutional
from tests.worker.programs import BF16, FP16, FP32, RightProgram

_TUNED = {"max_autotune": True}
_WORDS = 32_000


class _Of(nn.Module):
    """A model with what is made of its result."""

    def __init__(self, model: nn.Module, last: Callable[[Any], torch.Tensor], **named: Any) -> None:
        super().__init__()
        self.model, self.last, self.named = model, last, named

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.model(x, **self.named))


class _Learning(nn.Module):
    """A language model with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.model(ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class _Casting(nn.Module):
    """A model under autocast."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=self.dtype):
            return self.model(x)


def _vision(dtype: torch.dtype, last: Callable[[Any], torch.Tensor]) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    # Its defaults are those of ViT-B/16.
    return _Of(ViTModel(ViTConfig(), add_pooling_layer=False).to(dtype), last).eval()


def _llama(dtype: torch.dtype, *, layers: int = 4) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=_WORDS,
    )
    return LlamaForCausalLM(config).to(dtype)


def _bert(dtype: torch.dtype) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return _Of(BertModel(config, add_pooling_layer=False).to(dtype), lambda found: found.last_hidden_state).eval()


def _gpt(dtype: torch.dtype) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return _Of(GPT2LMHeadModel(config).to(dtype), lambda found: found.logits, use_cache=False).eval()


def _resnet(name: str) -> nn.Module:
    import torchvision

    model: nn.Module = getattr(torchvision.models, name)()
    return model


def _hidden(found: Any) -> torch.Tensor:
    hidden: torch.Tensor = found.last_hidden_state
    return hidden


def _program(name: str, model: nn.Module, x: torch.Tensor, *, trains: bool = False, **options: object) -> RightProgram:
    return RightProgram(name=name, model=model, inputs=(x,), trains=trains, options=options)


def _of_convolutional() -> RightProgram:
    with torch.device("cpu"):
        model, (x,) = convolutional()
    device = torch.get_default_device()
    return _program("convolutional", model.to(device), x.to(device))


def _images(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _ids(*shape: int, below: int = _WORDS) -> torch.Tensor:
    return torch.randint(0, below, shape)


# Made one by one: together they are large.
LARGE: dict[str, Callable[[], RightProgram]] = {
    "convolutional": _of_convolutional,
    "resnet18 training": lambda: _program(
        "", _resnet("resnet18").train(), _images(4, 3, 64, 64, dtype=FP32), trains=True
    ),
    "resnet18 training, autocast": lambda: _program(
        "", _Casting(_resnet("resnet18").train(), BF16), _images(8, 3, 64, 64, dtype=FP32), trains=True
    ),
    "resnet18 training, bf16": lambda: _program(
        "", _resnet("resnet18").to(BF16).train(), _images(8, 3, 64, 64, dtype=BF16), trains=True
    ),
    "resnet50 bf16": lambda: _program("", _resnet("resnet50").to(BF16).eval(), _images(4, 3, 224, 224, dtype=BF16)),
    "resnet50 autocast fp16": lambda: _program(
        "", _Casting(_resnet("resnet50").eval(), FP16), _images(4, 3, 224, 224, dtype=FP32)
    ),
    "ViT-B bf16": lambda: _program("", _vision(BF16, _hidden), _images(8, 3, 224, 224, dtype=BF16)),
    "ViT-B bf16, max-autotune": lambda: _program(
        "", _vision(BF16, _hidden), _images(8, 3, 224, 224, dtype=BF16), **_TUNED
    ),
    "ViT-B bf16, float output": lambda: _program(
        "", _vision(BF16, lambda found: found.last_hidden_state.mean(1).float()), _images(8, 3, 224, 224, dtype=BF16)
    ),
    "ViT-B training, autocast": lambda: _program(
        "", _Casting(_vision(FP32, _hidden).train(), BF16), _images(4, 3, 224, 224, dtype=FP32), trains=True
    ),
    "BERT autocast": lambda: _program("", _Casting(_bert(FP32), BF16), _ids(4, 128, below=30_000)),
    "BERT fp16": lambda: _program("", _bert(FP16), _ids(4, 128, below=30_000)),
    "GPT-2 fp16": lambda: _program("", _gpt(FP16), _ids(2, 128)),
    "GPT-2": lambda: _program("", _gpt(FP32), _ids(2, 128)),
    "Llama bf16, max-autotune": lambda: _program(
        "", _Of(_llama(BF16), lambda found: found.logits, use_cache=False), _ids(2, 256), **_TUNED
    ),
    "Llama bf16, tokens, max-autotune": lambda: _program(
        "", _Of(_llama(BF16), lambda found: found.logits.argmax(-1), use_cache=False), _ids(2, 256), **_TUNED
    ),
    "Llama bf16, float logits": lambda: _program(
        "", _Of(_llama(BF16), lambda found: found.logits.float(), use_cache=False), _ids(2, 256)
    ),
    "Llama training, bf16, max-autotune": lambda: _program(
        "", _Learning(_llama(BF16, layers=2)), _ids(2, 256), trains=True, **_TUNED
    ),
    "Llama training, autocast": lambda: _program(
        "", _Casting(_Learning(_llama(FP32, layers=2)), BF16), _ids(2, 256), trains=True
    ),
    "Llama training, bf16": lambda: _program("", _Learning(_llama(BF16, layers=2)), _ids(2, 256), trains=True),
}
