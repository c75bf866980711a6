"""Strips compiled programs of what only compiling needed, for artifacts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compilefarm.builder.kernels import FinishedKernel, names_of_kernels, take_kernels
from compilefarm.builder.wrappers import finished_wrapper, taking_constants
from compilefarm.torch_internals.compiled_graphs import drop_kernels, replace_wrapper, wrapper_modules
from compilefarm.torch_internals.freezing import preparation_of

# For logs of a compile that happened elsewhere: nobody who runs the program reads them.
_LOGGED_BY_GRAPH = ("runnable_graph_str", "inductor_post_grad_graph_str")
_LOGGED_BY_ENTRY = ("aot_joint_graph_str", "aot_forward_graph_str", "aot_backward_graph_str")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedProgram:
    """A compiled program without what only compiling needed.

    Attributes:
        content: for compilefarm.loader.programs.
        kernels: of Triton; they have to be offered before the content is loaded.
        sources: what Inductor made of the graph on the way, for people: text by path.
    """

    content: bytes
    kernels: list[FinishedKernel]
    sources: Mapping[str, str]


class KernelsLeft(Exception):
    """A program has kernels that the worker does not find, so that an artifact of it would not be finished work."""


def finish_program(program: Any) -> FinishedProgram:
    """Finishes a compiled program for an artifact. It has run, so that its kernels are chosen.

    Raises:
        KernelsLeft: some of them cannot be packed.
    """
    # With torch's table of launched kernels (torch/_dynamo/aot_compile_types.py), which a load would write over that of
    # the pod. It is for kernels that Inductor leaves to Python; here it compiles all.
    entry, *_ = pickle.loads(program.serialize())  # noqa: S301 - pickled by this very process
    sources = {f"{_file_of(name)}.txt": getattr(entry, name) for name in _LOGGED_BY_ENTRY}
    for name in _LOGGED_BY_ENTRY:
        setattr(entry, name, None)
    kernels: list[FinishedKernel] = []
    for folder, part in (("forward", entry.compiled_fw), ("backward", entry.compiled_bw)):
        if part is not None:
            graph = part.result
            sources[f"{folder}/wrapper.py"] = graph.source_code
            sources |= {f"{folder}/{_file_of(name)}.txt": getattr(graph, name) for name in _LOGGED_BY_GRAPH}
            kernels += _finish(graph)
    for kernel in kernels:
        sources |= {f"kernels/{kernel.name}.{kind}": text for kind, text in kernel.sources.items()}
    return FinishedProgram(
        content=pickle.dumps((entry, {}, {})),
        kernels=kernels,
        sources={path: text for path, text in sources.items() if text},
    )


def _file_of(name: str) -> str:
    return name.removesuffix("_str")


def _finish(graph: Any) -> list[FinishedKernel]:
    """Finishes a CompiledFxGraph (torch/_inductor/output_code.py); returns its kernels.

    Raises:
        KernelsLeft: some of them cannot be packed.
    """
    source, kernels = take_kernels(graph.source_code, wrapper_modules(graph))
    if left := names_of_kernels(source):
        raise KernelsLeft(f"kernels that were not found in this process would be compiled by pods: {', '.join(left)}")
    drop_kernels(graph)
    preparation = preparation_of(graph)
    if preparation is not None:
        source = taking_constants(source, list(preparation.results))
        graph.frozen_param_names = {}
    # A pod's cache may hold the unfinished one under the old name.
    replace_wrapper(graph, finished_wrapper(source))
    for name in _LOGGED_BY_GRAPH:
        setattr(graph, name, "")
    # How the graph was compiled. Unpickling the table of decompositions imports it.
    graph.fx_kwargs.pop("get_decomp_fn", None)
    return kernels
