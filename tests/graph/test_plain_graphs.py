"""Graphs with tensor subclasses as graphs of plain tensors: what is sent, and that it says all that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.inductor_prims
from torch._higher_order_ops.out_dtype import out_dtype
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.keys import key_of
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.plain_graphs import PlainGraph, needs_plain_graphs
from compilefarm.graph.saved_layouts import in_layouts_of
from compilefarm.graph.testing import capture

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """Integers and a scale for all of them, which computes as their product, rounded where that is asked for."""

    @staticmethod
    def __new__(cls, integers: torch.Tensor, scale: torch.Tensor, *, rounded: bool = False) -> Scaled:
        made = torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scale.dtype)
        made.integers, made.scale, made.rounded = integers, scale, rounded
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["integers", "scale"], self.rounded

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, rounded: Any, size: Any, stride: Any) -> Scaled:
        return cls(inner["integers"], inner["scale"], rounded=rounded)

    def __repr__(self, **_: Any) -> str:
        # Torch logs what it traces, where that has no elements to be shown.
        return "Scaled()"

    def plain(self) -> torch.Tensor:
        product = self.integers * self.scale
        return product.round() if self.rounded else product

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].integers, args[0].scale, rounded=args[0].rounded)
        args, kwargs = pytree.tree_map_only(Scaled, Scaled.plain, (args, kwargs or {}))
        return func(*args, **kwargs)


class Renamed(Scaled):
    """The same by another name."""


def scaled(rows: int, columns: int, *, kind: type[Scaled] = Scaled, **given: Any) -> Scaled:
    return kind(torch.randint(-8, 8, (rows, columns), dtype=torch.int8), torch.tensor(0.3), **given)


def linear(weight: torch.Tensor) -> torch.nn.Linear:
    """A layer with that weight."""
    model = torch.nn.Linear(weight.shape[1], weight.shape[0])
    model.weight = torch.nn.Parameter(weight, requires_grad=False)
    return model


class Encoding:
    """A backend that encodes graphs, and runs them as they are.

    Attributes:
        encoded: the jobs, by the roles of their graphs.
    """

    def __init__(self, options: dict[str, object] | None = None) -> None:
        self.encoded: list[tuple[str, EncodedJob]] = []
        self._runtime = TorchRuntime()
        self._options = options or {}

    def backend(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def compile_plain(plain: PlainGraph) -> Callable[..., Any]:
            encoded: Any = self._runtime.encode_plain(plain, options=self._options)
            self.encoded.append((plain.role, encoded))
            return plain.graph_module.forward

        assert needs_plain_graphs(graph_module, inputs)
        return self._runtime.compile_plain_graphs(
            graph_module, inputs, options=self._options, compile_plain=compile_plain
        )

    @property
    def keys(self) -> list[str]:
        return [key_of(encoded.job).text for _, encoded in self.encoded]

    @property
    def roles(self) -> list[str]:
        return [role for role, _ in self.encoded]


def keys(model: Callable[..., Any], *inputs: Any, **given: Any) -> list[str]:
    encoding = Encoding(**given)
    torch.compiler.reset()
    torch.compile(model, backend=encoding.backend)(*inputs)
    return encoding.keys


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_what_is_sent_can_be_decoded_and_computes_the_same() -> None:
    encoding, model, x = Encoding(), linear(scaled(4, 8)), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=encoding.backend, fullgraph=True)(x), model(x))
    ((role, encoded),) = encoding.encoded
    assert role == "inference"
    assert [each.tensor.dtype for each in encoded.job.inputs] == ["int8", "float32", "float32", "float32"]
    decoded = decode_job(encoded.job, blobs=encoded.blobs)
    weight: Any = model.weight
    (result,) = decoded.graph_module(weight.integers, weight.scale, model.bias, x)
    torch.testing.assert_close(result, model(x))


def test_forward_and_backward_are_sent() -> None:
    encoding, model = Encoding(), torch.nn.Sequential(linear(scaled(4, 8)), torch.nn.GELU(), torch.nn.Linear(4, 2))
    x = torch.randn(3, 8, requires_grad=True)
    torch.compile(model, backend=encoding.backend)(x).square().sum().backward()
    found, x.grad = x.grad, None
    model(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    assert encoding.roles == ["forward", "backward"]
    for _, encoded in encoding.encoded:
        decode_job(encoded.job, blobs=encoded.blobs)
        assert not encoded.job.ambient.grad_enabled
        assert not any(each.tensor.requires_grad for each in encoded.job.inputs)


def test_a_graph_that_is_kept_goes_backward_again() -> None:
    encoding, model = Encoding(), torch.nn.Sequential(linear(scaled(4, 8)), torch.nn.GELU(), torch.nn.Linear(4, 2))
    x = torch.randn(3, 8, requires_grad=True)
    result = torch.compile(model, backend=encoding.backend)(x).square().sum()
    found = [torch.autograd.grad(result, x, retain_graph=is_kept)[0] for is_kept in (True, False)]
    expected = torch.autograd.grad(model(x).square().sum(), x)
    torch.testing.assert_close(found, [*expected, *expected])
    assert encoding.roles == ["forward", "backward"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_pass_gets_what_was_kept_in_memory_as_it_was_compiled_for(dynamic: bool) -> None:
    """Whatever order of memory the program of the forward pass has left it in."""
    compiled_for: list[tuple[Sequence[Any], Sequence[Any]]] = []

    def compile_plain(plain: PlainGraph) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            if plain.role == "backward":
                compiled_for.append((plain.inputs, given))
                return plain.graph_module(*given)
            results = plain.graph_module(*given)
            return [each.mT.contiguous().mT if _is_matrix(each) else each for each in results]

        return run

    def backend(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return TorchRuntime().compile_plain_graphs(graph_module, inputs, options={}, compile_plain=compile_plain)

    x, w = torch.randn(3, 8, requires_grad=True), scaled(4, 8)
    model = torch.compile(lambda x: (linear(w)(x).sin() * 2).exp(), backend=backend, dynamic=dynamic)
    model(x).square().sum().backward()
    ((expected, given),) = compiled_for
    matrices = [(each, other) for each, other in zip(expected, given, strict=True) if _is_matrix(other)]
    assert matrices
    assert all(tuple(map(int, each.stride())) == other.stride() for each, other in matrices)


def test_a_backward_pass_gets_columns_of_wider_products_without_gaps() -> None:
    program = in_layouts_of([torch.empty(4), torch.empty(4, 1), torch.empty(())], lambda *given: given)
    wide = torch.arange(32.0).reshape(4, 8)
    column, matrix, number = program(wide[:, 0], wide[:, :1], wide[0, 0])
    assert column.is_contiguous()
    assert matrix.is_contiguous()
    assert (column.tolist(), matrix.tolist(), number) == ([0, 8, 16, 24], [[0], [8], [16], [24]], 0)


def _is_matrix(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.dim() == 2


def test_gradients_of_subclasses_are_subclasses() -> None:
    encoding = Encoding()
    weight = TwoTensor(torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True))
    result = torch.compile(lambda w: w.relu() * 2, backend=encoding.backend)(weight)
    result.sum().backward()
    assert encoding.roles == ["forward", "backward"]
    assert type(weight.grad) is TwoTensor


def test_what_decides_beside_the_elements_is_in_the_graph_that_is_sent() -> None:
    x = torch.randn(3, 8)
    plain, rounded = linear(scaled(4, 8)), linear(scaled(4, 8, rounded=True))
    with torch.no_grad():
        assert keys(plain, x) != keys(rounded, x)
        # What computes the same is one program, whatever it is called.
        assert keys(linear(scaled(4, 8, kind=Renamed)), x) == keys(plain, x)


def test_what_changes_beside_the_elements_is_traced_again() -> None:
    encoding, model, x = Encoding(), linear(scaled(4, 8)), torch.randn(3, 8)
    compiled = torch.compile(model, backend=encoding.backend)
    with torch.no_grad():
        for rounded in (False, True, False):
            model.weight = torch.nn.Parameter(scaled(4, 8, rounded=rounded), requires_grad=False)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(set(encoding.keys)) == 2


def test_autocast_is_in_the_graph_and_not_around_it() -> None:
    model, x = linear(scaled(4, 8)), torch.randn(3, 8)
    encoding = Encoding()
    with torch.no_grad(), torch.autocast("cpu"):
        result = torch.compile(model, backend=encoding.backend)(x)
    assert result.dtype == torch.bfloat16
    ((_, encoded),) = encoding.encoded
    assert [each.enabled for each in encoded.job.ambient.autocast] == [False]


def test_sizes_that_differ_are_symbols() -> None:
    encoding, model = Encoding(), linear(scaled(4, 8))
    compiled = torch.compile(model, backend=encoding.backend, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x))
    ((_, encoded),) = encoding.encoded
    assert len(encoded.job.symbols) == 1


def nested(*lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(length, 8) for length in lengths], layout=torch.jagged)


def test_a_jagged_tensor_is_its_values_and_offsets() -> None:
    encoding, model = Encoding(), torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU())
    compiled = torch.compile(model, backend=encoding.backend)
    for given in (nested(3, 5, 2), nested(2, 1, 4)):
        result, expected = compiled(given), model(given)
        torch.testing.assert_close(result.values(), expected.values())
        assert result.offsets().tolist() == expected.offsets().tolist()
        # The size of the input, and none of its own: results can be added to it.
        assert result.shape == (*given.shape[:2], 4)
    assert set(encoding.roles) == {"forward", "backward"}


def test_a_training_step_is_not_recorded_as_graphs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.graph.encode.recording_settings", lambda *_: {"triton.cudagraphs": True})
    model = linear(scaled(4, 8))
    with torch.no_grad():
        assert len(keys(model, torch.randn(3, 8))) == 1
    with pytest.raises(Exception, match="are not recorded as CUDA graphs"):
        keys(model, torch.randn(3, 8, requires_grad=True))


def test_without_dynamo_nobody_guards_what_a_subclass_is() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert not needs_plain_graphs(graph, [scaled(2, 2)])


class _Attending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = linear(scaled(48, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.heads(x).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_attention_goes_backward(dynamic: bool) -> None:
    encoding, model = Encoding(), _Attending()
    compiled = torch.compile(model, backend=encoding.backend, dynamic=dynamic)
    for length in (5, 7) if dynamic else (5,):
        x = torch.randn(3, length, 16, requires_grad=True)
        compiled(x).square().sum().backward()
        found, x.grad = x.grad, None
        model(x).square().sum().backward()
        torch.testing.assert_close(found, x.grad)
    assert encoding.roles == ["forward", "backward"]
    for _, encoded in encoding.encoded:
        decode_job(encoded.job, blobs=encoded.blobs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mean(dim=1),
        lambda x: x.softmax(dim=1).values(),
        lambda x: torch.nested.to_padded_tensor(x, 7.0, output_size=(3, 9, 8)),
        lambda x: torch.nested.to_padded_tensor(x, 7.0, output_size=(3, 4, 8)),
    ],
    ids=["mean", "softmax", "padded", "cut"],
)
@pytest.mark.parametrize("lengths", [(3, 5, 2), (0, 6, 0)])
def test_what_goes_along_the_ragged_dimension_is_computed_at_asserted_places(
    function: Callable[[torch.Tensor], torch.Tensor], lengths: tuple[int, ...]
) -> None:
    encoding = Encoding()
    compiled = torch.compile(function, backend=encoding.backend)
    with torch.no_grad():
        for given in (nested(*lengths), nested(*lengths[1:], 4)):
            torch.testing.assert_close(compiled(given), function(given), equal_nan=True)
    assert set(encoding.roles) == {"inference"}
    for _, encoded in encoding.encoded:
        decode_job(encoded.job, blobs=encoded.blobs)


class Multiplied(Scaled):
    """Integers that are multiplied by integers, as torchao's are, in more bits."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            other = args[1]
            return out_dtype(func, torch.int32, args[0].to(torch.int8), other.integers) * other.scale
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_product_in_another_dtype_is_what_it_is_made_of() -> None:
    encoding, weight, x = Encoding(), scaled(8, 4, kind=Multiplied), torch.randint(-8, 8, (3, 8)).float()
    compiled = torch.compile(lambda x, weight: x @ weight, backend=encoding.backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weight), x @ weight.plain())
    ((_, encoded),) = encoding.encoded
    decode_job(encoded.job, blobs=encoded.blobs)


_BYTES = torch.randint(-100, 100, (4, 4), dtype=torch.int8)


@pytest.mark.parametrize(
    ("operator", "left", "right", "dtype"),
    [
        (torch.ops.aten.mm.default, _BYTES, _BYTES, torch.int32),
        (torch.ops.aten.mul.Tensor, _BYTES, _BYTES[:1], torch.int32),
        (torch.ops.aten.mm.default, _BYTES, _BYTES, torch.float32),
        (torch.ops.aten.mul.Tensor, _BYTES.half(), _BYTES.float(), torch.bfloat16),
    ],
)
def test_a_result_with_a_dtype_of_its_own_is_written_out_without_subclasses_as_well(
    operator: Any, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype
) -> None:
    def program(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = out_dtype(operator, dtype, left, right)
        return result

    captured = capture(program, left, right)
    decoded = decode_job(captured.encode().job, blobs={})
    (result,) = decoded.graph_module(*captured.example_inputs)
    assert result.dtype == dtype
    torch.testing.assert_close(result, program(left, right), rtol=0, atol=0)


class Clipped(torch.autograd.Function):
    """A sine whose gradient is another one's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x.cos().clamp(-0.5, 0.5)


def test_functions_that_dynamo_leaves_in_graphs_are_traced_in_the_pod() -> None:
    factor = [2.0]

    def unseen(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.Size(map(int, x.shape))) * factor[0]

    for left_alone in (unseen, Clipped):
        torch.compiler.allow_in_graph(left_alone)
    x = torch.randn(3, 4, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Clipped.apply(unseen(x)).relu()
        return result

    encoding = Encoding()
    compiled = torch.compile(program, backend=encoding.backend, fullgraph=True)
    gradients = [torch.autograd.grad(function(x).sum(), x)[0] for function in (program, compiled)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert encoding.roles == ["forward", "backward"]
    for _, encoded in encoding.encoded:
        decode_job(encoded.job, blobs=encoded.blobs)
    factor[0] = 3.0
    assert keys(program, x) != encoding.keys


def test_compiled_autograd_sends_what_the_derivatives_amount_to_that_it_calls_by_name() -> None:
    encoding, model = Encoding(), torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU())
    calls = [torch.randn(rows, 8) for rows in (4, 4, 5)]

    def backend(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        is_backward = any(isinstance(given, list) for given in inputs)
        return encoding.backend(graph_module, inputs) if is_backward else graph_module.forward

    def step(x: torch.Tensor) -> None:
        model(x).square().sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step, backend=backend)
        # The second adds to the gradients of the first, and the third has another number of rows.
        for x in calls:
            compiled(x)
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    for x in calls:
        step(x)
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()])
    assert encoding.roles == ["inference"] * 3
    for _, encoded in encoding.encoded:
        decode_job(encoded.job, blobs=encoded.blobs)


def test_steps_of_functions_that_aot_autograd_takes_apart_are_sent() -> None:
    def computed(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plain = weight.relu() + torch.eye(4) * 9
        spectrum = torch.fft.irfft2(torch.fft.rfft2(torch.fft.fft(plain).real))
        norms = torch.linalg.svdvals(plain), torch.linalg.eigvalsh(plain @ plain.T), torch.linalg.slogdet(plain)[1]
        return torch.linalg.solve(plain, spectrum), torch.linalg.det(plain), torch.cdist(plain, plain), *norms

    encoding, weight = Encoding(), scaled(4, 4)
    with torch.no_grad():
        given = torch.compile(computed, backend=encoding.backend)(weight)
        torch.testing.assert_close(given, computed(weight))
    assert encoding.roles == ["inference"]
    ((_, sent),) = encoding.encoded
    decode_job(sent.job, blobs=sent.blobs)


def _of_layers(x: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normed, mean, deviation = aten.native_layer_norm(x, [8], None, None, 1e-5)
    steps = aten.native_layer_norm_backward(gradient, x, [8], mean, deviation, None, None, [True, False, False])
    rows = aten.embedding_dense_backward(gradient[0, 0], gradient[0, 0, :, 0].long(), 10, -1, False)
    return aten.gelu_backward(gradient, normed, approximate="tanh"), steps[0], rows


def _of_maxima(x: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    windows = [2, 2], [2, 2], [1, 1], [1, 1], False
    maxima, places = torch.nn.functional.max_pool2d(x, 2, padding=1, return_indices=True)
    adapted, adapted_places = torch.nn.functional.adaptive_max_pool2d(x, 3, return_indices=True)
    return (
        aten.max_pool2d_with_indices_backward(maxima, x, *windows, places),
        aten.adaptive_max_pool2d_backward(adapted, x, adapted_places),
    )


def _of_windows(x: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    within = (gradient * 6).to(torch.int8)
    places = torch.ops.prims._low_memory_max_pool_offsets_to_indices
    windows = [2, 3], [16, 20], [2, 1], [1, 0], [1, 2]
    return places(within, *windows), places(within[0], [2, 1, 3], [4, 16, 20], [1, 2, 1], [0, 1, 0], [1, 1, 2]), x.sin()


@pytest.mark.parametrize("steps", [_of_layers, _of_maxima, _of_windows])
def test_gradients_that_a_program_calls_by_name_are_sent_as_what_they_are_made_of(
    steps: Callable[..., tuple[torch.Tensor, ...]],
) -> None:
    encoding, x, gradient = Encoding(), torch.randn(2, 3, 8, 8), torch.rand(2, 3, 8, 8)
    given = torch.compile(steps, backend=encoding.backend, fullgraph=True)(x, gradient)
    torch.testing.assert_close(given, steps(x, gradient))
    ((role, sent),) = encoding.encoded
    assert role == "inference"
    decode_job(sent.job, blobs=sent.blobs)


class Convolved(torch.autograd.Function):
    """A convolution of activations that computes these again where its gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.conv2d(torch.nn.functional.silu(x), weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        active = torch.nn.functional.silu(x)
        of_active = torch.nn.grad.conv2d_input(active.shape, weight, gradient)
        return aten.silu_backward(of_active, x), torch.nn.grad.conv2d_weight(active, weight.shape, gradient)


def test_functions_of_autograd_with_gradients_by_name_are_sent() -> None:
    encoding = Encoding()
    given = [torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)]
    compiled = torch.compile(Convolved.apply, backend=encoding.backend)
    found, expected = (
        torch.autograd.grad(function(*given).square().sum(), given) for function in (compiled, Convolved.apply)
    )
    torch.testing.assert_close(found, expected)
    assert encoding.roles == ["forward", "backward"]
    for _, sent in encoding.encoded:
        decode_job(sent.job, blobs=sent.blobs)


def test_compiled_autograd_of_images_is_sent() -> None:
    encoding = Encoding()
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2), torch.nn.Upsample(scale_factor=2), torch.nn.AvgPool2d(3)
    model, x = torch.nn.Sequential(*layers), torch.randn(2, 3, 8, 8)

    def backend(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        is_backward = any(isinstance(given, list) for given in inputs)
        return encoding.backend(graph_module, inputs) if is_backward else graph_module.forward

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: model(x).square().sum().backward(), backend=backend)()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()])
    ((_, sent),) = encoding.encoded
    decode_job(sent.job, blobs=sent.blobs)
