"""Checks whether a farm answers, has workers, and can serve this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Iterator

from compilefarm.cli.cache_checks import check_caches
from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.cli.farm import admin_at
from compilefarm.cli.package_checks import check_packages
from compilefarm.cli.trust_checks import check_trust
from compilefarm.cli.words import enum_words
from compilefarm.client.config import read_trust
from compilefarm.core.environments import describe, differences
from compilefarm.core.errors import FarmError, NotAllowed
from compilefarm.v1.admin_service_pb2 import (
    FARM_STATE_SERVING,
    FARM_STATE_STARTING,
    WORKER_STATE_FAILED,
    FarmState,
    StatusRequest,
    StatusResponse,
    Worker,
)
from compilefarm.v1.environment_pb2 import Environment

_SKEW_WARNING_SECONDS = 5.0
_SKEW_FAILED_SECONDS = 300.0


def check_farm(address: str) -> list[Check]:
    """Checks a farm.

    Args:
        address: of the farm, as HOST:PORT.
    """
    started = time.time()
    try:
        with admin_at(address) as service:
            status = service.Status(StatusRequest())
    except NotAllowed as error:
        remedy = "use the token (COMPILEFARM_TOKEN_FILE) or certificate of a caller that the farm lists"
        return [failed("farm", str(error), remedy=remedy)]
    except FarmError as error:
        return [failed("farm", str(error), remedy="check the address, the network and that `compilefarm serve` runs")]
    checks = list(findings(status, asked_seconds=started, answered_seconds=time.time()))
    # Farms of an older release have none.
    if status.HasField("trust"):
        checks += check_trust(status.trust, address=address, trusted=read_trust(os.environ).trusted_keys)
    checks += check_caches(status, environ=os.environ)
    checks += check_packages(status, environ=os.environ)
    return checks


def findings(status: StatusResponse, *, asked_seconds: float, answered_seconds: float) -> Iterator[Check]:
    """Yields what follows from the status of a farm.

    Args:
        status: of the farm.
        asked_seconds: when the farm was asked, in seconds since 1970.
        answered_seconds: when the farm had answered, in seconds since 1970.
    """
    yield _check_state(status)
    yield _check_release(status)
    yield _check_clock(status, asked_seconds=asked_seconds, answered_seconds=answered_seconds)
    for worker in status.workers:
        yield _check_worker(worker)
    yield _check_sandbox(status)
    if importlib.util.find_spec("torch") is None:
        yield ok("farm: for this machine", "not compared: there is no torch here")
    else:
        yield _check_match(status)


def _check_state(status: StatusResponse) -> Check:
    state = enum_words(FarmState, status.state, prefix="FARM_STATE_")
    if status.state == FARM_STATE_SERVING:
        return ok("farm", state)
    if status.state == FARM_STATE_STARTING:
        return warning("farm", state, remedy="wait until its workers are ready")
    return failed("farm", state, remedy="see its log, and `compilefarm workers`; start it again")


def _check_release(status: StatusResponse) -> Check:
    here = importlib.metadata.version("compilefarm")
    if status.farm_version == here:
        return ok("farm: release", here)
    return warning(
        "farm: release",
        f"{status.farm_version} there, {here} here",
        remedy="run the same release on both sides; artifacts of another format are misses",
    )


def _check_clock(status: StatusResponse, *, asked_seconds: float, answered_seconds: float) -> Check:
    if not status.HasField("now"):
        return warning("farm: clock", "an older release does not tell the time", remedy="update the farm")
    there = status.now.seconds + status.now.nanos / 1e9
    # What may be due to the way there and back is no skew.
    skew_seconds = max(0.0, asked_seconds - there, there - answered_seconds)
    finding = f"{skew_seconds:.1f} s apart from the clock of this machine"
    remedy = "synchronise the clocks (NTP)"
    if skew_seconds >= _SKEW_FAILED_SECONDS:
        return failed("farm: clock", finding, remedy=remedy)
    if skew_seconds >= _SKEW_WARNING_SECONDS:
        return warning("farm: clock", finding, remedy=remedy)
    return ok("farm: clock", finding)


def _check_worker(worker: Worker) -> Check:
    name = f"farm: worker {worker.name}"
    if worker.state == WORKER_STATE_FAILED:
        return failed(name, worker.problem or "it failed", remedy="run `compilefarm doctor` where it runs")
    if not worker.HasField("environment"):
        return warning(name, "its environment is not known yet", remedy="wait until it is ready")
    return ok(name, describe(worker.environment))


def _check_sandbox(status: StatusResponse) -> Check:
    name = "farm: sandbox"
    without = [worker for worker in status.workers if not worker.sandbox]
    if not without:
        return ok(name, ", ".join(sorted({worker.sandbox for worker in status.workers})) or "no workers")
    why = without[0].no_sandbox or "an older release does not tell"
    return warning(
        name,
        f"compiles of {', '.join(worker.name for worker in without)} can reach the network and files: {why}",
        remedy="run `compilefarm doctor` where it runs; `serve --sandbox require` makes sure of one",
    )


def _check_match(status: StatusResponse) -> Check:
    here = _environment()
    name, what = "farm: for this machine", describe(here)
    found = [
        differences(wanted=here, offered=worker.environment)
        for worker in status.workers
        if worker.HasField("environment")
    ]
    if not found:
        return warning(name, f"no worker is ready for {what}", remedy="wait until one is")
    nearest = min(found, key=len)
    if not nearest:
        return ok(name, f"a worker can compile for {what}")
    return warning(
        name,
        f"no worker can compile for {what}: {'; '.join(nearest)}",
        remedy="run a worker with the same torch, Python and kind of machine; until then, graphs are compiled here",
    )


def _environment() -> Environment:
    # They take seconds to import, and most commands never need them.
    import torch

    from compilefarm.graph.encoded_jobs import EnvironmentNeeds
    from compilefarm.loader.environment import describe_environment

    has_gpu = torch.cuda.is_available()
    return describe_environment(EnvironmentNeeds(cpu=not has_gpu, cuda_device=0 if has_gpu else None))
