"""Programs that one process publishes and the next one starts without tracing.

    python -m tests.reuse.programs FOLDER

prints a line of JSON for each: whether it was right, how many frames were traced, how many guards are checked.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.reuse.processes import Pod, pod


def mlp() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), [(torch.randn(3, 8),)]


def bert() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    tokens = torch.arange(12).reshape(2, 6)
    return BertModel(BertConfig(num_hidden_layers=3, **sizes)).eval(), [(tokens, torch.ones_like(tokens))]


def llama() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    config = LlamaConfig(num_hidden_layers=3, num_key_value_heads=2, **sizes)
    return LlamaForCausalLM(config).eval(), [(torch.arange(12).reshape(2, 6),)]


def breaking(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.sin(x) + 1
    torch._dynamo.graph_break()
    if z.sum() > 0:
        return z * y
    return z - y


def graph_breaks() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    return breaking, [(torch.ones(3), torch.full((3,), 2.0)), (-torch.full((3,), 1.6), torch.ones(3))]


def dynamic_sizes() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    return net, [(torch.randn(size, 8),) for size in (3, 5, 7, 3, 1)]


def training() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).train()
    return net, [(torch.randn(3, 8),)]


PROGRAMS = {build.__name__: build for build in (mlp, graph_breaks, dynamic_sizes, training, bert, llama)}


def result_of(own: Pod, name: str) -> dict[str, Any]:
    """Calls a program as often as it says, with and without the backend."""
    torch.compiler.reset()
    own.outcomes.clear()
    own.variants.guards.clear()
    own.unpublished.clear()
    model, calls = PROGRAMS[name]()
    with torch.set_grad_enabled(name == "training"):
        expected = [_tensors(model(*inputs)) for inputs in calls]
        model, calls = PROGRAMS[name]()
        compiled = torch.compile(model, backend=own.backend)
        begin = time.perf_counter()
        found = [_tensors(compiled(*inputs)) for inputs in calls]
        seconds = time.perf_counter() - begin
    return {
        "program": name,
        "right": [
            [torch.equal(*pair) for pair in zip(*pairs, strict=True)] for pairs in zip(found, expected, strict=True)
        ],
        "traced": own.traced,
        "unpublished": own.unpublished,
        "published": own.variants.guards,
        "guards": [each.guards for each in own.outcomes if each.was_reused],
        "seconds": round(seconds, 3),
    }


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [value for value in result.to_tuple() if isinstance(value, torch.Tensor)]


def main(folder: str) -> None:
    """Runs all programs."""
    with pod(Path(folder)) as own:
        for name in PROGRAMS:
            print(json.dumps(result_of(own, name)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
