"""Ways to get a compiled model, as a process goes them."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from compilefarm.benchmarks.cases import Case, Given
from compilefarm.benchmarks.redis_server import REDIS_URL
from compilefarm.benchmarks.results import Result
from compilefarm.torch_internals.pytrees import map_tensors

Function = Callable[..., Any]


class Unfit(Exception):
    """A way cannot serve this case; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a way may use.

    Attributes:
        mode: as in torch.compile.
        bundle: where what is made lies, or is put; a folder.
        seconds: by phase; a way adds to it.
    """

    mode: str | None
    bundle: Path
    seconds: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the seconds that pass inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started  # type: ignore[assignment]  # adds floats as well

    def give_rest(self, phase: str, *, of_seconds: float) -> None:
        """Counts what is in no other phase as this one."""
        self.seconds[phase] += of_seconds - sum(self.seconds.values())  # type: ignore[assignment]

    def timing_first_call(self, program: Function) -> Function:
        """A program whose first call is a phase."""
        called = False

        def run(*inputs: Any) -> Any:
            nonlocal called
            if called:
                return program(*inputs)
            called = True
            with self.phase("first_call"):
                return program(*inputs)

        return run

    def options(self) -> dict[str, Any]:
        """What the mode stands for."""
        return dict(torch._inductor.list_mode_options(self.mode)) if self.mode else {}


class Way(Protocol):
    """How a process comes to a compiled model."""

    def obtain(self, case: Case, means: Means) -> Function:
        """What is called in place of the model. This is timed, and its first call."""

    def describe(self, result: Result, means: Means) -> None:
        """Says into which phases the seconds to the first result went, and what was moved for it."""

    def settle(self) -> None:
        """Waits until nothing works for this way any more, which would slow down the calls that are measured next."""

    def keep(self, means: Means) -> None:
        """Leaves what other processes load. This is not timed."""


class _Way:
    def describe(self, result: Result, means: Means) -> None:
        """What is in no phase is Dynamo: it runs before, between and after the others."""
        means.give_rest("dynamo", of_seconds=result.total_seconds)

    def settle(self) -> None:
        """Nothing works for it."""

    def keep(self, means: Means) -> None:
        """Nothing is left."""


class Eager(_Way):
    """No compiler at all."""

    def obtain(self, case: Case, _: Means) -> Function:
        return case.function

    def describe(self, result: Result, means: Means) -> None:
        means.give_rest("first_call", of_seconds=result.total_seconds)


class Local(_Way):
    """Inductor in this process, with whatever caches there are: those of its folder, or Redis, as torch was told."""

    def obtain(self, case: Case, means: Means) -> Function:
        return _compiled(case, means)

    def describe(self, result: Result, means: Means) -> None:
        result.graphs = {"local": _counters()["stats"]["unique_graphs"]}
        means.seconds.update(_seconds_of_torch())
        means.give_rest("first_call", of_seconds=result.total_seconds)
        if url := os.environ.get(REDIS_URL):
            # Beside torch only torch's caches talk to this server.
            import redis

            result.bytes_fetched = redis.Redis.from_url(url).info("stats")["total_net_output_bytes"]

    def keep(self, means: Means) -> None:
        path = means.bundle / "mega-cache"
        # One that ran on warm caches may have less to save than the one before it.
        saved = None if path.exists() else torch.compiler.save_cache_artifacts()
        if saved is not None:
            path.write_bytes(saved[0])


class FarmCaches(Local):
    """torch's remote caches, in the farm that COMPILEFARM_ADDRESS names."""

    def __init__(self) -> None:
        self._sent_before = 0

    def obtain(self, case: Case, means: Means) -> Function:
        self._sent_before = _sent_by_farm()
        return super().obtain(case, means)

    def describe(self, result: Result, means: Means) -> None:
        super().describe(result, means)
        result.bytes_fetched = _sent_by_farm() - self._sent_before


class MegaCache(Local):
    """The caches of another process, as one file (torch.compiler.load_cache_artifacts)."""

    def obtain(self, case: Case, means: Means) -> Function:
        with means.phase("load"):
            content = (means.bundle / "mega-cache").read_bytes()
            torch.compiler.load_cache_artifacts(content)
        return super().obtain(case, means)

    def describe(self, result: Result, means: Means) -> None:
        super().describe(result, means)
        result.bytes_fetched = (means.bundle / "mega-cache").stat().st_size

    def keep(self, means: Means) -> None:
        """The file is there."""


class FarmMegaCache(FarmCaches):
    """The same from a farm (Farm.load_cache_artifacts)."""

    def obtain(self, case: Case, means: Means) -> Function:
        from compilefarm.client import Farm

        sent_before = _sent_by_farm()
        with means.phase("load"):
            Farm().load_cache_artifacts()
        compiled = super().obtain(case, means)
        self._sent_before = sent_before
        return compiled


class FarmMegaCacheMaker(Local):
    """Makes what FarmMegaCache loads."""

    def keep(self, _: Means) -> None:
        from compilefarm.client import Farm

        Farm().save_cache_artifacts()


class Standalone(_Way):
    """Programs that standalone_compile made of the graphs of another process (torch._inductor.CompiledArtifact)."""

    def __init__(self) -> None:
        self._graphs = 0
        self._bytes = 0

    def obtain(self, case: Case, means: Means) -> Function:
        def backend(*_: Any) -> Function:
            path = _artifact_path(means, self._graphs)
            self._graphs += 1
            self._bytes += path.stat().st_size
            with means.phase("load"):
                artifact = torch._inductor.CompiledArtifact.load(path=str(path))
            return means.timing_first_call(artifact)

        compiled: Function = torch.compile(case.function, backend=backend, dynamic=case.dynamic)
        return compiled

    def describe(self, result: Result, means: Means) -> None:
        super().describe(result, means)
        result.graphs, result.bytes_fetched = {"loaded": self._graphs}, self._bytes


class StandaloneMaker(_Way):
    """Makes what Standalone loads."""

    def __init__(self) -> None:
        self._captured: list[Any] = []

    def obtain(self, case: Case, _: Means) -> Function:
        if case.training:
            raise Unfit("standalone_compile leaves the backward to the first backward(), after the artifact is saved")

        def backend(graph_module: Any, *_: Any) -> Function:
            self._captured.append(graph_module)
            forward: Function = graph_module.forward
            return forward

        compiled: Function = torch.compile(case.function, backend=backend, dynamic=case.dynamic)
        return compiled

    def keep(self, means: Means) -> None:
        for number, graph_module in enumerate(self._captured):
            # Real inputs would have their sizes made symbolic.
            inputs = [node.meta["example_value"] for node in graph_module.graph.nodes if node.op == "placeholder"]
            options = {"config_patches": means.options()}
            with torch.no_grad():
                artifact = torch._inductor.standalone_compile(graph_module, inputs, options=options)
            artifact.save(path=str(_artifact_path(means, number)), format="binary")


class Precompiled(Local):
    """Dynamo's results, too, from another process (torch._dynamo.config.caching_precompile)."""

    def obtain(self, case: Case, means: Means) -> Function:
        assert torch._dynamo.config.caching_precompile
        with means.phase("load"):
            torch.compiler.load_cache_artifacts((means.bundle / "precompiled").read_bytes())
            # This loads what it finds, besides importing Dynamo.
            compiled: Function = torch.compile(case.function, mode=means.mode, dynamic=case.dynamic)
        return compiled

    def describe(self, result: Result, means: Means) -> None:
        # Torch's own figures hold those of the process before, too.
        means.give_rest("first_call", of_seconds=result.total_seconds)
        result.graphs, result.bytes_fetched = {"loaded": 1}, (means.bundle / "precompiled").stat().st_size

    def keep(self, means: Means) -> None:
        """The file is there."""


class PrecompiledMaker(Local):
    """Makes what Precompiled loads."""

    def keep(self, means: Means) -> None:
        saved = torch.compiler.save_cache_artifacts()
        if saved is None:
            raise Unfit("caching_precompile saved nothing")
        (means.bundle / "precompiled").write_bytes(saved[0])


class Package(_Way):
    """A package of AOTInductor, with the weights in it. No Dynamo is needed (torch._inductor.aoti_load_package)."""

    def obtain(self, _: Case, means: Means) -> Function:
        with means.phase("load"):
            program: Function = torch._inductor.aoti_load_package(str(_package_path(means)))
        return program

    def describe(self, result: Result, means: Means) -> None:
        result.graphs, result.bytes_fetched = {"loaded": 1}, _package_path(means).stat().st_size
        means.give_rest("first_call", of_seconds=result.total_seconds)


class PackageMaker(_Way):
    """Makes what Package loads."""

    def obtain(self, case: Case, means: Means) -> Function:
        if case.training:
            raise Unfit("AOTInductor does not go backward")
        if not isinstance(case.function, torch.nn.Module):
            raise Unfit("torch.export takes modules only")
        given = case.calls[0]
        args, kwargs = _arguments(given)
        with torch.no_grad():
            program = torch.export.export(case.function, args, kwargs, dynamic_shapes=_dynamic_shapes(case, given))
            path = str(_package_path(means))
            torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=means.options())
        loaded: Function = torch._inductor.aoti_load_package(path)
        return loaded


class FromFarm(_Way):
    """The farm that COMPILEFARM_ADDRESS names."""

    def obtain(self, case: Case, means: Means) -> Function:
        from compilefarm.client import Farm

        farm = Farm(on_progress=_show_progress)
        compiled: Function = torch.compile(case.function, backend=farm.backend, mode=means.mode, dynamic=case.dynamic)
        return compiled

    def describe(self, result: Result, means: Means) -> None:
        from compilefarm.client import stats
        from compilefarm.client.records import summarize

        records = stats()
        summary = summarize(records)
        means.seconds.update({str(phase): spent for phase, spent in summary.seconds.items()})
        result.graphs = {str(outcome): count for outcome, count in summary.graphs.items()}
        result.bytes_sent, result.bytes_fetched = summary.bytes_sent, summary.bytes_fetched
        result.keys = [record.key for record in records if record.key]
        super().describe(result, means)

    def settle(self) -> None:
        """The farm is on this machine, and gets ready for its next job."""
        from compilefarm.benchmarks.farms import wait_until_quiet
        from compilefarm.client.config import ADDRESS

        wait_until_quiet(os.environ[ADDRESS])


class _Whole(torch.nn.Module):  # type: ignore[misc]
    """A model behind a forward that is written in Python, which is what torch compiles ahead of time."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class Saved(FromFarm):
    """A function that another process compiled ahead of time with the farm (Farm.load_compiled_function): no Dynamo."""

    def obtain(self, case: Case, means: Means) -> Function:
        from compilefarm.client import Farm

        with _saved_path(means).open("rb") as file:
            function = Farm().load_compiled_function(file)
        return functools.partial(function, _Whole(case.function))

    def describe(self, result: Result, means: Means) -> None:
        super().describe(result, means)
        result.bytes_fetched += _saved_path(means).stat().st_size
        # Dynamo does not run; what is in no other phase is importing it, and unpickling.
        means.seconds["load"] += means.seconds.pop("dynamo")


class SavedMaker(FromFarm):
    """Makes what Saved loads."""

    def obtain(self, case: Case, means: Means) -> Function:
        from compilefarm.client import Farm

        if case.dynamic:
            raise Unfit("what is compiled ahead of time with a farm is for sizes that do not differ")
        if not isinstance(case.function, torch.nn.Module):
            raise Unfit("only modules are compiled ahead of time here")
        model = _Whole(case.function)
        # Guards on the identity of Python objects cannot be saved.
        options = means.options() | {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
        with torch._dynamo.config.patch(enable_aot_compile=True), torch.set_grad_enabled(case.training):
            compiled = torch.compile(model.forward, fullgraph=True, backend=Farm().backend, options=options)
            self._function = compiled.aot_compile(_arguments(case.calls[0]))
        return functools.partial(self._function, model)

    def keep(self, means: Means) -> None:
        self._function.save_compiled_function(str(_saved_path(means)))


WAYS: Mapping[str, Callable[[], Way]] = {
    "eager": Eager,
    "local": Local,
    "farm-caches": FarmCaches,
    "mega-cache": MegaCache,
    "farm-mega-cache-maker": FarmMegaCacheMaker,
    "farm-mega-cache": FarmMegaCache,
    "standalone-maker": StandaloneMaker,
    "standalone": Standalone,
    "precompiled-maker": PrecompiledMaker,
    "precompiled": Precompiled,
    "package-maker": PackageMaker,
    "package": Package,
    "farm": FromFarm,
    "saved-maker": SavedMaker,
    "saved": Saved,
}


def _compiled(case: Case, means: Means) -> Function:
    # This imports Dynamo and part of Inductor.
    with means.phase("dynamo"):
        compiled: Function = torch.compile(case.function, mode=means.mode, dynamic=case.dynamic)
    return compiled


def _artifact_path(means: Means, number: int) -> Path:
    return means.bundle / f"artifact-{number}"


def _package_path(means: Means) -> Path:
    return means.bundle / "model.pt2"


def _saved_path(means: Means) -> Path:
    return means.bundle / "function"


def _arguments(given: Given) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What is given by position, and by keyword."""
    return ((), dict(given)) if isinstance(given, Mapping) else (given, {})


def _dynamic_shapes(case: Case, given: Given) -> Any:
    if not case.dynamic:
        return None
    auto = torch.export.Dim.AUTO
    return map_tensors(lambda tensor: dict.fromkeys(range(tensor.dim()), auto), given)


def _sent_by_farm() -> int:
    """What the farm has sent to this process and those before it; nobody else asks it."""
    from compilefarm.cli.farm import admin_at
    from compilefarm.client.config import ADDRESS
    from compilefarm.v1.admin_service_pb2 import StatusRequest

    with admin_at(os.environ[ADDRESS]) as service:
        return int(service.Status(StatusRequest()).counters.bytes_sent)


def _counters() -> Any:
    from torch._dynamo.utils import counters

    return counters


def _seconds_of_torch() -> dict[str, float]:
    """How torch itself splits what it did (torch/_dynamo/utils.py: dynamo_timed)."""
    from torch._dynamo.utils import compilation_time_metrics

    whole, backend = (
        sum(compilation_time_metrics.get(name, ()))
        for name in ("_compile.compile_inner", "OutputGraph.call_user_compiler")
    )
    return {"dynamo": whole - backend, "compile": backend}


def _show_progress(phase: str, elapsed_seconds: float, jobs_ahead: int) -> None:
    ahead = f", {jobs_ahead} jobs ahead" if jobs_ahead else ""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"   {phase:<10} {elapsed_seconds:5.1f} s{ahead}   ", end=end, file=sys.stderr, flush=True)
