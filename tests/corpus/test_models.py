"""Models of libraries go through the codec and stay what they were: one of each kind here, all with `-m corpus`.

What they are made of, the other programs of the table try piece by piece at both ends of torch; these run at one.
"""

from __future__ import annotations

import pytest

from .report import share_on_the_wire
from .table import MODELS
from .trials import SHARE_ON_THE_WIRE, assert_decoded_graphs_do_what_the_captured_ones_do, row_of

# Decoders with caches and with windows, an encoder with a decoder, experts, state spaces with attention and without,
# images, sounds, and images in texts. tests/wild has encoders.
_SAMPLE = (
    *("llama_generation", "gemma2", "t5", "mixtral_full_precision", "gpt_oss"),
    *("jamba", "rwkv", "swin", "whisper", "llava"),
)


@pytest.mark.parametrize("name", _SAMPLE)
def test_decoded_graphs_do_what_the_captured_ones_do(name: str) -> None:
    assert_decoded_graphs_do_what_the_captured_ones_do(name)


@pytest.mark.corpus
@pytest.mark.parametrize("name", [name for name in MODELS if name not in _SAMPLE])
def test_those_of_other_models_do_as_well(name: str) -> None:
    assert_decoded_graphs_do_what_the_captured_ones_do(name)


def test_most_graphs_are_on_the_wire() -> None:
    assert share_on_the_wire([row_of(name) for name in _SAMPLE]) >= SHARE_ON_THE_WIRE
