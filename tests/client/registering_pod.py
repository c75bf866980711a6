"""A pod that compiles a function of a module of its own, which registers what that calls, from torch's remote caches or
a Mega-Cache bundle, and prints its results, those without a compiler and torch's own counts as JSON.

Arguments: the folder of the module, which is among those of installed ones; "caches" or "bundle".
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from compilefarm.client import Farm
from compilefarm.client.torch_caches import install


def results_of(function: Any) -> list[float]:
    """An element of what a function of a tensor computes, and one of the gradient, if it has one."""
    given = torch.ones(2, 2, requires_grad=True)
    results = function(given)
    results[-1].sum().backward()
    assert given.grad is not None
    return [results[0][0, 0].item(), given.grad[0, 0].item()]


def main(folder: str, way: str) -> None:
    if way == "caches":
        install()
    sys.path.insert(0, folder)
    function = importlib.import_module("registered_by_pod").function
    told: dict[str, Any] = {}
    if way == "bundle":
        told["pulled"] = asdict(Farm().load_cache_artifacts("job"))
    # Without a GPU 2.15 fails a compile with both of these.
    with inductor_config.patch(autotune_remote_cache=False, bundled_autotune_remote_cache=False):
        told["results"] = results_of(torch.compile(function))
    told["eager"] = results_of(function)
    told["hits"] = counters["aot_autograd"]["autograd_cache_hit"]
    if way == "bundle":
        told["pushed"] = asdict(Farm().save_cache_artifacts("job"))
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
