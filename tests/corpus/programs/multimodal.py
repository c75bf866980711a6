"""Models of text and images together."""

from __future__ import annotations

from tests.corpus.program import Call, call

from .architectures import SMALL, TOKENS, architecture, image, tokens

_IMAGE_TOKEN = 120
_PATCH_COUNT = 16
_TEXT = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def _both() -> Call:
    return call(input_ids=tokens(), pixel_values=image())


def _image_between_words() -> Call:
    numbers = tokens(length=_PATCH_COUNT + 8)
    numbers[:, 2 : 2 + _PATCH_COUNT] = _IMAGE_TOKEN
    return call(input_ids=numbers, pixel_values=image())


PROGRAMS = (
    architecture(
        "clip", "CLIPModel", inputs=_both, small=False, text_config=_TEXT, vision_config=_VISION, projection_dim=16
    ),
    architecture(
        "llava",
        "LlavaForConditionalGeneration",
        inputs=_image_between_words,
        small=False,
        text_config={**SMALL, "model_type": "llama", "num_key_value_heads": 2, "use_cache": False},
        vision_config={**_VISION, "model_type": "clip_vision_model"},
        image_token_index=_IMAGE_TOKEN,
        vision_feature_layer=-1,
        use_cache=False,
    ),
    architecture("vilt", "ViltModel", inputs=_both, image_size=32, patch_size=8, max_position_embeddings=16),
)
