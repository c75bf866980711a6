"""compilefarm.v1.PackageService on the wire."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest, NoCaches, ReadOnlyFarm
from compilefarm.core.packages import check_package, check_package_key
from compilefarm.service.cache_service import CacheCounts
from compilefarm.service.callers import current_caller
from compilefarm.service.clock import Clock
from compilefarm.service.counters import Counters
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.grpc_types import Context
from compilefarm.service.hourly_limits import HourlyLimits
from compilefarm.service.quotas import Quotas
from compilefarm.service.rarely import Rarely
from compilefarm.store.packages import PackageStore
from compilefarm.v1 import package_service_pb2 as wire
from compilefarm.v1.package_service_pb2_grpc import PackageServiceServicer

log = logging.getLogger(__name__)
# What figures call packages beside torch's caches.
_WORD = "package"


class NoPackageService(PackageServiceServicer):
    """Refuses: this farm keeps no packages."""

    async def Find(self, _request: wire.FindRequest, _context: Context) -> AsyncIterator[wire.FindResponse]:
        raise _no_packages()
        yield

    async def Publish(self, _request: wire.PublishRequest, _context: Context) -> wire.PublishResponse:
        raise _no_packages()

    async def Withdraw(self, _request: wire.WithdrawRequest, _context: Context) -> wire.WithdrawResponse:
        raise _no_packages()


# What one account may have withdrawn in an hour.
_WITHDRAWN_PER_HOUR = 10
_LONGEST_DETAIL = 300
# Each lists the packages of its key, of which one publisher may have hundreds.
_PUBLISHED_AT_ONCE = 8
_PUBLISHED_AT_ONCE_OF_ACCOUNT = 2


class PackageService(PackageServiceServicer):
    """Adapts a store of packages to the wire, and counts what passes.

    Args:
        store: where packages lie.
        transfers: places for those that read.
        quotas: for what tenants have sent lately.
        counters: counts bytes.
        counts: counts requests.
        read_only: whether nothing is written.
        clock: time.
    """

    def __init__(
        self,
        store: PackageStore,
        *,
        transfers: FairSemaphore,
        quotas: Quotas,
        counters: Counters,
        counts: CacheCounts,
        read_only: bool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._transfers = transfers
        self._publications = FairSemaphore(
            "publishing packages", places=_PUBLISHED_AT_ONCE, account_places=_PUBLISHED_AT_ONCE_OF_ACCOUNT
        )
        self._quotas = quotas
        self._counters = counters
        self._counts = counts
        self._read_only = read_only
        self._disbelieved = Rarely(clock.monotonic)
        self._withdrawals = HourlyLimits(most=_WITHDRAWN_PER_HOUR, clock=clock)

    async def Find(self, request: wire.FindRequest, _context: Context) -> AsyncIterator[wire.FindResponse]:
        caller, key = current_caller(), check_package_key(request.key)
        outcome = "miss"
        async with self._transfers.acquired(caller.account):
            async for package in self._store.find(key, namespaces=caller.namespaces):
                outcome = "hit"
                package.ClearField("publisher")
                yield wire.FindResponse(package=package)
                self._counters.bytes_sent += len(package.content)
        self._counts.note_word(_WORD, outcome)

    async def Publish(self, request: wire.PublishRequest, _context: Context) -> wire.PublishResponse:
        if self._read_only:
            raise ReadOnlyFarm("this farm serves what is stored, and keeps nothing new (serve --read-only)")
        caller, package = current_caller(), check_package(request.package)
        package.DiscardUnknownFields()
        package.namespace, package.publisher = caller.namespace, caller.name
        package.ClearField("withdrawn")
        async with self._publications.acquired(caller.account):
            self._quotas.take(len(package.content), tenant=caller.tenant)
            self._counters.bytes_received += len(package.content)
            is_new = await self._store.publish(package)
        self._counts.note_word(_WORD, "write")
        if is_new:
            log.info("key %s has package %s of %s", package.key, package.name, caller.account)
        return wire.PublishResponse(is_new=is_new)

    async def Withdraw(self, request: wire.WithdrawRequest, _context: Context) -> wire.WithdrawResponse:
        if self._read_only:
            raise ReadOnlyFarm("this farm serves what is stored, and withdraws nothing (serve --read-only)")
        caller, key, digest = current_caller(), check_package_key(request.key), check_digest(request.digest)
        if len(request.detail) > _LONGEST_DETAIL:
            raise InvalidRequest(f"why a package is wrong takes at most {_LONGEST_DETAIL} characters")
        why = f"a trace of {caller.account or 'a pod'} has found something else: {request.detail!r}"
        is_believed = self._withdrawals.take(caller.account)
        is_withdrawn = is_believed and await self._store.withdraw(
            key, digest=digest, namespace=caller.namespace, reason=why
        )
        if is_withdrawn:
            log.error("key %s, package with content %s: %s; withdrawn", key, digest, why)
        elif self._disbelieved.is_due(caller.account):
            log.error("key %s, package with content %s: %s; nothing is done about it", key, digest, why)
        return wire.WithdrawResponse(is_withdrawn=is_withdrawn)


def _no_packages() -> NoCaches:
    return NoCaches("this farm keeps no packages: it has to `serve --cache-size-limit SIZE`")
