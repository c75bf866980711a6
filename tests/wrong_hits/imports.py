"""Prints, as JSON, the facts of a small graph's key in a fresh process, and after each import of a library.

Arguments: names of modules.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch

from compilefarm.core.variables import matched_variables
from compilefarm.graph.ambient import capture_ambient
from compilefarm.graph.encode import encode_job
from compilefarm.graph.knobs import matched_knobs
from compilefarm.graph.options import capture_options
from compilefarm.graph.testing import capture
from compilefarm.loader.environment import describe_environment


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x @ x, x, x.sin())


def facts() -> dict[str, str]:
    graph = capture(program, torch.rand(1, 1, 8, 8))
    job = encode_job(graph.graph_module, graph.example_inputs, options={}, environment=describe_environment).job
    on_gpu = {
        "variables": matched_variables(os.environ, device_type="cuda"),
        "knobs": matched_knobs(),
        "ambient": capture_ambient(["cpu", "cuda"]),
        "options": capture_options({}, cuda=True),
    }
    said = {field.name: str(value) for field, value in job.ListFields()}
    return said | {f"{name} on a GPU": str(value) for name, value in on_gpu.items()}


seen = {"nothing": facts()}
for module in sys.argv[1:]:
    importlib.import_module(module)
    seen[module] = facts()
query = torch.rand(1, 1, 8, 8, requires_grad=True)
program(query).sum().backward()
seen["eager"] = facts()
print(json.dumps(seen))
