"""What travels beside a request, in the metadata of its call. All of it is optional."""

from __future__ import annotations

import re

# For whom the request is made: a word for a team or a deployment. The farm shares its workers evenly among tenants.
TENANT_KEY = "compilefarm-tenant"
LONGEST_TENANT = 100
# Who calls: BEARER and the token (RFC 6750, 2.1), for a farm that asks for one. The tenant is that of the caller then.
TOKEN_KEY = "authorization"  # noqa: S105 - a name
BEARER = "Bearer "
# What the client calls the request: the farm's log lines about it carry the same word. The farm makes one up if it is
# absent or cannot stand in a log line.
REQUEST_KEY = "compilefarm-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/-]{1,64}")


def is_request_id(text: str) -> bool:
    """Whether a word can stand in a log line as the name of a request."""
    return _REQUEST_ID.fullmatch(text) is not None
