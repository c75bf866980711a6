"""The models that have a name here. How they are made says compilefarm.benchmarks.cases, which imports torch."""

from __future__ import annotations

from collections.abc import Mapping

from compilefarm.core.errors import FarmError

LAYERS = (2, 4, 8, 16, 32, 64)

MODELS: Mapping[str, str] = {
    "minilm": "all-MiniLM-L6-v2 with its real weights, one sentence",
    "llama": "a Llama-style decoder of 8 layers",
    "vit": "a vision transformer of 12 layers, one image",
    "convolutional": "a residual network of 18 layers, one image",
    "mlp": "two linear layers with GELU and a norm",
    "dynamic": "the same layers with dynamic=True, called with batches of three sizes",
    "training": "the same layers, one step forward and backward",
    "breaks": "five such pairs of layers of different widths with graph breaks between them",
    **{f"llama-{layers}": f"a Llama-style decoder of {layers} layers" for layers in LAYERS},
}
# Measured where none is named.
DEFAULT_MODELS = ("minilm", "llama", "mlp")


class UnusableModel(FarmError):
    """A model cannot be made, or is none."""


def check_name(name: str) -> str:
    """Returns a name that a case may be made of.

    Raises:
        UnusableModel: it is none.
    """
    if name not in MODELS and ":" not in name:
        raise UnusableModel(f"no model is called {name!r}: name one of {', '.join(MODELS)}, or MODULE:FUNCTION")
    return name
