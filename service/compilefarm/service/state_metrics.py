"""Metrics of the state and the counters of the gateway, read when Prometheus asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compilefarm.core.pool import WorkerView
from compilefarm.core.starts import PHASES
from compilefarm.service.best_known import best_known
from compilefarm.service.cache_service import CacheCounts
from compilefarm.service.counters import Counters
from compilefarm.service.device_seconds import DeviceSeconds
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.readiness import Readiness
from compilefarm.service.reports import Reports
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.entries import EntryStore, EntryUsage
from compilefarm.v1.admin_service_pb2 import FarmState, StoreUsage, WorkerState

_COUNTERS = {
    "hits": "Requests answered from the store",
    "misses": "Requests for which nothing was stored, and that were not refused",
    "joins": "Misses that joined a running job",
    "compiled": "Compiles that gave an artifact",
    "failed": "Compiles that gave no artifact",
    "refused": "Requests refused",
    "quarantined": "Requests answered with the reason for which their key is quarantined",
    "bytes_sent": "Bytes of blobs sent to clients",
    "bytes_received": "Bytes of blobs received from clients",
    "withdrawn": "Artifacts that failed their check after they were served",
    "failed_checks": "Artifacts that failed their check before they were served",
    "unexpected_sources": "Compiles that were stopped because what was generated holds what no graph makes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of metrics."""

    queue: Queue
    store: ArtifactStore
    quarantine: Quarantine
    readiness: Readiness
    counters: Counters
    reports: Reports
    farm_version: str
    caches: EntryStore | None
    cache_counts: CacheCounts
    device_seconds: DeviceSeconds


class StateCollector(Collector):
    """Collects the metrics of a gateway.

    Args:
        sources: where from.
        loop: the event loop of the gateway; Prometheus asks from threads of its own.
    """

    def __init__(self, sources: Sources, *, loop: asyncio.AbstractEventLoop) -> None:
        self._sources = sources
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        """All figures as they are at one moment."""
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result()

    async def _read(self) -> list[Metric]:
        usage = await self._sources.store.usage()
        return [
            *_of_service(self._sources, quarantined=(await best_known(self._sources.quarantine.count())).value),
            *_of_store(usage),
            *_of_caches(self._sources),
            *_of_clients(self._sources.reports),
            *_of_devices(self._sources.device_seconds),
        ]


def _of_service(sources: Sources, *, quarantined: int | None) -> Iterator[Metric]:
    counts = asdict(sources.counters)
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"compilefarm_{name}", text, value=counts[name])
    yield GaugeMetricFamily("compilefarm_queued_jobs", "Jobs that wait for a worker", value=sources.queue.waiting)
    yield GaugeMetricFamily("compilefarm_running_jobs", "Jobs that have a worker", value=sources.queue.running)
    by_environment = sources.queue.jobs_by_environment()
    jobs = GaugeMetricFamily(
        "compilefarm_environment_jobs",
        "Jobs by environment and state (queued, running); workers of an environment are needed while either is above 0",
        labels=["environment", "state"],
    )
    for name in sorted({each.environment_name for each in sources.queue.candidates()}):
        jobs.add_metric([name, "queued"], by_environment.waiting[name])
        jobs.add_metric([name, "running"], by_environment.running[name])
    yield jobs
    if quarantined is not None:
        text = "Keys that are not compiled for a while; missing where the store cannot be listed"
        yield GaugeMetricFamily("compilefarm_quarantined_keys", text, value=quarantined)
    workers = GaugeMetricFamily("compilefarm_workers", "Workers by state", labels=["state"])
    states: Counter[int] = Counter(worker.state for worker in sources.queue.workers())
    for name, number in _named(WorkerState.items(), prefix="WORKER_STATE_"):
        workers.add_metric([name], states[number])
    yield workers
    yield _by_host(sources.queue.workers())
    yield _starts(sources.queue.workers())
    state = GaugeMetricFamily(
        "compilefarm_state", "1 for the current state of the farm, 0 for the others", labels=["state"]
    )
    for name, number in _named(FarmState.items(), prefix="FARM_STATE_"):
        state.add_metric([name], float(number == sources.readiness.state()))
    yield state
    build = GaugeMetricFamily(
        "compilefarm_build_info", "Always 1; the label is the version of the farm", labels=["version"]
    )
    build.add_metric([sources.farm_version], 1)
    yield build


def _by_host(workers: Iterable[WorkerView]) -> Metric:
    labels = ["host", "node", "environment", "device", "state"]
    by_host = GaugeMetricFamily(
        "compilefarm_host_workers",
        "Workers by machine (host; empty: the gateway's own), the cluster's name for it (node), environment, device "
        "and state, where there are any",
        labels=labels,
    )
    states = {number: name for name, number in _named(WorkerState.items(), prefix="WORKER_STATE_")}
    counts = Counter((each.host, each.node, each.environment_name, each.device, states[each.state]) for each in workers)
    for values, count in sorted(counts.items()):
        by_host.add_metric(values, count)
    return by_host


def _starts(workers: Iterable[WorkerView]) -> Metric:
    starts = GaugeMetricFamily(
        "compilefarm_worker_start_seconds",
        "Seconds that each worker took to be ready, by phase: "
        + "; ".join(f"{name} ({meaning})" for name, meaning in PHASES.items()),
        labels=["worker", "phase"],
    )
    for worker in workers:
        for phase in worker.start:
            starts.add_metric([worker.name, phase.name], phase.seconds)
    return starts


def _of_devices(seconds: DeviceSeconds) -> Iterator[Metric]:
    for name, text, counts in (
        (
            "spent",
            "Seconds for which jobs had a worker, to compile or to verify: a whole GPU (device cuda), or a worker's "
            "share of the processors of its machine (cpu)",
            seconds.spent,
        ),
        (
            "avoided",
            "Seconds that workers had taken to make what was then served without a compile for it",
            seconds.avoided,
        ),
    ):
        family = CounterMetricFamily(
            f"compilefarm_device_{name}_seconds", text, labels=["tenant", "namespace", "device"]
        )
        for user, value in sorted(counts.items()):
            family.add_metric([user.tenant, user.namespace, user.device], value)
        yield family


def _of_store(usage: StoreUsage) -> Iterator[Metric]:
    yield GaugeMetricFamily("compilefarm_store_artifacts", "Artifacts in the store", value=usage.artifacts)
    yield GaugeMetricFamily("compilefarm_store_blobs", "Blobs in the store", value=usage.blobs)
    yield GaugeMetricFamily("compilefarm_store_bytes", "Bytes of all blobs in the store", value=usage.size_bytes)
    damaged = CounterMetricFamily(
        "compilefarm_corrupt_objects",
        "Blobs and manifests that were found damaged and taken out of the store",
        labels=["kind"],
    )
    damaged.add_metric(["blob"], usage.corrupt_blobs)
    damaged.add_metric(["manifest"], usage.corrupt_manifests)
    yield damaged
    yield CounterMetricFamily("compilefarm_evictions", "Artifacts evicted", value=usage.evicted_artifacts)


def _of_caches(sources: Sources) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "compilefarm_cache_requests",
        "Requests for entries of torch's own caches that were answered, by cache and outcome (hit, miss, write, or "
        "ahead: sent along with another entry, before it was asked for)",
        labels=["cache", "outcome"],
    )
    for labels, count in sorted(sources.cache_counts.requests.items()):
        requests.add_metric(labels, count)
    yield requests
    usage = sources.caches.usage() if sources.caches else EntryUsage(entries=0, size_bytes=0, evicted=0, damaged=0)
    yield GaugeMetricFamily("compilefarm_cache_entries", "Entries of torch's own caches", value=usage.entries)
    yield GaugeMetricFamily("compilefarm_cache_bytes", "Bytes of these entries", value=usage.size_bytes)
    yield CounterMetricFamily(
        "compilefarm_cache_evictions", "Cache entries removed for room or of age", value=usage.evicted
    )
    yield CounterMetricFamily(
        "compilefarm_corrupt_cache_entries", "Cache entries found damaged and removed", value=usage.damaged
    )


def _of_clients(reports: Reports) -> Iterator[Metric]:
    graphs = CounterMetricFamily(
        "compilefarm_client_graphs",
        "What became of graphs, as clients tell it, and why if it was not the farm",
        labels=["outcome", "reason"],
    )
    for labels, count in sorted(reports.graphs.items()):
        graphs.add_metric(labels, count)
    yield graphs
    yield CounterMetricFamily(
        "compilefarm_client_uncompiled", "Graphs that clients run uncompiled", value=reports.uncompiled
    )
    self_checks = CounterMetricFamily(
        "compilefarm_client_self_checks",
        "Programs that clients compared with the uncompiled graph, by what they found",
        labels=["outcome"],
    )
    for outcome, count in sorted(reports.self_checks.items()):
        self_checks.add_metric([outcome], count)
    yield self_checks
    for name, text, seconds in (
        ("spent", "Seconds that clients spent on the farm, whether it had an artifact or not", reports.spent_seconds),
        (
            "avoided",
            "Seconds that workers took to compile the artifacts that clients loaded; minus the spent seconds, "
            "this is what the farm saved",
            reports.avoided_seconds,
        ),
        ("local", "Seconds that clients spent on compiles of their own", reports.local_seconds),
    ):
        yield CounterMetricFamily(f"compilefarm_client_{name}_seconds", text, value=seconds)


def _named(items: Iterable[tuple[str, int]], *, prefix: str) -> Iterator[tuple[str, int]]:
    """The values of an enum that are sent, by their word."""
    return ((name.removeprefix(prefix).lower(), number) for name, number in items if number)
