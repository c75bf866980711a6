"""What stands in for CUDA graphs and their driver where there is no GPU: it does to memory what they do."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch

from compilefarm.loader import capture


class Gpu:
    """What a GPU does while torch records.

    Attributes:
        refusal: raised when a graph is begun.
        is_capturing: nothing is computed, and nothing is written.
        is_refusing: the driver records nothing, however it is asked.
        stream: the current one.
        draws: whether random numbers can be drawn.
        recording_to: pools of graphs whose capture torch has begun and not ended.
    """

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.is_capturing = False
        self.is_refusing = False
        self.stream = "usual"
        self.draws = True
        self.recording_to: set[object] = set()

    @contextmanager
    def graph(self, graph: Graph, pool: object = None, **_: object) -> Iterator[None]:
        """As torch.cuda.graph of torch 2.11, which leaves all as it is where the end of a capture raises."""
        self.stream = "of the capture"
        graph.capture_begin(pool)
        try:
            yield
        finally:
            graph.capture_end()
            self.stream = "usual"

    def begin_capture(self, stream: str) -> None:
        """As the driver does it, for nobody of torch."""
        if self.is_refusing:
            raise RuntimeError("the driver does not record")
        assert stream == "of the capture"
        self.is_capturing = True

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    def clone_state(self) -> str:
        """As a generator of random numbers."""
        return "another state, of no capture"

    def graphsafe_set_state(self, _: str) -> None:
        self.draws = True


class Graph:
    """As torch.cuda.CUDAGraph of torch 2.11."""

    gpu: Gpu

    def __init__(self) -> None:
        self._pool: object = None
        self._has_ended = False

    def capture_begin(self, pool: object) -> None:
        assert pool not in self.gpu.recording_to, "already recording to mempool_id"
        self._pool = pool
        self.gpu.recording_to.add(pool)
        self.gpu.draws = False
        if self.gpu.refusal is not None:
            raise self.gpu.refusal
        self.gpu.is_capturing = True

    def capture_end(self) -> None:
        if not self.gpu.is_capturing:
            raise RuntimeError("the capture has ended by an error before")
        assert self.gpu.stream == "of the capture"
        self.gpu.is_capturing = False
        self.gpu.recording_to.remove(self._pool)
        self.gpu.draws = self._has_ended = True

    def pool(self) -> object:
        if not self._has_ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool


class _Node:
    """What torch asks of a run that it warms up with, and of a graph; results of these are never in use."""

    gpu: Gpu
    path_user_visible_storage_groups = ()

    def __init__(self, wrapped_function: Any, *given: Any) -> None:
        self.wrapped_function, self.id, self.parent = wrapped_function, given[-1], None
        self.stack_traces = ["where the one result comes from"]
        # Of each result, once there is one.
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

    def note_result(self) -> None:
        self.outputs_weakrefs, self.tensor_weakrefs = [None], [None]


class _WarmUp(_Node):
    def run(self, inputs: list[Any]) -> Any:
        result = self.wrapped_function.model(inputs)
        self.note_result()
        return result


class _Graph(_Node):
    def __init__(self, wrapped_function: Any, graph_id: Any, parent: Any, inputs: list[Any], *_: Any) -> None:
        super().__init__(wrapped_function, graph_id)
        static = wrapped_function.static_input_idxs
        self._read = [each if number in static else each.clone() for number, each in enumerate(inputs)]
        inputs.clear()
        with self.gpu.graph(Graph(), pool="of all graphs"):
            wrapped_function.model([each.clone() for each in self._read])
        self._first = self._replay()
        self.note_result()

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
            "CUDAGraph": Graph, "Stream": mock.MagicMock, "current_stream": lambda *_: gpu.stream,
            "default_generators": [gpu, gpu], "device": nullcontext, "graph": gpu.graph,
            "graph_pool_handle": mock.MagicMock, "set_stream": gpu.set_stream, "synchronize": mock.MagicMock,
        },
        torch._C: {"_set_cached_tensors_enabled": mock.MagicMock},
        capture: {"begin_capture": gpu.begin_capture},
        trees: {"CUDAGraphNode": _Graph, "CUDAWarmupNode": _WarmUp, "_set_cached_tensors_enabled": mock.MagicMock},
        # The memory of the pool is no other than any here.
        trees.CUDAGraphTreeManager: {"apply_checkpoint_execution_state_in_allocator": lambda _: None},
        _Node: {"gpu": gpu},
        Graph: {"gpu": gpu},
    }  # fmt: skip
    with ExitStack() as stack:
        for place, names in stands_in.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(place, name, value, create=True))
        trees.reset_cudagraph_trees()
        yield gpu
        trees.reset_cudagraph_trees()
