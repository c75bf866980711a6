"""Authenticates callers, and refuses those whose role does not allow the method that they call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from compilefarm.core.errors import InvalidRequest, NotAllowed, NotAuthenticated
from compilefarm.core.metadata import (
    BEARER,
    KEY_FORMATS_KEY,
    LONGEST_TENANT,
    TENANT_KEY,
    TOKEN_KEY,
    read_key_formats,
)
from compilefarm.service.accounts import account_of_peer
from compilefarm.service.callers import Caller
from compilefarm.service.directory import Directory
from compilefarm.service.grpc_types import Context
from compilefarm.service.rarely import Rarely
from compilefarm.service.roles import find_needed_role
from compilefarm.service.watched import Watched

log = logging.getLogger(__name__)


class Authenticator(Protocol):
    """Determines who calls, and what the caller may do."""

    def authenticate(self, context: Context, *, method: str) -> Caller:
        """Authenticates the caller of a method, and refuses what its role does not allow.

        Args:
            context: of the call.
            method: that is called, as "/package.Service/Method".

        Raises:
            NotAuthenticated: they have to say who they are.
            NotAllowed: they may not.
            InvalidRequest: what they say of themselves cannot be.
        """

    def has_several_tenants(self) -> bool:
        """Returns whether callers are told apart by tenant, and there is more than one."""


class AnonymousAuthenticator:
    """Admits every caller to every method. The tenant is what the request says: it decides shares, not rights."""

    def authenticate(self, context: Context, *, method: str) -> Caller:
        del method
        tenant = _metadata(context).get(TENANT_KEY, "")
        if len(tenant) > LONGEST_TENANT:
            raise InvalidRequest(f"{TENANT_KEY} has {len(tenant)} characters: at most {LONGEST_TENANT} are allowed")
        return Caller(tenant=tenant, account=account_of_peer(context.peer()))

    def has_several_tenants(self) -> bool:
        """See Authenticator.has_several_tenants. What callers say of themselves tells nobody apart."""
        return False


class DirectoryAuthenticator:
    """Admits listed callers to the methods that their roles allow. The tenant is what the list says.

    Args:
        directory: the list.
        now: seconds, since any moment.
    """

    def __init__(self, directory: Watched[Directory], *, now: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._refusals = Rarely(now)

    def authenticate(self, context: Context, *, method: str) -> Caller:
        try:
            caller = self._identify(context)
            role = find_needed_role(method)
            if role is None:
                raise NotAllowed(f"{method} is open to nobody")
            caller.require(role, what=method.rpartition("/")[2])
        except NotAllowed as error:
            self._tell(method, context.peer(), error)
            raise
        return caller

    def has_several_tenants(self) -> bool:
        """See Authenticator.has_several_tenants."""
        return len({each.caller.tenant for each in self._directory.current().listed}) > 1

    def _tell(self, method: str, peer: str, error: NotAllowed) -> None:
        if self._refusals.is_due(account_of_peer(peer)):
            log.info("%s is refused to %s: %s", method, peer, error)

    def _identify(self, context: Context) -> Caller:
        directory = self._directory.current()
        shown = _metadata(context).get(TOKEN_KEY)
        if shown is not None:
            caller = directory.find_by_token(shown.removeprefix(BEARER))
            if caller is None:
                raise NotAuthenticated(
                    "this farm does not know the token: it was replaced, or is that of another farm; ask whoever runs "
                    "the farm for a new one"
                )
            return caller
        names = _certified_names(context)
        if not names:
            raise NotAuthenticated(
                "this farm asks who calls: set COMPILEFARM_TOKEN_FILE or COMPILEFARM_TOKEN to a token that whoever "
                "runs the farm gave you"
            )
        caller = directory.find_by_certificate(names)
        if caller is None:
            raise NotAuthenticated(
                f"this farm lists no caller whose certificate is for {', '.join(names)}: ask whoever runs the farm"
            )
        return caller


def with_key_formats(caller: Caller, context: Context) -> Caller:
    """Returns the caller with the formats of keys that its client names."""
    formats = read_key_formats(_metadata(context).get(KEY_FORMATS_KEY, ""))
    return replace(caller, key_formats=formats) if formats else caller


def _metadata(context: Context) -> Mapping[str, str]:
    return {name: str(value) for name, value in context.invocation_metadata() or ()}


def _certified_names(context: Context) -> Sequence[str]:
    """Names in the certificate of the caller, which gRPC has verified; the common name only where there are no others
    (RFC 6125, 6.4.4).
    """
    shown = context.auth_context()
    names = shown.get("x509_subject_alternative_name") or shown.get("x509_common_name") or []
    return [name.decode(errors="replace") for name in names]
