"""Libraries whose operators graphs may call without a word of who runs the farm."""

from __future__ import annotations

import re
from collections.abc import Collection

# Names of distributions, as they are on PyPI. What they register computes on tensors.
KNOWN_LIBRARIES = (
    *("accelerate", "bitsandbytes", "causal-conv1d", "diffusers", "einops", "fbgemm-gpu", "flash-attn"),
    *("flashinfer-python", "mamba-ssm", "peft", "timm", "torchao", "torchaudio", "torchvision", "transformers"),
    "xformers",
)


def normalized(name: str) -> str:
    """A distribution's name as all spellings of it are compared (PyPA's specification of name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_listed(name: str, *, libraries: Collection[str]) -> bool:
    """Whether a distribution is among those of a list, however each is spelled."""
    return normalized(name) in set(map(normalized, libraries))


def name_of(library: str) -> str:
    """The name in "torchvision 0.26.0", as requests say which library an operator comes from."""
    return library.rpartition(" ")[0]


def names_in(text: str) -> tuple[str, ...]:
    """The names in a list that is written with commas; there are none in "none"."""
    return () if text == "none" else tuple(filter(None, map(str.strip, text.split(","))))
