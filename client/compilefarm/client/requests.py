"""Saves the request for a graph in a file, without asking a farm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compilefarm.client.calling_convention import in_plain_form
from compilefarm.client.options import Options, merge_options
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.requests import Request, write_request


def save_request(
    graph_module: Any,
    example_inputs: Sequence[Any],
    path: str | Path,
    *,
    mode: str | None = None,
    options: Options | None = None,
) -> None:
    """Writes to a file what `Farm.backend` or `Farm.compile` would send for a graph, with the tensors that it holds.

    Called from a backend of torch.compile it saves what Dynamo captured. `compilefarm explain` shows such a file. It
    holds operators, shapes, settings and facts of this machine; no weights, no names and no source of the model,
    but that of Triton kernels of the user's own.

    Args:
        graph_module: as Dynamo captured it, or as torch.fx.symbolic_trace makes it.
        example_inputs: one for each placeholder.
        path: of the file, by custom with the suffix .cfreq; one that exists is replaced.
        mode: as in torch.compile.
        options: Inductor options, as in torch.compile.

    Raises:
        Bypass: something about the graph cannot be said faithfully, so that no farm would be asked.
        UnusableRequestFile: the file cannot be written.
        RuntimeError: torch has no such mode, or no such option.
    """
    graph_module = in_plain_form(graph_module)
    runtime, merged = TorchRuntime(), merge_options(mode=mode, options=options)
    runtime.require_known_options(merged)
    encoded = runtime.encode(graph_module, example_inputs, options=merged)
    arguments = runtime.describe_call(mode=mode, options=options or {})
    write_request(Request(job=encoded.job, blobs=encoded.blobs, arguments=arguments), path=Path(path))
