"""Programs of mixed precision that are right: what a check must not refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class RightProgram:
    """A model and what it is called with.

    Attributes:
        name: it.
        model: it.
        inputs: arguments of a call.
        trains: whether gradients are taken.
        options: for torch.compile.
        precision: of float32 matmuls, as in torch.set_float32_matmul_precision.
    """

    name: str
    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    trains: bool
    options: Mapping[str, object] = field(default_factory=dict)
    precision: str = "highest"


def _x(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _ids(*shape: int, below: int = 50) -> torch.Tensor:
    return torch.randint(0, below, shape)


class Block(nn.Module):
    """A layer of a decoder as Llama has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.first, self.second = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = _rms(x, self.first)
        batch, length, width = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, length, self.heads, -1).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            split(self.q(normed)), split(self.k(normed)), split(self.v(normed)), is_causal=True
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = _rms(x, self.second)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Decoder(nn.Module):
    """A language model of a few layers."""

    def __init__(self, *, answer: str, layers: int = 3, width: int = 64, words: int = 200) -> None:
        super().__init__()
        self.answer = answer
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embed(ids)))
        match self.answer:
            case "loss":
                return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
            case "tokens":
                return logits.argmax(-1)
            case "float":
                return logits.float()
            case "top":
                return torch.topk(logits.float(), 5).values
        return logits


class Vision(nn.Module):
    """A small ViT."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.first = nn.TransformerEncoderLayer(
            width, 4, 128, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.second = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.second(self.first(x)).mean(1))


def _mlp(depth: int = 4, width: int = 128) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(depth))
    )


def _convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
        nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def _normalized_images() -> nn.Sequential:
    """Whose gradients are sums of thousands of equal elements, as behind every mean over an image."""

    def block(given: int) -> Iterator[nn.Module]:
        yield from (nn.Conv2d(given, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())

    return nn.Sequential(*block(3), *block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def _normalized_rows() -> nn.Sequential:
    """Whose first bias has a gradient that is zero but for rounding."""
    return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))


def _autocast(model: Callable[..., Any], dtype: torch.dtype = BF16) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        with torch.autocast(inputs[0].device.type, dtype=dtype):
            return model(*inputs)

    return run


def _then(model: Callable[..., Any], last: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda *inputs: last(model(*inputs))


def _probabilities(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean(), x.var(-1), x.norm(), x.std(0), x.sum(-1), x.logsumexp(-1)


def _mixture(x: torch.Tensor, router: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    weights, chosen = torch.softmax((x @ router).float(), -1).topk(2)
    picked = experts[chosen]
    return ((x[:, None, None] @ picked).squeeze(2) * weights[..., None].to(x.dtype)).sum(1)


def _rotary(x: torch.Tensor) -> torch.Tensor:
    length, width = (torch.arange(size, device=x.device).float() for size in x.shape[-2:])
    angles = torch.outer(length, 1e4 ** (-width[::2] / x.shape[-1]))
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., ::2], x[..., 1::2]
    return torch.stack((left * cosine - right * sine, left * sine + right * cosine), -1).flatten(-2)


def _scan(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    state, states = torch.zeros_like(x[0]), []
    for step in range(8):
        state = state * torch.sigmoid(gate[step]) + x[step]
        states.append(state)
    return torch.stack(states)


def _train(name: str, model: nn.Module, *inputs: Any) -> RightProgram:
    return RightProgram(name=f"training {name}", model=model, inputs=inputs, trains=True)


def _infer(name: str, model: Callable[..., Any], *inputs: Any) -> RightProgram:
    return RightProgram(name=name, model=model, inputs=inputs, trains=False)


def _in_precision(precision: str, program: RightProgram) -> RightProgram:
    return replace(program, name=f"{program.name}, {precision} precision", precision=precision)


class _Whole(nn.Module):
    """A function of a model, as a model."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.model, *inputs)


def _casting(model: nn.Module, *inputs: Any) -> Any:
    with torch.autocast(inputs[0].device.type, dtype=BF16):
        return model(*inputs)


def _casting_to_half(model: nn.Module, *inputs: Any) -> Any:
    with torch.autocast(inputs[0].device.type, dtype=FP16):
        return model(*inputs)


def _squared(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x).float(), torch.zeros_like(x, dtype=FP32))


def right_programs(*, device: str = "cpu") -> list[RightProgram]:
    """All of them, with the same weights each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return _programs()


def _programs() -> list[RightProgram]:
    ids, image = _ids(2, 24), _x(2, 3, 32, 32)
    q, k, v = (_x(2, 4, 64, 16) for _ in range(3))
    probabilities = _then(_probabilities, lambda p: p.float())
    return [
        _infer("mlp bf16", _mlp().to(BF16), _x(32, 128)),
        _infer("mlp fp16", _mlp().to(FP16), _x(32, 128, dtype=FP16)),
        _infer("deep mlp bf16", _mlp(16).to(BF16), _x(32, 128)),
        _infer("mlp bf16, float output", _then(_mlp().to(BF16), lambda y: y.float()), _x(32, 128)),
        _infer("mlp fp16, float output", _then(_mlp().to(FP16), lambda y: y.float()), _x(32, 128, dtype=FP16)),
        _infer("mlp bf16, double output", _then(_mlp().to(BF16), lambda y: y.double()), _x(32, 128)),
        _infer("mlp autocast", _autocast(_mlp()), _x(32, 128, dtype=FP32)),
        _infer("mlp autocast, float output", _autocast(_then(_mlp(), lambda y: y.float())), _x(32, 128, dtype=FP32)),
        _infer("mlp autocast fp16", _autocast(_mlp(), FP16), _x(32, 128, dtype=FP32)),
        _infer("mlp bf16, argmax", _then(_mlp().to(BF16), lambda y: y.argmax(-1)), _x(64, 128)),
        _infer("mlp bf16, max", _then(_mlp().to(BF16), lambda y: tuple(y.max(-1))), _x(64, 128)),
        _infer("mlp bf16, sign", _then(_mlp().to(BF16), lambda y: y > 0), _x(64, 128)),
        _infer("mlp bf16, sorted", _then(_mlp().to(BF16), lambda y: tuple(y.sort(-1))), _x(16, 128)),
        _infer("mlp bf16, top", _then(_mlp().to(BF16), lambda y: tuple(y.topk(5))), _x(16, 128)),
        _infer("mlp bf16, loss", _then(_mlp().to(BF16), lambda y: y.float().pow(2).mean()), _x(64, 128)),
        _infer("mlp bf16, steps", _then(_mlp().to(BF16), lambda y: (y * 100).round().int()), _x(64, 128)),
        _infer("decoder bf16", Decoder(answer="logits").to(BF16), ids),
        _infer("decoder bf16, float logits", Decoder(answer="float").to(BF16), ids),
        _infer("decoder bf16, tokens", Decoder(answer="tokens").to(BF16), ids),
        _infer("decoder fp16, tokens", Decoder(answer="tokens").to(FP16), ids),
        _infer("decoder bf16, top", Decoder(answer="top").to(BF16), ids),
        _infer("decoder bf16, loss", Decoder(answer="loss").to(BF16), ids),
        _infer("decoder autocast, loss", _autocast(Decoder(answer="loss")), ids),
        _infer("decoder autocast, tokens", _autocast(Decoder(answer="tokens")), ids),
        _infer("vision bf16", Vision().to(BF16).eval(), image),
        _infer("vision fp16", Vision().to(FP16).eval(), image.half()),
        # In eval() its layers are one operator each, which torch itself cannot trace with autocast on a CPU.
        _infer("vision autocast, float output", _autocast(_then(Vision().train(), lambda y: y.float())), image.float()),
        _infer("convolutions bf16", _convolutions().to(BF16).eval(), image),
        _infer("convolutions autocast", _autocast(_convolutions().eval()), image.float()),
        _infer("attention bf16", _attention, q, k, v),
        _infer("attention fp16", _attention, q.half(), k.half(), v.half()),
        _infer("attention probabilities bf16", _probabilities, q, k),
        _infer("attention probabilities bf16, float output", probabilities, q, k),
        _infer("moments bf16", _moments, _x(64, 256)),
        _infer("moments fp16", _moments, _x(64, 256, dtype=FP16)),
        _infer("mixture bf16", _mixture, _x(32, 64), _x(64, 8), _x(8, 64, 64)),
        _infer("rotary bf16", _rotary, _x(2, 4, 64, 32)),
        _infer("scan bf16", _scan, _x(8, 64), _x(8, 64)),
        _infer("softmax of large bf16", lambda x: torch.log_softmax(x * 30, -1), _x(32, 100)),
        _infer("cumulative sums bf16", lambda x: x.cumsum(-1).float(), _x(16, 200)),
        _infer("group norm fp16", nn.GroupNorm(4, 32).to(FP16), _x(4, 32, 9, 9, dtype=FP16)),
        _infer("mlp", _mlp(), _x(32, 128, dtype=FP32)),
        _in_precision("high", _infer("mlp", _mlp(), _x(32, 128, dtype=FP32))),
        _in_precision("medium", _infer("mlp", _mlp(), _x(32, 128, dtype=FP32))),
        _infer("convolutions", _convolutions().eval(), _x(4, 3, 32, 32, dtype=FP32)),
        _infer("decoder", Decoder(answer="logits"), ids),
        _infer("attention", _attention, q.float(), k.float(), v.float()),
        _train("mlp", _mlp(2), _x(32, 128, dtype=FP32)),
        _train("convolutions", _convolutions().train(), _x(4, 3, 32, 32, dtype=FP32)),
        _train("batch norms of images", _normalized_images(), _x(8, 3, 64, 64, dtype=FP32)),
        _train("batch norm autocast", _Whole(_normalized_rows(), _casting), _x(64, 20, dtype=FP32)),
        _in_precision("high", _train("mlp", _mlp(2), _x(32, 128, dtype=FP32))),
        _train("mlp bf16", _mlp().to(BF16), _x(32, 128)),
        _train("mlp fp16", _mlp(2).to(FP16), _x(32, 128, dtype=FP16)),
        _train("mlp autocast", _Whole(_mlp(), _casting), _x(32, 128, dtype=FP32)),
        _train("mlp autocast fp16", _Whole(_mlp(2), _casting_to_half), _x(32, 128, dtype=FP32)),
        _train("mlp bf16 with loss", _Whole(_mlp().to(BF16), _squared), _x(32, 128)),
        _train("decoder bf16", Decoder(answer="loss", layers=2).to(BF16), ids),
        _train("decoder autocast", _Whole(Decoder(answer="loss", layers=2), _casting), ids),
        _train("vision bf16", Vision().to(BF16), image),
        _train("vision autocast", _Whole(Vision(), _casting), image.float()),
        _train("convolutions autocast", _Whole(_convolutions().eval(), _casting), image.float()),
    ]
