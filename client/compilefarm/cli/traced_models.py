"""Traces a model with fake tensors, which have no elements: neither weights nor a GPU are needed."""

from __future__ import annotations

import argparse
import re
from typing import Any

from compilefarm.cli.functions import NoSuchFunction, get_function
from compilefarm.client.recording_backend import FakeTensorRuntime, RecordingBackend
from compilefarm.core.pool import DEFAULT_ENVIRONMENT
from compilefarm.core.recordings import Recording

_INPUT = re.compile(r"([a-z]+[0-9]*|bfloat16)\[([0-9, ]*)\]")
_BETWEEN = re.compile(r",(?![^\[]*\])")


class CannotTrace(Exception):
    """The model cannot be made or traced; the message says what was wrong."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what is traced."""
    option = parser.add_argument
    option("model", metavar="MODULE:FUNCTION", help="function without parameters that returns the model")
    option(
        "--shapes",
        action="append",
        required=True,
        metavar="INPUTS",
        help="inputs of a call of the model, such as 'int64[1, 16], float32[1, 64]'; may be given several times",
    )
    option("--device", choices=("cpu", "cuda"), default="cpu", help="device of model and inputs; default: %(default)s")
    option(
        "--gradients",
        action="store_true",
        help="pods call the model with gradients, outside of torch.no_grad() and inference_mode()",
    )
    option(
        "--dynamic",
        choices=("yes", "no"),
        help="value of dynamic= of torch.compile; default: what torch does without it",
    )


def trace_model(arguments: argparse.Namespace) -> Recording:
    """Returns the requests of a pod for a model. They are retargeted to a mode and an environment later, as
    those of a recording.

    Raises:
        CannotTrace: the model cannot be made or traced.
    """
    import torch

    from compilefarm.graph.tracing import faking

    try:
        make = get_function(arguments.model)
    except NoSuchFunction as error:
        raise CannotTrace(str(error)) from error
    recorder = RecordingBackend(FakeTensorRuntime())
    if arguments.device == "cuda" and arguments.environment is None:
        # The facts of a GPU come from the farm.
        arguments.environment = DEFAULT_ENVIRONMENT
    try:
        with faking():
            with torch.device(arguments.device):
                model = make()
                calls = [_make_inputs(text) for text in arguments.shapes]
            dynamic = None if arguments.dynamic is None else arguments.dynamic == "yes"
            compiled = torch.compile(model, backend=recorder.backend, dynamic=dynamic)
            with torch.set_grad_enabled(arguments.gradients):
                for inputs in calls:
                    compiled(*inputs)
    except CannotTrace:
        raise
    except Exception as error:
        # Whatever the model raises, or Dynamo.
        raise CannotTrace(
            f"{arguments.model} cannot be traced without elements ({type(error).__name__}: {error}); record it in a pod"
        ) from error
    return recorder.recording()


def _make_inputs(text: str) -> list[Any]:
    return [_make_input(each.strip()) for each in _BETWEEN.split(text)]


def _make_input(text: str) -> Any:
    import torch

    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match[1], None) if match is not None else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise CannotTrace(f"{text!r} describes no tensor: write a dtype and sizes, such as float32[8, 16]")
    return torch.empty([int(size) for size in match[2].split(",") if size.strip()], dtype=dtype)
