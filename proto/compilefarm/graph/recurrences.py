"""Weights and states of recurrent networks: oneDNN's kernels believe that they are as large as the input says.

Modules of torch.nn look at them before they call the function, and the function does not look again
(aten/src/ATen/native/mkldnn/RNN.cpp: mkldnn_rnn_layer). Eager goes there with and without gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compilefarm.graph import schemas
from compilefarm.graph.operators import named_arguments
from compilefarm.torch_internals.operators import schema_of

_GATES = 4
_lstm = torch.ops.aten.lstm
_LSTMS = (torch.lstm, _lstm, _lstm.input)


def is_recurrence(target: object) -> bool:
    """Whether a node calls what `find_misfit` knows."""
    return any(target is each for each in _LSTMS)


def find_misfit(target: object, *, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a recurrent network may not be run with these arguments; None if it may, or nothing is known of the target.

    Args:
        target: what is called.
        args: positional arguments, tensors among them fake.
        kwargs: named arguments.
    """
    if not is_recurrence(target):
        return None
    given = named_arguments(schema_of(_lstm.input), args, kwargs)
    if isinstance(given.get("hx"), torch.Tensor):
        # That of sequences of different lengths, which is computed step by step.
        return None
    if given.keys() != {each.name for each in schema_of(_lstm.input).arguments}:
        return "it is given too few arguments, or others than it has"
    misfit = schemas.find_misfit(_lstm.input, args=args, kwargs=kwargs)
    if misfit is not None:
        return misfit
    if not all(map(_holds_tensors, (given["hx"], given["params"], [given["input"]]))):
        return "its input, states or weights are no tensors"
    sizes = [tuple(each.shape) for each in given["params"]]
    states = [tuple(each.shape) for each in given["hx"]]
    if len(states) != 2 or {len(each) for each in (*states, given["input"].shape)} != {3}:
        return "its input and its two states have other than three dimensions"
    if states[0][2] != states[1][2]:
        # Projections are computed step by step, too.
        return None
    directions = 2 if given["bidirectional"] else 1
    rows, batch = given["num_layers"] * directions, given["input"].shape[0 if given["batch_first"] else 1]
    width, hidden = given["input"].shape[2], states[0][2]
    biases = [(_GATES * hidden,)] * (2 if given["has_biases"] else 0)
    if len(sizes) != rows * (2 + len(biases)):
        return f"its weights are {len(sizes)}, and it has {given['num_layers']} layers"
    wanted = [
        size
        for row in range(rows)
        for size in (
            (_GATES * hidden, width if row < directions else directions * hidden),
            (_GATES * hidden, hidden),
            *biases,
        )
    ]
    if sizes != wanted or states != [(rows, batch, hidden)] * 2:
        return f"its weights are {sizes}, its states {states}; an input of {width} columns takes {wanted}"
    return None


def _holds_tensors(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, torch.Tensor) for each in value)
