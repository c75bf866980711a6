"""Models of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tests.corpus.program import Call, call

from .models import model_program

_VIT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_STAGES = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "patch_size": 4, "window_size": 4}


def images(*batches: int, size: int = 32) -> Callable[[], Sequence[Call]]:
    """Calls with batches of these sizes."""
    return lambda: [call(pixel_values=torch.randn(batch, 3, size, size)) for batch in batches]


PROGRAMS = (
    model_program("vit", "ViTModel", calls=images(2, 3), configuration=_VIT),
    model_program("deit", "DeiTForImageClassification", calls=images(2), configuration=_VIT),
    model_program("beit", "BeitModel", calls=images(2), configuration={**_VIT, "use_relative_position_bias": True}),
    model_program("dinov2", "Dinov2Model", calls=images(2), configuration=_VIT),
    model_program("swin", "SwinModel", calls=images(2), configuration=_STAGES),
    model_program("swinv2", "Swinv2Model", calls=images(2), configuration=_STAGES),
    model_program(
        "convnext",
        "ConvNextModel",
        calls=images(2, 3),
        configuration={"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    ),
    model_program(
        "convnextv2",
        "ConvNextV2ForImageClassification",
        calls=images(2),
        configuration={"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    ),
    model_program(
        "resnet",
        "ResNetModel",
        calls=images(2, 3),
        configuration={"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    model_program(
        "segformer",
        "SegformerForSemanticSegmentation",
        calls=images(2, size=64),
        configuration={
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 32,
        },
    ),
    model_program("mobilenet_v2", "MobileNetV2Model", calls=images(2), configuration={"depth_multiplier": 0.25}),
    model_program(
        "yolos",
        "YolosModel",
        calls=images(2),
        configuration={**_VIT, "image_size": [32, 32], "num_detection_tokens": 5},
    ),
)
