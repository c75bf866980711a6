"""Prints what it costs to say a Llama-style decoder as a job: `python tests/bench/encoding.py [LAYERS]`.

The goal is less than 5 % of the time that Dynamo takes to capture the graph, and a request below 1 MB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.decode import decode_job
from compilefarm.graph.testing import CapturedGraph


def main(layers: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
    )
    model = LlamaForCausalLM(config).eval()
    started = time.perf_counter()

    def backend(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        capture_seconds = time.perf_counter() - started
        graph = CapturedGraph(graph_module=graph_module, example_inputs=example_inputs)
        # The first pays for the tables of names, once per process.
        (first, encoded), (again, _) = _timed(graph.encode), _timed(graph.encode)
        with apply_ambient(encoded.job.ambient):
            decode_seconds, _ = _timed(lambda: decode_job(encoded.job, blobs=encoded.blobs))
        print(f"{layers} layers, {len(graph_module.graph.nodes)} nodes, torch {torch.__version__}")
        print(
            f"capture {capture_seconds:.2f} s; encode {first:.3f} s, again {again:.3f} s: {first / capture_seconds:.1%}"
        )
        print(
            f"request {encoded.job.ByteSize() / 1e6:.3f} MB; decode with a run on fake tensors {decode_seconds:.2f} s"
        )
        forward: Callable[..., Any] = graph_module.forward
        return forward

    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.randint(0, 256, (1, 16)))


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
