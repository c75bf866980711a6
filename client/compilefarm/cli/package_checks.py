"""Checks whether this machine would install packages of Dynamo, and publish some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.client.config import TRUSTED_PACKAGE_KEYS, ClientConfig, ConfigurationError, read_config
from compilefarm.client.farm_calls import read_signing_key
from compilefarm.v1.admin_service_pb2 import StatusResponse

_NAME = "packages of Dynamo"


def check_packages(status: StatusResponse, *, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yields what a pod with these variables would do with packages; nothing where they are off.

    Args:
        status: of the farm.
        environ: variables of the pod.
    """
    try:
        config = read_config(environ)
    except ConfigurationError:
        # Another check says so.
        return
    if config.dynamo == "off":
        return
    yield _check_keys(config)
    yield _check_farm(status, config=config)


def _check_keys(config: ClientConfig) -> Check:
    try:
        own = read_signing_key(config.trust.package_signing_key, signs="packages")
    except ConfigurationError as error:
        return failed(_NAME, str(error), remedy="name a file that `compilefarm keys new` has made")
    keys = [key.text for key in (*config.trust.trusted_package_keys, *([own.public] if own else []))]
    if not keys:
        return warning(
            _NAME,
            "no key is trusted to sign them: none is installed, and everything is traced",
            remedy=f"set {TRUSTED_PACKAGE_KEYS} to the public keys of the pods that publish",
        )
    return ok(_NAME, f"those are installed that {' or '.join(keys)} has signed")


def _check_farm(status: StatusResponse, *, config: ClientConfig) -> Check:
    name = f"{_NAME}: farm"
    if not status.HasField("caches"):
        return failed(name, "this machine asks, and the farm keeps none", remedy="serve with --cache-size-limit")
    publishes = config.dynamo == "publish"
    roles = status.trust.role.split(", ")
    if not status.trust.asks_callers or "publish" in roles or (not publishes and "package-read" in roles):
        return ok(name, "this machine may read and publish some" if publishes else "this machine may read them")
    wanted = "publish" if publishes else "package-read"
    return failed(
        name, f"{status.trust.caller!r} has role {status.trust.role}", remedy=f"have it given the role {wanted}"
    )
