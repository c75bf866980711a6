"""The caller of an RPC: its name, role and namespaces."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from compilefarm.core.errors import NotAllowed
from compilefarm.service.roles import AnyRole, CacheRole, PackageRole, Role
from compilefarm.store.artifact_store import EVERYBODYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller: name, role, tenant and namespaces.

    Attributes:
        name: as the list of callers has it; empty where nobody is asked who they are.
        tenant: for whom the call is made; empty if that was not said.
        role: what the caller may do.
        cache_role: what it may do with entries of torch's own caches.
        package_role: what it may do with packages of Dynamo.
        namespaces: whose artifacts the caller may be served: its own namespace, then those that are trusted more.
        seen: the namespaces into which the caller may look.
        key_formats: formats of keys that its client knows; empty if it names none.
        account: on which goes what the caller takes of the service: its name, or else the address that it calls from.
    """

    name: str = ""
    tenant: str = ""
    role: Role = Role.ADMIN
    cache_role: CacheRole = CacheRole.WRITE
    package_role: PackageRole = PackageRole.PUBLISH
    namespaces: Sequence[str] = EVERYBODYS
    seen: Sequence[str] = EVERYBODYS
    key_formats: Sequence[int] = ()
    account: str = ""

    @property
    def namespace(self) -> str:
        """The namespace of artifacts that are made for the caller."""
        return self.namespaces[0]

    @property
    def roles(self) -> str:
        """Its roles, for people."""
        return ", ".join(role.word for role in self._held if role) or Role.NONE.word

    @property
    def _held(self) -> tuple[AnyRole, ...]:
        return self.role, self.cache_role, self.package_role

    def require(self, role: AnyRole, *, what: str) -> None:
        """Passes if the caller has a role, or more.

        Args:
            role: that is needed.
            what: for it, for the message.

        Raises:
            NotAllowed: the caller has less.
        """
        if not any(type(held) is type(role) and held >= role for held in self._held):
            raise NotAllowed(
                f"caller {self.name!r} has role {self.roles!r}, and {what} needs {role.word!r}: ask whoever runs "
                "the farm for it, or use the token or certificate of another caller"
            )


_current: ContextVar[Caller] = ContextVar("caller")


def enter(caller: Caller) -> None:
    """Sets the caller of the call that this task serves."""
    _current.set(caller)


def current_caller() -> Caller:
    """Returns the caller of the call that this task serves."""
    return _current.get()
