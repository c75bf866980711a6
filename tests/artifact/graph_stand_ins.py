"""What stands in for CUDA graphs and their driver where there is no GPU: it does to memory what they do."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch


class Gpu:
    """What a GPU does while torch records.

    Attributes:
        refusal: raised when a graph is begun.
        is_capturing: nothing is computed, and nothing is written.
        stream: the current one.
        draws: whether random numbers can be drawn.
    """

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.is_capturing = False
        self.stream = "usual"
        self.draws = True

    @contextmanager
    def graph(self, *_: object, **__: object) -> Iterator[None]:
        """As torch.cuda.graph, which leaves all as it is where the capture has ended with an error."""
        self.stream, self.draws = "of the capture", False
        if self.refusal is not None:
            raise self.refusal
        yield
        self.stream, self.draws = "usual", True

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    def clone_state(self) -> str:
        """As a generator of random numbers."""
        return "another state, of no capture"

    def graphsafe_set_state(self, _: str) -> None:
        self.draws = True


class _Node:
    """What torch asks of a run that it warms up with, and of a graph; results of these are never in use."""

    gpu: Gpu
    path_user_visible_storage_groups = ()

    def __init__(self, wrapped_function: Any, *given: Any) -> None:
        self.wrapped_function, self.id, self.parent = wrapped_function, given[-1], None
        self.stack_traces: list[str] = []
        self.outputs_weakrefs: list[Any] = []
        self.tensor_weakrefs: list[Any] = []
        self.children: dict[Any, list[Any]] = defaultdict(list)

    @property
    def _path_from_root(self) -> Iterator[_Node]:
        yield self

    def _is_cuda_graph_recorded_tensor(self, _: torch.Tensor) -> bool:
        return False

    def all_outputs_are_dead(self) -> bool:
        return True

    def path_live_weakrefs(self) -> Iterator[Any]:
        yield from ()

    def do_nothing(self, *_: object) -> None:
        pass

    clear_path_state = remove_path_cached_tensors = remove_node_cached_tensors = do_nothing


class _WarmUp(_Node):
    def run(self, inputs: list[Any]) -> Any:
        return self.wrapped_function.model(inputs)


class _Graph(_Node):
    def __init__(self, wrapped_function: Any, graph_id: Any, parent: Any, inputs: list[Any], *_: Any) -> None:
        super().__init__(wrapped_function, graph_id)
        static = wrapped_function.static_input_idxs
        self._read = [each if number in static else each.clone() for number, each in enumerate(inputs)]
        inputs.clear()
        with self.gpu.graph():
            self.gpu.is_capturing = True
            try:
                wrapped_function.model([each.clone() for each in self._read])
            finally:
                self.gpu.is_capturing = False
        self._first = self._replay()

    def _replay(self) -> Any:
        return self.wrapped_function.model(list(self._read))

    def run_first_inputs(self, _: list[Any]) -> Any:
        return self._first

    def check_invariants(self, _: list[Any]) -> tuple[Any, Callable[[], str]]:
        utils = importlib.import_module("torch._inductor.cudagraph_utils")
        return utils.CheckInvariantStatus.SUCCESS, lambda: ""

    def run(self, inputs: list[Any]) -> Any:
        for read, given in zip(self._read, inputs, strict=True):
            read.copy_(given)
        inputs.clear()
        return self._replay()


@contextmanager
def standing_in() -> Iterator[Gpu]:
    """Inside, torch's cudagraph trees warm up, record and replay on the CPU."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    gpu = Gpu()
    stands_in = {
        torch.cuda: {
            "CUDAGraph": mock.MagicMock, "Stream": mock.MagicMock, "current_stream": lambda *_: gpu.stream,
            "default_generators": [gpu, gpu], "device": nullcontext, "graph": gpu.graph,
            "graph_pool_handle": mock.MagicMock, "set_stream": gpu.set_stream, "synchronize": mock.MagicMock,
        },
        torch._C: {
            "_cuda_endAllocateToPool": mock.MagicMock(side_effect=RuntimeError("not recording")),
            "_set_cached_tensors_enabled": mock.MagicMock,
        },
        trees: {"CUDAGraphNode": _Graph, "CUDAWarmupNode": _WarmUp, "_set_cached_tensors_enabled": mock.MagicMock},
        _Node: {"gpu": gpu},
    }  # fmt: skip
    with ExitStack() as stack:
        for place, names in stands_in.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(place, name, value, create=True))
        trees.reset_cudagraph_trees()
        yield gpu
        trees.reset_cudagraph_trees()
