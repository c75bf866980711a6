"""Programs that come from the farm: at once, or later where a pod would rather serve than wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from compilefarm.client.clock import Budget
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import Delivery, Exchange, OnProgress
from compilefarm.client.guards import guarded
from compilefarm.client.loading import Loader
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program
from compilefarm.client.records import Ledger, RecordWriter
from compilefarm.client.runtime import Encoded
from compilefarm.client.takeover import has_answer, in_background, serve_meanwhile
from compilefarm.core.errors import FarmError, NotStored


class FarmPrograms:
    """Asks the farm for programs, as `on_miss` says.

    Args:
        config: of the client.
        dependencies: torch, and time.
        connection: to the farm.
        loader: makes programs of artifacts.
        on_progress: called while the farm works.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        dependencies: Dependencies,
        connection: Connection,
        loader: Loader,
        on_progress: OnProgress,
    ) -> None:
        self._config = config
        self._dependencies = dependencies
        self._connection = connection
        self._loader = loader
        self._on_progress = on_progress

    def begin(self, encoded: Encoded) -> Future[Delivery] | None:
        """Begins to fetch an artifact if it is stored, for `obtain`; None if its program is loaded, or a graph would
        rather run uncompiled than wait. Never waits."""
        if self._config.on_miss == "eager" or self._loader.find(encoded) is not None:
            return None
        writer = Ledger().open(name="", nodes=0, clock=self._dependencies.clock)
        return in_background(self._exchange(encoded, writer=writer).prefetch)

    def obtain(
        self,
        encoded: Encoded,
        *,
        graph: LocalGraph,
        writer: RecordWriter,
        begun: Future[Delivery] | None = None,
    ) -> Program:
        """Returns the program of the farm. With on_miss="eager" it may be the uncompiled graph for a while.

        Args:
            encoded: the graph as a job.
            graph: the same graph as this process can run it.
            writer: of its record.
            begun: what `begin` has begun for it.

        Raises:
            CompileFailed, FarmError: the farm has no program.
        """
        loaded = self._loader.find(encoded)
        if loaded is not None:
            return self._loader.share(loaded, encoded, graph=graph, writer=writer)
        if begun is not None and (delivery := _delivered(begun, writer=writer)) is not None:
            return self._loader.load(encoded, delivery, is_traced=True, graph=graph, writer=writer)
        exchange = self._exchange(encoded, writer=writer)
        if self._config.on_miss == "wait":
            delivery = exchange.compile()
        elif self._config.on_miss == "eager":
            return self._obtain_unless_slow(encoded, exchange=exchange, graph=graph, writer=writer)
        else:
            delivery = exchange.look_up()
        return self._loader.load(encoded, delivery, is_traced=True, graph=graph, writer=writer)

    def obtain_later(
        self,
        encoded: Encoded,
        *,
        graph: LocalGraph,
        writer: RecordWriter,
        look_up: Callable[[], Delivery] | None = None,
    ) -> Program:
        """Returns the uncompiled graph, whose place the program of the farm takes when it is there.

        Args:
            encoded, graph, writer: as for `obtain`.
            look_up: waits for a look-up that is under way; None if the farm has said that nothing is stored.
        """

        def deliver() -> Delivery:
            if look_up is not None:
                with suppress(NotStored):
                    return look_up()
            return self._exchange(encoded, writer=writer).compile()

        def obtain() -> Program:
            delivery = deliver()
            writer.resort_to(None)
            program = self._loader.load(encoded, delivery, is_traced=False, graph=graph, writer=writer)
            return guarded(delivery.manifest.guards, job=encoded.job, program=program, otherwise=eager)

        eager = graph.eager()
        return serve_meanwhile(eager, obtain=obtain, writer=writer)

    def _obtain_unless_slow(
        self, encoded: Encoded, *, exchange: Exchange, graph: LocalGraph, writer: RecordWriter
    ) -> Program:
        answer = in_background(exchange.look_up)
        patience = self._dependencies.patience_seconds
        if not has_answer(answer, within_seconds=patience):
            writer.close("eager", reason="no_answer_yet", message=f"the farm has not answered within {patience:g} s")
            return self.obtain_later(encoded, graph=graph, writer=writer, look_up=answer.result)
        return self._loader.load(encoded, answer.result(), is_traced=True, graph=graph, writer=writer)

    def _exchange(self, encoded: Encoded, *, writer: RecordWriter) -> Exchange:
        return Exchange(
            encoded,
            connection=self._connection,
            runtime=self._dependencies.runtime,
            config=self._config,
            budget=Budget(self._config.timeout_seconds, clock=self._dependencies.clock),
            writer=writer,
            on_progress=self._on_progress,
        )


def _delivered(begun: Future[Delivery], *, writer: RecordWriter) -> Delivery | None:
    """Waits for an artifact that is on its way; None if it is not to be had so, and the farm has to be asked."""
    with writer.step("fetch"), suppress(FarmError):
        delivery = begun.result()
        writer.note_key(delivery.manifest.key)
        writer.add_bytes(fetched=sum(map(len, delivery.blobs.values())))
        return delivery
    return None
