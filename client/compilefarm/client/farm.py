"""`Farm`, a compile farm as a pod uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack
from weakref import ref

from compilefarm.client.announcements import announce_obstacles
from compilefarm.client.arguments import taking_settings
from compilefarm.client.best_effort import BestEffort
from compilefarm.client.calling_convention import (
    as_called,
    calls_modules,
    in_plain_form,
    tracing_modules,
)
from compilefarm.client.compiled_graph import CompiledGraph, key_to_save, refuse_to_save
from compilefarm.client.composition import compose
from compilefarm.client.config import ClientConfig, Settings, read_config
from compilefarm.client.connection import Connection
from compilefarm.client.defaults import DEFAULT_BUNDLE, DEFAULT_PARALLEL
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import OnProgress
from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.options import CompileOptions, Options
from compilefarm.client.programs import Program
from compilefarm.client.recorder import open_recorder
from compilefarm.client.reports import withdraw_package
from compilefarm.client.starts import Route, Starts, add_route
from compilefarm.core.errors import FarmError
from compilefarm.core.garbage import PausedCollections
from compilefarm.core.requests import Request

# What most pods never do imports its modules when it is asked for.
if TYPE_CHECKING:
    from compilefarm.client.bundle_reports import Pulled, Pushed
    from compilefarm.client.bundles import Bundles
    from compilefarm.client.local_caches import TorchCaches
    from compilefarm.client.prewarming import Report
    from compilefarm.client.recording_backend import Backend
    from compilefarm.core.recordings import Recording
    from compilefarm.loader.exports import Format


def _ignore_progress(phase: str, elapsed_seconds: float, jobs_ahead: int) -> None:
    """Nobody watches."""


@taking_settings
class Farm:
    """A compile farm. Threads may share it, and forked processes may go on using it.

    Args:
        address: "host:port", or "unix:/path" for a socket; None: COMPILEFARM_ADDRESS. Or a ClientConfig, which has all
            settings in it: neither arguments nor environment variables are looked at then.
        settings: described below. One that is None, or is not given, is taken from its environment variable, and has
            its default where that is not set.
        on_progress: called while the farm works, with the phase ("queued", "compiling", "tuning", "packing",
            "verifying"), the seconds since the job was queued, and the number of jobs ahead of it.
        dependencies: what it stands on; tests replace it.

    Raises:
        ConfigurationError: a setting cannot be used, or there is no address.
        TypeError: an argument is unknown, or stands beside a ClientConfig.
        UnusableRecording: nothing can be recorded in that folder.
    """

    def __init__(
        self,
        address: str | ClientConfig | None = None,
        *,
        on_progress: OnProgress = _ignore_progress,
        dependencies: Dependencies | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._config = _config_of(address, settings)
        self._dependencies = dependencies or Dependencies()
        clock, open_channel = self._dependencies.clock, self._dependencies.open_channel
        self._connection = Connection(self._config, clock=clock, open_channel=open_channel)
        self._compiler = compose(
            self._config, dependencies=self._dependencies, connection=self._connection, on_progress=on_progress
        )
        # What reads keys is imported here.
        with PausedCollections():
            self._starts = self._open_starts()
        if self._starts is not None:
            add_route(_route_to(self))

    def backend(
        self,
        graph_module: Any,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Options | None = None,
        name: str = "",
    ) -> Program:
        """A backend of torch.compile: `torch.compile(model, backend=farm.backend)`.

        Args:
            graph_module: as Dynamo captured it.
            example_inputs: one for each placeholder.
            mode: as in torch.compile.
            options: Inductor options, as in torch.compile.
            name: as in torch.compile; it shows in the log line and decides nothing.

        Raises:
            FarmError, CompileFailed: with on_miss="error" or on_failure="error", the farm has no artifact.
            Bypass: with on_miss="error", the graph cannot be sent to a farm.
            RuntimeError: torch has no such mode, or no such option.
        """
        asked, runtime = CompileOptions(mode=mode, options=options or {}), self._dependencies.runtime
        with BestEffort(lambda: runtime.fixing_floats(graph_module), where="the floats of a graph"):
            return self._compiler.compile_graph(graph_module, example_inputs, asked=asked, name=name)

    def compile(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options | None = None
    ) -> CompiledGraph:
        """Compiles a graph that was captured by other means, such as torch.fx.symbolic_trace or torch.export.

        Args:
            graph_module: the graph; of an exported program, its module().
            example_inputs: one for each placeholder.
            options: Inductor options, as in torch.compile.

        Returns:
            What is called as the graph is, with arguments by place or by name, and returns what the graph returns.
            Where the graph calls modules, as those of symbolic_trace do, and exported ones that check their arguments,
            Dynamo traces into them at the first call, and the farm is asked then. It has `save` and `load` as
            torch._inductor.CompiledArtifact.

        Raises:
            As `backend`.
        """
        if calls_modules(graph_module):
            program = tracing_modules(graph_module, backend=self.backend, options=options)
            return CompiledGraph(program, save=refuse_to_save)
        asked, plain = CompileOptions(options=options or {}), in_plain_form(graph_module)
        program = self._compiler.compile_graph(plain, example_inputs, asked=asked, name="")
        return CompiledGraph(as_called(graph_module, program), save=partial(self._save, program))

    def export(self, key: str, path: str | Path, *, format: Format = "binary") -> None:
        """Writes an artifact that the farm has stored, for torch._inductor.CompiledArtifact.load on a machine without
        Compilefarm. It is unpickled here, as loading it would.

        Args:
            key: of the artifact, as `stats` and `compilefarm inspect` say it, or a beginning of it that is unique.
            path: a file, which is replaced, or for "unpacked" a folder that is empty or not there.
            format: "binary", one file with finished libraries of C++, or "unpacked", a folder whose sources can be read
                and changed. Kernels of Triton, and C++ of the latter, are compiled where it is loaded.

        Raises:
            NotStored: nothing is served under the key.
            UntrustedArtifact: no trusted key has signed it.
            IncompatibleArtifact: another torch has made it; or it has guards on sizes or communicates in groups of
                processes, which torch's forms do not hold.
            UnusableFolder: the path cannot be written.
            FarmError: the farm cannot be asked.
        """
        from compilefarm.client.exports import Exports

        Exports(self._config, connection=self._connection, clock=self._dependencies.clock).write(
            key, path, format=format
        )

    def _save(self, program: Program, path: str | Path, format: Format) -> None:
        self.export(key_to_save(program), path, format=format)

    def compile_request(self, request: Request) -> Program:
        """Compiles what another process captured, for this machine and for the current GPU of this process.

        Args:
            request: with the tensors that its graph holds. Without an answer it is compiled here, and Triton kernels
                that it brings are run: it has to come from somebody who is trusted.

        Returns:
            A callable that takes the inputs of the job, in order, and returns a list or tuple.

        Raises:
            InvalidRequest, GraphRejected: there is no answer, and it cannot be compiled here either.
            As `backend`; Bypass as well if sizes differ from call to call.
        """
        return self._compiler.compile_request(request)

    def load_compiled_function(self, file: BinaryIO, **given: Any) -> Program:
        """As torch.compiler.load_compiled_function: a function that was compiled ahead of time with the backend of a
        farm, without running Dynamo. Its program comes from this farm.

        torch.compiler.load_compiled_function itself asks the farm that the environment names.

        Args:
            file: what `save_compiled_function` wrote. It is unpickled, which runs code that it names: it has to come
                from somebody who is trusted.
            given: f_globals= and external_data=, as torch takes them.

        Raises:
            RuntimeError: torch says that the function does not fit this machine.
            As `compile_request`.
        """
        return self._dependencies.runtime.load_saved(file, source=self.compile_request, given=given)

    def prewarm(
        self,
        what: Callable[[Backend], object] | Iterable[Request] | str | Path,
        *,
        environment: str | None = None,
        mode: str | None = None,
        parallel: int = DEFAULT_PARALLEL,
    ) -> Report:
        """Has the farm compile graphs before anybody needs them, all at once and behind whoever waits for one.

        Args:
            what: a function that compiles and calls models with the backend that it is given, such as
                `lambda backend: torch.compile(model, backend=backend)(x)`; its graphs are recorded, and run
                uncompiled. It is called again where programs turn out to be for some of its sizes alone. Or requests,
                or the folder of a recording.
            environment: environment of the farm that requests are retargeted to, by name; None: they stay as they are.
            mode: mode= of torch.compile that they are retargeted to; None: they stay as they are.
            parallel: requests at a time.

        Returns:
            What became of each graph.

        Raises:
            UnusableRecording, UnusableRequestFile: the recording cannot be used.
            FarmError: the farm cannot be asked.
        """
        from compilefarm.client.planner import Planner
        from compilefarm.client.prewarming import Prewarming
        from compilefarm.client.recording_backend import record
        from compilefarm.client.rehearsal import prewarm_function

        planner = Planner(self._connection, environment=environment, mode=mode)
        tenant, clock, runtime = self._config.tenant, self._dependencies.clock, self._dependencies.runtime

        def run(recording: Recording) -> Report:
            prewarming = Prewarming(self._connection, tenant=tenant, parallel=parallel, clock=clock)
            return prewarming.run(planner.plan(recording))

        if callable(what):
            return prewarm_function(what, runtime=runtime, prewarm=run, find_guards=planner.find_guards)
        return run(record(what, runtime=runtime))

    def save_cache_artifacts(self, name: str = DEFAULT_BUNDLE) -> Pushed:
        """As torch.compiler.save_cache_artifacts, with the farm as the place: adds what this process has compiled, or
        found in torch's own caches, to a Mega-Cache bundle, for processes with the libraries, the own operators and the
        switches of torch that this one has now. Only what the farm does not have is sent.

        A farm that cannot be asked is one line in the log; the report has the reason.

        Args:
            name: of the bundle. Any number of processes may add to one.

        Returns:
            What was added, and why other parts were not.

        Raises:
            ConfigurationError: this process has trusted keys, and none to sign with.
            InvalidRequest: nothing can have that name.
        """
        from compilefarm.client.bundle_reports import nothing_pushed
        from compilefarm.client.local_caches import TorchCaches
        from compilefarm.core.bundles import check_bundle_name

        check_bundle_name(name)
        caches = TorchCaches()
        try:
            report = self._bundles(caches).push(name, caches.recorded())
        except FarmError as error:
            self._connection.give_up(error)
            report = nothing_pushed(name, error)
        announce_obstacles(str(report), report.obstacles)
        return report

    def load_cache_artifacts(self, name: str = DEFAULT_BUNDLE) -> Pulled:
        """As torch.compiler.load_cache_artifacts, with the farm as the place: writes what was added to a Mega-Cache
        bundle into the local caches of torch, as far as it was made for this torch, this GPU and this Triton, with the
        libraries, the own operators and the switches of torch that this process has now. To be called before the
        first compile, after all that is imported and set.

        A farm that cannot be asked is one line in the log; the report has the reason.

        Args:
            name: of the bundle.

        Returns:
            What was loaded, and why other parts were not.

        Raises:
            ConfigurationError: the signing key cannot be used.
            InvalidRequest: nothing can have that name.
        """
        from compilefarm.client.bundle_reports import nothing_pulled
        from compilefarm.client.local_caches import TorchCaches
        from compilefarm.core.bundles import check_bundle_name

        check_bundle_name(name)
        try:
            report = self._bundles(TorchCaches()).pull(name)
        except FarmError as error:
            self._connection.give_up(error)
            report = nothing_pulled(name, error)
        announce_obstacles(str(report), report.obstacles)
        return report

    def _bundles(self, local: TorchCaches) -> Bundles:
        from compilefarm.client.bundles import Bundles
        from compilefarm.client.cache_calls import CacheCalls

        calls = CacheCalls(self._config, connection=self._connection, clock=self._dependencies.clock)
        return Bundles(calls, local=local)

    def _open_starts(self) -> Starts | None:
        if self._config.dynamo == "off":
            return None
        dependencies = self._dependencies
        return Starts(
            FarmPackages(
                self._config,
                connection=self._connection,
                clock=dependencies.clock,
                recorder=open_recorder(self._config),
            ),
            begin_request=self._compiler.begin_request,
            withdraw_package=partial(withdraw_package, self._connection),
            ledger=dependencies.ledger,
            publishes=self._config.dynamo == "publish",
            canary=self._config.dynamo_canary,
        )

    def __deepcopy__(self, memo: object) -> Farm:
        """Itself: what is compiled with it, such as a model that is copied, shares it."""
        return self

    def close(self) -> None:
        """Ends the connection. What was compiled stays usable; a later graph connects again."""
        self._connection.close()


def starts_of(farm: Farm) -> Starts | None:
    """Returns what starts functions of a farm without tracing them; None with dynamo="off"."""
    return farm._starts


def _route_to(farm: Farm) -> Route:
    """Leads functions that are compiled with the backend of a farm to it, as long as somebody has it."""
    reference = ref(farm)

    def route(compiler: Any) -> Starts | None:
        owner = getattr(compiler, "__self__", None)
        return owner._starts if isinstance(owner, Farm) and owner is reference() else None

    return route


def _config_of(address: str | ClientConfig | None, settings: Settings) -> ClientConfig:
    if not isinstance(address, ClientConfig):
        return read_config(os.environ, address=address, **settings)
    beside = sorted(name for name, value in settings.items() if value is not None)
    if beside:
        raise TypeError(f"Farm(config) takes no settings beside the configuration: put {', '.join(beside)} into it")
    return address
