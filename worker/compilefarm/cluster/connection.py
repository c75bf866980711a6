"""The connection of a gateway to Ray: a cluster that is there, or a Ray of its own on this host."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import grpc
import ray
from ray.exceptions import RaySystemError

_NAMESPACE = "compilefarm"
_ADDRESS_REMEDY = "give the address that `ray start --head` printed, HOST:6379 unless it was told otherwise"
# Of a Ray of our own; a piece of an artifact takes 1 MiB, and few are on their way at a time.
_OBJECT_STORE_BYTES = 256 * 1024 * 1024


class UnusableCluster(RuntimeError):
    """There is no Ray cluster that could be used; the message says why, and what to do.

    Attributes:
        finding: why.
        remedy: what to do.
    """

    def __init__(self, finding: str, *, remedy: str) -> None:
        super().__init__(f"{finding}: {remedy}")
        self.finding = finding
        self.remedy = remedy


def connect(address: str | None, *, answer_seconds: float = 10.0) -> None:
    """Connects this process to a Ray cluster; None starts one on this host, which ends with this process.

    Args:
        address: HOST:PORT of the cluster's head.
        answer_seconds: within which it has to answer.

    Raises:
        UnusableCluster: nobody listens there, it is of another version, or this host is not a node of it.
    """
    if address is None:
        _init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES)
        return
    _require_cluster(address, answer_seconds=answer_seconds)
    try:
        _init(address)
    except (RuntimeError, ConnectionError, ValueError, RaySystemError) as error:
        raise _explained(address, error) from error


def disconnect() -> None:
    """Ends the connection, and with it the actors that this process has made."""
    ray.shutdown()


def node_resources() -> list[Mapping[str, float]]:
    """What each living node of the cluster has, by the names of Ray (CPU, GPU), whether it is in use or not."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def ray_version() -> str:
    """The version of Ray here, which is that of the cluster."""
    version: str = ray.__version__
    return version


def draining_nodes() -> Mapping[str, float]:
    """The nodes that are about to go, by Ray's id of them, and until when they stay, in seconds since 1970; 0: as long
    as they have work. Ray says so of those that are drained, and of those whose `ray start --block` got SIGTERM.
    """
    # Ray has no public name for it (ray/_private/state.py: GlobalState.get_draining_nodes).
    deadlines = ray._private.state.state.get_draining_nodes()
    return {node: milliseconds / 1000 for node, milliseconds in deadlines.items()}


def _init(address: str, **options: object) -> None:
    # The handlers of the log are the farm's own.
    ray.init(address, namespace=_NAMESPACE, log_to_driver=False, configure_logging=False, **options)


def _require_cluster(address: str, *, answer_seconds: float) -> None:
    """Passes if somebody answers as the head of a cluster does. Ray itself would go on asking for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=answer_seconds).close()
    except OSError as error:
        finding = f"nobody listens at the Ray address {address} ({error})"
        raise UnusableCluster(finding, remedy=_ADDRESS_REMEDY) from error
    if "RAY_USE_TLS" in os.environ:
        # Then the head speaks with who has Ray's certificates.
        return
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=answer_seconds)
        except grpc.FutureTimeoutError as error:
            finding = f"what listens at {address} is not the head of a Ray cluster"
            raise UnusableCluster(finding, remedy=_ADDRESS_REMEDY) from error


def _explained(address: str, error: Exception) -> UnusableCluster:
    text = str(error)
    if "Version mismatch" in text:
        # Ray lists both ends: ray/_private/utils.py, check_version_info.
        versions = " ".join(text.partition("Version mismatch:")[2].split())
        finding = f"the cluster at {address} has another Ray or Python. {versions}"
        return UnusableCluster(finding, remedy="Ray and Python have to be of one version in the whole cluster")
    return UnusableCluster(
        f"cannot use the Ray cluster at {address}: {' '.join(text.split())[:500]}",
        remedy=f"this host has to be a node of it, which `ray start --address={address} --num-cpus=0 --num-gpus=0` "
        "makes it, and if the cluster asks for a token, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH has to give it",
    )
