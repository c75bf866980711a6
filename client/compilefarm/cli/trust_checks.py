"""Checks whether a farm authenticates callers, and this machine can trust it."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Sequence

from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.client.config import TRUSTED_KEYS
from compilefarm.core.public_keys import PublicKey
from compilefarm.v1.admin_service_pb2 import Trust

_DAY_SECONDS = 24 * 3600.0
_DAYS_TO_RENEW = 14


def check_trust(trust: Trust, *, address: str, trusted: Sequence[PublicKey]) -> Iterator[Check]:
    """Yields findings about a farm: whether callers authenticate, connections are encrypted, and artifacts are signed.

    Args:
        trust: what the farm says about that.
        address: of the farm. What matters on a network does not within this machine.
        trusted: keys that this machine trusts.
    """
    is_local = _is_local(address)
    yield _check_callers(trust, is_local=is_local)
    yield _check_connection(trust, is_local=is_local)
    yield _check_signatures(trust, is_local=is_local, trusted=trusted)


def _check_callers(trust: Trust, *, is_local: bool) -> Check:
    name = "farm: callers"
    if trust.asks_callers:
        where = f", reads namespaces {', '.join(trust.namespaces)}" if trust.namespaces else ""
        return ok(name, f"they are asked who they are; this is {trust.caller!r}, role {trust.role}{where}")
    finding = "nobody is asked who they are"
    return ok(name, finding) if is_local else warning(name, finding, remedy="list those who may with `serve --auth`")


def _check_connection(trust: Trust, *, is_local: bool) -> Check:
    name = "farm: connection"
    if not trust.HasField("certificate_expires"):
        finding = "not encrypted"
        remedy = "use `serve --tls-certificate`; tokens and artifacts can be read and changed on their way"
        return ok(name, finding) if is_local else warning(name, finding, remedy=remedy)
    left_seconds = trust.certificate_expires.seconds - time.time()
    finding = f"TLS; the certificate expires in {left_seconds / _DAY_SECONDS:.1f} days"
    if left_seconds < _DAYS_TO_RENEW * _DAY_SECONDS:
        return warning(name, finding, remedy="renew it; the farm reads the file again by itself")
    return ok(name, finding)


def _check_signatures(trust: Trust, *, is_local: bool, trusted: Sequence[PublicKey]) -> Check:
    name = "farm: signatures"
    if trust.public_key in [key.text for key in trusted]:
        return ok(name, "artifacts are signed, and this machine trusts the key")
    if trusted:
        signs = f"the farm signs with {trust.public_key}" if trust.public_key else "the farm does not sign"
        return failed(
            name,
            f"{signs}, and this machine trusts {', '.join(key.text for key in trusted)}: everything is compiled here",
            remedy=f"serve with --signing-key, or put the farm's key into {TRUSTED_KEYS} if it is the right one",
        )
    if trust.public_key:
        return warning(
            name,
            "artifacts are signed, and this machine does not check that",
            remedy=f"set {TRUSTED_KEYS}={trust.public_key} if whoever runs the farm confirms that key",
        )
    finding = "artifacts are not signed"
    return ok(name, finding) if is_local else warning(name, finding, remedy="use `compilefarm keys new`")


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
