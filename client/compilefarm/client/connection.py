"""The connection to the farm: made at the first use, one for each process, given up for a while if nobody answers."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import grpc

from compilefarm.client.clock import Budget, Clock
from compilefarm.client.config import ClientConfig
from compilefarm.client.refusals import error_of
from compilefarm.client.tokens import TokenInterceptor
from compilefarm.core.errors import (
    Draining,
    FarmError,
    InternalError,
    NotAFarm,
    NotAllowed,
    NotAuthenticated,
    OutOfTime,
    Unreachable,
)
from compilefarm.core.grpc_forks import VARIABLE, has_fork_support
from compilefarm.v1.blob_service_pb2 import FindMissingRequest
from compilefarm.v1.blob_service_pb2_grpc import BlobServiceStub
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub

if TYPE_CHECKING:
    from compilefarm.v1.cache_service_pb2_grpc import CacheServiceStub
    from compilefarm.v1.package_service_pb2_grpc import PackageServiceStub

OpenChannel = Callable[[ClientConfig], grpc.Channel]

_NOBODY = (Draining, NotAFarm, Unreachable)
_SECONDS_BETWEEN_PINGS = 20.0
_PING_TIMEOUT_SECONDS = 10.0
# What gRPC has read by now.
_FORK_SUPPORT = has_fork_support()


def open_channel(config: ClientConfig) -> grpc.Channel:
    """Returns a channel to the farm. It connects at the first call.

    Raises:
        Unreachable: files that TLS needs cannot be used.
    """
    if config.trust.tls_ca:
        from compilefarm.client.tls import read_credentials

        channel = grpc.secure_channel(config.address, read_credentials(config.trust), options=_options(config))
    else:
        channel = grpc.insecure_channel(config.address, options=_options(config))
    return grpc.intercept_channel(channel, TokenInterceptor(config.trust)) if config.trust.has_token else channel


def _options(config: ClientConfig) -> list[tuple[str, int]]:
    return [
        # http_proxy is meant for the way out of a cluster; a farm is inside.
        ("grpc.enable_http_proxy", 0),
        # No compressed answer is taken (the first algorithm is none): gRPC 1.62 unpacks one whatever its size, and who
        # answers in the place of the farm could make gigabytes of megabytes.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # What may be on its way before the farm waits for this process: with 64 KiB, the default, a megabyte takes four
        # times as long.
        ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
        # Channels to one address share connections and their backoff otherwise, over a restart of the farm too.
        ("grpc.use_local_subchannel_pool", 1),
        # The least time of an attempt, in spite of its name: the default is 20 s. The first call ends before it.
        ("grpc.min_reconnect_backoff_ms", int((config.connect_timeout_seconds + 1) * 1000)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # A machine that vanishes says nothing; a stream that waits for a compile would never end.
        ("grpc.keepalive_time_ms", int(1000 * _SECONDS_BETWEEN_PINGS)),
        ("grpc.keepalive_timeout_ms", int(1000 * _PING_TIMEOUT_SECONDS)),
        # Newer releases of gRPC wait so long for the answer, a minute by default, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(1000 * _PING_TIMEOUT_SECONDS)),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class Stubs:
    """The stubs of a farm's services. What most pods never call is imported when it is asked for.

    Args:
        channel: over which the farm answers.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.compiles = CompileServiceStub(channel)
        self.blobs = BlobServiceStub(channel)

    @cached_property
    def caches(self) -> CacheServiceStub:
        """Of torch's caches."""
        from compilefarm.v1.cache_service_pb2_grpc import CacheServiceStub

        return CacheServiceStub(self.channel)

    @cached_property
    def packages(self) -> PackageServiceStub:
        """Of packages of what Dynamo found."""
        from compilefarm.v1.package_service_pb2_grpc import PackageServiceStub

        return PackageServiceStub(self.channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenUp:
    """Why an address is left alone. An error that is kept would keep all that its traceback leads to, down to the
    tensors of whoever called.

    Attributes:
        kind: of the error.
        message: of the error.
        until: time at which the address is tried again.
    """

    kind: type[FarmError]
    message: str
    until: float


@dataclass(slots=True)
class _ProcessState:
    lock: threading.Lock = field(default_factory=threading.Lock)
    stubs: Stubs | None = None
    given_up: _GivenUp | None = None


class Connection:
    """The connection of this process to the farm. Threads share it; a forked process makes its own."""

    def __init__(self, config: ClientConfig, *, clock: Clock, open_channel: OpenChannel = open_channel) -> None:
        self._config = config
        self._clock = clock
        self._open_channel = open_channel
        # By process id. What a parent process left here is not touched in its child, not even freed: neither its lock,
        # which a thread of it may hold for ever, nor its channel, whose threads are not there.
        self._states: dict[int, _ProcessState] = {}

    def stubs(self, *, within_seconds: float = math.inf) -> Stubs:
        """Returns the stubs, and connects if that has not been done.

        Args:
            within_seconds: what connecting, or waiting for a thread that connects, may take at most.

        Raises:
            OutOfTime: it took another thread longer.
            Unreachable, NotAFarm: nobody, or somebody else, answers; or that was so a short while ago.
            FarmError: the farm refuses to talk.
        """
        state, budget = self._state(), Budget(within_seconds, clock=self._clock)
        # Many threads wait for one attempt.
        if not state.lock.acquire(timeout=min(within_seconds, threading.TIMEOUT_MAX)):
            raise OutOfTime(f"another thread of this process has tried to connect for {within_seconds:g} s")
        try:
            if state.stubs is None:
                self._require_channel_after_fork()
                self._require_not_given_up(state)
                # What is left after waiting for others.
                state.stubs = self._connect(state, seconds=min(self._config.connect_timeout_seconds, budget.left()))
            return state.stubs
        finally:
            state.lock.release()

    def find_stubs(self) -> Stubs | None:
        """Returns the stubs, or None where there is no connection yet: nothing is tried, and nobody waits."""
        return self._state().stubs

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Turns what grpc raises inside into FarmErrors."""
        try:
            yield
        except grpc.RpcError as refusal:
            raise error_of(refusal, address=self._config.address) from None

    def give_up(self, error: FarmError) -> None:
        """Leaves the address alone for a while, if the error says that nobody answers, or that the farm goes down."""
        if isinstance(error, _NOBODY):
            state = self._state()
            with state.lock:
                # Not closed: another thread may be about to use it. It ends with its last user.
                state.stubs = None
                # Calls that are refused meanwhile come here with that refusal: whoever asks often asks again, too.
                if state.given_up is None or state.given_up.until <= self._clock.now():
                    state.given_up = self._given_up(error)

    def close(self) -> None:
        """Closes the connection. A later call connects again."""
        state = self._state()
        with state.lock:
            if state.stubs is not None:
                state.stubs.channel.close()
                state.stubs = None

    def _state(self) -> _ProcessState:
        return self._states.setdefault(os.getpid(), _ProcessState())

    def _require_channel_after_fork(self) -> None:
        parents = [state for process, state in self._states.items() if process != os.getpid()]
        if not _FORK_SUPPORT and any(state.stubs is not None for state in parents):
            raise Unreachable(
                "this process was forked from one that talked to the farm, and gRPC would hang in it: "
                f"set {VARIABLE}=1 in its environment"
            )

    def _require_not_given_up(self, state: _ProcessState) -> None:
        if state.given_up is None:
            return
        left = state.given_up.until - self._clock.now()
        if left > 0:
            raise state.given_up.kind(f"{state.given_up.message}; the next attempt is in {left:.0f} s")

    def _given_up(self, error: FarmError) -> _GivenUp:
        until = self._clock.now() + self._config.retry_connect_seconds
        return _GivenUp(kind=type(error), message=str(error), until=until)

    def _connect(self, state: _ProcessState, *, seconds: float) -> Stubs:
        channel = self._open_channel(self._config)
        stubs = Stubs(channel)
        try:
            with self.calls():
                # Cheap to answer for a farm, and nobody else knows the question.
                stubs.blobs.FindMissing(FindMissingRequest(), timeout=seconds)
        except NotAuthenticated:
            channel.close()
            raise
        except NotAllowed:
            # It is a farm, and has told a caller that has a role for caches alone.
            pass
        except FarmError as error:
            channel.close()
            failure = self._silence(seconds) if isinstance(error, OutOfTime) else error
            # Whoever breaks at the cheapest question there is would break at every graph.
            if isinstance(failure, (*_NOBODY, InternalError)):
                state.given_up = self._given_up(failure)
            raise failure from None
        except BaseException:
            channel.close()
            raise
        state.given_up = None
        return stubs

    def _silence(self, seconds: float) -> Unreachable:
        return Unreachable(f"nobody answers at {self._config.address} within {seconds:g} s: check address and network")
