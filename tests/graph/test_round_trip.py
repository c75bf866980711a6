"""Decoding what was encoded gives the same program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from compilefarm.core.keys import key_of
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.decode import GraphRejected, decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import CapturedGraph, capture, fixed_environment
from compilefarm.v1.job_pb2 import Job

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _mlp() -> Program:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    )
    return model.eval(), (torch.randn(8, 16),)


def _convolutions() -> Program:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 10),
    )
    return model.eval(), (torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last),)


def _llama() -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
    )
    return LlamaForCausalLM(config).eval(), (torch.randint(0, 256, (1, 16)),)


def _bert() -> Program:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256
    )
    return BertModel(config).eval(), (torch.randint(0, 256, (2, 16)), torch.ones(2, 16, dtype=torch.int64))


def _fused_encoder() -> Program:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval(), (torch.randn(2, 5, 16),)


def _indexing(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = x[..., 1:5:2, None] * float("inf")
    y = torch.where(y > 0, y, -0.0).to(torch.float64)
    top = torch.topk(y, 2, dim=-1)
    y[0, :2] = top.values[0]
    return kept, top.indices, torch.einsum("ij,jk->ik", y, y.T), x.view(torch.uint8).new_zeros(3)


def _operators(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    added = torch.ops.aten.add.Tensor(x, x, alpha=2)
    return added, torch.ops.aten.relu(x), torch.fft.rfft(x), torch.linalg.norm(x), torch.special.expit(x)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": _mlp,
    "convolutions": _convolutions,
    "llama": _llama,
    "bert": _bert,
    # torch 2.11 has no fake form of the operator that it calls.
    "fused encoder": _fused_encoder,
    "indexing": lambda: (_indexing, (torch.randn(2, 3, 8), torch.randn(4, 4))),
    "operators": lambda: (_operators, (torch.randn(4, 6),)),
}


@pytest.fixture(params=PROGRAMS, scope="module")
def captured(request: pytest.FixtureRequest) -> CapturedGraph:
    torch.manual_seed(0)
    model, args = PROGRAMS[request.param]()
    with torch.no_grad():
        return capture(model, *args)


def _copies(inputs: Any) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in inputs]


def test_decoded_graph_computes_the_same_bits(captured: CapturedGraph) -> None:
    encoded = captured.encode()
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    expected = captured.graph_module(*_copies(captured.example_inputs))
    given = decoded.graph_module(*_copies(captured.example_inputs))
    assert len(given) == len(expected)
    for ours, theirs in zip(given, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


def test_decoded_graph_has_the_key_of_the_original(captured: CapturedGraph) -> None:
    encoded = captured.encode()
    # As it arrives: through bytes.
    job = Job.FromString(encoded.job.SerializeToString())
    decoded = decode_job(job, blobs=encoded.blobs)
    again = encode_job(decoded.graph_module, decoded.inputs, options={}, environment=fixed_environment)
    assert key_of(again.job) == key_of(encoded.job)


def test_every_node_has_an_example_value_like_dynamos(captured: CapturedGraph) -> None:
    encoded = captured.encode()
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    outputs = decoded.graph_module.graph.output_node().meta["example_value"]
    expected = captured.graph_module.graph.output_node().args[0]
    assert all("example_value" in node.meta for node in decoded.graph_module.graph.nodes)
    assert [out.shape for out in outputs] == [node.meta["example_value"].shape for node in expected]
    assert [out.dtype for out in outputs] == [node.meta["example_value"].dtype for node in expected]


def test_inputs_look_like_the_originals(captured: CapturedGraph) -> None:
    encoded = captured.encode()
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    for ours, theirs in zip(decoded.inputs, captured.example_inputs, strict=True):
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        assert ours.dtype == theirs.dtype
        assert ours.requires_grad == theirs.requires_grad
        assert isinstance(ours, torch.nn.Parameter) == isinstance(theirs, torch.nn.Parameter)


def test_nothing_of_the_users_source_is_sent() -> None:
    class SecretlyNamed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden_treasure = torch.nn.Linear(4, 4)

        def forward(self, private_argument: torch.Tensor) -> torch.Tensor:
            return self.hidden_treasure(private_argument)

    job = capture(SecretlyNamed(), torch.randn(2, 4)).encode().job
    content = job.SerializeToString().lower()
    assert not [word for word in (b"secret", b"treasure", b"private", b"test_round") if word in content]


def test_graph_that_switches_grad_mode_leaves_the_thread_as_it_was() -> None:
    def half_tracked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.sum()
        return weight * scale

    weight = torch.randn(4, requires_grad=True)
    encoded = capture(half_tracked, torch.randn(4), weight).encode()
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    assert torch.is_grad_enabled()
    assert decoded.graph_module.graph.output_node().meta["example_value"][0].requires_grad


def test_a_changed_input_stays_pristine_for_the_compile() -> None:
    def doubles(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1

    encoded = capture(doubles, torch.randn(3, 4)).encode()
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    placeholder = next(iter(decoded.graph_module.graph.nodes))
    # The run that found the example values has changed its own.
    assert placeholder.meta["example_value"]._version > decoded.inputs[0]._version


def test_graph_that_torch_refuses_is_told_from_a_malformed_request() -> None:
    encoded = capture(torch.matmul, torch.randn(3, 4), torch.randn(4, 5)).encode()
    encoded.job.inputs[1].tensor.shape[0].size = 5
    encoded.job.inputs[1].tensor.shape[1].size = 4
    with pytest.raises(GraphRejected, match="node 2") as caught:
        decode_job(encoded.job, blobs={})
    assert caught.value.error_type.endswith("Error")


def test_ambient_state_decides_what_the_graph_means() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = capture(torch.matmul, torch.randn(3, 4), torch.randn(4, 5)).encode()
    with apply_ambient(encoded.job.ambient):
        decoded = decode_job(encoded.job, blobs={})
    assert decoded.graph_module.graph.output_node().meta["example_value"][0].dtype == torch.bfloat16


def _graph_that_holds(tensor: Any, *, method: str) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    held = graph.get_attr("held")
    result = graph.call_method(method, (graph.call_function(torch.ops.aten.view.default, (held, [-1])), x))
    graph.output((result,))
    root = torch.nn.Module()
    root.register_buffer("held", tensor)
    return GraphModule(root, graph)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, float("inf"), -0.0, 1e-45]),
        torch.arange(12).view(3, 4).t(),
        torch.tensor(True),
        torch.tensor([[0.1 + 2j]]),
        torch.rand(2, 2).to(torch.bfloat16),
        torch.empty(0, 3),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_held_tensors_arrive_bit_for_bit(tensor: torch.Tensor) -> None:
    graph_module = _graph_that_holds(tensor.contiguous(), method="mul")
    x = torch.ones((), dtype=tensor.dtype)
    encoded = encode_job(graph_module, [x], options={}, environment=fixed_environment)
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    ours, theirs = decoded.graph_module(x)[0], graph_module(x)[0]
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
    assert not list(decoded.graph_module.buffers())


def test_elements_of_a_held_tensor_are_in_the_key() -> None:
    keys = {
        key_of(
            encode_job(
                _graph_that_holds(torch.tensor([1.0, last]), method="mul"),
                [torch.ones(2)],
                options={},
                environment=fixed_environment,
            ).job
        ).text
        for last in (2.0, 3.0)
    }
    assert len(keys) == 2


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_held_tensor_that_the_graph_changes_becomes_an_input(mode: Callable[[], Any]) -> None:
    held = torch.ones(2)
    with mode():
        encoded = encode_job(
            _graph_that_holds(held, method="add_"), [torch.ones(2)], options={}, environment=fixed_environment
        )
        decode_job(encoded.job, blobs={}).graph_module(torch.ones(2), *encoded.held)
    assert encoded.held[0] is held
    assert not encoded.blobs
    torch.testing.assert_close(held, torch.full((2,), 2.0))


@pytest.mark.parametrize("held", [torch.nn.Parameter(torch.ones(3)), torch.ones(20_000)], ids=["parameter", "large"])
def test_weights_that_a_graph_holds_are_inputs_whose_elements_are_not_in_the_key(held: torch.Tensor) -> None:
    def encoded(elements: torch.Tensor) -> Any:
        graph_module = _graph_that_holds(elements, method="mul")
        return encode_job(graph_module, [torch.ones(())], options={}, environment=fixed_environment)

    job = encoded(held).job
    assert len(job.inputs) == 2
    assert job.inputs[1].is_parameter == isinstance(held, torch.nn.Parameter)
    assert key_of(job) == key_of(
        encoded(
            held.detach().clone().requires_grad_(held.requires_grad)
            if not job.inputs[1].is_parameter
            else torch.nn.Parameter(held.detach() * 2)
        ).job
    )


@pytest.mark.parametrize("method", ["__eq__", "__getitem__", "__rsub__", "__and__"])
def test_operators_may_be_called_as_methods(method: str) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method(method, (x, 1)),))
    value = torch.arange(6).reshape(2, 3)
    encoded = encode_job(GraphModule({}, graph), [value], options={}, environment=fixed_environment)
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    torch.testing.assert_close(decoded.graph_module(value), (getattr(value, method)(1),))


def test_what_a_distribution_draws_without_a_fake_form_of_torch_travels() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Dirichlet(x, validate_args=False).sample().view(-1)

    captured = capture(program, torch.rand(4, 3).t() + 1)
    decoded = decode_job(captured.encode().job, blobs={})
    torch.manual_seed(0)
    expected = captured.graph_module(*captured.example_inputs)
    torch.manual_seed(0)
    torch.testing.assert_close(decoded.graph_module(*captured.example_inputs), expected)
