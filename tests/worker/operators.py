"""Rows of PyTorch's OpInfos: one operator in one dtype, called once or as often as is asked for."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.torch_internals.pytrees import map_tensors
from tests.op_infos import drawing_numbers, operators

# In the order in which they are tried: the first tell most.
VARIANTS = (
    "float32", "float32 training", "bfloat16", "int64", "float16", "complex64", "float32 in place", "float32 out",
    "bool",
)  # fmt: skip
# Of the samples of an operator, those that are looked at. Some have thousands.
_SAMPLES_LOOKED_AT = 200
_SEED = 1234

OnStage = Callable[[str], None]


class NoSample(Exception):
    """There is nothing to be tried."""


class EagerFails(Exception):
    """The operator raises without a compiler, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Which samples of an operator are tried.

    Attributes:
        samples: how many, with inputs of different sizes.
        dynamic: whether each is traced for all sizes.
    """

    samples: int = 1
    dynamic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call.

    Attributes:
        function: what is called.
        args, kwargs: what with.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def call(self) -> Any:
        """Calls it, on copies of its tensors."""
        args, kwargs = map_tensors(_copied, (list(self.args), dict(self.kwargs)))
        return self.function(*args, **kwargs)

    def compiled(self, backend: Callable[..., Any], *, dynamic: bool | None = None) -> Any:
        """The same, compiled; `dynamic` is that of torch.compile."""
        args, kwargs = map_tensors(_copied, (list(self.args), dict(self.kwargs)))
        function = self.function

        def program(args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return torch.compile(program, backend=backend, dynamic=dynamic)(args, kwargs)


def names_of_operators(device: str) -> Iterator[str]:
    """All operators, variant by variant."""
    for variant in VARIANTS:
        for name, info in _infos().items():
            if _has(info, variant, device=device):
                yield f"{name} {variant}"


def try_operator(
    name: str,
    backend: Callable[..., Any],
    *,
    device: str,
    sizes: Sizes,
    on_stage: OnStage = lambda _: None,
    on_results: Callable[[Any, Any], None] = lambda *_: None,
) -> None:
    """Calls an operator, compiled by a backend.

    Args:
        name: as `names_of_operators` gives it.
        backend: of torch.compile; it has the operator's graphs.
        device: on which it runs.
        sizes: which of its samples are tried, and how.
        on_stage: told what is done next.
        on_results: given what each sample gives compiled, and uncompiled.

    Raises:
        NoSample: it has none.
        EagerFails: it raises without a compiler.
        Exception: Dynamo raises.
    """
    operator, variant = name.split(" ", 1)
    is_training = variant.endswith("training")
    with warnings.catch_warnings(), drawing_numbers(), torch.set_grad_enabled(is_training):
        warnings.simplefilter("ignore")
        on_stage("sample")
        torch.manual_seed(0)
        for sample in _spread(list(_samples(_infos()[operator], variant, device=device)), count=sizes.samples):
            on_stage("eager")
            expected = _try_eager(sample, device=device)
            on_stage("capture")
            # What was traced before would make sizes symbolic.
            torch.compiler.reset()
            torch.manual_seed(_SEED)
            on_results(sample.compiled(backend, dynamic=sizes.dynamic or None), expected)


@functools.cache
def _infos() -> dict[str, Any]:
    # Some have the same name with other samples.
    named: dict[str, Any] = {}
    for info in operators():
        name = info.full_name.replace(" ", "_")
        named[name if name not in named else f"{name}#{len(named)}"] = info
    return named


def _dtype(variant: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, variant.partition(" ")[0])
    return dtype


def _has(info: Any, variant: str, *, device: str) -> bool:
    if _dtype(variant) not in info.supported_dtypes(device):
        return False
    kind = variant.partition(" ")[2]
    return {"": True, "training": info.supports_autograd, "in place": info.inplace_variant is not None,
            "out": info.supports_out}[kind]  # fmt: skip


def _samples(info: Any, variant: str, *, device: str) -> Iterator[Sample]:
    kind = variant.partition(" ")[2]
    function = info.inplace_variant if kind == "in place" else info.op
    # Not by sample_inputs(), which looks through the stack for the test that asks: most of the time here.
    given = info.sample_inputs_func(info, device, _dtype(variant), kind == "training")
    for _, each in zip(range(_SAMPLES_LOOKED_AT), given, strict=False):
        sample = Sample(function=function, args=[each.input, *each.args], kwargs=each.kwargs)
        if kind == "in place" and getattr(each, "broadcasts_input", False):
            continue
        yield _to_out(sample) if kind == "out" else sample


def _to_out(sample: Sample) -> Sample:
    out = map_tensors(torch.zeros_like, sample.call())
    kwargs = {**sample.kwargs, "out": tuple(out) if isinstance(out, list | tuple) else out}
    return Sample(function=sample.function, args=sample.args, kwargs=kwargs)


def _spread(samples: Sequence[Sample], *, count: int) -> Sequence[Sample]:
    """So many of them: the first, and others at equal distances."""
    if not samples:
        raise NoSample
    step = max(1, len(samples) // count)
    return samples[::step][:count]


def _try_eager(sample: Sample, *, device: str) -> Any:
    torch.manual_seed(_SEED)
    try:
        result = sample.call()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        raise EagerFails(f"{type(error).__name__}: {error}") from error
    return result


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """With its own elements, and in all else alike."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return copy.requires_grad_(tensor.requires_grad)
