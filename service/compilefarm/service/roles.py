"""Roles of callers, and the role that each RPC needs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Role(IntEnum):
    """A role of callers. Each may do what those before it may."""

    NONE = 0
    """Ask for nothing that has to do with artifacts."""
    READ = 1
    """Look artifacts up, fetch them, ask for the state of the farm, and report what became of graphs."""
    COMPILE = 2
    """Have graphs compiled, and send the tensors that they hold."""
    PREWARM = 3
    """Have graphs compiled that nobody waits for."""
    ADMIN = 4
    """See everybody's jobs, cancel them, and drain the farm."""

    @property
    def word(self) -> str:
        """The role as files and messages write it."""
        return self.name.lower()


class CacheRole(IntEnum):
    """A role for entries of torch's own caches. Whoever may write may read; no role for artifacts includes one."""

    NONE = 0
    """Neither read nor write entries."""
    READ = 1
    """Read entries, which other pods made."""
    WRITE = 2
    """Write entries, which other pods unpickle."""

    @property
    def word(self) -> str:
        """The role as files and messages write it."""
        return f"cache-{self.name.lower()}"


class PackageRole(IntEnum):
    """A role for packages of Dynamo. Whoever may publish may read; no other role includes one."""

    NONE = 0
    """Neither read nor publish packages."""
    READ = 1
    """Read packages, which other pods made, and say that one is wrong."""
    PUBLISH = 2
    """Publish packages, which pods install that trust who signed them."""

    @property
    def word(self) -> str:
        """The role as files and messages write it."""
        return "publish" if self is PackageRole.PUBLISH else f"package-{self.name.lower()}"


AnyRole = Role | CacheRole | PackageRole

_NEEDED: Mapping[str, AnyRole] = {
    "/compilefarm.v1.CacheService/Get": CacheRole.READ,
    "/compilefarm.v1.CacheService/FindEntry": CacheRole.READ,
    "/compilefarm.v1.CacheService/Put": CacheRole.WRITE,
    "/compilefarm.v1.CacheService/RemoveEntries": CacheRole.WRITE,
    "/compilefarm.v1.PackageService/Find": PackageRole.READ,
    "/compilefarm.v1.PackageService/Publish": PackageRole.PUBLISH,
    "/compilefarm.v1.PackageService/Withdraw": PackageRole.READ,
    "/compilefarm.v1.CacheService/ListEntries": CacheRole.READ,
    "/compilefarm.v1.CacheService/FindMissingEntries": CacheRole.READ,
    "/compilefarm.v1.CompileService/Lookup": Role.READ,
    "/compilefarm.v1.CompileService/Plan": Role.READ,
    "/compilefarm.v1.CompileService/Compile": Role.COMPILE,
    "/compilefarm.v1.CompileService/Report": Role.READ,
    "/compilefarm.v1.BlobService/FindMissing": Role.READ,
    "/compilefarm.v1.BlobService/Read": Role.READ,
    "/compilefarm.v1.BlobService/Write": Role.COMPILE,
    "/compilefarm.v1.AdminService/Status": Role.READ,
    "/compilefarm.v1.AdminService/Inspect": Role.READ,
    "/compilefarm.v1.AdminService/ListWorkers": Role.READ,
    "/compilefarm.v1.AdminService/ListTuned": Role.READ,
    "/compilefarm.v1.AdminService/DescribeEnvironment": Role.READ,
    "/compilefarm.v1.AdminService/ListJobs": Role.ADMIN,
    "/compilefarm.v1.AdminService/CancelJob": Role.ADMIN,
    "/compilefarm.v1.AdminService/RetryJob": Role.ADMIN,
    "/compilefarm.v1.AdminService/Drain": Role.ADMIN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.READ,
}


def find_needed_role(method: str) -> AnyRole | None:
    """Returns the least role that may call a method; None if no role may.

    Args:
        method: its path, as "/package.Service/Method".
    """
    return _NEEDED.get(method)
