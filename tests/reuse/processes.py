"""A process of the tests: its backend keeps graphs as they are, in a folder that the next process reads."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from compilefarm.core.dynamo_packages import Lookup, Variant
from compilefarm.reuse.interception import Interceptor, Outcome, Programs
from compilefarm.reuse.refusals import Differs
from compilefarm.torch_internals.dynamo_frames import Frame, backend_of, intercept_frames


class KeptGraph:
    """A graph that runs as it was captured, and its key.

    It is kept as source: a GraphModule that is unpickled is traced anew, which computes what hangs on no input, and is
    then another one (with torch 2.11 comparisons among them).
    """

    def __init__(self, graph_module: torch.fx.GraphModule, *, key: str) -> None:
        self.key = key
        code = graph_module.graph.python_code("self")
        modules = {name: value for name, value in code.globals.items() if isinstance(value, ModuleType)}
        self._modules = {name: module.__name__ for name, module in modules.items()}
        self._values = {name: value for name, value in code.globals.items() if name not in modules}
        self._source, self._held = code.src, _Held(graph_module)

    def __call__(self, *inputs: Any) -> Any:
        scope = self._values | {name: import_module(module) for name, module in self._modules.items()}
        exec(self._source, scope)
        return scope["forward"](self._held, *inputs)


class _Held:
    """What a graph holds, under the names that its source has."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        for node in graph_module.graph.find_nodes(op="get_attr"):
            setattr(self, node.target, getattr(graph_module, node.target))


class FolderOfVariants:
    """Variants and graphs as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.guards: list[int] = []

    def find(self, lookup: Lookup, _: Frame) -> Sequence[Variant]:
        files = sorted(self._folder.glob(f"{_digest(lookup)}-*.variant"))
        return [pickle.loads(file.read_bytes()) for file in files]

    def publish(self, lookup: Lookup, _: Frame, variant: Variant) -> None:
        self.guards.append(len(variant.guards))
        number = len(list(self._folder.glob("*.variant")))
        (self._folder / f"{_digest(lookup)}-{number:06}.variant").write_bytes(pickle.dumps(variant))

    def keep(self, graph_module: torch.fx.GraphModule) -> KeptGraph:
        """Keeps a graph, without what tracing has noted in it."""
        graph, key = torch.fx.Graph(), uuid.uuid4().hex
        graph.output(graph.graph_copy(graph_module.graph, {}))
        for node in graph.nodes:
            node.meta.clear()
            node.type = None
        plain = torch.fx.GraphModule(graph_module, graph)
        kept = KeptGraph(plain, key=key)
        (self._folder / f"{key}.graph").write_bytes(pickle.dumps(kept))
        return kept

    def load(self, key: str) -> KeptGraph:
        """Returns a graph that was kept."""
        file = self._folder / f"{key}.graph"
        if not file.exists():
            raise Differs(f"no program {key}")
        kept: KeptGraph = pickle.loads(file.read_bytes())
        return kept


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What a process compiles with, and what became of its frames."""

    backend: Callable[..., Any]
    outcomes: list[Outcome]
    unpublished: list[tuple[str, str]]
    variants: FolderOfVariants

    @property
    def traced(self) -> list[str]:
        """Why frames were traced."""
        return [each.reason for each in self.outcomes if not each.was_reused]


@contextmanager
def pod(
    folder: Path, *, publishes: bool = True, on_outcome: Callable[[Outcome], None] = lambda _: None
) -> Iterator[Pod]:
    """A process whose frames are looked up in a folder, and published to it.

    Args:
        folder: of variants and graphs.
        publishes: whether what is traced is published.
        on_outcome: told what becomes of each frame, before it is traced.
    """
    variants = FolderOfVariants(folder)
    own = Pod(backend=lambda *_, **__: None, outcomes=[], unpublished=[], variants=variants)

    def note(outcome: Outcome) -> None:
        own.outcomes.append(outcome)
        on_outcome(outcome)

    def backend(graph_module: torch.fx.GraphModule, _: object, **__: object) -> KeptGraph:
        return variants.keep(graph_module)

    def is_ours(given: Any) -> bool:
        return getattr(given, "compiler_fn", given) is backend

    def settings_of(frame: Frame) -> str:
        return repr(getattr(backend_of(frame), "kwargs", None))

    programs = Programs(
        is_ours=is_ours, settings_of=settings_of, key_of=lambda each: getattr(each, "key", None), load=variants.load
    )
    told = {"on_outcome": note, "on_unpublished": lambda *why: own.unpublished.append(why)}
    restore = intercept_frames(Interceptor(variants, programs=programs, publishes=publishes, **told))
    try:
        yield dataclasses.replace(own, backend=backend)
    finally:
        restore()


def _digest(lookup: Lookup) -> str:
    return hashlib.sha256(repr(lookup).encode()).hexdigest()[:32]
