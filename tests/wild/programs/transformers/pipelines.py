"""Pipelines, from text or pixels to answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tests.wild.program import Compiler, Program, require_module

from .models import GROUPED, SMALL, build_model

_WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "farms", "compile"]
_TEXTS = ["the quick brown fox", "a lazy dog jumps over the farms while", "compile the dog"]
_BERT = {**SMALL, "max_position_embeddings": 64}
_VIT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def _tokenizer() -> Any:
    """One that knows a few words."""
    tokenizers, transformers = require_module("tokenizers"), require_module("transformers")
    numbers = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[MASK]", *_WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


def _pipeline(
    task: str,
    architecture: str,
    configuration: Mapping[str, Any],
    *,
    parts: Callable[[], Mapping[str, Any]] = lambda: {"tokenizer": _tokenizer()},
    inputs: Callable[[], list[Any]] = lambda: list(_TEXTS),
    **options: Any,
) -> Program:
    def run(compiler: Compiler) -> Any:
        with compiler.device:
            model = build_model(architecture, configuration)
        compiler.in_place(model)
        pipeline = require_module("transformers").pipeline(task, model=model, device=compiler.device, **parts())
        return [_comparable(pipeline(given, **options)) for given in inputs()]

    return Program(name=f"pipeline {task}", run=run)


def _comparable(answer: Any) -> Any:
    """Scores as tensors, which may differ in their last digits; plain numbers are compared as they are."""
    if isinstance(answer, float) or (isinstance(answer, list) and all(isinstance(each, float) for each in answer)):
        return torch.tensor(answer)
    if isinstance(answer, list):
        return [_comparable(part) for part in answer]
    return {name: _comparable(part) for name, part in answer.items()} if isinstance(answer, dict) else answer


def _image_processor() -> Mapping[str, Any]:
    processor = require_module("transformers").ViTImageProcessor(size={"height": 32, "width": 32})
    return {"image_processor": processor}


def _pictures() -> list[Any]:
    image = require_module("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (2, 48, 40, 3), dtype=np.uint8)
    return [image.fromarray(each) for each in pixels]


PROGRAMS = (
    _pipeline("text-classification", "BertForSequenceClassification", _BERT),
    _pipeline("feature-extraction", "DistilBertModel", {"vocab_size": 128, "dim": 32, "n_layers": 1, "n_heads": 4}),
    _pipeline("token-classification", "ElectraForTokenClassification", _BERT),
    _pipeline(
        "fill-mask", "RobertaForMaskedLM", _BERT, inputs=lambda: ["the [MASK] fox", "a lazy [MASK] jumps over"], top_k=2
    ),
    _pipeline("text-generation", "LlamaForCausalLM", GROUPED, max_new_tokens=4, do_sample=False),
    _pipeline("image-classification", "ViTForImageClassification", _VIT, parts=_image_processor, inputs=_pictures),
)
