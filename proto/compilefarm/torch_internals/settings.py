"""The modules of torch that hold settings of its compilers."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
import torch.fx.experimental._config

INDUCTOR: ModuleType = torch._inductor.config
FUNCTORCH: ModuleType = torch._functorch.config
DYNAMO: ModuleType = torch._dynamo.config
SYMBOLIC_SHAPES: ModuleType = torch.fx.experimental._config


def defaults_of(config: ModuleType) -> Mapping[str, object]:
    """Every setting of a module by its dotted name, as it was when the module was imported; aliases included."""
    # torch/utils/_config_module.py: ConfigModule._config holds an entry for each setting.
    return {name: entry.default for name, entry in config._config.items()}
