"""What decides a result is in the key; what does not is not."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch.fx import Graph, GraphModule, Node

from compilefarm.core.keys import key_of
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.targets import ATTRIBUTE_OPERATORS
from compilefarm.graph.testing import CapturedGraph, capture, trace
from compilefarm.graph.tracing import faking
from tests.lean import LEAN

KEY_OF_A_MODEL = """
import torch
from compilefarm.core.keys import key_of
from compilefarm.graph.testing import capture
torch.manual_seed({seed})
torch.set_num_threads(2)
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{name}_layer = torch.nn.Linear(4, 4)
    def forward(self, {name}_input):
        return torch.nn.functional.gelu(self.{name}_layer({name}_input), approximate="tanh").chunk(2, dim=-1)
key = key_of(capture({name}(), torch.randn(2, 4)).encode().job).text
"""


def _model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight).relu()


def _key(x: Any = None, weight: Any = None, **options: Any) -> str:
    captured = capture(_model, torch.ones(2, 4) if x is None else x, torch.ones(3, 4) if weight is None else weight)
    return key_of(captured.encode(options=options).job).text


def _parts_that_differ(first: CapturedGraph, second: CapturedGraph) -> set[str]:
    ours, theirs = key_of(first.encode().job), key_of(second.encode().job)
    return {a.name for a, b in zip(ours.parts, theirs.parts, strict=True) if a.digest != b.digest}


def test_same_key_in_another_process_with_other_names() -> None:
    found: dict[str, Any] = {}
    threads = torch.get_num_threads()
    try:
        exec(KEY_OF_A_MODEL.format(name="First", seed=0), found)
    finally:
        torch.set_num_threads(threads)
    seed = "2" if os.environ.get("PYTHONHASHSEED") != "2" else "1"
    done = subprocess.run(
        [sys.executable, LEAN, "-c", f"{KEY_OF_A_MODEL.format(name='Second', seed=1)}print(key)"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == found["key"]


def test_same_graph_same_digests_with_every_supported_torch() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        job = capture(_model, torch.ones(2, 4), torch.ones(3, 4)).encode().job
    finally:
        torch.set_num_threads(threads)
    # These tests run with both ends of the range, and each has to come to these.
    assert {part.name: part.digest[:16] for part in key_of(job).parts} == {
        "graph": "9cf083d7b0c49c07",
        "inputs": "415eaad3a0c5468a",
        "symbols": "e3b0c44298fc1c14",
        "options": "af5570f5a1810b7a",
        "ambient": "49c6ba3914726b3c",
        "environment": "f71055581aff0702",
    }


def test_same_key_whatever_nodes_are_called() -> None:
    captured = capture(_model, torch.ones(2, 4), torch.ones(3, 4))
    before = key_of(captured.encode().job)
    for number, node in enumerate(captured.graph_module.graph.nodes):
        node.name = f"anything_{number}"
        node.meta["stack_trace"] = f"elsewhere, line {number}"
    captured.graph_module.recompile()
    assert key_of(captured.encode().job) == before


@pytest.mark.parametrize(
    ("method", "function"), [("__eq__", operator.eq), ("__getitem__", operator.getitem), ("__rsub__", None)]
)
def test_an_operator_may_be_written_as_a_method(method: str, function: Callable[..., Any] | None) -> None:
    def encoded(call: Callable[[Graph, Node], Node]) -> EncodedJob:
        graph = Graph()
        x = graph.placeholder("x")
        x.meta["example_value"] = torch.ones(3)
        graph.output((call(graph, x),))
        module = GraphModule(torch.nn.Module(), graph)
        return CapturedGraph(graph_module=module, example_inputs=[torch.ones(3)]).encode()

    as_method = encoded(lambda graph, x: graph.call_method(method, (x, 1)))
    if function is None:
        assert as_method.job.graph.nodes[1].call.target == method
    else:
        as_function = encoded(lambda graph, x: graph.call_function(function, (x, 1)))
        assert as_method.job.graph == as_function.job.graph


@pytest.mark.parametrize(("name", "attribute"), ATTRIBUTE_OPERATORS.items())
def test_an_attribute_may_be_written_as_an_operator(name: str, attribute: str) -> None:
    def encoded(target: Any, *args: Any) -> EncodedJob:
        graph = Graph()
        graph.output((graph.call_function(target, (graph.placeholder("x"), *args)),))
        module = GraphModule(torch.nn.Module(), graph)
        return CapturedGraph(graph_module=module, example_inputs=[torch.ones(2, 3)]).encode()

    as_operator = getattr(torch.ops.aten, name.partition("::")[2])
    assert encoded(as_operator).job == encoded(getattr, attribute).job


def test_same_key_whatever_the_elements_are() -> None:
    assert _key(torch.zeros(2, 4)) == _key(torch.rand(2, 4))


def test_same_key_in_whatever_order_keywords_come() -> None:
    captured = capture(lambda x: torch.sum(x, dim=0, keepdim=True), torch.ones(2, 4))
    before = key_of(captured.encode().job)
    (call,) = captured.graph_module.graph.find_nodes(op="call_function", target=torch.sum)
    call.kwargs = dict(reversed(list(call.kwargs.items())))
    assert len(call.kwargs) == 2
    assert key_of(captured.encode().job) == before


def test_usage_log_of_torch_is_not_in_the_key() -> None:
    captured = capture(_model, torch.ones(2, 4), torch.ones(3, 4))
    before = key_of(captured.encode().job)
    graph = captured.graph_module.graph
    with graph.inserting_before(graph.output_node()):
        graph.call_function(torch._C._log_api_usage_once, ("some.model",))
    assert key_of(captured.encode().job) == before


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(5, 4), torch.ones(3, 4)),
        (torch.ones(4, 2).t(), torch.ones(3, 4)),
        (torch.ones(2, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)),
        (torch.ones(2, 4, requires_grad=True), torch.ones(3, 4)),
        (torch.ones(2, 4), torch.nn.Parameter(torch.ones(3, 4), requires_grad=False)),
        (torch.ones(9)[1:].view(2, 4), torch.ones(3, 4)),
        (torch.ones(2, 4, requires_grad=True) * 1, torch.ones(3, 4)),
    ],
    ids=["shape", "stride", "dtype", "requires_grad", "is_parameter", "storage_offset", "is_result"],
)
def test_every_property_of_an_input_is_in_the_key(x: torch.Tensor, weight: torch.Tensor) -> None:
    base = capture(_model, torch.ones(2, 4), torch.ones(3, 4))
    assert _parts_that_differ(base, capture(_model, x, weight)) == {"inputs"}


@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.nn.functional.softmax(x, dim=0),
        lambda x: torch.nn.functional.softmax(x, dim=-1, dtype=torch.float64),
        lambda x: torch.nn.functional.log_softmax(x, dim=-1),
        lambda x: (torch.nn.functional.softmax(x, dim=-1), x.shape[0] + x),
        lambda x: x.softmax(-1),
    ],
    ids=["argument", "keyword", "function", "output", "method"],
)
def test_every_part_of_a_call_is_in_the_key(other: Callable[..., Any]) -> None:
    base = capture(lambda x: torch.nn.functional.softmax(x, dim=-1), torch.ones(2, 4))
    assert _parts_that_differ(base, capture(other, torch.ones(2, 4))) == {"graph"}


def test_negative_zero_is_not_zero() -> None:
    first, second = (capture(lambda x, value=value: x * value, torch.ones(2)) for value in (0.0, -0.0))
    assert _parts_that_differ(first, second) == {"graph"}


@contextmanager
def _set(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _called(function: Callable[[Any], object], *, value: Any, before: Any) -> Iterator[None]:
    function(value)
    try:
        yield
    finally:
        function(before)


_MATMUL = torch.backends.cuda.matmul
_CUDA = torch.backends.cuda
AMBIENT = {
    "grad_enabled": torch.no_grad,
    "inference_mode": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_dtype": lambda: torch.autocast("cpu", dtype=torch.float16),
    "matmul_precision": lambda: _called(torch.set_float32_matmul_precision, value="high", before="highest"),
    "deterministic": lambda: _called(torch.use_deterministic_algorithms, value=True, before=False),
    "default_dtype": lambda: _called(torch.set_default_dtype, value=torch.float64, before=torch.float32),
    "threads": lambda: _called(
        torch.set_num_threads, value=torch.get_num_threads() + 1, before=torch.get_num_threads()
    ),
    "cudnn.enabled": lambda: _set(torch.backends.cudnn, "enabled", False),
    "cudnn.allow_tf32": lambda: _set(torch.backends.cudnn, "allow_tf32", False),
    "cudnn.benchmark": lambda: _set(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": lambda: _set(torch.backends.cudnn, "deterministic", True),
    "cudnn.conv.fp32_precision": lambda: _set(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "matmul.fp32_precision": lambda: _set(_MATMUL, "fp32_precision", "tf32"),
    "matmul.fp16_reduction": lambda: _set(_MATMUL, "allow_fp16_reduced_precision_reduction", False),
    "matmul.bf16_reduction": lambda: _set(_MATMUL, "allow_bf16_reduced_precision_reduction", False),
    "matmul.fp16_accumulation": lambda: _set(_MATMUL, "allow_fp16_accumulation", True),
    "sdp.flash": lambda: _called(_CUDA.enable_flash_sdp, value=False, before=True),
    "sdp.mem_efficient": lambda: _called(_CUDA.enable_mem_efficient_sdp, value=False, before=True),
    "sdp.math": lambda: _called(_CUDA.enable_math_sdp, value=False, before=True),
    "sdp.cudnn": lambda: _called(_CUDA.enable_cudnn_sdp, value=False, before=True),
    "mkldnn.enabled": lambda: torch.backends.mkldnn.flags(enabled=False),
    "mkldnn.matmul.fp32_precision": lambda: _set(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
}


def test_asking_for_the_default_precision_is_no_deviation() -> None:
    before = _key()
    torch.set_float32_matmul_precision("highest")
    assert _key() == before


def test_every_ambient_item_gives_another_key() -> None:
    # On a CPU and a GPU: some decide for one of them alone.
    with faking():
        captured = trace(lambda x, y: (x.sin(), y.cos()), torch.ones(2, 4), torch.ones(3, 4, device="cuda"))
    keys = {"none": key_of(captured.encode().job).text}
    for name, state in AMBIENT.items():
        with state():
            keys[name] = key_of(captured.encode().job).text
    assert len(set(keys.values())) == len(keys)
    assert key_of(captured.encode().job).text == keys["none"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_autotune": True},
        {"epilogue_fusion": False},
        {"max_autotune_gemm_backends": "TRITON"},
        {"cpp.simdlen": 8},
        {"realize_reads_threshold": 7},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_are_in_the_key(options: dict[str, Any]) -> None:
    assert _key(**options) != _key()
    # The same wish, made globally.
    with torch._inductor.config.patch(options):
        assert _key() == _key(**options)


def test_functorch_settings_are_in_the_key() -> None:
    with torch._functorch.config.patch({"activation_memory_budget": 0.5}):
        given = _key()
    assert given != _key()


@pytest.mark.parametrize(
    "settings",
    [{"max_autotune": False}, {"fx_graph_cache": False}, {"compile_threads": 3}, {"trace.enabled": True}],
    ids=lambda settings: next(iter(settings)),
)
def test_what_changes_no_result_is_not_in_the_key(settings: dict[str, Any]) -> None:
    assert _key(**settings) == _key()


def test_the_graph_module_may_be_named_anything() -> None:
    captured = capture(_model, torch.ones(2, 4), torch.ones(3, 4))
    renamed = GraphModule(captured.graph_module, captured.graph_module.graph, class_name="Other")
    other = CapturedGraph(graph_module=renamed, example_inputs=captured.example_inputs)
    assert not _parts_that_differ(captured, other)
