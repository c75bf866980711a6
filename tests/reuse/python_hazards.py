"""Cases of tests/reuse/hazards.py about Python itself: identity, order, what modules and classes answer, code without a
module, and what Dynamo computes while it traces."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import importlib.util
import inspect
import operator
import random
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import nn

from tests.reuse.cases import X, case, patched, unsaid

_HERE = sys.modules[__name__]
Function = Callable[[torch.Tensor], torch.Tensor]


class Calls(nn.Module):
    """Calls what it is given, so that what it is given is inlined."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        super().__init__()
        self.function = function
        self.arguments = arguments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x, *self.arguments)
        return result * 1.0


@dataclasses.dataclass(eq=False)
class Box:
    value: Any = 2.0


# What stands where, and where the same object stands.


def compared(x: torch.Tensor, first: object, second: object) -> torch.Tensor:
    return x * (2 if first is second else 3)


@case
def one_object_or_two(changed: bool) -> Iterator[Any]:
    box = Box()
    yield compared, (X, box, Box() if changed else box)


@case
def two_objects_or_one(changed: bool) -> Iterator[Any]:
    box = Box()
    yield compared, (X, box, box if changed else Box())


def multiplying(factor: float) -> Function:
    def multiply(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return multiply


@case
def one_closure_or_two_alike(changed: bool) -> Iterator[Any]:
    function = multiplying(2.0)
    yield compared, (X, function, multiplying(2.0) if changed else function)


def written(x: torch.Tensor, first: Box, second: Box) -> torch.Tensor:
    first.value = 7.0
    return x * second.value


@case
def an_object_that_is_written_under_another_name(changed: bool) -> Iterator[Any]:
    box = Box()
    yield written, (X, box, box if changed else Box())


def appended(x: torch.Tensor, first: list[float], second: list[float]) -> torch.Tensor:
    first.append(1.0)
    return x * len(second)


@case
def a_list_that_grows_under_another_name(changed: bool) -> Iterator[Any]:
    numbers = [1.0]
    yield appended, (X, numbers, numbers if changed else [1.0])


def made_class(*, tripled: bool = False) -> type:
    if tripled:

        class Made:
            def apply(self, x: torch.Tensor) -> torch.Tensor:
                return x * 3
    else:

        class Made:  # type: ignore[no-redef]
            def apply(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2

    return Made


def asks_for_the_class(x: torch.Tensor, thing: object, kind: type) -> torch.Tensor:
    return x * (2 if isinstance(thing, kind) else 3)


@case
def an_instance_of_a_class_or_of_its_twin(changed: bool) -> Iterator[Any]:
    kind = made_class()
    yield asks_for_the_class, (X, kind(), made_class() if changed else kind)


def instantiating(kind: type) -> Function:
    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = kind().apply(x)
        return result

    return apply


@case
def a_local_class_in_a_closure(changed: bool) -> Iterator[Any]:
    yield Calls(instantiating(made_class(tripled=changed))), (X,)


class HasInner:
    inner = made_class()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner().apply(x)
        return result


def uses_inner(x: torch.Tensor) -> torch.Tensor:
    return HasInner().apply(x)


@case
def a_local_class_in_a_class(changed: bool) -> Iterator[Any]:
    with patched(HasInner, "inner", made_class(tripled=changed), when=True):
        yield uses_inner, (X,)


# Orders that nothing but the object knows.


def in_order(x: torch.Tensor, table: Any) -> torch.Tensor:
    for key, value in table.items():
        x = x * value if key in ("a", 1) else x + value
    return x


@case
def an_ordered_dictionary_whose_first_went_last(changed: bool) -> Iterator[Any]:
    table = collections.OrderedDict(a=2.0, b=3.0)
    if changed:
        table.move_to_end("a")
    yield in_order, (X, table)


@case
def the_same_with_numbers_for_keys(changed: bool) -> Iterator[Any]:
    table = collections.OrderedDict({1: 2.0, 2: 3.0})
    if changed:
        table.move_to_end(1)
    yield in_order, (X, table)


def variables_in_order(x: torch.Tensor, box: object) -> torch.Tensor:
    for name, value in vars(box).items():
        x = x * value if name == "a" else x + value
    return x


@case
def attributes_in_another_order(changed: bool) -> Iterator[Any]:
    box = types.SimpleNamespace()
    for name in "ba" if changed else "ab":
        setattr(box, name, 3.0)
    yield variables_in_order, (X, box)


def pops(x: torch.Tensor, table: dict[str, float]) -> torch.Tensor:
    return x * table.popitem()[1]


@case
def the_last_item_of_a_dictionary(changed: bool) -> Iterator[Any]:
    yield pops, (X, {"b": 3.0, "a": 2.0} if changed else {"a": 2.0, "b": 3.0})


_NAMES = frozenset({"sin", "exp", "tanh", "cos"})


def through_a_set(x: torch.Tensor) -> torch.Tensor:
    for name in _NAMES:
        x = getattr(torch, name)(x)
    return x


@case
def another_member_of_a_set(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_NAMES", frozenset({"cos" if changed else "sin"}), when=True):
        yield through_a_set, (X,)


def through_a_set_in_the_code(x: torch.Tensor) -> torch.Tensor:
    for name in {"sin", "exp", "tanh", "cos"}:
        x = getattr(torch, name)(x)
    return x


@unsaid
def a_set_in_the_code(changed: bool) -> Iterator[Any]:
    yield through_a_set_in_the_code, (X,)


# What two functions share.


def sharing(*, is_shared: bool) -> tuple[Function, Function]:
    number = 1.0

    def counts(x: torch.Tensor) -> torch.Tensor:
        nonlocal number
        number += 5.0
        return x

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * number

    if is_shared:
        return counts, reads
    alone = types.FunctionType(reads.__code__, globals(), reads.__name__, None, (types.CellType(1.0),))
    alone.__qualname__ = reads.__qualname__
    return counts, alone


def one_after_the_other(x: torch.Tensor, first: Function, second: Function) -> torch.Tensor:
    return second(first(x))


@case
def closures_that_share_a_variable_or_not(changed: bool) -> Iterator[Any]:
    yield Calls(one_after_the_other, *sharing(is_shared=not changed)), (X,)


def same_owner(x: torch.Tensor, first: object, second: object) -> torch.Tensor:
    return x * (2 if first == second else 3)


class HasMethod:
    def method(self) -> None: ...


@case
def methods_of_one_object_or_of_two(changed: bool) -> Iterator[Any]:
    owner = HasMethod()
    yield same_owner, (X, owner.method, HasMethod().method if changed else owner.method)


_BOX = Box()


def reads_both(x: torch.Tensor, box: Box) -> torch.Tensor:
    return x * _BOX.value * box.value


@case
def an_argument_that_is_a_global_too(changed: bool) -> Iterator[Any]:
    yield reads_both, (X, Box(3.0) if changed else _BOX)


# What modules and classes answer.


def asks_a_module(x: torch.Tensor, module: types.ModuleType) -> torch.Tensor:
    return x * (2 if hasattr(module, "HAZARD") else 3)


@case
def an_attribute_of_a_module_that_an_object_holds(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "HAZARD", 1, when=changed):
        yield Calls(asks_a_module, _HERE), (X,)


def gets_of_a_module(x: torch.Tensor) -> torch.Tensor:
    return x * float(getattr(torch, "HAZARD", 2.0))


@case
def an_attribute_of_torch_that_appears(changed: bool) -> Iterator[Any]:
    with patched(torch, "HAZARD", 3.0, when=changed):
        yield gets_of_a_module, (X,)


class Abstract(abc.ABC): ...  # noqa: B024 - what is registered counts


class Narrower(Abstract): ...


class Plain: ...


def asks_for_an_instance(x: torch.Tensor, thing: object) -> torch.Tensor:
    return x * (2 if isinstance(thing, Abstract) else 3)


@case
def a_class_that_was_registered_below(changed: bool) -> Iterator[Any]:
    # In classes of this case, since nobody can take a registration back.
    abstract = abc.ABCMeta("Abstract", (), {"__module__": __name__})
    narrower = abc.ABCMeta("Narrower", (abstract,), {"__module__": __name__})
    with patched(_HERE, "Abstract", abstract, when=True), patched(_HERE, "Narrower", narrower, when=True):
        if changed:
            narrower.register(Plain)
        yield asks_for_an_instance, (X, Plain())


class DecidesMeta(type):
    answer = False

    def __instancecheck__(cls, thing: object) -> bool:
        return DecidesMeta.answer


class Decides(metaclass=DecidesMeta): ...


def asks_who_decides(x: torch.Tensor, thing: object) -> torch.Tensor:
    return x * (2 if isinstance(thing, (int, Decides)) else 3)


@unsaid
def a_class_that_decides_itself(changed: bool) -> Iterator[Any]:
    with patched(DecidesMeta, "answer", changed, when=True):
        yield asks_who_decides, (X, Plain())


class Held:
    def __init__(self, value: float) -> None:
        self.value = value


class HasBoxMeta(type):
    box = Held(2.0)


class HasBox(metaclass=HasBoxMeta): ...


def reads_the_metaclass(x: torch.Tensor) -> torch.Tensor:
    return x * HasBox.box.value  # type: ignore[attr-defined]


@unsaid
def an_object_of_a_metaclass(changed: bool) -> Iterator[Any]:
    with patched(HasBoxMeta, "box", Held(3.0), when=changed):
        yield reads_the_metaclass, (X,)


class Flags(enum.IntFlag):
    FIRST = 1


def reads_flags(x: torch.Tensor, flags: Flags) -> torch.Tensor:
    return x * int(flags)


@case
def flags_without_a_name(changed: bool) -> Iterator[Any]:
    yield reads_flags, (X, Flags(128) if changed else Flags(64))


def counts_parameters(x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    return x * len(inspect.signature(function).parameters)


@case
def another_signature(changed: bool) -> Iterator[Any]:
    def function() -> None: ...

    sample = (lambda a, b: None) if changed else (lambda a: None)
    function.__signature__ = inspect.signature(sample)  # type: ignore[attr-defined]
    yield counts_parameters, (X, function)


# What Dynamo computes while it traces, or does not look into.


def calls_with_a_text(x: torch.Tensor, function: Callable[[str], int]) -> torch.Tensor:
    return x * (function("abc") % 1000)


@unsaid
def a_hash_under_another_name(changed: bool) -> Iterator[Any]:
    yield Calls(calls_with_a_text, hash), (X,)


@unsaid
def a_hash_as_a_method(changed: bool) -> Iterator[Any]:
    yield Calls(lambda x: x * ("abc".__hash__() % 1000)), (X,)


def asks_for_a_limit(x: torch.Tensor) -> torch.Tensor:
    return x * sys.getrecursionlimit()


@case
def the_limit_of_recursion(changed: bool) -> Iterator[Any]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 100 * changed)
    yield asks_for_a_limit, (X,)
    sys.setrecursionlimit(before)


@case
def a_precision_that_contradicts_older_switches(changed: bool) -> Iterator[Any]:
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if changed else "bf16"
    yield Calls(torch.mul, 2.0), (X,)
    matmul.fp32_precision = before


_FACTOR = 2.0


@torch.compiler.allow_in_graph
def allowed(x: torch.Tensor) -> torch.Tensor:
    return x * _FACTOR


def uses_what_is_allowed(x: torch.Tensor) -> torch.Tensor:
    return allowed(x) + 1


@unsaid
def a_function_that_is_allowed_in_graphs(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield uses_what_is_allowed, (X,)


def with_a_break(x: torch.Tensor, factor: float) -> torch.Tensor:
    x = x * factor
    torch._dynamo.graph_break()
    return F.softplus(x)


@case
def a_function_that_is_called_after_a_break(changed: bool) -> Iterator[Any]:
    # The first part is traced anew for its factor; the second finds what was published.
    with patched(F, "softplus", F.relu, when=changed):
        yield with_a_break, (X, 3.0 if changed else 2.0)


def copied(function: Callable[..., Any], **scope: Any) -> Callable[..., Any]:
    """The same code with its own globals, under the same name."""
    return types.FunctionType(function.__code__, {**globals(), **scope}, function.__name__)


def calls_sigmoid(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = sigmoid(x)
    return result


sigmoid = torch.sigmoid


@unsaid
def the_same_code_with_other_globals(changed: bool) -> Iterator[Any]:
    yield copied(calls_sigmoid, sigmoid=torch.tanh if changed else torch.sigmoid), (X,)


@torch.library.custom_op("hazards::repeated", mutates_args=())
def repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x] * _TIMES)


_TIMES = 2


@repeated.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0] * _TIMES, *x.shape[1:]))


def asks_for_a_size(x: torch.Tensor) -> torch.Tensor:
    return x * repeated(x).shape[0]


@case
def an_operator_that_says_another_size(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_TIMES", 3, when=changed):
        yield asks_for_a_size, (X,)


@case
def an_argument_of_a_bound_builtin(changed: bool) -> Iterator[Any]:
    get = {"abc": 3 if changed else 2}.__getitem__
    yield Calls(calls_with_a_text, get), (X,)


@case
def an_item_that_is_picked(changed: bool) -> Iterator[Any]:
    yield Calls(lambda x, pick: pick((x + 1, x - 1)), operator.itemgetter(1 if changed else 0)), (X,)


# What Dynamo asks the process itself, and does not trace.


def draws(x: torch.Tensor, generator: random.Random) -> torch.Tensor:
    return x * (generator.getstate()[1][1] % 1000)


@unsaid
def another_state_of_a_generator_of_random_numbers(changed: bool) -> Iterator[Any]:
    yield draws, (X, random.Random(5 if changed else 3))


def looks_for_a_package(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if importlib.util.find_spec("installed_later") is None else 3)


@case
def a_package_that_is_installed_later(changed: bool) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        if changed:
            (Path(folder) / "installed_later.py").touch()
        with patched(sys, "path", [*sys.path, folder], when=True):
            yield looks_for_a_package, (X,)


class Answering(types.ModuleType):
    answers: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> float:
        if name in self.answers:
            return 2.0
        raise AttributeError(name)


answering = sys.modules["answering"] = Answering("answering")


def asks_for_a_fast_way(x: torch.Tensor, module: types.ModuleType) -> torch.Tensor:
    return x * (2 if hasattr(module, "fast") else 3)


@unsaid
def a_module_that_answers_itself(changed: bool) -> Iterator[Any]:
    with patched(Answering, "answers", frozenset({"fast"}), when=changed):
        yield Calls(asks_for_a_fast_way, answering), (X,)


# Of its module it knows the name alone, as code that was written when nothing answered.
plain_module = sys.modules["plain_module"] = types.ModuleType("plain_module")


def _answers(name: str) -> float:
    if name == "fast":
        return 2.0
    raise AttributeError(name)


def asks_a_module_for_a_fast_way(x: torch.Tensor) -> torch.Tensor:
    return x * (3 if hasattr(plain_module, "fast") else 2)


@case
def a_module_that_comes_to_answer_itself(changed: bool) -> Iterator[Any]:
    with patched(plain_module, "__getattr__", _answers, when=changed):
        yield asks_a_module_for_a_fast_way, (X,)


@runtime_checkable
class Running(Protocol):
    def run(self) -> None: ...


class RunsSometimes:
    def __getattr__(self, name: str) -> Any:
        if name == "run" and _RUNS:
            return print
        raise AttributeError(name)


_RUNS = False


@unsaid
def an_instance_of_a_protocol(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_RUNS", True, when=changed):
        yield asks_for_the_class, (X, RunsSometimes(), Running)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2

    def __bool__(self) -> bool:
        return _FACTOR > 2.5


def asks_a_level(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if Level.LOW else 3)


@case
def what_a_member_of_an_enumeration_answers(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield asks_a_level, (X,)


class Indexed:
    def __class_getitem__(cls, item: Any) -> float:
        return _FACTOR


def indexes_a_class(x: torch.Tensor) -> torch.Tensor:
    return x * Indexed[int]  # type: ignore[operator]


@case
def what_a_class_answers_to_an_index(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield indexes_a_class, (X,)


# What classes and functions say of themselves, which releases before 2.12 read without a guard.


def reads_the_name(x: torch.Tensor, thing: Any) -> torch.Tensor:
    return x * len(thing.__name__)


@contextlib.contextmanager
def renamed(thing: Any, name: str, *, when: bool) -> Iterator[None]:
    """Has a class or function another name meanwhile, and the qualified name that it had."""
    before = thing.__name__
    thing.__name__ = name if when else before
    try:
        yield
    finally:
        thing.__name__ = before


@case
def another_name_of_a_class(changed: bool) -> Iterator[Any]:
    with renamed(Plain, "Renamed", when=changed):
        yield reads_the_name, (X, Plain)


@case
def another_name_of_a_function(changed: bool) -> Iterator[Any]:
    with renamed(compared, "renamed", when=changed):
        yield reads_the_name, (X, compared)


@functools.cache
def _module_of_one_file(name: str) -> Any:
    """One of several modules of a file, whose functions say that they are of the first, as functools.wraps has it.

    There is one of a name in a process: Dynamo keeps those that it has seen.
    """
    module: Any = types.ModuleType(name)
    module.__file__ = "/nowhere/scales.py"
    exec(compile("def scaled(x): return x * FACTOR", module.__file__, "exec"), vars(module))
    module.scaled.__module__ = "scales"
    return module


@contextlib.contextmanager
def _modules_of_one_file(**factors: float) -> Iterator[dict[str, Any]]:
    modules = {name: _module_of_one_file(name) for name in factors}
    for name, module in modules.items():
        module.FACTOR = factors[name]
    sys.modules.update(modules)
    yield modules
    for name in modules:
        del sys.modules[name]


@case
def a_function_of_another_module_of_the_same_file(changed: bool) -> Iterator[Any]:
    factors = {"scales": 2.0, "other_scales": 5.0} if changed else {"scales": 2.0}
    with _modules_of_one_file(**factors) as modules:
        yield Calls(modules["other_scales" if changed else "scales"].scaled), (X,)


@case
def what_one_of_two_modules_of_a_file_holds(changed: bool) -> Iterator[Any]:
    with _modules_of_one_file(scales=2.0, other_scales=4.0 if changed else 3.0) as modules:
        yield Calls(modules["other_scales"].scaled), (X,)


class SaysItsName(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(self._get_name())


@case
def another_name_of_the_class_of_a_model(changed: bool) -> Iterator[Any]:
    with renamed(SaysItsName, "Renamed", when=changed):
        yield SaysItsName(), (X,)


def counts_annotations(x: torch.Tensor) -> torch.Tensor:
    return x * len(compared.__annotations__)


@case
def fewer_annotations_of_a_function(changed: bool) -> Iterator[Any]:
    with patched(compared, "__annotations__", {"x": torch.Tensor}, when=changed):
        yield counts_annotations, (X,)


class Matched:
    __match_args__ = ("first", "second")
    first = 2.0
    second = 3.0


def matches(x: torch.Tensor, thing: object) -> torch.Tensor:
    match thing:
        case Matched(value):
            return x * value
    return x


@case
def attributes_that_are_matched_in_another_order(changed: bool) -> Iterator[Any]:
    with patched(Matched, "__match_args__", ("second", "first"), when=changed):
        yield matches, (X, Matched())


class Registry:
    known: tuple[type, ...] = ()

    def __init_subclass__(cls) -> None:
        Registry.known = (*Registry.known, cls)


def counts_subclasses(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + len(Registry.known))


@case
def a_class_that_registered_itself(changed: bool) -> Iterator[Any]:
    with patched(Registry, "known", (), when=True):
        if changed:
            type("Registered", (Registry,), {})
        yield counts_subclasses, (X,)


@case
def a_weight_that_is_normalised_along_another_dimension(changed: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    yield nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), dim=1 if changed else 0), (X,)


def switches_a_fast_path(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch.backends.mha.get_fastpath_enabled() else 3)


@case
def a_fast_path_of_attention(changed: bool) -> Iterator[Any]:
    torch.backends.mha.set_fastpath_enabled(not changed)
    yield switches_a_fast_path, (X,)
    torch.backends.mha.set_fastpath_enabled(True)


class HooksWithKeywords(nn.Module):
    def __init__(self, *, with_kwargs: bool) -> None:
        super().__init__()
        self.parts = [nn.Identity()]
        self.parts[0].register_forward_pre_hook(adds_or_doubles, with_kwargs=with_kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.parts[0](x)
        return result


def adds_or_doubles(_: object, inputs: Any, *keywords: Any) -> Any:
    return ((inputs[0] + 1,), *keywords) if keywords else (inputs[0] * 2,)


@case
def a_hook_that_takes_keywords_in_a_list(changed: bool) -> Iterator[Any]:
    yield HooksWithKeywords(with_kwargs=changed), (X,)


# Sets, in which a text stands in another place for another hash seed. The first two do not go through them.
_FACTORS = frozenset({"two", "three", "four", "five"})


def looks_into_a_set(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if "two" in _FACTORS else 3)


@case
def a_member_of_a_set_that_is_looked_for(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTORS", frozenset({"one", "three", "four", "five"}), when=changed):
        yield looks_into_a_set, (X,)


class HasNames(nn.Module):
    names = frozenset({"two", "three", "four", "five"})
    ignored = {"two", "three", "four", "five"}  # noqa: RUF012 - a set that may change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if "two" in self.names else 3)


@case
def a_member_of_a_set_of_a_class(changed: bool) -> Iterator[Any]:
    with patched(HasNames, "names", frozenset({"one", "three", "four", "five"}), when=changed):
        yield HasNames(), (X,)


class Longest(enum.Enum):
    FIRST = 1

    def __len__(self) -> int:
        return len(next(iter(_FACTORS)))


@unsaid
def a_set_that_a_member_of_an_enumeration_goes_through(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTORS", frozenset({"one", "eleven", "thirteen"}), when=changed):
        yield lambda x: x * len(Longest.FIRST), (X,)


def through_several(x: torch.Tensor) -> torch.Tensor:
    for number, name in enumerate(_FACTORS):
        x = x * len(name) + number
    return x


@unsaid
def a_set_that_is_gone_through(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTORS", frozenset({"one", "eleven", "thirteen"}), when=changed):
        yield through_several, (X,)


def takes_one(x: torch.Tensor) -> torch.Tensor:
    return x * len(set(_FACTORS).pop())


@unsaid
def a_member_that_is_taken_out_of_a_set(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTORS", frozenset({"one", "eleven", "thirteen"}), when=changed):
        yield takes_one, (X,)


# Members that are no texts and no numbers, each of which torch guards at its place in the set.
class Part(enum.Enum):
    FIRST = 1
    SECOND = 2
    THIRD = 3
    FOURTH = 4
    FIFTH = 5


_PARTS = frozenset(Part) - {Part.FIFTH}
_OTHER_PARTS = frozenset(Part) - {Part.FIRST}
_KINDS = {int, str, Part, HasNames}
_FUNCTIONS = {takes_one, through_several, looks_into_a_set}


@case
def an_enumerated_member_that_is_looked_for(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_PARTS", _OTHER_PARTS, when=changed):
        yield lambda x, part: x * (2 if part in _PARTS else 3), (X, Part.FIRST)


@case
def a_class_that_is_looked_for_in_a_set(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_KINDS", {int, str, Longest, HasNames}, when=changed):
        yield lambda x, part: x * (2 if type(part) in _KINDS else 3), (X, Part.FIRST)


@case
def a_function_that_is_looked_for_in_a_set(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FUNCTIONS", {takes_one, through_a_set, looks_into_a_set}, when=changed):
        yield lambda x, function: x * (2 if function in _FUNCTIONS else 3), (X, through_several)


def through_parts(x: torch.Tensor) -> torch.Tensor:
    for part in _PARTS:
        x = x * part.value + 1
    return x


@unsaid
def a_set_of_enumerated_members_that_is_gone_through(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_PARTS", _OTHER_PARTS, when=changed):
        yield through_parts, (X,)


@unsaid
def the_first_enumerated_member_of_a_set(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_PARTS", _OTHER_PARTS - {Part.SECOND}, when=changed):
        yield lambda x: x * next(iter(_PARTS)).value, (X,)


@unsaid
def what_is_left_of_a_set_in_its_order(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_PARTS", _OTHER_PARTS, when=changed):
        yield lambda x: x * len(str([part.value for part in _PARTS - {Part.THIRD}])), (X,)


def an_alike_class() -> type:
    class Alike:
        factor = 2.0

    return Alike


_ALIKE = (an_alike_class(), an_alike_class())
_ALIKE_KINDS = frozenset(_ALIKE)


@unsaid
def classes_of_a_set_that_are_alike(changed: bool) -> Iterator[Any]:
    yield lambda x, kind: x * (2 if kind in _ALIKE_KINDS else 3), (X, an_alike_class() if changed else _ALIKE[0])


OF_MODULE = 2.0


def multiplying_by_a_global() -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes a function with the globals of this module."""
    return lambda x: x * OF_MODULE


def says_what_it_has_made(x: torch.Tensor) -> torch.Tensor:
    made = set()
    for name in ("d", "b", "a", "c"):
        made.add(name)
    return x * (1 + f"{made}".index("a"))


@unsaid
def a_text_of_a_set_that_is_made(_: bool) -> Iterator[Any]:
    yield says_what_it_has_made, (X,)


def goes_through_numbers(x: torch.Tensor, without: int) -> torch.Tensor:
    for number in set(range(8)) - {without}:
        x = x * (number + 1) - number
    return x


@case
def numbers_of_a_set_that_is_made(changed: bool) -> Iterator[Any]:
    yield goes_through_numbers, (X, 3 if changed else 2)


def looks_in_a_set_that_it_makes(x: torch.Tensor, name: str) -> torch.Tensor:
    known = {"a", "b", "c", "d"}
    known.add("e")
    return x * (2 if name in known else 3)


@case
def a_member_of_a_set_that_is_written_in_the_code(changed: bool) -> Iterator[Any]:
    yield looks_in_a_set_that_it_makes, (X, "f" if changed else "e")


def goes_through_a_set_that_it_makes(x: torch.Tensor, name: str) -> torch.Tensor:
    known = {"sin", "exp", "tanh", "cos"}
    known.add(name)
    for each in known:
        x = getattr(torch, each)(x)
    return x


@unsaid
def a_set_that_is_written_in_the_code_and_gone_through(_: bool) -> Iterator[Any]:
    yield goes_through_a_set_that_it_makes, (X, "sin")


def takes_out_of_a_set_that_it_makes(x: torch.Tensor, name: str) -> torch.Tensor:
    known = {"sin", "exp", "tanh"}
    known.discard(name)
    copied = known.copy()
    return getattr(torch, copied.pop())(x)


@unsaid
def a_member_that_is_taken_out_of_a_set_that_is_written_in_the_code(_: bool) -> Iterator[Any]:
    yield takes_out_of_a_set_that_it_makes, (X, "none")


def compares_sets(x: torch.Tensor, given: dict[str, int], known: dict[str, int]) -> torch.Tensor:
    if set(given) < set(known):
        return x * 2
    return x * (3 if set(known) > set(given) or set(known) < set(given) else 4)


@case
def a_key_less_than_those_that_are_compared_as_a_set(changed: bool) -> Iterator[Any]:
    yield compares_sets, (X, {"a": 1, "b": 1}, {"a": 1, "b": 1} if changed else {"a": 1, "b": 1, "c": 1})


@case
def another_key_than_those_that_are_compared_as_a_set(changed: bool) -> Iterator[Any]:
    yield compares_sets, (X, {"a": 1, "e" if changed else "b": 1}, {"a": 1, "b": 1, "c": 1})
