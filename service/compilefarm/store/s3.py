"""A bucket of S3, or of a service that speaks its protocol, as the store's backend.

Credentials come from the environment (AWS_ACCESS_KEY_ID and so on; everything that obstore documents can be set there)
or from the role of the machine. A location never holds any, so it can be shown.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.bucket import BucketBackend
from compilefarm.store.object_backend import ObjectBackend

if TYPE_CHECKING:
    # Exist for type checkers only.
    from obstore.store import ClientConfig, RetryConfig, S3Config

SCHEME = "s3"
_FORM = "s3://BUCKET/PREFIX?endpoint=URL&region=NAME (the prefix, the endpoint and the region may be left out)"
_OPTIONS = ("endpoint", "region")
# Of one request: a blob of a gigabyte comes through at 30 Mbit/s.
_TIMEOUT = "5m"
_CONNECT_TIMEOUT = "5s"
RETRY_SECONDS = 30.0


def open_bucket(location: str) -> Backend:
    """Opens a bucket. Nothing is sent yet.

    Args:
        location: "s3://bucket/prefix?endpoint=https://host:port&region=name"; all but the bucket may be left out.

    Raises:
        StoreUnavailable: it is written otherwise, or the environment configures S3 wrongly.
    """
    shown = open_service(location, retry_seconds=RETRY_SECONDS).location
    return BucketBackend(location, shown=shown, retry_seconds=RETRY_SECONDS)


def open_service(location: str, *, retry_seconds: float) -> ObjectBackend:
    """Opens a bucket for a process that its service may end; see `open_bucket`.

    Args:
        location: see there.
        retry_seconds: for how long a request is tried again.

    Raises:
        StoreUnavailable: see there.
    """
    bucket, prefix, options = _parse(location)
    endpoint = options.get("endpoint", "")
    shown = f"{SCHEME}://{bucket}" + (f"/{prefix}" if prefix else "") + (f" at {endpoint}" if endpoint else "")
    config: S3Config = {}
    client_options: ClientConfig = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
    if endpoint:
        config["endpoint"] = endpoint
        client_options["allow_http"] = endpoint.startswith("http://")
    if "region" in options:
        config["region"] = options["region"]
    retries: RetryConfig = {"retry_timeout": timedelta(seconds=retry_seconds)}
    try:
        store = S3Store(
            bucket, prefix=prefix or None, config=config, client_options=client_options, retry_config=retries
        )
    except BaseError as error:
        raise StoreUnavailable(f"the store {shown} cannot be used: {str(error).partition(chr(10))[0]}") from error
    return ObjectBackend(store, location=shown)


def _parse(location: str) -> tuple[str, str, dict[str, str]]:
    try:
        parts = urlsplit(location)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        endpoint = urlsplit(options.get("endpoint", "https://host"))
    except ValueError as error:
        raise StoreUnavailable(f"a store in S3 is named {_FORM}: {error}") from error
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise StoreUnavailable(f"a store in S3 is named {_FORM}; it has no option {unknown[0]!r}")
    if "@" in parts.netloc or "@" in endpoint.netloc:
        raise StoreUnavailable(f"a store in S3 is named {_FORM}; credentials are set as AWS_ACCESS_KEY_ID and so on")
    if not parts.netloc or parts.fragment or endpoint.scheme not in ("http", "https") or not endpoint.netloc:
        raise StoreUnavailable(f"a store in S3 is named {_FORM}")
    return parts.netloc, parts.path.strip("/"), options
