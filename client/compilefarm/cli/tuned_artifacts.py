"""Tuning results in the artifacts of a farm: what its workers chose while they compiled."""

from __future__ import annotations

from collections.abc import Iterator

from compilefarm.cli.stored_sources import fetch_sources
from compilefarm.cli.tuning_results import TuningResult
from compilefarm.client.connection import Connection
from compilefarm.client.tuning_entries import TuningEntry
from compilefarm.core.errors import CorruptArtifact, NotStored
from compilefarm.core.kernel_choices import KernelChoice, read_choices
from compilefarm.v1.admin_service_pb2 import ListTunedRequest, ListTunedResponse
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.cache_service_pb2 import CacheEntry


def read_tuned(farm: Connection) -> Iterator[TuningResult]:
    """Yields the results of each artifact for which something was tuned; those that are gone meanwhile are left out.

    Raises:
        FarmError: the farm refuses.
    """
    for tuned in list(AdminServiceStub(farm.stubs().channel).ListTuned(ListTunedRequest())):
        try:
            choices = [choice for choice in read_choices(fetch_sources(tuned.sources, farm).files) if choice.among > 1]
        except (NotStored, CorruptArtifact):
            continue
        if choices:
            yield _result(tuned, choices)


def _result(tuned: ListTunedResponse, choices: list[KernelChoice]) -> TuningResult:
    entry = TuningEntry(
        best={choice.name: choice.configuration for choice in choices},
        sources={choice.name: choice.source for choice in choices if choice.source},
        device=tuned.environment.cuda.name,
        torch=tuned.environment.torch,
        triton=tuned.environment.triton,
    )
    described = CacheEntry(namespace=tuned.namespace, written_seconds=tuned.created.seconds)
    return TuningResult(cache=None, key=tuned.key, entry=entry, described=described)
