"""Functions of torch that other libraries are written in: transforms, distributions, signals, complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import autograd, distributions, func, nn
from torch.nn import functional

from tests.corpus.program import Case, backpropagating, call
from tests.wild.program import Compiler, Program, program_of_case

_Tensors = Callable[..., Any]


def _program(name: str, function: _Tensors, *shapes: tuple[int, ...], **flags: Any) -> Program:
    def build() -> Case:
        return Case(function=function, calls=[call(*map(torch.randn, shapes))])

    return program_of_case(name, build, **flags)


def _ntk(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The neural tangent kernel of a layer."""
    jacobian = func.vmap(func.jacrev(lambda weights, x: x @ weights), (None, 0))(weights, x)
    return torch.einsum("Naij,Mbij->NMab", jacobian, jacobian)


def _mixture(logits: torch.Tensor, means: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    parts = distributions.Normal(means, torch.ones_like(means))
    density: torch.Tensor = distributions.MixtureSameFamily(distributions.Categorical(logits=logits), parts).log_prob(x)
    return density


def _multivariate(mean: torch.Tensor, factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    scale = factor.tril() + 4 * torch.eye(3, device=x.device)
    density: torch.Tensor = distributions.MultivariateNormal(mean, scale_tril=scale).log_prob(x)
    return density


def _divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return distributions.kl_divergence(distributions.Dirichlet(x.exp()), distributions.Dirichlet(y.exp()))


def _there_and_back(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(32, device=x.device)
    spectrum = torch.stft(x, 32, 8, window=window, return_complex=True)
    return torch.istft(spectrum, 32, 8, window=window, length=x.shape[-1])


def _with_numpy(x: torch.Tensor) -> torch.Tensor:
    """Signals and integers as programs write them that were made for NumPy."""
    signals = x.cpu().numpy()
    smooth = np.convolve(np.pad(signals[0], 2), np.hanning(5))
    spectrum = np.fft.rfft2(signals.T).real * np.conj(signals[:, :3].T).sum()
    steps = np.gradient(np.fabs(signals)[1]) + np.rint(signals[2])
    period = np.lcm(np.arange(1, 5), 6) + np.gcd(np.arange(4), 4)
    parts = [torch.as_tensor(each).double().flatten() for each in (smooth, spectrum, steps, period, np.cov(signals))]
    return torch.cat(parts)


def _decayed() -> Case:
    """Steps that are counted, to which momenta are raised: what they are then is decided while it is traced."""

    def decayed(x: torch.Tensor, steps: int) -> tuple[torch.Tensor, int]:
        return x * math.pow(0.9, steps) + x.shape[0] * steps, steps + 1

    return Case(function=decayed, calls=[call(torch.randn(rows, 3), steps) for rows, steps in ((3, 2), (4, 4), (5, 4))])


def _bags(rows: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Bags of embeddings of which lengths are known, and rows that are repeated as often."""
    offsets = lengths.cumsum(0) - lengths
    means = functional.embedding_bag(rows, weights, offsets, padding_idx=3)
    sums = functional.embedding_bag(rows, weights, torch.arange(len(lengths), device=lengths.device) * 2, mode="sum")
    return means.repeat_interleave(lengths, 0, output_size=len(rows)).sum(0) + sums * lengths.unsqueeze(1)


def _bagged() -> Case:
    weights = torch.randn(10, 4, requires_grad=True)
    lengths = [torch.tensor(given) for given in ([3, 0, 5], [1, 4, 2, 2])]
    calls = [call(torch.randint(10, (int(each.sum()),)), each, weights) for each in lengths]
    return Case(function=_bags, calls=calls, use=backpropagating)


def _rates() -> Case:
    """Floats of a schedule, of which others are computed before tensors take them."""

    def stepped(x: torch.Tensor, rate: float, decay: float, step: int) -> torch.Tensor:
        warm = min(1.0, rate * decay) / max(rate, decay * ((step + 1) / 7))
        return x * (1 - warm**2) + (decay - rate) ** 2 * x.abs() - math.sqrt(warm) * x.mean()

    return Case(
        function=stepped, calls=[call(torch.randn(4, 3), 0.5 / step, 0.9 * step, step) for step in (1, 2, 3, 4)]
    )


def _deciding() -> Case:
    """An eps that is one of two, and a share that is rounded, beside a rate that differs at each call."""

    def normed(x: torch.Tensor, rate: float, eps: float) -> torch.Tensor:
        return functional.layer_norm(x * rate, (3,), eps=eps) + round(eps * 10)

    settings = ((0.5, 0.01), (0.4, 0.2), (0.3, 0.2), (0.2, 0.01), (0.1, 0.2))
    return Case(function=normed, calls=[call(torch.randn(4, 3), rate, eps) for rate, eps in settings])


def _scaled_back() -> Case:
    """A model that scales the gradients of what it has computed half-way."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 2)

    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = first(x).tanh()
        hidden.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1) * scale)
        result: torch.Tensor = second(hidden.relu()).square()
        return result

    model = nn.ModuleList([first, second])
    model.forward = scaled  # type: ignore[method-assign]
    return Case(
        function=model, calls=[call(torch.randn(4, 8), torch.tensor(2.0)) for _ in range(2)], use=backpropagating
    )


def _windows() -> Case:
    """Windows of one memory, each of which is written to as the next one is read; the last call has them elsewhere."""

    def smoothed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left.mul_(0.5).add_(right.mean())
        return left.sum() * right

    whole = torch.randn(12)
    places = ((0, 3), (0, 3), (2, 7), (4, 5))
    return Case(function=smoothed, calls=[call(whole[left:][:5], whole[right:][:5]) for left, right in places])


class _Convolved(autograd.Function):
    """A convolution of activations, which are computed again where its gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return functional.conv2d(functional.gelu(x), weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        active = functional.gelu(x)
        of_active = nn.grad.conv2d_input(active.shape, weight, gradient)
        of_weight = nn.grad.conv2d_weight(active, weight.shape, gradient)
        return torch.ops.aten.gelu_backward(of_active, x), of_weight


class _Scaling(nn.Module):
    """A U-Net of one level, whose result is enlarged."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.Upsample(scale_factor=2.0, mode="bilinear")
        self.out = nn.Conv2d(7, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deep = self.up(self.down(x).relu())[..., : x.shape[-2], : x.shape[-1]]
        return functional.interpolate(self.out(torch.cat([x, deep], 1)), scale_factor=1.7)


def _scaled() -> Case:
    calls = [call(torch.randn(1, 3, size, 2 * size)) for size in (8, 12, 18)]
    return Case(function=_Scaling(), calls=calls, use=backpropagating)


def _squares() -> Case:
    """Rows of tokens as images, as vision models without a fixed size have them, and a pyramid of their halves."""

    def arranged(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        side, levels = int(x.shape[1] ** 0.5), int(math.log2(x.shape[1]))
        image = x[:, : side * side].reshape(x.shape[0], side, side, -1).permute(0, 3, 1, 2)
        width = int(math.sqrt(x.shape[1] * x.shape[2]))
        return nn.functional.avg_pool2d(image, 2), x[:, :levels].cumsum(1), x.flatten(1)[:, :width] / width

    return Case(function=arranged, calls=[call(torch.randn(2, size, 3)) for size in (16, 30, 65)])


def _steps_by_name() -> Case:
    aten = torch.ops.aten

    def steps(x: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bags = aten._embedding_bag(x, indices, offsets)[0]
        resized = aten.resize(x, [3, 2]), aten.resize_as(x, torch.empty(9, 4))[:8]
        return *resized, bags, aten._to_copy(x, dtype=7), aten.new_ones(indices, [2], dtype=6)

    given = torch.randn(8, 4), torch.tensor([1, 7, 0, 3]), torch.tensor([0, 3])
    return Case(function=steps, calls=[call(*given)])


def _by_name() -> Case:
    """Functions of autograd whose gradients call those of torch by name."""
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)

    def sampled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        maxima: torch.Tensor = functional.max_pool2d(_Convolved.apply(x, weight), 2)
        return maxima.mean((2, 3))

    calls = [call(torch.randn(2, 3, side, side, requires_grad=True), weight) for side in (8, 8, 12)]
    return Case(function=sampled, calls=calls, use=backpropagating)


def _derive_compiled(compiler: Compiler) -> Any:
    """A training step whose backward pass is captured with the hooks that it meets."""
    with compiler.device:
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
        calls = [torch.randn(rows, 8) for rows in (4, 4, 6)]
    return _trained_compiled(compiler, model, calls)


def _derive_images_compiled(compiler: Compiler) -> Any:
    """The same of layers whose gradients are steps of their own."""
    with compiler.device:
        down = nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2)
        up = nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(3)
        model = nn.Sequential(*down, *up)
        calls = [torch.randn(rows, 3, 8, 8) for rows in (4, 4, 6)]
    return _trained_compiled(compiler, model, calls)


def _trained_compiled(compiler: Compiler, model: nn.Sequential, calls: Sequence[torch.Tensor]) -> Any:
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        model(x).square().sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=compiler.backend is not None):
        compiled = compiler(step)
        for x in calls:
            optimizer.zero_grad()
            compiled(x)
            optimizer.step()
    return dict(model.named_parameters())


def _derive_twice(compiler: Compiler) -> Any:
    """Two losses of one forward pass, of which the first keeps it."""
    with compiler.device:
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
        calls = [torch.randn(4, 8) for _ in range(2)]
    compiled = compiler(model)
    for x in calls:
        policy, value = compiled(x).unbind(1)
        policy.sum().backward(retain_graph=True)
        value.square().sum().backward()
    return dict(model.named_parameters())


PROGRAMS = (
    _program("vmap of vmap", lambda x: func.vmap(func.vmap(lambda row: row.softmax(0).cumsum(0)))(x), (4, 3, 5)),
    _program("jvp", lambda x, t: func.jvp(lambda given: (given**3).sum(), (x,), (t,)), (4,), (4,)),
    _program("jacfwd of jacrev", lambda x: func.jacfwd(func.jacrev(lambda given: (given.sin() ** 2).sum()))(x), (4,)),
    _program("hessian", lambda x: func.hessian(lambda given: (given.sin() ** 2).sum())(x), (4,)),
    _program("linearize", lambda x, t: func.linearize(lambda given: given.sin(), x)[1](t), (4,), (4,)),
    _program("tangent kernel", _ntk, (3, 2), (5, 3)),
    _program("mixture", _mixture, (4,), (4,), (6,)),
    _program("multivariate normal", _multivariate, (3,), (3, 3), (5, 3)),
    _program("divergence of Dirichlets", _divergence, (4,), (4,)),
    _program("short-time Fourier transform", _there_and_back, (2, 256)),
    _program("NumPy", _with_numpy, (3, 8), precision=torch.float32),
    program_of_case("powers of steps", _decayed),
    program_of_case("floats of floats", _rates),
    program_of_case("floats that decide", _deciding),
    program_of_case("gradients scaled by a hook", _scaled_back, training=True),
    program_of_case("windows of one memory", _windows),
    program_of_case("bags of lengths", _bagged, training=True),
    program_of_case("images scaled by factors", _scaled, training=True),
    program_of_case("roots and logarithms of sizes", _squares),
    program_of_case("steps by name", _steps_by_name),
    program_of_case("gradients by name", _by_name, training=True),
    Program(name="compiled autograd", run=_derive_compiled, training=True),
    Program(name="compiled autograd of images", run=_derive_images_compiled, training=True),
    Program(name="two losses", run=_derive_twice, training=True),
    _program("combinations", lambda x: torch.combinations(x, 3).sum(1), (6,)),
    _program("complex products", lambda x, y: torch.view_as_real(torch.complex(x, y) ** 2), (3, 4), (3, 4)),
)
