"""A pod that compiles a call of an operator which a module of its own registers, from torch's remote caches, and prints
the result, the gradient and torch's own counts as JSON. Argument: the folder of the module.
"""

from __future__ import annotations

import importlib
import json
import sys

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from compilefarm.client.torch_caches import install


def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.of_a_pod.scaled(x.detach()), torch.ops.of_a_pod.kept(x)


def main(folder: str) -> None:
    install()
    sys.path.insert(0, folder)
    importlib.import_module("registered_by_pod")
    given = torch.ones(2, 2, requires_grad=True)
    # Without a GPU 2.15 fails a compile with both of these.
    with inductor_config.patch(autotune_remote_cache=False, bundled_autotune_remote_cache=False):
        scaled, kept = torch.compile(both)(given)
        kept.sum().backward()
    assert given.grad is not None
    told = {
        "result": scaled[0, 0].item(),
        "gradient": given.grad[0, 0].item(),
        "hits": counters["aot_autograd"]["autograd_cache_hit"],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
