"""Compares what operators give with what fake tensors say that they give:
`python -m tests.fuzz.fake_results [--generated] [--device cuda] [--part 1/4] [NAME ...]`.

PyTorch's samples for its operators, and their gradients, are called, and whatever Inductor takes apart is taken apart:
what is left it calls, or generates code for. What it calls is compared, and what graphs may call once more with each of
its tensors without elements, as one element, with gaps, in another order, and as one element for all. Compared are
dtypes, sizes, strides, devices, bytes of memory, and which memory is whose.

A program that goes by a dtype, a size or a device that is false stops (torch_internals/asserted_results.py), and by
strides where there are elements. All differences are printed: ordinary programs may meet them.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import pickle
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from compilefarm.graph.admitted_operators import is_admitted
from compilefarm.graph.bounds import find_excess
from compilefarm.graph.fake_forms import corrected
from compilefarm.graph.misfits import find_misfit
from compilefarm.graph.operators import base_of
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.operator_calls import OperatorMode
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.pytrees import map_tensors, tensors_in
from tests.op_infos import drawing_numbers, operators

DTYPES = (
    *(torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool, torch.float16, torch.float64),
    *(torch.complex128, torch.int32, torch.int16, torch.int8, torch.uint8),
)
_LOOKED_AT = 100
SAMPLES = 8
# Calls of one overload with tensors of the same dtypes.
CALLS = 4
_MOST_ELEMENTS = 4096
_PARTS = ("dtype", "size", "stride", "device", "bytes", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A result that is not what was said.

    Attributes:
        operator: by name.
        parts: in what it differs, of which result.
        is_called: whether Inductor has no code of its own for it.
        call: what with.
        said, made: of all results.
    """

    operator: str
    parts: str
    is_called: bool
    call: str
    said: str
    made: str


def _inductor(part: str) -> Any:
    return importlib.import_module(f"torch._inductor.{part}")


def is_called(operator: OpOverload, args: Any) -> bool:
    """Returns whether Inductor calls an operator: it has no code for it, or none for complex numbers."""
    lowering = _inductor("lowering")
    is_complex = any(each.is_complex() for each in tensors_in(args))
    return operator not in lowering.lowerings or operator in lowering.fallbacks or is_complex


class _Calls(OperatorMode):
    """Keeps the calls of operators that are left when all is taken apart that Inductor takes apart."""

    def __init__(self, counts: Counter[str], *, generated: bool) -> None:
        super().__init__()
        self._generated = generated
        self.kept: list[tuple[OpOverload, Sequence[Any], Mapping[str, Any]]] = []
        self._counts = counts
        self._tables = _inductor("decomposition").select_decomp_table()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (taken_apart := self._tables.get(func)) is not None:
            with self:
                made = taken_apart(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if self._generated or is_called(func, args):
            self._keep(func, args, kwargs)
        return func(*args, **kwargs)

    def _keep(self, operator: OpOverload, args: Any, kwargs: Any) -> None:
        tensors = list(tensors_in((args, kwargs)))
        kind = " ".join([operator.name(), *(str(each.dtype) for each in tensors)])
        is_plain = all(each.layout is torch.strided and each.numel() <= _MOST_ELEMENTS for each in tensors)
        if not is_plain or self._counts[kind] >= CALLS or schema_of(operator).is_mutable:
            return
        self._counts[kind] += 1
        self.kept.append((operator, *map_tensors(_copied, (list(args), dict(kwargs)))))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """With the strides and the place in memory that it has, in memory of its own."""
    bytes_of = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(bytes_of.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def collect(
    info: Any, device: str, counts: Counter[str], *, generated: bool
) -> list[tuple[OpOverload, Sequence[Any], Mapping[str, Any]]]:
    """What the samples of an operator come down to, with their gradients; `counts` has how often what was kept."""
    calls, supported = _Calls(counts, generated=generated), info.supported_dtypes(device)
    for dtype in (each for each in DTYPES if each in supported):
        trains = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        try:
            given = list(islice(info.sample_inputs_func(info, device, dtype, trains), _LOOKED_AT))
        except Exception as error:  # noqa: BLE001 - samples of some need what is not installed
            print(f"no samples of {info.name}: {error!r:.100}", flush=True)
            continue
        for sample in given[:: max(1, len(given) // SAMPLES)][:SAMPLES]:
            try:
                with calls:
                    made = info.op(sample.input, *sample.args, **sample.kwargs)
                    _derive(made)
            except Exception:  # noqa: BLE001 - some samples are to fail, and what they came down to counts
                continue
    return calls.kept


def _derive(made: Any) -> None:
    derived = [each for each in tensors_in(made) if each.requires_grad]
    if derived:
        torch.autograd.backward(derived, [torch.ones_like(each) for each in derived])


def varied(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Sequence[Any], Mapping[str, Any]]]:
    """A call as it is, and with each of its tensors otherwise."""
    yield args, kwargs
    count = len(list(tensors_in((args, kwargs))))
    for place in range(count):
        for vary in _WAYS:
            numbers = iter(range(count))
            yield map_tensors(lambda each: vary(each) if next(numbers) == place else each, (args, kwargs))  # noqa: B023
    for vary in _WAYS if count > 1 else ():
        yield map_tensors(vary, (args, kwargs))


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0] if tensor.dim() else tensor


def _first_alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1] if tensor.dim() else tensor


def _with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def _without_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :0] if tensor.dim() else tensor


def _one_for_all(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()[:1].reshape(()).expand(tensor.shape) if tensor.numel() else tensor


_WAYS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    _emptied, _without_last, _first_alone, _with_gaps, _turned, _one_for_all
)  # fmt: skip


def compared(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """In what results differ, what was said of them, and what they are; None where nothing is said or made."""
    if find_misfit(operator, args, kwargs) is not None or find_excess(operator, args, kwargs) is not None:
        return None
    mode = FakeTensorMode()
    with torch.no_grad():
        try:
            # Nothing is said in the place of a kernel that refuses.
            made = operator(*args, **kwargs)
            given = map_tensors(mode.from_tensor, (args, kwargs))
            with mode:
                said = corrected(operator, *given, operator(*given[0], **given[1]))
        except Exception:  # noqa: BLE001 - as above
            return None
    theirs, ours = _described(said, given), _described(made, (args, kwargs))
    if len(theirs) != len(ours):
        return "number", str(theirs), str(ours)
    parts = [
        f"{number}: {part}"
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True))
        for part, a, b in zip(_PARTS, one, other, strict=True)
        # More memory than was said does no harm.
        if (a > b if part == "bytes" else a != b)
    ]
    return (", ".join(parts), str(theirs), str(ours)) if parts else ("", "", "")


def _described(results: Any, given: Any) -> list[tuple[object, ...]]:
    known = [StorageWeakRef(each.untyped_storage()) for each in tensors_in(given)]
    several = results if isinstance(results, list | tuple) else [results]
    return [_of_one(each, known) for each in several]


def _of_one(result: Any, known: Sequence[StorageWeakRef]) -> tuple[object, ...]:
    if not isinstance(result, torch.Tensor):
        return type(result).__name__, (), (), "", 0, ()
    if result.layout is not torch.strided:
        return str(result.dtype), tuple(result.shape), str(result.layout), result.device.type, 0, ()
    memory = StorageWeakRef(result.untyped_storage())
    # Of dimensions of one element, and of no elements, nothing goes by a stride.
    strides = [stride if size > 1 else 0 for size, stride in zip(result.shape, result.stride(), strict=True)]
    whose = tuple(number for number, each in enumerate(known) if each == memory)
    is_empty = result.numel() == 0
    return (
        str(result.dtype),
        tuple(result.shape),
        () if is_empty else tuple(strides),
        result.device.type,
        0 if is_empty else result.untyped_storage().nbytes(),
        () if is_empty else whose,
    )


def differences_of(info: Any, device: str, counts: Counter[str], *, generated: bool) -> tuple[int, list[Difference]]:
    """How many calls were compared, and what differed: of each operator and kind of difference the first."""
    count, found = 0, dict[tuple[str, str], Difference]()
    for operator, args, kwargs in collect(info, device, counts, generated=generated):
        # What no graph may call is reached with arguments that belong together.
        ways = varied(args, kwargs) if is_admitted(base_of(operator.name())) else [(args, kwargs)]
        for given in ways:
            result = compared(operator, *given)
            count += result is not None
            if result is not None and result[0]:
                key = operator.name(), result[0]
                call = ", ".join([*map(_shown, given[0]), *(f"{name}={_shown(it)}" for name, it in given[1].items())])
                said, made = result[1:]
                found.setdefault(
                    key,
                    Difference(
                        operator=key[0],
                        parts=key[1],
                        is_called=is_called(operator, args),
                        call=call[:300],
                        said=said,
                        made=made,
                    ),
                )
    return count, list(found.values())


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"<{value.dtype} {tuple(value.shape)} {value.stride()}>".replace("torch.", "")
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list | tuple) else repr(value)


def _in_child(info: Any, device: str, counts: Counter[str], *, generated: bool) -> tuple[int, list[Difference]] | str:
    """The same in a fork, which may end; says how it ended then. What runs on a GPU runs in this process."""
    if device != "cpu":
        return differences_of(info, device, counts, generated=generated)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(writing, "wb") as answer:
                found = differences_of(info, device, counts, generated=generated)
                pickle.dump((found, counts), answer)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - no fork goes on as its parent
            print(f"{info.name}: {error!r:.300}", flush=True)
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        return f"ended with {status}"
    found, known = pickle.loads(told)
    counts.update(known - counts)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a sample's operator; all without any")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--generated", action="store_true", help="operators for which Inductor has code, too")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth operator, beginning with the Kth")
    parser.add_argument("--seconds", type=float, default=3600.0)
    arguments = parser.parse_args()
    first, parts = map(int, arguments.part.split("/"))
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    ends, total, tried, seen = time.monotonic() + arguments.seconds, 0, 0, set[tuple[str, str]]()
    counts = Counter[str]()
    # Once, and not in each fork.
    for part in ("decomposition", "lowering"):
        _inductor(part)
    chosen = [info for info in operators() if not arguments.names or info.name in arguments.names][first - 1 :: parts]
    with drawing_numbers():
        for info in chosen:
            if time.monotonic() > ends:
                break
            if tried % 50 == 0:
                print(f"operator {tried}: {info.name}, {total} calls", flush=True)
            tried += 1
            told = _in_child(info, arguments.device, counts, generated=arguments.generated)
            if isinstance(told, str):
                print(f"{info.name}: {told}", flush=True)
                continue
            total += told[0]
            for each in told[1]:
                if (each.operator, each.parts) not in seen:
                    seen.add((each.operator, each.parts))
                    how = "called" if each.is_called else "generated"
                    print(f"{each.operator} ({how}): {each.parts}: {each.call}", flush=True)
                    print(f"    said {each.said}\n    made {each.made}", flush=True)
    print(f"torch {torch.__version__}: {tried} of {len(chosen)} operators, {total} calls, {len(seen)} differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
