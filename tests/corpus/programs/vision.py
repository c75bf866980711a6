"""Models of images."""

from __future__ import annotations

from tests.corpus.program import Call, call

from .architectures import architecture, image

_TRANSFORMER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
_PATCHES = {"image_size": 32, "patch_size": 8}


def _pixels() -> Call:
    return call(pixel_values=image())


PROGRAMS = (
    architecture("vit", "ViTModel", inputs=_pixels, small=False, **_TRANSFORMER, **_PATCHES),
    architecture(
        "swin",
        "SwinModel",
        inputs=_pixels,
        small=False,
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    architecture(
        "convnext", "ConvNextModel", inputs=_pixels, small=False, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2
    ),
)
