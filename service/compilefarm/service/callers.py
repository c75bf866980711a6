"""Who calls, as far as the metadata of the call says so. Nobody proves it: it decides shares, not rights."""

from __future__ import annotations

from dataclasses import dataclass

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.metadata import TENANT_KEY
from compilefarm.service.grpc_types import Context

_LONGEST_VALUE = 100


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
        InvalidRequest: a value is longer than such a word can be.
    """
    return Caller(tenant=_value(context, TENANT_KEY))


def _value(context: Context, key: str) -> str:
    value = next((value for name, value in context.invocation_metadata() or () if name == key), "")
    if len(value) > _LONGEST_VALUE:
        raise InvalidRequest(f"{key} has {len(value)} characters: at most {_LONGEST_VALUE} are allowed")
    return str(value)
