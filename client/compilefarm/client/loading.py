"""Makes a program of an artifact that was fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compilefarm.client.announcements import announce, announce_unrecorded
from compilefarm.client.calling_convention import passing_held, restoring_messages
from compilefarm.client.exchange import Delivery
from compilefarm.client.guards import guarded
from compilefarm.client.loaded_programs import LoadedProgram, LoadedPrograms
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program, Switch
from compilefarm.client.records import Outcome, RecordWriter
from compilefarm.client.runtime import Encoded, Runtime
from compilefarm.client.self_check import SelfCheck
from compilefarm.core.artifacts import compile_seconds_of
from compilefarm.v1.manifest_pb2 import Manifest


class Loader:
    """Loads artifacts, and notes how that went.

    Args:
        runtime: torch.
        self_check: compares some programs with their graphs.
    """

    def __init__(self, *, runtime: Runtime, self_check: SelfCheck) -> None:
        self._runtime = runtime
        self._self_check = self_check
        self._loaded = LoadedPrograms()

    def find(self, encoded: Encoded) -> LoadedProgram | None:
        """Returns a program that was loaded for an equal graph and is in use; None if there is none."""
        return self._loaded.find(encoded)

    def share(self, loaded: LoadedProgram, encoded: Encoded, *, graph: LocalGraph, writer: RecordWriter) -> Program:
        """Returns the program that `find` found, for one more graph. The farm is not asked.

        Args:
            loaded: the program.
            encoded: the graph that it is for; Dynamo traces it at this moment.
            graph: the same graph as this process can run it.
            writer: of the record of the graph.

        Raises:
            IncompatibleArtifact: it has guards that do not hold.
        """
        writer.note_key(loaded.manifest.key)
        self._put_guards(encoded, loaded.manifest)
        return self._served(loaded, encoded, outcome="hit", graph=graph, writer=writer)

    def load(
        self, encoded: Encoded, delivery: Delivery, *, is_traced: bool, graph: LocalGraph, writer: RecordWriter
    ) -> Program:
        """Loads an artifact.

        Args:
            encoded: the graph that it is for.
            delivery: the artifact.
            is_traced: whether Dynamo traces the graph at this moment, so that it takes guards.
            graph: the same graph as this process can run it.
            writer: of the record of the graph.

        Raises:
            CorruptArtifact: the artifact makes no program.
            IncompatibleArtifact: it has guards that do not hold.
        """
        with writer.step("load"):
            loaded = self._load(encoded, delivery, is_traced=is_traced, writer=writer)
        self._loaded.keep(encoded, loaded)
        return self._served(loaded, encoded, outcome=delivery.outcome, graph=graph, writer=writer)

    def _load(self, encoded: Encoded, delivery: Delivery, *, is_traced: bool, writer: RecordWriter) -> LoadedProgram:
        def note_unrecorded(error: Exception) -> None:
            writer.note_unrecorded(f"{type(error).__name__}: {error}")
            announce_unrecorded(writer.record)

        manifest = delivery.manifest
        program = self._runtime.load(encoded, manifest, blobs=delivery.blobs, on_unrecorded=note_unrecorded)
        if is_traced:
            self._put_guards(encoded, manifest)
        return LoadedProgram(program, manifest=manifest)

    def _put_guards(self, encoded: Encoded, manifest: Manifest) -> None:
        if not _is_of_another_process(encoded):
            self._runtime.put_guards(encoded, manifest)

    def _served(
        self, loaded: LoadedProgram, encoded: Encoded, *, outcome: Outcome, graph: LocalGraph, writer: RecordWriter
    ) -> Program:
        writer.note_compile_seconds(compile_seconds_of(loaded.manifest))
        writer.close(outcome)
        announce(writer.record)
        program = restoring_messages(passing_held(loaded, encoded.held), encoded.messages)
        if _is_of_another_process(encoded):
            guards = loaded.manifest.guards
            program = guarded(guards, job=encoded.job, program=program, otherwise=_made_at_first_call(graph.eager))
        return self._self_check.watch(
            _timing_first_call(program, writer=writer),
            graph=graph,
            writer=writer,
            on_difference=lambda replacement: self._loaded.replace(loaded, None if encoded.held else replacement),
        )


def _is_of_another_process(encoded: Encoded) -> bool:
    """Whether Dynamo does not know the sizes of a graph that differ from call to call."""
    return len(encoded.symbols) < len(encoded.job.symbols)


def _made_at_first_call(make: Callable[[], Program]) -> Program:
    def first(*inputs: Any) -> Any:
        switch.program = make()
        return switch.program(*inputs)

    switch = Switch(first)
    return switch


def _timing_first_call(program: Program, *, writer: RecordWriter) -> Program:
    def first(*inputs: Any) -> Any:
        with writer.step("first_call"):
            result = program(*inputs)
        switch.program = program
        return result

    switch = Switch(first)
    return switch
