"""Calls of operators with arguments that make no sense: PyTorch's samples and what schemas ask for, changed at random.

Sizes, elements, numbers and lists are changed apart from each other, so that arguments contradict each other, too.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compilefarm.core.compiler_settings import names
from compilefarm.graph.operators import named_arguments
from compilefarm.graph.schemas import find_misfit
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.pytrees import map_leaves, map_tensors, tensors_in
from tests.op_infos import drawing_numbers, foreach_operators, operators

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    -2,
    5,
    7,
    16,
    -7,
    64,
    255,
    1000,
    -1000,
    2**31 - 1,
    -(2**31),
    2**32 + 1,
    2**62,
    2**63 - 1,
    -(2**63),
)
REALS = (0.0, 1.0, -1.0, 0.5, -0.0, 1e-30, 1e30, -1e30, float("nan"), float("inf"), float("-inf"), 2.0**31, 2.0**63)
_SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 65)
_DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8,
    torch.bool, torch.complex64,
)  # fmt: skip
_WORDS = names("""
    none mean sum tanh max min amax amin prod floor trunc reduced complete fro nuc nearest bilinear bicubic constant
    reflect replicate circular zeros border linear left right ij xy gels gelsd gesvd same valid
""")
_SAMPLES_OF_AN_OPERATOR = 6
_SAMPLES_LOOKED_AT = 40
_MOST_SAMPLES = 8
_MOST_ELEMENTS = 4096
_LONGEST_LIST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileCall:
    """One call of an operator.

    Attributes:
        operator: what is called.
        args, kwargs: what with.
    """

    operator: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in their order."""
        return list(tensors_in((list(self.args), dict(self.kwargs))))

    def with_tensors(self, make: Callable[[torch.Tensor], Any]) -> HostileCall:
        """The same call with what a function makes of each tensor."""
        args, kwargs = map_tensors(make, (list(self.args), dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    def with_inputs(self, given: Mapping[int, torch.Tensor]) -> HostileCall:
        """The same call with other tensors in the place of those of some numbers."""
        numbers = iter(range(len(self.tensors())))
        return self.with_tensors(lambda tensor: given.get(next(numbers), tensor))

    def run(self) -> Any:
        """Calls the operator."""
        return self.operator(*self.args, **self.kwargs)


class Samples:
    """Arguments with which PyTorch's own samples call operators, by the operators' names without overloads."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[Sequence[Any], Mapping[str, Any]]]] = defaultdict(list)

    def collect(self) -> None:
        """Calls PyTorch's samples; takes half a minute of a processor."""
        with warnings.catch_warnings(), drawing_numbers(), torch.no_grad():
            warnings.simplefilter("ignore")
            for info in operators():
                called = {info.name, info.aten_name, *(alias.name for alias in info.aliases)}
                self._collect_of(info, {name.rpartition("nn.functional.")[2].replace(".", "_") for name in called})
            for info in foreach_operators():
                self._collect_of(info, {info.name})

    def _collect_of(self, info: Any, called: Set[str]) -> None:
        supported = info.supported_dtypes("cpu")
        for dtype in [each for each in (torch.float32, torch.int64) if each in supported] or list(supported)[:1]:
            try:
                drawn = info.sample_inputs_func(info, "cpu", dtype, False)
                given = [sample for _, sample in zip(range(_SAMPLES_LOOKED_AT), drawn, strict=False)]
            except Exception as error:  # noqa: BLE001 - samples of some need what is not installed
                print(f"no samples of {info.name}: {error!r:.100}", flush=True)
                continue
            for sample in given[:: max(1, len(given) // _SAMPLES_OF_AN_OPERATOR)][:_SAMPLES_OF_AN_OPERATOR]:
                args = [_few(value) for value in (sample.input, *sample.args)]
                kwargs = {name: _few(value) for name, value in sample.kwargs.items()}
                for name in called:
                    self.add(name, args, kwargs)
                with _Recording(self):
                    try:
                        info.op(*args, **kwargs)
                    except Exception:  # noqa: BLE001 - what a sample comes down to is what counts
                        continue

    def add(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keeps arguments, if there are not enough of that operator and they are small."""
        kept = self._known[name]
        tensors = list(tensors_in((list(args), dict(kwargs))))
        is_plain = all(
            tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.numel() <= _MOST_ELEMENTS
            for tensor in tensors
        )
        if is_plain and len(kept) < _MOST_SAMPLES:
            kept.append(map_tensors(_plain_copy, (list(args), dict(kwargs))))

    def calls_of(self, operator: OpOverload) -> list[HostileCall]:
        """Calls of one overload, as far as the samples' arguments fit it."""
        name = schema_of(operator).name.partition("::")[2]
        found = []
        for args, kwargs in (
            each for alike in (name, name.removesuffix("_"), f"_{name}") for each in self._known[alike]
        ):
            if (fitting := _fitted(operator, args, kwargs)) is not None:
                found.append(fitting)
        return found


class _Recording(TorchDispatchMode):
    """Keeps what operators are called with inside."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self._samples = samples

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._samples.add(schema_of(func).name.partition("::")[2], args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _few(value: Any) -> Any:
    """Of a long list of tensors, as steps of optimizers have, the first ones."""
    is_long = isinstance(value, list | tuple) and len(value) > _LONGEST_LIST
    return value[:_LONGEST_LIST] if is_long and isinstance(value[0], torch.Tensor) else value


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone()


def _fitted(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> HostileCall | None:
    """A call with these arguments, by the names that the schema has; what it demands besides is made up by its type."""
    declared = schema_of(operator).arguments
    places = sum(not argument.kwarg_only for argument in declared)
    known = {argument.name for argument in declared}
    if len(args) > places or not kwargs.keys() <= known or find_misfit(operator, args=args, kwargs=kwargs):
        return None
    given = {**named_arguments(schema_of(operator), args, kwargs)}
    random = Random(len(args))
    for argument in declared:
        if argument.name not in given and not argument.has_default_value():
            given[argument.name] = _of_type(str(argument.real_type), random)
    return _by_names(operator, given)


def _by_names(operator: OpOverload, given: Mapping[str, Any]) -> HostileCall:
    declared = schema_of(operator).arguments
    args = []
    for argument in declared:
        if argument.kwarg_only or argument.name not in given:
            break
        args.append(given[argument.name])
    return HostileCall(operator=operator, args=args, kwargs=dict(list(given.items())[len(args) :]))


def made_up(operator: OpOverload, random: Random) -> HostileCall:
    """A call with arguments of the types that the schema says."""
    given = {
        argument.name: _of_type(str(argument.real_type), random)
        for argument in schema_of(operator).arguments
        if not argument.has_default_value() or random.random() < 0.5
    }
    return _by_names(operator, given)


def _of_type(wanted: str, random: Random) -> Any:
    outer, _, inner = wanted.partition("[")
    match outer:
        case "Optional":
            return None if random.random() < 0.3 else _of_type(inner[:-1], random)
        case "List":
            return [_of_type(inner[:-1], random) for _ in range(random.choice((0, 1, 2, 2, 3, 4)))]
        case "Tensor":
            return _tensor(random)
        case "int":
            return random.choice((0, 0, 1, 1, 2, 3, -1, random.choice(INTEGERS)))
        case "float":
            return random.choice(REALS)
        case "number":
            return random.choice((*REALS, *INTEGERS))
        case "bool":
            return random.random() < 0.5
        case "str" | "Any":
            return random.choice(sorted(_WORDS))
        case "ScalarType":
            return random.choice(_DTYPES)
        case "Layout":
            return torch.strided
        case "MemoryFormat":
            return random.choice((torch.contiguous_format, torch.preserve_format, torch.channels_last))
        case "Device":
            return torch.device("cpu")
    return None


def _tensor(random: Random) -> torch.Tensor:
    dtype = random.choice((torch.float32, torch.float32, torch.float32, torch.int64, random.choice(_DTYPES)))
    shape = [random.choice(_SIZES[1:6]) for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 5)))]
    return _filled(torch.empty(shape, dtype=dtype), random)


def _filled(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    """With small elements, as many operators want them."""
    values = [random.choice((0, 1, 2, 3)) for _ in range(min(tensor.numel(), 64))] or [0]
    repeated = torch.tensor(values).repeat(tensor.numel() // len(values) + 1)[: tensor.numel()]
    return tensor.copy_(repeated.view(tensor.shape))


def changed(call: HostileCall, random: Random) -> HostileCall:
    """The call with a few of its arguments changed."""
    for _ in range(random.choice((1, 1, 2, 2, 3))):
        call = random.choice((_with_other_tensor, _with_other_tensor, _with_other_number, _with_other_list))(
            call, random
        )
    return call


def with_other_elements(call: HostileCall, random: Random) -> HostileCall:
    """The call with other elements in its tensors: of the same sizes and dtypes, as a compiled program takes them."""
    return call.with_tensors(lambda tensor: _hostile_elements(tensor, random) if random.random() < 0.7 else tensor)


def _with_other_tensor(call: HostileCall, random: Random) -> HostileCall:
    count = len(call.tensors())
    if not count:
        return _with_other_number(call, random)
    chosen, numbers = random.randrange(count), iter(range(count))
    change = random.choice(
        (_hostile_elements, _hostile_elements, _other_shape, _other_shape, _other_strides, _other_dtype)
    )
    return call.with_tensors(lambda tensor: change(tensor, random) if next(numbers) == chosen else tensor)


def _hostile_elements(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    count = tensor.numel()
    if count == 0 or tensor.dtype is torch.bool:
        return tensor
    few = random.random() < 0.5
    flat = tensor.clone(memory_format=torch.preserve_format)
    # Overlapping memory is kept as it lies.
    if any(step == 0 for step, size in zip(flat.stride(), flat.shape, strict=True) if size > 1):
        return tensor
    values = torch.tensor([_element(tensor, random) for _ in range(min(count, 64))], dtype=tensor.dtype)
    repeated = values.repeat(count // len(values) + 1)[:count].view(tensor.shape)
    chosen = torch.tensor([random.random() < (0.2 if few else 0.9) for _ in range(min(count, 64))])
    mask = chosen.repeat(count // len(chosen) + 1)[:count].view(tensor.shape)
    flat.copy_(torch.where(mask, repeated, flat))
    return flat


def _element(tensor: torch.Tensor, random: Random) -> Any:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return random.choice(REALS)
    info = torch.iinfo(tensor.dtype)
    values = (*INTEGERS, *tensor.shape, info.max, info.min)
    return random.choice([value for value in values if info.min <= value <= info.max])


def _other_shape(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    shape = list(tensor.shape)
    way = random.random()
    if not shape or way < 0.15:
        shape.insert(random.randrange(len(shape) + 1), random.choice(_SIZES))
    elif way < 0.3:
        del shape[random.randrange(len(shape))]
    else:
        at = random.randrange(len(shape))
        shape[at] = random.choice((*_SIZES, max(0, shape[at] - 1), shape[at] + 1))
    if torch.Size(shape).numel() > _MOST_ELEMENTS * 4:
        return tensor
    return _filled(torch.empty(shape, dtype=tensor.dtype), random)


def _other_strides(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    if not tensor.dim():
        return tensor.expand(random.choice(_SIZES[1:]))
    at = random.randrange(tensor.dim())
    way = random.random()
    if way < 0.4 and tensor.shape[at]:
        return tensor.narrow(at, 0, 1).expand(tensor.shape)
    if way < 0.6:
        return tensor.transpose(at, random.randrange(tensor.dim())).contiguous().transpose(at, -1)
    if way < 0.8:
        return torch.stack((tensor, tensor), -1)[..., 0]
    return tensor.narrow(at, 0, max(0, tensor.shape[at] - 1))


def _other_dtype(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    return tensor.to(random.choice(_DTYPES))


def _with_other_number(call: HostileCall, random: Random) -> HostileCall:
    def is_number(value: object) -> bool:
        return isinstance(value, int | float | bool)

    numbers = [leaf for leaf in _leaves(call) if is_number(leaf)]
    if not numbers:
        return _with_further_argument(call, random)
    left = random.randrange(len(numbers))

    def change(value: Any) -> Any:
        nonlocal left
        if not is_number(value):
            return value
        left -= 1
        if left != -1:
            return value
        if isinstance(value, bool):
            return not value
        return random.choice(INTEGERS if isinstance(value, int) else REALS)

    args, kwargs = map_leaves(change, (list(call.args), dict(call.kwargs)))
    return replace(call, args=args, kwargs=kwargs)


def _leaves(call: HostileCall) -> Iterator[Any]:
    found: list[Any] = []
    map_leaves(found.append, (list(call.args), dict(call.kwargs)))
    return iter(found)


def _with_further_argument(call: HostileCall, random: Random) -> HostileCall:
    """With another value of its type for an argument, also one that was left out."""
    declared = schema_of(call.operator).arguments
    given = {**named_arguments(schema_of(call.operator), call.args, call.kwargs)}
    if not declared:
        return call
    argument = random.choice(declared)
    given[argument.name] = _of_type(str(argument.real_type), random)
    ordered = {each.name: given[each.name] for each in declared if each.name in given}
    return _by_names(call.operator, ordered)


def _with_other_list(call: HostileCall, random: Random) -> HostileCall:
    given = {**named_arguments(schema_of(call.operator), call.args, call.kwargs)}
    lists = [name for name, value in given.items() if isinstance(value, list | tuple)]
    if not lists:
        return _with_further_argument(call, random)
    name = random.choice(lists)
    values = list(given[name])
    way = random.random()
    if values and way < 0.3:
        del values[random.randrange(len(values))]
    elif values and way < 0.6:
        values.append(random.choice(values))
    elif values and isinstance(values[0], int):
        values[random.randrange(len(values))] = random.choice(INTEGERS)
    else:
        values.append(random.choice((0, 1, -1, 3)))
    given[name] = values
    return _by_names(call.operator, given)
