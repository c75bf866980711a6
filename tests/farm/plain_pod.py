"""A process that cannot import Compilefarm loads an exported program, and calls it. Arguments: the path, its format,
the inputs (torch.save), and where the results go.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class NotInstalled(MetaPathFinder):
    """Takes Compilefarm away."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name.partition(".")[0] == "compilefarm":
            raise ModuleNotFoundError(name)


def main(path: str, format: str, inputs: str, results: str) -> None:
    sys.meta_path.insert(0, NotInstalled())
    import torch
    from torch._inductor import CompiledArtifact

    program = CompiledArtifact.load(path=path, format=format)  # type: ignore[arg-type]
    given = torch.load(inputs)
    returned = list(program(*given))
    gradients = []
    if any(value.requires_grad for value in given):
        sum(value.sum() for value in returned).backward()  # type: ignore[union-attr]
        gradients = [value.grad for value in given if value.requires_grad]
    torch.save([value.detach() for value in [*returned, *gradients]], results)
    assert not any(name.partition(".")[0] == "compilefarm" for name in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
