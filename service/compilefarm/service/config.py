"""Configuration of the gateway."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from compilefarm.core.held_tensors import MAX_BYTES
from compilefarm.service.call_limits import MOST_CONNECTIONS, MOST_HEALTH_CALLS
from compilefarm.service.validation import MAX_VALUES


class CannotStart(RuntimeError):
    """The service cannot start as it is configured. The message names what is wrong and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of the gateway.

    Attributes:
        listen: "host:port" to listen on; port 0 takes a free one.
        metrics_listen: "host:port" where Prometheus fetches figures; empty: nowhere.
        insecure: allows listening beyond loopback although nobody is asked who they are.
        auth_file: lists those who may call (see compilefarm.service.directory); empty: nobody is asked.
        tls_certificate: file with the certificate of the service and those that certify it; empty: it speaks in clear.
        tls_key: file with its private key.
        tls_client_ca: file with the authority that issues certificates to callers; empty: they need none.
        read_only: whether what is stored is served, and nothing is made.
        record: folder in which every request is recorded; empty: nowhere.
        max_queued_jobs: jobs that may wait for a worker; more are refused.
        max_queued_jobs_of_tenant: the same for those of one tenant, so that none takes all of the queue.
        max_running_jobs_of_tenant: jobs of one tenant that may have a worker at a time; None: where callers of several
            tenants are listed, all workers but one.
        orphan_seconds: how long a job goes on after the last one who waited for it went away; prewarm jobs do so to
            their end.
        max_attempts: how often a job is tried when workers are lost on it.
        recovery_seconds: how long jobs wait for workers that have failed and can be started again.
        quarantine_seconds: how long a key is not tried after two processes died of it.
        max_nodes: nodes that a graph may have.
        max_values: values that a job may have, those within others counted.
        max_waiting_bytes: memory for requests that wait, as far as values take it, and as much for the jobs that are
            done, which go on for a while, prewarms to their end, when nobody waits.
        max_waiting_bytes_of_caller: the same for one caller.
        max_message_bytes: size of one message on the wire.
        max_blob_bytes: size of one uploaded blob.
        max_cache_entry_bytes: size of one entry of torch's own caches.
        max_upload_bytes: of uploads that are on their way; the same again for cache entries.
        max_upload_bytes_of_caller: the same for one caller.
        max_tenant_upload_bytes: what one tenant may upload within an hour; None: as much as it likes.
        max_connections_of_address: connections with calls that one address may have.
        max_health_calls_of_address: calls of one address that ask for health.
        max_transfers: blobs that are being read at a time, and as many that are being written; others wait.
        max_transfers_of_caller: the same for one caller.
        verify: when artifacts are checked: "before" they are served, "after" that, or not at all ("off").
        progress_seconds: longest silence on the stream of a running compile.
    """

    listen: str = "127.0.0.1:7077"
    metrics_listen: str = ""
    insecure: bool = False
    auth_file: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    read_only: bool = False
    record: str = ""
    max_queued_jobs: int = 1000
    max_queued_jobs_of_tenant: int = 500
    max_running_jobs_of_tenant: int | None = None
    orphan_seconds: float = 60.0
    max_attempts: int = 3
    recovery_seconds: float = 30.0
    quarantine_seconds: float = 3600.0
    max_nodes: int = 200_000
    max_values: int = MAX_VALUES
    max_waiting_bytes: int = 2 * 1024 * 1024 * 1024
    max_waiting_bytes_of_caller: int = 512 * 1024 * 1024
    max_message_bytes: int = 4 * 1024 * 1024
    max_blob_bytes: int = MAX_BYTES
    max_cache_entry_bytes: int = 1024 * 1024 * 1024
    max_upload_bytes: int = 8 * 1024 * 1024 * 1024
    max_upload_bytes_of_caller: int = 2 * 1024 * 1024 * 1024
    max_tenant_upload_bytes: int | None = None
    max_connections_of_address: int = MOST_CONNECTIONS
    max_health_calls_of_address: int = MOST_HEALTH_CALLS
    max_transfers: int = 512
    max_transfers_of_caller: int = 32
    verify: Literal["before", "after", "off"] = "before"
    progress_seconds: float = 10.0


def split_address(listen: str) -> tuple[str, int]:
    """Splits "host:port" ("[::1]:7077" for IPv6).

    Raises:
        CannotStart: it is written otherwise.
    """
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise CannotStart(f"cannot listen on {listen!r}: write it as HOST:PORT, for example 127.0.0.1:7077")
    return host, int(port)


def check_exposure(config: GatewayConfig) -> None:
    """Refuses an address beyond this host without authentication or an explicit option.

    Raises:
        CannotStart: the address is not of this machine alone, nobody is asked who they are, and `insecure` is not set.
    """
    if not config.insecure and not config.auth_file and not is_local(config):
        raise CannotStart(
            f"refusing to listen on {config.listen}: whoever reaches that address could have programs compiled and "
            "read every artifact. List those who may with --auth FILE, listen on 127.0.0.1, or pass --insecure if the "
            "network is trusted"
        )


def is_local(config: GatewayConfig) -> bool:
    """Returns whether the address is reachable from this machine only.

    Raises:
        CannotStart: the address is not written as one.
    """
    return _is_loopback(split_address(config.listen)[0])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
