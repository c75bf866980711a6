"""Cleans up after captures of CUDA graphs that fail, where torch does not.

A capture in which CUDA refuses something has ended for CUDA, and cudaStreamEndCapture says so by an error. A torch
without `capture_end_pre` does nothing more then (aten/src/ATen/cuda/CUDAGraph.cpp: capture_end; torch/cuda/graphs.py:
graph.__exit__): the stream of the capture stays the current one, no random number can be drawn, and nothing can be
recorded any more in its pool of memory, which is never given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch

# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h.
_THREAD_LOCAL = 1


def end_capture(error: Exception, *, device_index: int, stream: Any) -> Exception:
    """Ends a capture for torch that has ended for CUDA.

    Args:
        error: what came of the capture, with its traceback. A capture that torch has ended needs nothing.
        device_index: the GPU.
        stream: what was the current stream before.

    Returns:
        What ended the capture: of an error at its end, the one before.
    """
    cause = error
    with torch.cuda.device(device_index):
        for graph, raised in _graphs_begun(error):
            if isinstance(raised.__context__, Exception):
                cause = raised.__context__
            if not hasattr(graph, "capture_end_pre"):
                _end(graph, device_index=device_index)
        torch.cuda.set_stream(stream)
    return cause


def _graphs_begun(error: BaseException | None) -> Iterator[tuple[Any, BaseException]]:
    """Graphs whose capture was left begun, each with the error: it is to be found where that was raised."""
    kind: Any = torch.cuda.CUDAGraph
    steps = kind.capture_begin.__code__, kind.capture_end.__code__
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code in steps and not _has_ended(graph := frame.f_locals["self"]):
                yield graph, error
        error = error.__context__


def _has_ended(graph: Any) -> bool:
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _end(graph: Any, *, device_index: int) -> None:
    """Ends the capture of a graph by another one on its stream, which has nothing in it."""
    with contextlib.suppress(RuntimeError, OSError), warnings.catch_warnings(record=True):
        begin_capture(torch.cuda.current_stream())
        graph.capture_end()
    if not _has_ended(graph):
        # There is no recording here. Random numbers have to come.
        generator = torch.cuda.default_generators[device_index]
        generator.graphsafe_set_state(generator.clone_state())


def begin_capture(stream: Any) -> None:
    """A capture of which torch knows nothing: each of its own has a graph and a pool.

    Raises:
        RuntimeError: the driver refuses.
        OSError: there is none.
    """
    status = ctypes.CDLL("libcuda.so.1").cuStreamBeginCapture_v2(ctypes.c_void_p(stream.cuda_stream), _THREAD_LOCAL)
    if status:
        raise RuntimeError(f"the driver does not record: cuStreamBeginCapture returned {status}")
