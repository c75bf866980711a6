"""Freezing: what a graph makes of its weights alone is made once, and packed as kernels want it.

With Inductor the results become part of the program, which is of one model then. A program of a farm has none: it says
how they are made, and makes them in the pod (compilefarm.loader.preparation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule

from compilefarm.core.compiler_settings import find_obstacle_to_freezing
from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.settings import INDUCTOR
from compilefarm.v1.graph_pb2 import Dimension
from compilefarm.v1.job_pb2 import Job

FREEZING = "freezing"


def is_frozen(graph_module: GraphModule, options: Mapping[str, object]) -> bool:
    """Whether Inductor would freeze tensors of a graph (torch/_inductor/compile_fx.py: fw_compiler_freezing).

    It does where no gradients are wanted. Dynamo leaves parameters in graphs where the whole process asks for it; an
    option of torch.compile comes too late for that, and parameters are inputs (torch/_dynamo/utils.py:
    is_parameter_freezing).

    Args:
        graph_module: as Dynamo captured it.
        options: Inductor options from mode= and options= of torch.compile, by dotted name.
    """
    is_asked = options.get(FREEZING, INDUCTOR.freezing)
    return bool(is_asked) and not torch.is_grad_enabled() and _holds_tensors(graph_module)


def mark_frozen(job: Job, numbers: Sequence[int]) -> None:
    """Says of inputs that they are frozen.

    Raises:
        Bypass: a farm does not freeze them as Inductor does.
    """
    obstacle = _find_obstacle(job)
    if obstacle is not None:
        raise Bypass("freezing", f"the setting freezing is on, and {obstacle}")
    for number in numbers:
        job.inputs[number].is_frozen = True


def frozen_inputs(job: Job) -> list[int]:
    """Numbers of the inputs that are frozen.

    Raises:
        InvalidRequest: they cannot be.
    """
    numbers = [number for number, given in enumerate(job.inputs) if given.is_frozen]
    for number in numbers:
        given = job.inputs[number]
        if given.WhichOneof("kind") != "tensor" or any(map(_is_symbolic, (*given.tensor.shape, *given.tensor.stride))):
            raise InvalidRequest(f"input {number} is frozen, and no tensor of a size that stays")
    if numbers and (job.ambient.grad_enabled or _find_obstacle(job) is not None):
        raise InvalidRequest(
            f"input {numbers[0]} is frozen, which is for graphs on the CPU without gradients or tuning"
        )
    return numbers


def _find_obstacle(job: Job) -> str | None:
    """Says why no farm freezes inputs of a job, whatever they are; None if it may."""
    if any(given.tensor.device.type == "cuda" for given in job.inputs):
        return "the graph is on a GPU"
    setting = find_obstacle_to_freezing(job.options)
    return None if setting is None else f"the setting {setting} is, too"


def _is_symbolic(dimension: Dimension) -> bool:
    return dimension.HasField("expression")


def _holds_tensors(graph_module: GraphModule) -> bool:
    return next(graph_module.parameters(), next(graph_module.buffers(), None)) is not None
