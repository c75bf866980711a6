"""Looks for options with which a program is wrong or reaches beyond its tensors: `python -m tests.fuzz.options`.

Programs of many kinds of generated code are compiled as a worker does it, with several of the options that requests may
make, each at a value that its type admits, and run beside the graph that Dynamo captured. Tensors lie against memory
that nobody may touch (`guarded_memory.py`). What makes Inductor raise an error does so in a local compile, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from compilefarm.builder.generated_sources import watching_sources
from compilefarm.core import compiler_settings
from compilefarm.core.compiler_settings import SettingType
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.options import describe_settings
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.torch_internals.cpp_builds import try_instructions
from compilefarm.torch_internals.index_assertions import wrap_integers
from compilefarm.torch_internals.packed_layers import require_dense_operands
from compilefarm.torch_internals.pytrees import tensors_in
from compilefarm.torch_internals.weight_only_products import require_linear_layers
from compilefarm.worker.source_check import UnexpectedSource, check_source

from . import guarded_memory
from .guarded import ALONE, SIGNALS, WROTE, in_child, limited

SECONDS_OF_TRIAL = 120.0
RIGHT, REFUSED, RAISES = "is right", "is refused", "raises in Inductor"
WRONG, UNEXPECTED = "is wrong", "is taken for an attack"
_STATUSES = {RIGHT: 0, REFUSED: 10, RAISES: 11, WRONG: 12, UNEXPECTED: 13}
_OUTCOMES = {status: outcome for outcome, status in _STATUSES.items()} | {WROTE: "writes beyond its tensors"}
_HARMLESS = (RIGHT, REFUSED, RAISES, "takes too long", "takes too much memory")
# What decides together where memory lies, how products are cut up, or what is put in the place of what. Tried first.
_TOGETHER: Sequence[Mapping[str, Any]] = (
    *({"memory_planning": True, "memory_pool": pool} for pool in ("none", "intermediates", "outputs", "combined")),
    {"max_autotune": True, "max_autotune_gemm_backends": "CPP", "cpp.gemm_max_k_slices": 1 << 16},
    {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN", "cpp.dynamic_threads": True},
    *(
        {
            **dict.fromkeys(("comprehensive_padding", "pad_outputs", "pad_dynamic_shapes", "force_shape_pad"), True),
            **dict.fromkeys(("disable_padding_cpu", "keep_output_stride"), False),
            "padding_alignment_bytes": alignment,
            "padding_stride_threshold": 0,
        }
        for alignment in (4, 12, 128, 1 << 16)
    ),
    *(
        {
            "auto_chunker.enable": True,
            "auto_chunker.num_chunk": chunks,
            "auto_chunker.output_size_threshold": 0,
            "auto_chunker.amplify_ratio_threshold": 0,
        }
        for chunks in (0, 2, 3, 1 << 16)
    ),
    {
        "combo_kernels": True,
        "combo_kernel_max_num_args": 0,
        "combo_kernel_max_num_nodes": 0,
        "benchmark_combo_kernel": True,
    },
    {"combo_kernels": True, "cpp.max_horizontal_fusion_size": 0, "cpp.min_chunk_size": 0},
    {"cpp.simdlen": 4096, "cpp.enable_loop_tail_vec": False, "cpp.no_redundant_loops": False},
    {"cpp.enable_loop_tail_vec": True, "cpp.enable_unsafe_math_opt_flag": True, "cpp.min_chunk_size": 1},
    {"max_fusion_size": 0, "realize_opcount_threshold": 0, "realize_reads_threshold": 0, "allow_buffer_reuse": False},
    {"max_fusion_size": 1 << 16, "aggressive_fusion": True, "unroll_reductions_threshold": 1 << 16, "min_num_split": 0},
    {
        "inplace_buffers": False,
        "inplace_padding": True,
        "max_pointwise_cat_inputs": 1 << 16,
        "force_pointwise_cat": True,
    },
    {"fallback_by_default": True, "implicit_fallbacks": False, "selective_decompose": True},
    {"layout_optimization": True, "force_layout_optimization": True, "conv_1x1_as_mm": True},
)
# How many options of a trial are set.
_COUNTS = (1, 2, 8, 40, 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A program of one kind of code.

    Attributes:
        name: it.
        model: it.
        inputs: arguments of a call.
        trains: whether gradients are taken.
        dynamic: whether sizes differ from call to call.
    """

    name: str
    model: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    trains: bool = False
    dynamic: bool = False


def values_of(kind: SettingType) -> list[Any]:
    """Values of a type of settings: its ends, and some between."""
    match kind:
        case compiler_settings.Boolean():
            return [False, True]
        case compiler_settings.Integer(low=low, high=high):
            return [value for value in sorted({low, high, 1, 2, 3, 7, 16, 64}) if low <= value <= high]
        case compiler_settings.Real(low=low, high=high):
            return [low, high, 1e-300, 0.5]
        case compiler_settings.Word(words=words):
            return sorted(words)
        case compiler_settings.Words(words=words):
            return [*sorted(words), ",".join(sorted(words)), ",".join(sorted(words, reverse=True))]
        case compiler_settings.Optional(type=inner):
            return [None, *values_of(inner)]
    raise TypeError(f"no values of a {type(kind).__name__} are known")


def known_options() -> dict[str, list[Any]]:
    """The options that this torch has and a request may make, and values of each."""
    return {setting.name: values_of(INDUCTOR.allowed[setting.name]) for setting in describe_settings()[0]}


def drawn(random: Random) -> Iterator[dict[str, Any]]:
    """Options of trials without end; each option has its turn before one comes again."""
    known = known_options()
    waiting: list[str] = []
    for options in _TOGETHER:
        yield {name: value for name, value in options.items() if name in known}
    while True:
        count = random.choice(_COUNTS)
        if len(waiting) < count:
            waiting += random.sample(sorted(known), len(known))
        chosen, waiting = waiting[:count], waiting[count:]
        yield {name: random.choice(known[name]) for name in chosen}


def _trials(programs: Sequence[Example], random: Random) -> Iterator[tuple[dict[str, Any], Example]]:
    """Options and programs: those that belong together with each program, the others with one after the other."""
    chosen = drawn(random)
    for options in islice(chosen, len(_TOGETHER)):
        yield from ((options, example) for example in programs)
    yield from zip(chosen, cycle(programs), strict=False)


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _reductions(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.softmax(x * 2 + y, -1)
    return F.layer_norm(z, z.shape[-1:]), x.var(0), y.amax(-1), (x * y).sum(), x.argmax(-1)


def _products(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, F.gelu(x @ first), second).relu() + (x @ first).sum(-1, keepdim=True)


def _batches(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.bmm(x, y).tanh(), x[0] @ y[0, :, :1], (x[0, :1] * x[0]) @ y[0]


def _images(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.conv2d(x, weight, padding=1).relu()
    return F.max_pool2d(y, 2), F.avg_pool2d(y, 3, 2, 1), F.interpolate(y, scale_factor=1.5, mode="bilinear")


def _places(x: torch.Tensor, rows: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    written = torch.zeros_like(x).index_put((rows,), y, accumulate=True)
    added = torch.zeros_like(x).scatter_add(0, rows[:, None].expand_as(y), y)
    return (
        written,
        added,
        F.embedding(rows, x),
        x.gather(1, rows[:, None].expand(-1, 2)),
        x[rows, rows].masked_fill(rows > 2, 0),
    )


def _shapes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    together = torch.cat((x, y * 2, x[:, :3]), 1)
    first, second = together.split((x.shape[1], together.shape[1] - x.shape[1]), 1)
    padded = F.pad(x[None], (2, 3), mode="reflect") + F.pad(x, (1, 4), value=2.0)
    return (
        first + 1,
        second.sin(),
        padded,
        together.flip(1).roll(2, 0),
        torch.stack((x, x)).transpose(0, 2).contiguous(),
    )


def _scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.cumsum(-1), x.cumprod(0), x.sort(-1).values, x.topk(3).values, x.logcumsumexp(-1)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v


def _narrow(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        (x.half() * 3).float() + 1,
        (y * 3 % 5) ^ 7,
        z.to(torch.uint8) // 3,
        x.bfloat16().exp().sum(-1),
        (y > 2) & (z > 1),
    )


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[:, ::2] += y[:, ::2]
    z.mul_(2).t().copy_(y.t() + z.t())
    return z[1:].add_(1) + z.sum()


def _many(*given: torch.Tensor) -> list[torch.Tensor]:
    scaled = torch._foreach_mul(list(given), 2.0)
    return [*torch._foreach_add(scaled, list(given)), *(each.exp().sum(0) for each in given)]


def _layers(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(F.linear(x, first).relu(), first.shape[:1])
    return F.cross_entropy(F.linear(y, second), torch.arange(x.shape[0]) % second.shape[0])


def examples() -> list[Example]:
    """The programs, with the same numbers each time. Sizes are odd, so that loops end within vectors."""
    torch.manual_seed(0)
    rows = torch.tensor([0, 3, 3, 1, 4])
    plain = {
        "reductions": (_reductions, (_x(7, 33), _x(7, 33))),
        "products": (_products, (_x(5, 17), _x(17, 9), _x(9, 13), _x(13))),
        "batches": (_batches, (_x(3, 5, 17), _x(3, 17, 9))),
        "images": (_images, (_x(2, 3, 9, 11), _x(5, 3, 3, 3))),
        "places": (_places, (_x(6, 5), rows, _x(5, 5))),
        "shapes": (_shapes, (_x(5, 19), _x(5, 7))),
        "scans": (_scans, (_x(5, 37),)),
        "attention": (_attention, (_x(2, 3, 9, 16), _x(2, 3, 9, 16), _x(2, 3, 9, 16))),
        "narrow": (_narrow, (_x(5, 19), torch.arange(19), torch.arange(19) % 7)),
        "written": (_written, (_x(5, 19), _x(5, 19))),
        "many": (_many, tuple(_x(size) for size in (3, 17, 33, 5, 64))),
    }
    made = [Example(name=name, model=model, inputs=inputs) for name, (model, inputs) in plain.items()]
    made += [
        Example(name=f"{each.name} of any size", model=each.model, inputs=each.inputs, dynamic=True)
        for each in made
        if each.name in ("reductions", "products", "shapes", "written")
    ]
    weights = (_x(7, 17), _x(13, 17), _x(11, 13))
    return [*made, Example(name="training", model=_layers, inputs=weights, trains=True)]


def try_options(example: Example, options: Mapping[str, Any], *, against_end: bool) -> str:
    """What becomes of a program with options, in a process of its own."""
    status = in_child(lambda: _STATUSES[_outcome(example, options, against_end=against_end)])
    if status < 0:
        return SIGNALS.get(-status, f"ends the process ({status})")
    return _OUTCOMES.get(status, f"ends the process ({status})")


def _outcome(example: Example, options: Mapping[str, Any], *, against_end: bool) -> str:
    # Late: this is Inductor.
    from tests.worker.inductor import compiled

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    guarded_memory.guard(against_end=against_end)
    with limited(SECONDS_OF_TRIAL), torch.set_grad_enabled(example.trains):
        inputs = [_placed(each, trains=example.trains) for each in example.inputs]
        captured = capture(example.model, *inputs, dynamic=example.dynamic or None)
        expected = _results(captured.graph_module, captured, trains=example.trains)
        try:
            with watching_sources(check_source):
                program = compiled(captured.encode(options=options))
        except (Bypass, InvalidRequest) as error:
            print(f"  refused: {error!r:.200}", flush=True)
            return REFUSED
        except UnexpectedSource as error:
            print(f"  {error!r:.2000}", flush=True)
            return UNEXPECTED
        except Exception as error:  # noqa: BLE001 - what Inductor cannot compile, a pod cannot either
            print(f"  raised: {type(error).__name__} {str(error).strip().splitlines()[:1]}", flush=True)
            return RAISES
        made = _results(program, captured, trains=example.trains)
    if guarded_memory.changed_patterns():
        os._exit(WROTE)
    differing = [
        number for number, (ours, theirs) in enumerate(zip(made, expected, strict=True)) if _differ(ours, theirs)
    ]
    if differing:
        print(f"  results {differing} differ: {made[differing[0]]} {expected[differing[0]]}", flush=True)
    return WRONG if differing else RIGHT


def _placed(tensor: torch.Tensor, *, trains: bool) -> torch.Tensor:
    return guarded_memory.placed(tensor).requires_grad_(trains and tensor.dtype.is_floating_point)


def _results(program: Callable[..., Any], captured: CapturedGraph, *, trains: bool) -> list[torch.Tensor]:
    """Results of a call with copies of the inputs, what it has written to these, and their gradients."""
    given = [
        _placed(each.detach().clone(), trains=trains) if isinstance(each, torch.Tensor) else int(each)
        for each in captured.example_inputs
    ]
    results = list(tensors_in(program(*given)))
    tensors = list(tensors_in(given))
    if not trains:
        return [each.clone() for each in (*results, *tensors)]
    gradients = torch.autograd.grad([each.sum() for each in results if each.requires_grad], tensors, allow_unused=True)
    return [each.detach().clone() for each in (*results, *gradients) if each is not None]


def _differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Beyond what other roundings give."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return True
    if not ours.dtype.is_floating_point:
        return not torch.equal(ours, theirs)
    tolerance = 2e-2 if ours.dtype in (torch.float16, torch.bfloat16) else 2e-3
    return not torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def shrunk(options: Mapping[str, Any], *, outcome: str, attempt: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """Options of which none can be left out without another outcome, if there is time for it."""
    kept = dict(options)
    size = max(1, len(kept) // 2)
    while True:
        for names in [list(kept)[start : start + size] for start in range(0, len(kept), size)]:
            fewer = {name: value for name, value in kept.items() if name not in names}
            if len(fewer) < len(kept) and attempt(fewer) == outcome:
                kept = fewer
        if size == 1:
            return kept
        size = max(1, size // 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a program; all without any")
    arguments = parser.parse_args()
    if missing := {name: value for name, value in ALONE.items() if os.environ.get(name) != value}:
        # Torch looks at some of them when it is imported.
        os.environ |= missing
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz.options", *sys.argv[1:]])
    chosen = [each for each in examples() if not arguments.names or each.name in arguments.names]
    print(f"torch {torch.__version__}, {len(known_options())} options, seed {arguments.seed}", flush=True)
    prepare()
    return _try_for(arguments.seconds, chosen, random=Random(arguments.seed), first=arguments.first)


def prepare() -> None:
    """What children of this process find done."""
    import tests.worker.inductor  # noqa: F401 - Inductor, once for all of them

    guarded_memory.build()
    wrap_integers()
    require_linear_layers()
    require_dense_operands()
    try_instructions()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="options-")


def _try_for(seconds: float, programs: Sequence[Example], *, random: Random, first: int) -> int:
    ends, outcomes, tried, count = time.monotonic() + seconds, Counter[str](), set[str](), 0
    for options, example in islice(_trials(programs, random), first, None):
        if time.monotonic() > ends:
            break
        against_end = random.random() < 0.5
        outcome = try_options(example, options, against_end=against_end)
        outcomes[outcome] += 1
        tried |= options.keys()
        count += 1
        print(f"{count} {example.name}: {outcome}: {options if outcome != RIGHT else len(options)}", flush=True)
        if outcome not in _HARMLESS:
            fewer = shrunk(
                options,
                outcome=outcome,
                attempt=lambda each: try_options(example, each, against_end=against_end),  # noqa: B023
            )
            print(f"FIND: {example.name} {outcome} with {fewer}", flush=True)
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:8} {outcome}")
    finds = sum(number for outcome, number in outcomes.items() if outcome not in _HARMLESS)
    print(f"torch {torch.__version__}: {count} programs, {len(tried)} of {len(known_options())} options, {finds} finds")
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
