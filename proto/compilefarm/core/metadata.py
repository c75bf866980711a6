"""Metadata of gRPC calls: names of requests and formats of keys. All of it is optional."""

from __future__ import annotations

import re
from collections.abc import Iterable

# For whom the request is made: a word for a team or a deployment. The farm shares its workers evenly among tenants.
TENANT_KEY = "compilefarm-tenant"
LONGEST_TENANT = 100
# Who calls: BEARER and the token (RFC 6750, 2.1), for a farm that asks for one. The tenant is that of the caller then.
TOKEN_KEY = "authorization"  # noqa: S105 - a name
BEARER = "Bearer "
# What the client calls the request: the farm's log lines about it carry the same word. The farm makes one up if it is
# absent or cannot stand in a log line.
REQUEST_KEY = "compilefarm-request-id"
# Formats of keys that the client knows, as numbers between commas. Absent: core/keys.py, UNNAMED_FORMAT.
KEY_FORMATS_KEY = "compilefarm-key-formats"
_KEY_FORMATS = re.compile(r"\d{1,5}(,\d{1,5}){0,19}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/-]{1,64}")


def say_key_formats(formats: Iterable[int]) -> tuple[str, str]:
    """Returns the metadata that names formats of keys."""
    return KEY_FORMATS_KEY, ",".join(map(str, formats))


def read_key_formats(text: str) -> tuple[int, ...]:
    """Returns the formats of keys that metadata names; none if they are absent or cannot be read."""
    return tuple(map(int, text.split(","))) if _KEY_FORMATS.fullmatch(text) else ()


def is_request_id(text: str) -> bool:
    """Returns whether a word is safe in a log line, as the name of a request."""
    return _REQUEST_ID.fullmatch(text) is not None
