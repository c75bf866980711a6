"""The table: all programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .program import Program
from .programs import (
    audio,
    blocks,
    contexts,
    convolutional,
    decoders,
    dynamic,
    encoder_decoders,
    encoders,
    gpu,
    higher_order,
    inputs,
    mixtures,
    multimodal,
    operators,
    state_space,
    training,
    values,
    vision,
)

# Of models of libraries, at small sizes.
_OF_LIBRARIES = (encoders, decoders, encoder_decoders, mixtures, state_space, vision, audio, multimodal)
_OWN = (
    *(convolutional, blocks, training),
    *(operators, higher_order, contexts, values, inputs, dynamic, gpu),
)


def _by_name() -> dict[str, Program]:
    programs = [program for module in (*_OF_LIBRARIES, *_OWN) for program in module.PROGRAMS]
    repeated = [name for name, count in Counter(program.name for program in programs).items() if count > 1]
    assert not repeated, f"several programs are called {repeated}"
    return {program.name: program for program in programs}


PROGRAMS = _by_name()
# Names of those of libraries.
MODELS = tuple(program.name for module in _OF_LIBRARIES for program in module.PROGRAMS)

# What a farm has to import for the operators of these programs.
LIBRARIES = ("tests.corpus.programs.operators", "transformers.integrations.moe", "einops")
ROOT = Path(__file__).parent.parent.parent
