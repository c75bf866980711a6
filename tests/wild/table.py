"""The table: all programs, by library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import ModuleType

from .program import Program
from .programs import (
    accelerate,
    detection,
    diffusers,
    distributed,
    domains,
    functions,
    nested,
    optimizers,
    others,
    timm,
    torchao,
    torchvision,
    usual,
)
from .programs.transformers import (
    audio,
    decoders,
    encoder_decoders,
    encoders,
    generation,
    multimodal,
    pipelines,
    training,
    vision,
)

# Of the table that runs where it is asked for alone: a CPU takes minutes for each program.
USUAL = "usual sizes"

# None of these modules imports its library before one of its programs runs.
_MODULES: Mapping[str, Iterable[ModuleType]] = {
    "transformers": (
        *(decoders, encoders, encoder_decoders, vision, audio, multimodal),
        *(generation, pipelines, training),
    ),
    "accelerate": (accelerate,),
    "diffusers": (diffusers,),
    "timm": (timm,),
    "torchvision": (torchvision, detection),
    "torchao": (torchao,),
    "nested": (nested,),
    "torch": (optimizers, functions),
    "torch.distributed": (distributed,),
    "others": (others, domains),
    USUAL: (usual,),
}


def _programs(modules: Iterable[ModuleType]) -> dict[str, Program]:
    programs = [program for module in modules for program in module.PROGRAMS]
    repeated = [name for name, count in Counter(program.name for program in programs).items() if count > 1]
    assert not repeated, f"several programs are called {repeated}"
    return {program.name: program for program in programs}


# By library, then by name.
PROGRAMS: Mapping[str, Mapping[str, Program]] = {library: _programs(modules) for library, modules in _MODULES.items()}
