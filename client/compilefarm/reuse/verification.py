"""Whether a variant holds on a frame of this process: everything that was recorded is described again and compared."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from compilefarm.core.dynamo_packages import DependencyKind, DependencyRecord, SizeRecord, Variant
from compilefarm.core.interruptions import raise_interruption
from compilefarm.reuse.code_objects import lines_of
from compilefarm.reuse.constant_results import describe_result
from compilefarm.reuse.description_texts import shortened
from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.guarded_values import WITHOUT_VALUE, describe_guarded
from compilefarm.reuse.installed_packages import describe_package
from compilefarm.reuse.memory_places import BEGINNINGS
from compilefarm.reuse.models import describe_models
from compilefarm.reuse.names_in_code import SHARED_FILES, Modules
from compilefarm.reuse.references import describe_dependency
from compilefarm.reuse.refusals import Differs, Unsayable
from compilefarm.reuse.source_table import KEY, sources_of, values_of
from compilefarm.reuse.states import LINES, ORDER_OF_SETS, answer_of, require_plain, states, variables
from compilefarm.torch_internals.dynamo_frames import Frame
from compilefarm.torch_internals.dynamo_guards import TracedGuard, TracedGuards
from compilefarm.torch_internals.dynamo_sources import Scope, Source

# What a condition on sizes is made of; torch evaluates it as Python.
_EXPRESSIONS = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Call, ast.IfExp,
)  # fmt: skip
_CALLED = frozenset(
    {
        "size",
        "stride",
        "storage_offset",
        "int",
        "list",
        "max",
        "min",
        "dict.__getitem__",
        "dict.keys",
        "torch.sym_float",
        "torch.sym_max",
        "torch.sym_min",
    }
)
# Of a power.
_LARGEST_EXPONENT = 64
# Functions of this module compute on numbers and do nothing else.
_OF_MATH = frozenset(f"math.{name}" for name, function in vars(math).items() if callable(function))


def verify_process(variant: Variant, frame: Frame) -> Describer:
    """Compares what a variant rests on beside guards; returns what has described it.

    Raises:
        Differs: something is not as it was.
    """
    # Members of sets are compared in the order of each process where the trace has taken it.
    names = {each.name for each in variant.dependencies if each.kind is DependencyKind.STATE}
    modules = Modules(by_file=SHARED_FILES in names)
    describer = Describer(orders=ORDER_OF_SETS in names, beginnings=BEGINNINGS in names, modules=modules)
    if what := require_plain() or describer.modules.require_own_globals(frame.code, frame.global_variables):
        raise Differs(what)
    try:
        now = _Process(frame, describer)
        for dependency in variant.dependencies:
            if now.describe(dependency) != dependency.expected:
                raise Differs(_said(dependency))
    except Unsayable as error:
        raise Differs(str(error)) from error
    return describer


def verify_guards(
    variant: Variant, frame: Frame, *, names: Mapping[str, str], scope: Mapping[str, Any], describer: Describer
) -> TracedGuards:
    """Compares what every guard was on, and returns the guards.

    Args:
        variant: what is compared.
        frame: the frame.
        names: what names of globals are in this process.
        scope: global variables, with those that the variant expects.
        describer: of this moment.

    Raises:
        Differs: something is not as it was.
    """
    live = Scope(frame.local_variables, scope)

    try:
        sources = sources_of(
            variant.sources, names=names, ranks_of=lambda base: describer.ranks_of_members(_follow(live, base))
        )
        guards, on_values = list[TracedGuard](), list[tuple[TracedGuard, str]]()
        for kind, place, given, expected in variant.guards:
            # Most have no arguments.
            guard = TracedGuard(kind, sources[place], values_of(given, sources=sources) if given else {})
            guards.append(guard)
            if kind not in WITHOUT_VALUE:
                on_values.append((guard.on_value(), expected))
        # By address: each place has one source, and hashing one takes a while.
        guarded = {id(guard.source) for guard, _ in on_values}
        guarded |= {id(source) for source, (kind, _) in zip(sources, variant.sources, strict=True) if kind == KEY}
        places = [sources[record.source] for record in variant.types]
        values = [(value, id(place) in guarded) for place, value in zip(places, _follow_all(live, places), strict=True)]
        for found, (place, expected) in zip(describer.of_places(values), variant.types, strict=True):
            _require(found, expected, sources[place])
        for size in variant.sizes:
            _require_sizes(_follow(live, sources[size.source]), size, sources[size.source])
        found_there = _follow_all(live, [guard.source for guard, _ in on_values])
        for (guard, expected), value in zip(on_values, found_there, strict=True):
            _require(shortened(describe_guarded(guard, value, describer)), expected, guard.source)
    except Unsayable as error:
        raise Differs(str(error)) from error
    return TracedGuards(
        guards=guards,
        shape_expressions=[_checked(text) for text in variant.shape_expressions],
        sizes={sources[each.source]: (each.size, each.stride) for each in variant.sizes},
        key_order=[sources[each] for each in variant.key_order],
        aliases=[
            (each.kind, [sources[place] for place in each.first], [sources[place] for place in each.second])
            for each in variant.aliases
        ],
        builtins_name=None,
    )


class _Process:
    """Describes dependencies in this process; what belongs together is described once."""

    def __init__(self, frame: Frame, describer: Describer) -> None:
        self._frame = frame
        self._describer = describer
        own = {ORDER_OF_SETS: "", BEGINNINGS: "", SHARED_FILES: "", LINES: lines_of(frame.code)}
        self._states: Mapping[str, str] = states(describer) | own
        self._models: Mapping[str, str] = describe_models(frame.local_variables, describer)

    def describe(self, dependency: DependencyRecord) -> str | None:
        name = dependency.name
        if dependency.kind is DependencyKind.STATE:
            return _shortened_or_none(self._states[name] if name in self._states else answer_of(name))
        if dependency.kind is DependencyKind.MODEL:
            return _shortened_or_none(self._models.get(name))
        if dependency.kind is DependencyKind.VARIABLE:
            return shortened(variables([name])[name])
        if dependency.kind is DependencyKind.PACKAGE:
            return shortened(describe_package(dependency.module, name))
        if dependency.kind is DependencyKind.RESULT:
            return describe_result(dependency.module, name, self._describer)
        return describe_dependency(dependency.kind, dependency.module, name, self._describer)


def _shortened_or_none(text: str | None) -> str | None:
    return None if text is None else shortened(text)


def _follow(scope: Scope, source: Source) -> Any:
    return next(_follow_all(scope, [source]))


def _follow_all(scope: Scope, sources: Iterable[Source]) -> Iterator[Any]:
    follow = scope.follow
    for source in sources:
        try:
            value = follow(source)
        except Exception as error:
            raise_interruption(error)
            raise Differs(f"{source.name} is not there ({type(error).__name__})") from error
        yield value


def _require(found: str, expected: str, source: Source) -> None:
    if found != expected:
        raise Differs(f"{source.name} is another")


def _require_sizes(tensor: Any, record: SizeRecord, source: Source) -> None:
    # Until 2.12 guards leave out tensors of a dictionary that is as it was when they were built, which is here and now.
    found = [*tensor.size(), *(tensor.stride() if record.stride else ())]
    expected = [*record.size, *record.stride]
    if len(found) != len(expected) or any(want not in (None, has) for want, has in zip(expected, found, strict=True)):
        raise Differs(f"the size or stride of {source.name} is another")


def _said(dependency: DependencyRecord) -> str:
    place = f"{dependency.module}.{dependency.name}".strip(".")
    return f"the {dependency.kind.value} {place} is another"


def _checked(text: str) -> str:
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        # Python's parser says of what is nested too deep that memory has run out.
        raise Differs(f"a condition on sizes cannot be read: {text[:80]}") from error
    if not all(isinstance(node, _EXPRESSIONS) for node in nodes):
        raise Differs(f"a condition on sizes is not understood: {text[:80]}")
    for node in nodes:
        if isinstance(node, ast.Call) and not _is_known_call(node):
            raise Differs(f"a condition on sizes is not understood: {text[:80]}")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_small_power(node):
            raise Differs(f"a condition on sizes would compute without an end: {text[:80]}")
    return text


def _is_small_power(node: ast.BinOp) -> bool:
    """Whether a power has a small number for its exponent, and is of no other power."""
    exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
    value = exponent.value if isinstance(exponent, ast.Constant) else None
    is_nested = any(isinstance(each, ast.Pow) for each in ast.walk(node.left))
    return isinstance(value, int | float) and abs(value) <= _LARGEST_EXPONENT and not is_nested


def _is_known_call(node: ast.Call) -> bool:
    called = node.func
    whole = ast.unparse(called)
    last = called.attr if isinstance(called, ast.Attribute) else whole
    return (
        whole in _CALLED | _OF_MATH
        or (isinstance(called, ast.Attribute) and last in _CALLED)
        or whole.startswith("___")
    )
