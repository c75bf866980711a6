"""Models of text and images together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.corpus.program import Call, Case, Function, call
from tests.wild.program import Program, program_of_case

from .models import GROUPED, SMALL, TOKENS, build_model, model_program, tokens

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 16,
}
_TEXT = {**SMALL, "max_position_embeddings": 32, "projection_dim": 16, "bos_token_id": 1, "eos_token_id": 2}
_IMAGE_TOKEN = TOKENS - 1


def _pairs() -> Sequence[Call]:
    return [call(input_ids=tokens(length=length), pixel_values=torch.randn(2, 3, 32, 32)) for length in (8, 11)]


def _embeddings(function: Function, given: Call) -> Any:
    output = given.to(function)
    return output.text_embeds, output.image_embeds


def _contrastive(name: str, architecture: str) -> Program:
    def build() -> Case:
        model = build_model(architecture, {"text_config": _TEXT, "vision_config": _VISION, "projection_dim": 16})
        return Case(function=model, calls=_pairs(), use=_embeddings)

    return program_of_case(name, build)


def _image_in_text() -> Sequence[Call]:
    images = torch.full((1, 16), _IMAGE_TOKEN)
    lengths = (6, 9)
    return [
        call(
            input_ids=torch.cat([tokens(batch=1, length=length) % _IMAGE_TOKEN, images], dim=1),
            pixel_values=torch.randn(1, 3, 32, 32),
        )
        for length in lengths
    ]


PROGRAMS = (
    _contrastive("clip", "CLIPModel"),
    _contrastive("siglip", "SiglipModel"),
    model_program(
        "llava",
        "LlavaForConditionalGeneration",
        calls=_image_in_text,
        configuration={
            "text_config": {"model_type": "llama", **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **_VISION},
            "image_token_index": _IMAGE_TOKEN,
            "image_token_id": _IMAGE_TOKEN,
            "image_seq_length": 16,
            "vision_feature_layer": -1,
        },
    ),
)
