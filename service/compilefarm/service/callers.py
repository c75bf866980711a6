"""Who calls, as far as the metadata of the call says so. Nobody proves it: it decides shares, not rights."""

from __future__ import annotations

from dataclasses import dataclass

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.metadata import LONGEST_TENANT, TENANT_KEY
from compilefarm.service.grpc_types import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls.

    Attributes:
        tenant: for whom the request is made; empty if that was not said.
    """

    tenant: str = ""


def caller_of(context: Context) -> Caller:
    """Who makes a call.

    Raises:
        InvalidRequest: the tenant is longer than such a word can be.
    """
    metadata = context.invocation_metadata() or ()
    tenant = next((str(value) for name, value in metadata if name == TENANT_KEY), "")
    if len(tenant) > LONGEST_TENANT:
        raise InvalidRequest(f"{TENANT_KEY} has {len(tenant)} characters: at most {LONGEST_TENANT} are allowed")
    return Caller(tenant=tenant)
