"""What Prometheus is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compilefarm.service import device_seconds
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.testing import (
    ENVIRONMENT,
    FREE_PORT,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    artifact_of,
    calling,
    sample_job,
    serving,
)
from compilefarm.store.opening import open_caches
from compilefarm.v1.compile_service_pb2 import GraphOutcome, GraphReport, Priority
from compilefarm.v1.environment_pb2 import Cuda, Environment
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Phase
from compilefarm.v1.manifest_pb2 import Timing

MEASURED = GatewayConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
Figures = dict[tuple[str, ...], float]


async def scrape(address: str) -> Figures:
    """All figures by name and values of labels, these in the order of the labels' names."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
            content: bytes = response.read()
        return content.decode()

    families = text_string_to_metric_families(await asyncio.to_thread(fetch))
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_entries_of_caches_are_counted() -> None:
    caches = await open_caches("memory:", size_limit_bytes=10**6, lifetime_seconds=3600)
    async with serving(config=MEASURED, caches=caches) as gateway, calling(gateway.address) as calls:
        await calls.put_entry(b"content", key="key")
        for key in ("key", "key", "other"):
            with contextlib.suppress(Refused):
                await calls.get_entry(key)
        figures = await scrape(gateway.metrics_address)
    outcomes = {key[2]: value for key, value in figures.items() if key[0] == "compilefarm_cache_requests_total"}
    assert outcomes == {"hit": 2, "miss": 1, "write": 1}
    assert figures["compilefarm_cache_entries",] == 1
    assert figures["compilefarm_cache_bytes",] > len(b"content")
    assert figures["compilefarm_bytes_received_total",] == len(b"content")


async def test_entries_that_come_along_with_others_are_counted_and_told() -> None:
    """A pod that finds two entries asks for one."""
    caches = await open_caches("memory:", size_limit_bytes=10**6, lifetime_seconds=3600)
    async with serving(config=MEASURED, caches=caches) as gateway, calling(gateway.address) as calls:
        for key in ("first", "second"):
            await calls.put_entry(b"content", key=key)
            await calls.find_entries(key, ahead_bytes=0)
        async with calling(gateway.address) as pod:
            found = await pod.find_entries("first", ahead_bytes=10**6)
        assert [each.entry.key for each in found] == ["first", "second"]
        figures = await scrape(gateway.metrics_address)
        (requests,) = (await calls.status()).caches.requests
    outcomes = {key[2]: value for key, value in figures.items() if key[0] == "compilefarm_cache_requests_total"}
    assert outcomes == {"hit": 3, "write": 2, "ahead": 1}
    assert (requests.hits, requests.sent_ahead, requests.misses, requests.writes) == (3, 1, 0, 2)


async def test_requests_and_bytes_are_counted() -> None:
    async with serving(config=MEASURED) as gateway, calling(gateway.address) as calls:
        made = (await calls.finish(sample_job())).manifest
        await calls.finish(sample_job())
        with pytest.raises(Refused):
            await calls.lookup(sample_job("torch.sin"))
        sent = len(await calls.read(made.program.digest, offset_bytes=3))
        await calls.write(b"a tensor")
        figures = await scrape(gateway.metrics_address)
        counters = (await calls.status()).counters
    assert figures["compilefarm_hits_total",] == 1
    assert figures["compilefarm_misses_total",] == 2
    assert figures["compilefarm_compiled_total",] == 1
    assert sent == made.program.size_bytes - 3
    assert figures["compilefarm_bytes_sent_total",] == sent == counters.bytes_sent
    assert figures["compilefarm_bytes_received_total",] == len(b"a tensor") == counters.bytes_received
    assert figures["compilefarm_store_artifacts",] == 1
    assert figures["compilefarm_evictions_total",] == 0


async def test_every_counter_of_the_status_is_a_figure() -> None:
    async with serving(config=MEASURED) as gateway, calling(gateway.address) as calls:
        figures = await scrape(gateway.metrics_address)
        names = [field.name for field in (await calls.status()).counters.DESCRIPTOR.fields]
    assert [name for name in names if (f"compilefarm_{name}_total",) not in figures] == []


async def test_jobs_and_workers_are_told_as_they_stand() -> None:
    pool = ScriptedPool(HeldCompiles(), environments=[ENVIRONMENT, ENVIRONMENT])
    pool.fail("worker-1", problem="no space left")
    async with serving(pool=pool, config=MEASURED) as gateway, calling(gateway.address) as calls:
        for target in ("torch.relu", "torch.sin", "torch.cos"):
            await calls.watch(sample_job(target))
        await calls.wait_until_queued(2)
        figures = await scrape(gateway.metrics_address)
        assert (figures["compilefarm_queued_jobs",], figures["compilefarm_running_jobs",]) == (2, 1)
        workers = {name[1]: count for name, count in figures.items() if name[0] == "compilefarm_workers"}
        assert workers == {"starting": 0, "idle": 0, "busy": 1, "failed": 1}
        assert figures["compilefarm_state", "serving"] == 1
        pool.fail("worker-0", problem="gone")
        figures = await scrape(gateway.metrics_address)
    assert (figures["compilefarm_state", "serving"], figures["compilefarm_state", "no_workers"]) == (0, 1)


async def test_waits_and_phases_are_measured_by_how_jobs_end() -> None:
    held, clock = HeldCompiles(), ManualClock()
    async with serving(pool=ScriptedPool(held), clock=clock, config=MEASURED) as gateway:
        async with calling(gateway.address) as calls:
            first = await calls.watch(sample_job("torch.relu"))
            compile_ = await held.next()
            second = await calls.watch(sample_job("torch.sin"), priority=Priority.PRIORITY_BACKGROUND)
            await calls.wait_until_queued(1)
            compile_.enter(Phase.PHASE_COMPILING)
            clock.advance(20.0)
            compile_.enter(Phase.PHASE_TUNING)
            clock.advance(5.0)
            compile_.finish()
            await first.finish()
            other = await held.next()
            other.enter(Phase.PHASE_COMPILING)
            clock.advance(2.0)
            other.finish(CompileFailure(kind=FailureKind.FAILURE_KIND_OUT_OF_MEMORY, message="no memory"))
            await second.finish()
            third = await calls.watch(sample_job("torch.cos"))
            (await held.next()).enter(Phase.PHASE_COMPILING)
            clock.advance(1.0)
            await calls.cancel((await calls.list_jobs()).jobs[0].key)
            with pytest.raises(Refused):
                await third.finish()
            await calls.finish(sample_job("torch.relu"))
        figures = await scrape(gateway.metrics_address)
    waits = {name[1]: value for name, value in figures.items() if name[0] == "compilefarm_queue_wait_seconds_sum"}
    assert waits == {"interactive": 0, "background": 25}
    assert figures["compilefarm_queue_wait_seconds_count", "interactive"] == 2, "a hit waits for nobody"
    phases = {name[1:]: value for name, value in figures.items() if name[0] == "compilefarm_phase_seconds_sum"}
    assert phases == {
        ("compiled", "compiling"): 20,
        ("compiled", "tuning"): 5,
        ("out_of_memory", "compiling"): 2,
        ("job_cancelled", "compiling"): 1,
    }


async def test_time_of_devices_is_counted_for_tenants_as_spent_or_avoided() -> None:
    held, clock = HeldCompiles(), ManualClock()
    gpu = Environment(torch="2.15.0+cu130", cuda=Cuda(name="NVIDIA H200"))
    pool = ScriptedPool(held, environments=[gpu, ENVIRONMENT])
    jobs = [sample_job(environment=gpu), sample_job()]
    async with (
        serving(pool=pool, clock=clock, config=MEASURED) as gateway,
        calling(gateway.address) as calls,
    ):
        first = await calls.watch(jobs[0], tenant="vision")
        lost = await held.next()
        clock.advance(7.0)
        lost.lose()
        made = await held.next()
        joined = await calls.watch(jobs[0], tenant="speech")
        clock.advance(20.0)
        artifact = artifact_of(made.assignment)
        artifact.manifest.timings.append(Timing(phase=Phase.PHASE_COMPILING, seconds=19.0))
        made.finish(artifact)
        await first.finish()
        await joined.finish()
        second = await calls.watch(jobs[1], tenant="vision")
        compile_ = await held.next()
        clock.advance(3.0)
        compile_.finish(CompileFailure(kind=FailureKind.FAILURE_KIND_COMPILE_ERROR, message="no lowering"))
        await second.finish()
        await (await calls.watch(jobs[0], tenant="vision")).finish()
        figures = await scrape(gateway.metrics_address)
        users = (await calls.status()).device_seconds
    spent = {name[1:]: value for name, value in figures.items() if name[0] == "compilefarm_device_spent_seconds_total"}
    assert spent == {("cuda", "", "vision"): 27, ("cpu", "", "vision"): 3}
    assert figures["compilefarm_device_avoided_seconds_total", "cuda", "", "vision"] == 19
    assert figures["compilefarm_device_avoided_seconds_total", "cuda", "", "speech"] == 19
    assert [(user.tenant, user.device, user.spent_seconds, user.avoided_seconds) for user in users] == [
        ("speech", "cuda", 0, 19),
        ("vision", "cpu", 3, 0),
        ("vision", "cuda", 27, 19),
    ]


async def test_tenants_beyond_a_thousand_share_one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_seconds, "MOST_USERS", 2)
    async with serving(config=MEASURED) as gateway, calling(gateway.address) as calls:
        for number in range(4):
            await (await calls.watch(sample_job(f"torch.f{number}"), tenant=f"t{number}")).finish()
        figures = await scrape(gateway.metrics_address)
    tenants = {name[3] for name in figures if name[0] == "compilefarm_device_spent_seconds_total"}
    assert tenants == {"t0", "t1", "(others)"}


async def test_workers_are_counted_by_machine_and_device(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compilefarm")
    gpu = Environment(torch="2.15.0+cu130", cuda=Cuda(name="NVIDIA H200"))
    pool = ScriptedPool(HeldCompiles(), environments=[gpu, gpu, ENVIRONMENT], names=["tuned", "tuned", "plain"])
    for name in ("worker-0", "worker-1"):
        pool.move(name, host="host-3", node="8f2a")
    async with serving(pool=pool, config=MEASURED) as gateway, calling(gateway.address) as calls:
        await calls.watch(sample_job(environment=gpu))
        while not (await calls.status()).running_jobs:
            pass
        figures = await scrape(gateway.metrics_address)
    by_host = {name[1:]: value for name, value in figures.items() if name[0] == "compilefarm_host_workers"}
    assert by_host == {
        ("NVIDIA H200", "tuned", "host-3", "8f2a", "busy"): 1,
        ("NVIDIA H200", "tuned", "host-3", "8f2a", "idle"): 1,
        ("x86_64", "plain", "", "", "idle"): 1,
    }
    assert "worker-0 has it (on host-3 (node 8f2a), environment tuned, NVIDIA H200)" in caplog.text


async def test_a_source_that_no_graph_makes_is_counted_and_shouted(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldCompiles()
    message = "what was generated for this graph holds the name 'popen', which no graph makes"
    async with serving(pool=ScriptedPool(held), config=MEASURED) as gateway, calling(gateway.address) as calls:
        asked = await calls.watch(sample_job())
        kind = FailureKind.FAILURE_KIND_UNEXPECTED_SOURCE
        (await held.next()).finish(CompileFailure(kind=kind, message=message))
        assert (await asked.finish()).failure.kind == kind
        figures = await scrape(gateway.metrics_address)
    assert figures["compilefarm_unexpected_sources_total",] == 1
    assert any(record.levelname == "ERROR" and message in record.getMessage() for record in caplog.records)


async def test_a_failure_of_a_kind_that_only_a_later_release_knows_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held), config=MEASURED) as gateway, calling(gateway.address) as calls:
        asked = await calls.watch(sample_job())
        compile_ = await held.next()
        compile_.enter(Phase.PHASE_COMPILING)
        compile_.finish(CompileFailure(kind=99, message="no lowering"))  # type: ignore[arg-type]
        assert (await asked.finish()).failure.kind == 99
        figures = await scrape(gateway.metrics_address)
    assert figures["compilefarm_phase_seconds_count", "other", "compiling"] == 1
    assert "failure_kind_99 no lowering" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_clients_tell_is_added_up() -> None:
    async with serving(config=MEASURED) as gateway, calling(gateway.address) as calls:
        await calls.report(
            GraphReport(outcome=GraphOutcome.GRAPH_OUTCOME_HIT, spent_seconds=1.5, avoided_seconds=40.0),
            GraphReport(outcome=GraphOutcome.GRAPH_OUTCOME_FALLBACK, reason="timeout", local_seconds=8.0),
        )
        await calls.report(GraphReport(outcome=GraphOutcome.GRAPH_OUTCOME_FALLBACK, reason="timeout", uncompiled=True))
        figures = await scrape(gateway.metrics_address)
        reports = (await calls.status()).reports
    assert figures["compilefarm_client_graphs_total", "hit", ""] == 1
    assert figures["compilefarm_client_graphs_total", "fallback", "timeout"] == 2
    assert figures["compilefarm_client_uncompiled_total",] == 1
    assert figures["compilefarm_client_spent_seconds_total",] == 1.5
    assert figures["compilefarm_client_avoided_seconds_total",] == 40.0
    assert figures["compilefarm_client_local_seconds_total",] == 8.0
    assert (reports.graphs, reports.fallbacks, reports.bypasses) == (3, 2, 0)
    assert (reports.spent_seconds, reports.avoided_seconds, reports.local_seconds) == (1.5, 40.0, 8.0)


async def test_figures_are_served_only_where_that_is_asked_for() -> None:
    async with serving(config=FREE_PORT) as gateway:
        assert gateway.metrics_address == ""
    async with serving(config=MEASURED) as gateway:
        address = gateway.metrics_address
    with pytest.raises(OSError, match="refused"):
        await scrape(address)


async def test_a_port_for_figures_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotStart, match=f"cannot serve metrics on {listen} .*--metrics-listen"):
            async with serving(config=GatewayConfig(listen="127.0.0.1:0", metrics_listen=listen)):
                pass


async def test_a_farm_that_cannot_take_its_port_serves_no_figures() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_listen = f"127.0.0.1:{free.getsockname()[1]}"
    async with serving() as gateway:
        with pytest.raises(CannotStart, match="cannot listen on"):
            async with serving(config=GatewayConfig(listen=gateway.address, metrics_listen=metrics_listen)):
                pass
    with pytest.raises(OSError, match="refused"):
        await scrape(metrics_listen)
