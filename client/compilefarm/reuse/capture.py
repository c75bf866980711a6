"""Makes a variant of what Dynamo has found for a frame."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from compilefarm.core.dynamo_packages import (
    AliasRecord,
    DependencyKind,
    DependencyRecord,
    GlobalKind,
    GlobalRecord,
    GuardRecord,
    SizeRecord,
    TypeRecord,
    Variant,
)
from compilefarm.core.interruptions import raise_interruption
from compilefarm.reuse.code_objects import codes_within, lines_of, record_of, renamed
from compilefarm.reuse.description_texts import shortened
from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.guarded_values import describe_guarded, is_on_value
from compilefarm.reuse.installed_packages import describe_package
from compilefarm.reuse.memory_places import BEGINNINGS, takes_places
from compilefarm.reuse.models import describe_models
from compilefarm.reuse.names_in_code import SHARED_FILES
from compilefarm.reuse.references import places_of, references_of, targets_of
from compilefarm.reuse.refusals import Unsayable
from compilefarm.reuse.source_table import KEY, SourceTable
from compilefarm.reuse.states import LINES, ORDER_OF_SETS, answers, require_plain, states, variables
from compilefarm.reuse.trace_questions import Questions
from compilefarm.torch_internals.checkpoint_contexts import CONTEXT_FN
from compilefarm.torch_internals.dynamo_frames import Frame, Traced, rest_of, unwrapped_program
from compilefarm.torch_internals.dynamo_guards import TracedGuard, aliases_of, guards_of, sizes_of
from compilefarm.torch_internals.dynamo_sources import TAKES_MEMBER, Scope, Source, global_of, modules_named_by

KeyOf = Callable[[Any], str | None]


def capture(
    traced: Traced,
    frame: Frame,
    *,
    key_of: KeyOf,
    generated: set[types.CodeType],
    read: Iterable[str],
    asked: Questions,
) -> Variant:
    """Returns what was traced as data.

    Args:
        traced: after its guards were built.
        frame: that was traced.
        key_of: the key of a program among the globals; None if it is none, or has none.
        generated: code that Dynamo made, of the rest of functions; what is found is added.
        read: names of environment variables that the trace read.
        asked: what the trace asked of the process.

    Raises:
        Unsayable: it rests on something that has no faithful description.
    """
    graphs = list(_graphs_of(traced))
    if any(CONTEXT_FN in each.owning_module.meta for each in graphs if each.owning_module is not None):
        raise Unsayable("the policy of a checkpoint (context_fn), which Dynamo does not trace")
    describer = Describer(orders=asked.orders, beginnings=takes_places(graphs))
    if what := require_plain() or describer.modules.require_own_globals(frame.code, frame.global_variables):
        raise Unsayable(what)
    return _Capture(traced, frame, describer, graphs).variant(
        key_of=key_of, generated=generated, variables_read=read, asked=asked
    )


class _Capture:
    def __init__(self, traced: Traced, frame: Frame, describer: Describer, graphs: Sequence[torch.fx.Graph]) -> None:
        self._traced = traced
        self._graphs = graphs
        self._frame = frame
        self._scope = scope = Scope(frame.local_variables, frame.global_variables)
        self._table = SourceTable(lambda base: describer.ranks_of_members(_follow(scope, base)))
        self._describer = describer

    def variant(
        self,
        *,
        key_of: KeyOf,
        generated: set[types.CodeType],
        variables_read: Iterable[str],
        asked: Questions,
    ) -> Variant:
        graph = self._traced.output_graph
        if not asked.orders and any(TAKES_MEMBER in each.co_names for each in codes_within(self._traced.code)):
            raise Unsayable("the generated code takes a member of a set, by its place in this process")
        fixed = _scopes_of_named_tuples(self._traced, self._frame.global_variables)
        installed = tuple(self._globals(key_of, generated, passed_over=fixed))
        names = _names_of_programs(installed)
        made = [each for each in guards_of(graph) if global_of(each[0].source) not in fixed]
        sizes = tuple(self._sizes(made))
        ordered = sorted(graph.guard_on_key_order, key=lambda source: str(source.name))
        key_order = tuple(map(self._table.place_of, ordered))
        aliases = tuple(self._aliases())
        guarded = [
            (guard, self._table.place_of(guard.source), self._table.fields(guard.arguments)) for guard, _ in made
        ]
        # In the order in which they are verified: how a circle is described depends on where it is entered.
        dependencies = list(self._dependencies(variables_read, asked))
        guarded_places = {self._table.place_of(guard.on_value().source) for guard, _ in made if is_on_value(guard)}
        # Dynamo guards nothing of some objects that it looks into: modes, modules of a model.
        looked_at = (each for each in asked.read if global_of(each) not in fixed)
        read = {each for each in looked_at if not isinstance(self._follow(each), (set, frozenset))}
        placed = guarded_places | set(map(self._table.place_of, sorted(asked.twice_reached | read, key=repr)))
        kinds = tuple(self._types(_with_bases(placed, self._table), guarded_places))
        guards = tuple(
            GuardRecord(kind=guard.kind, source=place, arguments=fields, expected=self._expected(guard, asked))
            for guard, place, fields in guarded
        )
        inlined = [each for each in self._traced.inlined if each not in generated]
        dependencies += places_of(self._frame.code, inlined, self._describer)
        if self._describer.modules.found_shared:
            dependencies.append(_process(DependencyKind.STATE, SHARED_FILES, ""))
        imported = modules_named_by(self._table.sources, self._frame.global_variables)
        named = {**self._traced.modules, **dict(imported)}
        modules = [GlobalRecord(name=name, kind=GlobalKind.MODULE, module=module) for name, module in named.items()]
        return Variant(
            code=record_of(renamed(self._traced.code, names)),
            globals=(
                *modules,
                *(dataclasses.replace(each, name=names.get(each.name, each.name)) for each in installed),
            ),
            sources=self._table.records,
            types=kinds,
            guards=guards,
            shape_expressions=tuple(text for guard, texts in made if guard.kind == "SHAPE_ENV" for text in texts),
            sizes=sizes,
            key_order=key_order,
            aliases=aliases,
            dependencies=tuple(dict.fromkeys(dependencies)),
        )

    def _globals(
        self, key_of: KeyOf, generated: set[types.CodeType], *, passed_over: Collection[str]
    ) -> Iterator[GlobalRecord]:
        for name in sorted(set(self._traced.installed) - self._traced.modules.keys() - set(passed_over)):
            yield self._global(name, self._frame.global_variables[name], key_of, generated)

    def _global(self, name: str, value: Any, key_of: KeyOf, generated: set[types.CodeType]) -> GlobalRecord:
        if value is self._frame.builtins:
            return GlobalRecord(name=name, kind=GlobalKind.BUILTINS)
        if isinstance(value, types.ModuleType):
            return GlobalRecord(name=name, kind=GlobalKind.MODULE, module=value.__name__)
        if (key := key_of(unwrapped_program(value))) is not None:
            return GlobalRecord(name=name, kind=GlobalKind.PROGRAM, program=key)
        if (rest := rest_of(name, value)) is not None:
            return self._rest(name, *rest, generated)
        raise Unsayable(f"an object of this process in the generated code ({name})")

    def _rest(
        self, name: str, code: types.CodeType, scope: dict[str, Any] | None, generated: set[types.CodeType]
    ) -> GlobalRecord:
        if scope is not None and scope is not self._frame.global_variables:
            raise Unsayable("a graph break in a function that was inlined")
        generated.add(code)
        return GlobalRecord(name=name, kind=GlobalKind.FUNCTION, code=record_of(code))

    def _sizes(self, made: Iterable[tuple[TracedGuard, object]]) -> Iterator[SizeRecord]:
        sizes = sizes_of(self._traced.output_graph)
        guarded = {guard.source: None for guard, _ in made if guard.kind == "TENSOR_MATCH"}
        for source in guarded:
            if source in sizes:
                size, stride = sizes[source]
                yield SizeRecord(source=self._table.place_of(source), size=tuple(size), stride=tuple(stride))

    def _aliases(self) -> Iterator[AliasRecord]:
        try:
            aliases = aliases_of(self._traced.output_graph)
        except ValueError as error:
            raise Unsayable(str(error)) from error
        for kind, first, second in aliases:
            places = [tuple(map(self._table.place_of, group)) for group in (first, second)]
            yield AliasRecord(kind=kind, first=places[0], second=places[1])

    def _dependencies(self, read: Iterable[str], asked: Questions) -> Iterator[DependencyRecord]:
        for name, expected in states(self._describer).items():
            yield _process(DependencyKind.STATE, name, expected)
        for name, expected in sorted(answers(self._graphs).items()):
            yield _process(DependencyKind.STATE, name, expected)
        yield _process(DependencyKind.STATE, LINES, lines_of(self._frame.code))
        if asked.orders:
            yield _process(DependencyKind.STATE, ORDER_OF_SETS, "")
        if self._describer.memory.beginnings:
            yield _process(DependencyKind.STATE, BEGINNINGS, "")
        for name, expected in describe_models(self._frame.local_variables, self._describer).items():
            yield _process(DependencyKind.MODEL, name, expected)
        for name, expected in variables(sorted(read)).items():
            yield _process(DependencyKind.VARIABLE, name, expected)
        for package, question in sorted(asked.packages):
            expected = shortened(describe_package(package, question))
            yield DependencyRecord(kind=DependencyKind.PACKAGE, module=package, name=question, expected=expected)
        yield from references_of([self._frame.code, *self._traced.inlined], asked.attributes(), self._describer)
        yield from targets_of(self._graphs, self._describer)
        yield from (each.record(self._describer) for each in asked.results)

    def _types(self, places: Iterable[int], guarded: Collection[int]) -> Iterator[TypeRecord]:
        sources, records, places = self._table.sources, self._table.records, list(places)
        values = [(self._follow(sources[place]), place in guarded or records[place].kind == KEY) for place in places]
        for place, kind in zip(places, self._describer.of_places(values), strict=True):
            yield TypeRecord(source=place, expected=kind)

    def _expected(self, guard: TracedGuard, asked: Questions) -> str:
        if not is_on_value(guard):
            return ""
        if guard.kind == "ID_MATCH" and guard.source not in asked.addresses:
            # Dynamo may have taken all that the object holds for fixed.
            self._describer.identity(self._follow(guard.source))
        on_value = guard.on_value()
        return shortened(describe_guarded(on_value, self._follow(on_value.source), self._describer))

    def _follow(self, source: Source) -> Any:
        return _follow(self._scope, source)


def _follow(scope: Scope, source: Source) -> Any:
    try:
        return scope.follow(source)
    except Exception as error:
        raise_interruption(error)
        raise Unsayable(f"{source.name}, which cannot be read any more ({type(error).__name__})") from error


def _scopes_of_named_tuples(traced: Traced, scope: Mapping[str, Any]) -> set[str]:
    """Names of globals that Dynamo has made for what named tuples are made with, and that generated code does not name.

    There is nothing in it but the function that makes tuples (collections/__init__.py: namedtuple); the rest is told
    with the class. So no guard on it is needed.
    """
    names = {name for name in set(traced.installed) - traced.modules.keys() if _makes_tuples(scope[name])}
    return names - {name for code in codes_within(traced.code) for name in code.co_names}


def _makes_tuples(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("__builtins__") != {}:
        return False
    return [each for name, each in value.items() if name not in ("__builtins__", "__name__")] == [tuple.__new__]


def _graphs_of(traced: Traced) -> Iterator[torch.fx.Graph]:
    graph = traced.output_graph.graph
    yield graph
    # Of operators that call others: bodies of loops, branches, checkpoints. Dynamo has forgotten by now what the graph
    # held, and the module that it was compiled of has not. One that computes nothing is compiled of none.
    held = graph.owning_module.modules() if graph.owning_module is not None else ()
    modules = (each for each in held if isinstance(each, torch.fx.GraphModule))
    yield from (each.graph for each in modules if each.graph is not graph)


def _names_of_programs(installed: Iterable[GlobalRecord]) -> dict[str, str]:
    """What programs are called in a variant: torch has a random number in their names, and equal variants are equal."""
    programs = (each.name for each in installed if each.kind is GlobalKind.PROGRAM)
    return {name: f"__program_{number}" for number, name in enumerate(programs)}


def _with_bases(places: set[int], table: SourceTable) -> list[int]:
    wanted = set(places)
    for place in range(len(table.records) - 1, -1, -1):
        if place in wanted:
            wanted |= {field.source for field in table.records[place].fields if field.source is not None}
    return sorted(wanted)


def _process(kind: DependencyKind, name: str, expected: str) -> DependencyRecord:
    return DependencyRecord(kind=kind, module="", name=name, expected=shortened(expected))
