"""A compile farm as a pod sees it: graphs go in, callables come out, whatever happens on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Unpack

from compilefarm.client.announcements import announce, announce_defect, announce_unrecorded
from compilefarm.client.arguments import taking_settings
from compilefarm.client.captures import Capture, recording_of
from compilefarm.client.clock import Budget, Clock, SystemClock
from compilefarm.client.config import Settings, read_config
from compilefarm.client.connection import Connection, OpenChannel, open_channel
from compilefarm.client.exchange import CompileFailed, Delivery, Exchange, OnProgress
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.outputs import first_of, passing_held, returning_tuple, returns_one_value, saying
from compilefarm.client.plans import Planner
from compilefarm.client.prewarming import DEFAULT_PARALLEL, Prewarming, Report
from compilefarm.client.records import PROCESS_LEDGER, Entry, Ledger, Outcome
from compilefarm.client.reports import Reporter
from compilefarm.client.resorts import Resorts
from compilefarm.client.runtime import Asked, Encoded, Options, Runtime, TorchRuntime, merge_options
from compilefarm.client.self_check import SelfCheck
from compilefarm.client.sizes import within
from compilefarm.client.switch import Switch
from compilefarm.client.takeover import in_background, is_there, serve_meanwhile
from compilefarm.client.tape import open_tape
from compilefarm.client.tolerance import Tolerant
from compilefarm.client.ways import Program, Ways
from compilefarm.core.artifacts import compile_seconds_of
from compilefarm.core.errors import FarmError, NotStored
from compilefarm.core.recordings import read_recording
from compilefarm.core.requests import Request
from compilefarm.graph.bypass import Bypass

# As Farm.backend is called.
Backend = Callable[..., Program]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a Farm stands on; tests put it on something else.

    Attributes:
        runtime: torch.
        clock: time.
        open_channel: the network.
        ledger: where graphs are noted.
        patience_seconds: how long a pod waits for a look-up that would rather serve. What is stored is there sooner.
    """

    runtime: Runtime = field(default_factory=TorchRuntime)
    clock: Clock = field(default_factory=SystemClock)
    open_channel: OpenChannel = open_channel
    ledger: Ledger = PROCESS_LEDGER
    patience_seconds: float = 1.0


def _ignore_progress(phase: str, elapsed_seconds: float, jobs_ahead: int) -> None:
    """Nobody watches."""


@taking_settings
class Farm:
    """A compile farm. Threads may share it, and forked processes may go on using it.

    Args:
        address: "host:port", or "unix:/path" for a socket; None: COMPILEFARM_ADDRESS.
        settings: described below. One that is None, or is not given, is taken from its environment variable, and has
            its default where that is not set.
        on_progress: called while the farm works, with the phase ("queued", "compiling", "tuning", "packing",
            "verifying"), the seconds since the job was queued, and the number of jobs ahead of it.
        surroundings: what it stands on.

    Raises:
        ConfigurationError: a setting cannot be used, or there is no address.
        UnusableRecording: nothing can be recorded in that folder.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        on_progress: OnProgress = _ignore_progress,
        surroundings: Surroundings | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._config = read_config(os.environ, address=address, **settings)
        self._on_progress = on_progress
        self._around = surroundings or Surroundings()
        self._connection = Connection(self._config, clock=self._around.clock, open_channel=self._around.open_channel)
        self._reporter = Reporter(self._connection)
        self._tape = open_tape(self._config)
        self._resorts = Resorts(on_failure=self._config.on_failure)
        self._self_check = SelfCheck(
            fraction=self._config.self_check, resorts=self._resorts, report=self._reporter.report_self_check
        )

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
        asked = Asked(mode=mode, options=options or {})
        with Tolerant(lambda: self._around.runtime.fixing_floats(graph_module), where="the floats of a graph"):
            return self._compile_graph(graph_module, example_inputs, asked=asked, name=name)

    def compile(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options | None = None) -> Program:
        """Compiles a graph that was captured by other means, such as torch.fx.symbolic_trace.

        Returns:
            A callable that takes what the graph takes, in order. It returns what the graph returns: a single value, or
            a list or tuple.

        Raises:
            As `backend`.
        """
        asked = Asked(options=options or {})
        if returns_one_value(graph_module):
            return first_of(self._compile_graph(returning_tuple(graph_module), example_inputs, asked=asked, name=""))
        return self._compile_graph(graph_module, example_inputs, asked=asked, name="")

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
        runtime = self._around.runtime
        encoded = runtime.restate(request)
        return self._obtain(
            lambda _: encoded,
            ways=runtime.ways_of_job(encoded),
            nodes=len(request.job.graph.nodes),
        )

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
        return self._around.runtime.load_saved(file, ask=self.compile_request, given=given)

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
            what: a function that compiles and calls models with the backend that it is handed, such as
                `lambda backend: torch.compile(model, backend=backend)(x)`; its graphs are noted, and run without being
                compiled. Or requests, or the folder of a recording.
            environment: name of the environment of the farm that they are said for; None: as they are.
            mode: mode= of torch.compile that they are said for; None: as they are.
            parallel: requests at a time.

        Returns:
            What became of each graph.

        Raises:
            UnusableRecording, UnusableRequestFile: the recording cannot be used.
            FarmError: the farm cannot be asked.
        """
        if callable(what):
            capture = Capture(self._around.runtime)
            what(capture.backend)
            recording = capture.recording()
        else:
            recording = read_recording(Path(what)) if isinstance(what, str | Path) else recording_of(what)
        plan = Planner(self._connection, environment=environment, mode=mode).plan(recording)
        prewarming = Prewarming(
            self._connection, tenant=self._config.tenant, parallel=parallel, clock=self._around.clock
        )
        return prewarming.run(plan)

    def __deepcopy__(self, memo: object) -> Farm:
        """Itself: what is compiled with it, such as a model that is copied, shares it."""
        return self

    def close(self) -> None:
        """Ends the connection. What was compiled stays usable; a later graph connects again."""
        self._connection.close()

    def _compile_graph(self, graph_module: Any, example_inputs: Sequence[Any], *, asked: Asked, name: str) -> Program:
        options = cache(lambda: merge_options(mode=asked.mode, options=asked.options))
        # A mode or an option that torch does not know is the caller's mistake; a torch without modes is none.
        with suppress(ImportError, AttributeError):
            self._around.runtime.check_options(options())
        return self._obtain(
            lambda entry: self._encode(graph_module, example_inputs, asked=asked, options=options(), entry=entry),
            ways=self._around.runtime.ways(graph_module, example_inputs, options=options),
            nodes=len(graph_module.graph.nodes),
            name=name,
        )

    def _obtain(self, encode: Callable[[Entry], Encoded], *, ways: Ways, nodes: int, name: str = "") -> Program:
        entry = self._around.ledger.open(name=name, nodes=nodes, clock=self._around.clock)
        try:
            return self._from_farm_or_here(encode, ways=ways, entry=entry)
        finally:
            self._reporter.report(entry.record)

    def _from_farm_or_here(self, encode: Callable[[Entry], Encoded], *, ways: Ways, entry: Entry) -> Program:
        encoded, defect = None, None
        try:
            encoded = encode(entry)
            return self._savable(self._from_farm(encoded, ways=ways, entry=entry), encoded)
        except (Bypass, CompileFailed, FarmError) as error:
            outcome = self._outcome_of(error)
            if self._settle(entry, outcome, reason=error.reason, message=str(error)):
                raise
            if encoded is not None and outcome == "eager":
                return self._savable(self._from_farm_later(encoded, ways=ways, entry=entry), encoded)
        except Exception as error:
            if is_for_dynamo(error):
                raise
            # A defect of the client must not cost the pod its model.
            if self._settle(entry, "fallback", reason="defect", message=f"{type(error).__name__}: {error}"):
                raise
            defect = error
        return self._savable(self._resorts.take(ways, entry=entry, defect=defect), encoded)

    def _savable(self, program: Program, encoded: Encoded | None) -> Program:
        try:
            return self._around.runtime.savable(program, encoded)
        except Exception as error:  # noqa: BLE001 - logged; a program that cannot be saved can be run
            announce_defect(error, where="what torch needs to save a program")
            return program

    def _encode(
        self, graph_module: Any, example_inputs: Sequence[Any], *, asked: Asked, options: Options, entry: Entry
    ) -> Encoded:
        runtime = self._around.runtime
        with entry.phase("encode"):
            try:
                encoded = runtime.encode(graph_module, example_inputs, options=options)
            except Exception as error:
                if not is_for_dynamo(error):
                    self._tape.note_bypass(error, record=entry.record)
                raise
            arguments = runtime.describe_call(mode=asked.mode, options=asked.options)
            self._tape.note_request(encoded, arguments=arguments, record=entry.record)
        return encoded

    def _from_farm(self, encoded: Encoded, *, ways: Ways, entry: Entry) -> Program:
        exchange = self._exchange(encoded, entry=entry)
        if self._config.on_miss == "wait":
            delivery = exchange.compile(on_progress=self._on_progress)
        elif self._config.on_miss == "eager":
            answer = in_background(exchange.look_up)
            patience = self._around.patience_seconds
            if not is_there(answer, within_seconds=patience):
                entry.close("eager", reason="no_answer_yet", message=f"the farm has not answered within {patience:g} s")
                return self._from_farm_later(encoded, ways=ways, entry=entry, look_up=answer.result)
            delivery = answer.result()
        else:
            delivery = exchange.look_up()
        return self._load(encoded, delivery, is_traced=True, ways=ways, entry=entry)

    def _from_farm_later(
        self, encoded: Encoded, *, ways: Ways, entry: Entry, look_up: Callable[[], Delivery] | None = None
    ) -> Program:
        def deliver() -> Delivery:
            if look_up is not None:
                with suppress(NotStored):
                    return look_up()
            return self._exchange(encoded, entry=entry).compile(on_progress=self._on_progress)

        def obtain() -> Program:
            delivery = deliver()
            entry.resort_to(None)
            program = self._load(encoded, delivery, is_traced=False, ways=ways, entry=entry)
            return within(delivery.manifest.guards, job=encoded.job, program=program, otherwise=eager)

        eager = ways.eager()
        return serve_meanwhile(eager, obtain=obtain, entry=entry)

    def _exchange(self, encoded: Encoded, *, entry: Entry) -> Exchange:
        around = self._around
        return Exchange(
            encoded,
            connection=self._connection,
            runtime=around.runtime,
            budget=Budget(self._config.timeout_seconds, clock=around.clock),
            priority=self._config.priority,
            tenant=self._config.tenant,
            trusted=self._config.trust.trusted_keys,
            entry=entry,
        )

    def _load(self, encoded: Encoded, delivery: Delivery, *, is_traced: bool, ways: Ways, entry: Entry) -> Program:
        def note_unrecorded(error: Exception) -> None:
            entry.note_unrecorded(f"{type(error).__name__}: {error}")
            announce_unrecorded(entry.record)

        around = self._around
        with entry.phase("load"):
            program = around.runtime.load(
                encoded, delivery.manifest, blobs=delivery.blobs, on_unrecorded=note_unrecorded
            )
            if is_traced:
                around.runtime.put_guards(encoded, delivery.manifest)
            program = saying(passing_held(program, encoded.held), encoded.messages)
        entry.credit(compile_seconds_of(delivery.manifest))
        entry.close(delivery.outcome)
        announce(entry.record)
        return self._self_check.watch(_timing_first_call(program, entry=entry), ways=ways, entry=entry)

    def _outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, Bypass):
            return "bypass"
        on_miss = self._config.on_miss
        return on_miss if isinstance(error, NotStored) and on_miss in ("local", "eager") else "fallback"

    def _settle(self, entry: Entry, outcome: Outcome, *, reason: str, message: str) -> bool:
        """Notes why there is no program of the farm; whether that is to be raised."""
        config = self._config
        raises = config.on_miss == "error" or (config.on_failure == "error" and outcome == "fallback")
        entry.close(None if raises else outcome, reason=reason, message=message)
        return raises


def _timing_first_call(program: Program, *, entry: Entry) -> Program:
    def first(*inputs: Any) -> Any:
        with entry.phase("first_call"):
            result = program(*inputs)
        switch.program = program
        return result

    switch = Switch(first)
    return switch
