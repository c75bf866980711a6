"""Reports how callers are authenticated, connections encrypted and artifacts signed."""

from __future__ import annotations

from dataclasses import dataclass

from compilefarm.service.callers import Caller
from compilefarm.service.tls import Tls
from compilefarm.v1.admin_service_pb2 import Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustReport:
    """Reports how callers are authenticated, connections encrypted and artifacts signed.

    Attributes:
        asks_callers: whether callers are asked who they are.
        tls: how connections are encrypted; None if they are not.
        public_key: with which clients check artifacts; empty if they are not signed.
    """

    asks_callers: bool
    tls: Tls | None
    public_key: str

    def for_caller(self, caller: Caller) -> Trust:
        """The same in the words of the wire, with what holds for one caller."""
        told = Trust(asks_callers=self.asks_callers, public_key=self.public_key)
        if self.tls is not None:
            told.certificate_expires.FromDatetime(self.tls.expires)
        if self.asks_callers:
            told.caller, told.role = caller.name, caller.roles
            told.namespaces.extend(filter(None, caller.namespaces))
        return told
