"""Attempts to have the farm serve a graph, each noted in the record of the graph."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from compilefarm.client.announcements import announce_defect
from compilefarm.client.config import ClientConfig
from compilefarm.client.exchange import CompileFailed, Delivery
from compilefarm.client.farm_programs import FarmPrograms
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program
from compilefarm.client.records import Outcome, RecordWriter
from compilefarm.client.runtime import Encoded, Runtime
from compilefarm.core.errors import FarmError, NotStored
from compilefarm.core.interruptions import raise_interruption
from compilefarm.graph.bypass import Bypass

Encode = Callable[[RecordWriter], Encoded]


class Unserved(Exception):
    """The farm has no program for a graph; its record says why.

    Attributes:
        encoded: the graph as a job; None if it could not be said as one.
        defect: what the client failed with, if that is why.
    """

    def __init__(self, *, encoded: Encoded | None, defect: Exception | None = None) -> None:
        super().__init__("no program of the farm")
        self.encoded = encoded
        self.defect = defect


class Attempts:
    """Asks the farm for programs, and notes why there is none.

    Args:
        config: says when to raise instead.
        runtime: torch.
        farm_programs: what the farm has.
    """

    def __init__(self, config: ClientConfig, *, runtime: Runtime, farm_programs: FarmPrograms) -> None:
        self._config = config
        self._runtime = runtime
        self._farm_programs = farm_programs

    def begin(self, encoded: Encoded) -> Future[Delivery] | None:
        """As `FarmPrograms.begin`."""
        return self._farm_programs.begin(encoded)

    def serve(
        self,
        encode: Encode,
        *,
        graph: LocalGraph,
        writer: RecordWriter,
        begun: Future[Delivery] | None = None,
    ) -> Program:
        """Returns a program of the farm; with on_miss="eager" it may be the uncompiled graph for a while.

        Args:
            encode: makes a job of the graph.
            graph: the graph as this process can run it.
            writer: of its record.
            begun: its artifact, if that is on its way.

        Raises:
            Unserved: there is none, and the configuration takes that.
            As `Farm.backend`.
        """
        encoded = None
        try:
            encoded = encode(writer)
            return self.savable(self._farm_programs.obtain(encoded, graph=graph, writer=writer, begun=begun), encoded)
        except (Bypass, CompileFailed, FarmError) as error:
            raise_interruption(error)
            outcome = self._outcome_of(error)
            if self.settle(writer, outcome, reason=error.reason, message=str(error)):
                raise
            if encoded is not None and outcome == "eager":
                return self.savable(self._farm_programs.obtain_later(encoded, graph=graph, writer=writer), encoded)
            raise Unserved(encoded=encoded) from error
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            # A defect of the client must not cost the pod its model.
            if self.settle(writer, "fallback", reason="defect", message=f"{type(error).__name__}: {error}"):
                raise
            raise Unserved(encoded=encoded, defect=error) from error

    def savable(self, program: Program, encoded: Encoded | None) -> Program:
        """Returns the program as something that torch can save, if the graph could be encoded."""
        try:
            return self._runtime.savable(program, encoded)
        except Exception as error:  # noqa: BLE001 - logged; a program that cannot be saved can be run
            raise_interruption(error)
            announce_defect(error, where="what torch needs to save a program")
            return program

    def settle(self, writer: RecordWriter, outcome: Outcome, *, reason: str, message: str) -> bool:
        """Notes why there is no program of the farm; whether that is to be raised."""
        config = self._config
        raises = config.on_miss == "error" or (config.on_failure == "error" and outcome == "fallback")
        writer.close(None if raises else outcome, reason=reason, message=message)
        return raises

    def _outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, Bypass):
            return "bypass"
        on_miss = self._config.on_miss
        return on_miss if isinstance(error, NotStored) and on_miss in ("local", "eager") else "fallback"
