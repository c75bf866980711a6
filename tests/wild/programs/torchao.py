"""Models with weights that torchao quantizes, and its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from compilefarm.torch_internals.settings import INDUCTOR
from tests.corpus.program import Case, call
from tests.settings import restoring_torchao_settings
from tests.wild.program import Compiler, Lacking, Program, backpropagating, program_of_case, require_module

_WIDTH = 64
_VOCABULARY = 50


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.heads = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.mask: torch.Tensor | None = None
        self.mlp = nn.Sequential(
            nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH), nn.SiLU(), nn.Linear(2 * _WIDTH, _WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            each.view(batch, length, 4, width // 4).transpose(1, 2) for each in self.heads(self.norm(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask, is_causal=self.mask is None)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class _Adapted(nn.Module):
    """A layer that is trained by two small ones beside it (LoRA)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, 4, bias=False)
        self.up = nn.Linear(4, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.up(self.down(x))
        return result


def _language_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(_VOCABULARY, _WIDTH), _Block(), _Block(), nn.Linear(_WIDTH, _VOCABULARY))


def _mlp(*, dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(_WIDTH, 128), nn.GELU(), nn.Linear(128, 32)).to(dtype)


def _quantized(model: nn.Module, configuration: Callable[[Any], Any]) -> nn.Module:
    quantization = require_module("torchao.quantization")
    try:
        quantization.quantize_(model, configuration(quantization))
    except (ImportError, AssertionError, AttributeError, ValueError) as error:
        # Kernels of other distributions, or of a newer GPU.
        raise Lacking(f"torchao: {error}") from error
    return model


def _layers(name: str, configuration: Callable[[Any], Any], *, dtype: torch.dtype = torch.float32) -> Program:
    def build() -> Case:
        model = _quantized(_mlp(dtype=dtype).eval(), configuration)
        # Inductor's products of integers fail on a GPU with 16 rows and fewer (aten::_int_mm), where eager has others.
        calls = [call(torch.randn(rows, _WIDTH, dtype=dtype)) for rows in (24, 24, 40)]
        return Case(function=model, calls=calls)

    return _program(name, build, precision=dtype if dtype == torch.bfloat16 else torch.float64)


def _program(name: str, build: Callable[[], Case], **flags: Any) -> Program:
    return program_of_case(name, build, context=restoring_torchao_settings, **flags)


def _text(*lengths: int) -> list[Any]:
    return [call(torch.randint(0, _VOCABULARY, (2, length))) for length in lengths]


def _generating() -> Case:
    model = _quantized(_language_model().eval(), lambda ao: ao.Int8WeightOnlyConfig())
    return Case(function=model, calls=_text(8, 9, 12))


def _adapted(dtype: torch.dtype = torch.float32) -> Case:
    model = _quantized(_language_model().to(dtype), lambda ao: ao.Int8WeightOnlyConfig())
    for block in (model[1], model[2]):  # type: ignore[index]
        block.mlp[1] = _Adapted(block.mlp[1]).to(dtype)
    return _training(model.requires_grad_(False).apply(_train_adapters), _text(8))


def _read() -> Case:
    """A text whose attention is told what to leave out by a mask."""
    model = _quantized(_Block().eval().bfloat16(), lambda ao: ao.Int8WeightOnlyConfig())
    model.mask = torch.ones(9, 9, dtype=torch.bool).tril(2)
    return Case(function=model, calls=[call(torch.randn(2, 9, _WIDTH, dtype=torch.bfloat16))])


def _train_adapters(module: nn.Module) -> None:
    if isinstance(module, _Adapted):
        module.down.requires_grad_()
        module.up.requires_grad_()


def _training(model: nn.Module, calls: list[Any]) -> Case:
    """Goes backward; quantized weights, which have no gradients, cannot be compared themselves."""

    def use(function: Any, given: Any) -> Any:
        result = backpropagating(function, given)
        return result, [weight.grad for weight in model.parameters() if weight.grad is not None]

    return Case(function=lambda *inputs: model(*inputs), calls=calls, use=use)


def _trained_in_float8() -> Case:
    """Products in eight bits, computed in more, since few processors have kernels for them."""
    float8 = require_module("torchao.float8")
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH, bias=False))
    float8.convert_to_float8_training(model.bfloat16(), config=float8.Float8LinearConfig(emulate=True))
    calls = [call(torch.randn(rows, _WIDTH, dtype=torch.bfloat16)) for rows in (32, 48)]
    return Case(function=model, calls=calls, use=backpropagating)


def _fine_tuned() -> Case:
    model = _quantized(_mlp(), lambda ao: ao.Int8WeightOnlyConfig())
    return _training(model, [call(torch.randn(4, _WIDTH)), call(torch.randn(6, _WIDTH))])


@contextmanager
def _quantizer_for_x86() -> Iterator[None]:
    """As after its import, which sets a pass for the whole process and registers patterns."""
    with restoring_torchao_settings(), INDUCTOR.patch(pre_grad_custom_pass=None):
        require_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
        passes = require_module("torchao.quantization.pt2e.inductor_passes.x86")
        with INDUCTOR.patch(pre_grad_custom_pass=passes.quant_lift_up):
            yield


@contextmanager
def _freezing() -> Iterator[None]:
    with _quantizer_for_x86(), INDUCTOR.patch(freezing=True):
        yield


def _exported_for_x86() -> Case:
    """Layers that were exported, calibrated, and quantized to integers of eight bits."""
    quantizers = require_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    steps = require_module("torchao.quantization.pt2e.quantize_pt2e")
    quantizer = quantizers.X86InductorQuantizer()
    quantizer.set_global(quantizers.get_default_x86_inductor_quantization_config())
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 5))
    x = torch.randn(2, 3, 8, 8)
    prepared = steps.prepare_pt2e(torch.export.export(model.eval(), (x,)).module(), quantizer)
    prepared(x)
    return Case(function=steps.convert_pt2e(prepared), calls=[call(x), call(torch.randn(2, 3, 8, 8))])


def _step_of(name: str) -> Program:
    def run(compiler: Compiler) -> Any:
        optimizers = require_module("torchao.optim")
        model = nn.Linear(_WIDTH, _WIDTH).to(compiler.device)
        optimizer = getattr(optimizers, name)(model.parameters(), lr=1e-2)
        compile_function = torch.compile
        # The optimizer compiles its own step.
        torch.compile = lambda function, **options: (
            function
            if compiler.backend is None
            else compile_function(function, **{**options, "backend": compiler.backend})
        )
        try:
            for _ in range(2):
                model(torch.randn(8, _WIDTH, device=compiler.device)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.compile = compile_function
        return dict(model.named_parameters())

    return Program(name=name, run=run, training=True)


PROGRAMS = (
    _layers("int8 weights", lambda ao: ao.Int8WeightOnlyConfig()),
    _layers("int8 weights, bfloat16", lambda ao: ao.Int8WeightOnlyConfig(), dtype=torch.bfloat16),
    _layers("int8 weights and activations", lambda ao: ao.Int8DynamicActivationInt8WeightConfig()),
    _layers("float8 weights", lambda ao: ao.Float8WeightOnlyConfig(), dtype=torch.bfloat16),
    _layers(
        "float8 weights and activations",
        lambda ao: ao.Float8DynamicActivationFloat8WeightConfig(),
        dtype=torch.bfloat16,
    ),
    _layers(
        "int4 weights, unpacked",
        lambda ao: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)),
    ),
    _layers(
        "int4 weights, int8 activations",
        lambda ao: ao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=ao.PerGroup(32)
        ),
    ),
    _layers("int4 weights", lambda ao: ao.Int4WeightOnlyConfig(group_size=32), dtype=torch.bfloat16),
    _program("text, int8 weights", _generating),
    _program("text, mask, int8 weights, bfloat16", _read, precision=torch.bfloat16),
    _program(
        "text, adapters on int8 weights, bfloat16, training",
        lambda: _adapted(torch.bfloat16),
        training=True,
        precision=torch.bfloat16,
    ),
    _program("int8 weights, training", _fine_tuned, training=True),
    _program("float8 products, training", _trained_in_float8, training=True, precision=torch.bfloat16),
    _program("text, adapters on int8 weights, training", _adapted, training=True),
    program_of_case(
        "layers, beside the quantizer for x86",
        lambda: Case(function=_mlp().eval(), calls=[call(torch.randn(4, _WIDTH))]),
        context=_quantizer_for_x86,
    ),
    program_of_case("exported and quantized for x86", _exported_for_x86, context=_quantizer_for_x86),
    program_of_case("exported and quantized for x86, frozen", _exported_for_x86, context=_freezing),
    _step_of("AdamW8bit"),
    _step_of("AdamW4bit"),
)
