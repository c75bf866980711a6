"""CUDA graphs of loaded programs: torch's cudagraph trees warm up, record and replay them. A program that they cannot
record goes on without graphs, where torch would end with the error.

torch/_inductor/compile_fx.py: cudagraphify hands each part of a program (partitions, forward and backward) to
torch/_inductor/cudagraph_trees.py: cudagraphify_impl, at its first call in a thread.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from compilefarm.core.interruptions import find_interruption, raise_interruption
from compilefarm.loader.capture import end_capture
from compilefarm.torch_internals.counters import inductor_counts
from compilefarm.torch_internals.cudagraph_trees import (
    aligned,
    begin_backward,
    manager_of,
    manager_type,
    recorded_tensors,
    recording_through,
    storage_at,
    unwinding,
)

Call = Callable[[list[Any]], Any]


class Recording:
    """Whether a program is recorded as CUDA graphs. Its parts, forward and backward, share one: a backward is recorded
    with the places in memory where a recorded forward leaves what it has saved.

    Args:
        on_end: told, once, why the program is not recorded any more.

    Attributes:
        writes: whether the program writes to what it is given; whoever loads it says so.
        has_ended: whether it is not recorded any more.
    """

    def __init__(self, *, on_end: Callable[[Exception], None]) -> None:
        self.writes = False
        self.has_ended = False
        self._on_end = on_end

    def end(self, error: Exception) -> None:
        """Has the program run without graphs from its next call on."""
        if not self.has_ended:
            self.has_ended = True
            # What torch counts when it does without them (torch/_inductor/cudagraph_utils.py).
            inductor_counts()["cudagraph_skips"] += 1
            self._on_end(error)

    def retrying(self, program: Call) -> Callable[..., Any]:
        """The program; a call that ends the recording is done again without graphs if nothing was written by then."""

        def call(*inputs: Any) -> Any:
            had_ended = self.has_ended
            try:
                return program([*inputs])
            except Exception as error:
                raise_interruption(error)
                if self.writes or had_ended or not self.has_ended:
                    raise
                _forget_frames(error)
            return program([*inputs])

        return call


def recorded_with(recording: Recording | None) -> contextlib.AbstractContextManager[None]:
    """Inside, programs are loaded that are recorded as CUDA graphs until that ends; None: calls end with the error."""
    record = None if recording is None else functools.partial(_cudagraphify, recording)
    return recording_through(record, handle_backward=_handle_backward)


def _handle_backward(graph: Any, forward_device: Any) -> None:
    """Has a backward that torch does not record tell the graphs of its forward that it runs. Torch's own looks for
    these graphs at once; a program of a farm is loaded with its backward, before the forward has been called.

    Args:
        graph: a CompiledFxGraph.
        forward_device: a box with the number of the GPU on which the forward is recorded.
    """
    if graph.fx_kwargs["is_backward"]:
        call, device_index = graph.current_callable, forward_device.value

        def run(inputs: list[Any]) -> Any:
            begin_backward(device_index)
            return call(inputs)

        graph.current_callable = run


def _cudagraphify(
    recording: Recording, original: Callable[..., Call], model: Call, inputs: list[Any], *given: Any, **how: Any
) -> Call:
    part = _Part(model, recording=recording, device_index=how["device_index"], is_backward=how["is_backward"])
    part.align(inputs, written=how["mutated_input_idxs"])
    stream = torch.cuda.current_stream(how["device_index"])
    try:
        _watch(manager_of(how))
    except Exception as error:  # noqa: BLE001 - whatever it is, the part has not begun
        cause = end_capture(error, device_index=how["device_index"], stream=stream)
        recording.end(cause)
        raise_interruption(error)
        _forget_frames(error)
        return part.run_without_graphs
    return part.recorded_by(original(part, inputs, *given, **how))


class _Part:
    """A part of a program, as torch's trees call it when they warm up and record."""

    def __init__(self, model: Call, *, recording: Recording, device_index: int, is_backward: bool) -> None:
        self.recording = recording
        self._model = model
        self._aligned = model
        self._device_index = device_index
        self._is_backward = is_backward

    def __call__(self, inputs: list[Any]) -> Any:
        return self._model(inputs)

    def align(self, inputs: list[Any], *, written: Sequence[int]) -> None:
        """Has inputs begin where kernels may load several elements at once, as torch does for what it does not
        record."""
        self._aligned = aligned(self._model, inputs, written=written)

    def recorded_by(self, recorded: Call) -> Call:
        """What runs the part: torch's trees until the recording ends. They are kept alive after that, since results of
        theirs may be in use."""

        def run(inputs: list[Any]) -> Any:
            if self.recording.has_ended:
                return self.run_without_graphs(inputs)
            return recorded(inputs)

        return run

    def run_without_graphs(self, inputs: list[Any]) -> Any:
        if self._is_backward:
            begin_backward(self._device_index)
        return self._aligned(inputs)


def _watch(manager: Any) -> None:
    """Has a manager leave parts of ours to themselves where it cannot warm up or record them."""
    watched = _watched_type()
    if type(manager) is watched.__base__:
        manager.__class__ = watched


@functools.cache
def _watched_type() -> Any:
    managers: Any = manager_type()

    class WatchedManager(managers):  # type: ignore[misc]  # imported late
        def run_eager(self, new_inputs: list[Any], function_id: Any) -> Any:
            part = self.ids_to_funcs[function_id].model
            if not isinstance(part, _Part):
                return super().run_eager(new_inputs, function_id)
            try:
                with unwinding(self, function_id):
                    return super().run_eager(new_inputs, function_id)
            except Exception as error:
                # Whoever keeps the error would keep memory of the pool that is nobody's.
                _clear_frames(error)
                if isinstance(error, torch.OutOfMemoryError):
                    # Some of what the part was given may be overwritten: the program has to begin again, if at all.
                    part.recording.end(error)
                raise

        def record_function(self, new_inputs: list[Any], function_id: Any) -> Any:
            part = self.ids_to_funcs[function_id].model
            if not isinstance(part, _Part):
                return super().record_function(new_inputs, function_id)
            stream = torch.cuda.current_stream(self.device_index)
            given = _Given(new_inputs, is_in_pool=recorded_tensors(self))
            try:
                return super().record_function(new_inputs, function_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, the part is run below
                cause = end_capture(error, device_index=self.device_index, stream=stream)
                if find_interruption(error) is not None:
                    part.recording.end(cause)
                    raise_interruption(error)
                _forget_frames(error)
            # Nothing has been written: while a GPU records, it does not compute. What this raises is not about graphs.
            result = part(given.again())
            part.recording.end(cause)
            return result

    return WatchedManager


class _Given:
    """What a part is called with, for another try. To what lies in the pool of graphs no reference is held: it would be
    recorded as living longer, and take memory at every replay. What is freed there while a GPU records stays as it was,
    since nothing is computed.

    Args:
        inputs: the list that the part empties.
        is_in_pool: whether an earlier graph has left a tensor.
    """

    def __init__(self, inputs: Sequence[Any], *, is_in_pool: Callable[[torch.Tensor], bool]) -> None:
        self._inputs = [
            _Place(each) if isinstance(each, torch.Tensor) and is_in_pool(each) else each for each in inputs
        ]

    def again(self) -> list[Any]:
        return [each.tensor() if isinstance(each, _Place) else each for each in self._inputs]


class _Place:
    """Where a tensor lies, without a reference to its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._memory = storage.data_ptr(), tensor.device, storage.nbytes()
        self._view = tensor.storage_offset(), tensor.size(), tensor.stride()
        self._dtype = tensor.dtype

    def tensor(self) -> torch.Tensor:
        """A tensor there; whoever calls knows that the memory is still that of the first one."""
        address, device, size_bytes = self._memory
        storage = storage_at(address, device, size_bytes)
        return torch.empty(0, dtype=self._dtype, device=device).set_(storage, *self._view)


def _clear_frames(error: BaseException) -> None:
    """Frees what functions held that an exception has ended: memory that another try may need."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)


def _forget_frames(error: BaseException) -> None:
    """As `_clear_frames`; functions that have not ended yet are not held by the exception beyond their end, either."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__context__
