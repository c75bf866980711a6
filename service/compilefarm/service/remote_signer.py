"""Has manifests signed by another process, `compilefarm signer`, so that the gateway does not hold the signing key."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from compilefarm.core.errors import SignerUnavailable, UntrustedArtifact
from compilefarm.core.public_keys import PublicKey, read_public_key
from compilefarm.core.signatures import check_signature, with_signature
from compilefarm.service.clock import Clock, SystemClock, limited, pause
from compilefarm.service.config import CannotStart
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.manifest_pb2 import Manifest, Signature
from compilefarm.v1.signer_service_pb2 import AnnounceRequest, GetPublicKeyRequest, SignRequest
from compilefarm.v1.signer_service_pb2_grpc import SignerServiceStub

if TYPE_CHECKING:
    from compilefarm.v1.signer_service_pb2_grpc import SignerServiceAsyncStub

# A signature takes a fraction of a millisecond; a signer that is started anew is back within this.
_ANSWER_SECONDS = 10.0

# A finished compile may have taken an hour: it waits for a signer whose host starts anew, too.
_SIGNATURE_SECONDS = 60.0

# Of a signer that did not answer, as many jobs as there are would wait one after the other. So one is announced in this
# time, and waits no longer for the answer; the others are refused at once.
_TRIAL_SECONDS = 1.0

# Between a call that broke off, as those of a signer that is killed do, and the next.
_PAUSE_SECONDS = 0.1

_OPTIONS = [
    # Settings of proxies are for other machines.
    ("grpc.enable_http_proxy", 0),
    # gRPC would try to connect after ever longer pauses, of two minutes in the end, also when the signer is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

# Questions to a signer that are on their way at a time. gRPC ends those without a reason that a signer does not take as
# fast as they come, by the thousand.
_ASKED_AT_ONCE = 16

# Jobs that were announced here and never signed, because their compiles failed, are forgotten beyond this many.
_MOST_REMEMBERED = 100_000

T = TypeVar("T")


class RemoteSigner:
    """Asks a signer at a socket. `open_remote_signer` makes one.

    A signer that was started anew knows nothing of the jobs that were announced to the one before; it is told again of
    those that this process announced, so that no finished compile is lost.

    Args:
        stub: calls it.
        public: the public half of the key that it has.
        address: where it listens, for messages.
        clock: time.
    """

    def __init__(
        self, stub: SignerServiceAsyncStub, *, public: PublicKey, address: str, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._stub = stub
        self._public = public
        self._address = address
        self._announced: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)
        # Why the last question had no answer in all its time, and when the next job is announced all the same.
        self._silence: SignerUnavailable | None = None
        self._next_trial_seconds = 0.0

    @property
    def public(self) -> PublicKey:
        return self._public

    async def announce(self, key: str, *, namespace: str) -> None:
        await self._announce(key, namespace=namespace, until_seconds=self._clock.monotonic() + self._patience_seconds())

    async def _announce(self, key: str, *, namespace: str, until_seconds: float) -> None:
        await self._require_same_key(until_seconds=until_seconds)
        request = AnnounceRequest(key=key, namespace=namespace)
        await self._ask(self._stub.Announce, request, until_seconds=until_seconds)
        self._announced[key, namespace] = None
        self._announced.move_to_end((key, namespace))
        if len(self._announced) > _MOST_REMEMBERED:
            self._announced.popitem(last=False)

    async def signature_of(self, manifest: Manifest) -> Signature:
        place = (manifest.key, manifest.namespace)
        until_seconds = self._clock.monotonic() + _SIGNATURE_SECONDS
        try:
            signature = await self._sign(manifest, until_seconds=until_seconds)
        except SignerRefused:
            if place not in self._announced:
                raise
            await self._announce(manifest.key, namespace=manifest.namespace, until_seconds=until_seconds)
            signature = await self._sign(manifest, until_seconds=until_seconds)
        self._require_own(signature, manifest)
        self._announced.pop(place, None)
        return signature

    def signature_of_toolchain(self, record: ToolchainRecord) -> Signature | None:
        # It signs what was announced, one manifest for each job.
        del record
        return None

    def _patience_seconds(self) -> float:
        """How long a job may wait until it is announced.

        Raises:
            SignerUnavailable: another has just found out that nobody answers.
        """
        if self._silence is None:
            return _ANSWER_SECONDS
        if self._clock.monotonic() < self._next_trial_seconds:
            raise SignerUnavailable(str(self._silence))
        self._next_trial_seconds = self._clock.monotonic() + _TRIAL_SECONDS
        return _TRIAL_SECONDS

    async def _require_same_key(self, *, until_seconds: float) -> None:
        """Passes if the signer has the key that this process knows: no job is compiled whose artifact nobody trusts."""
        told = await self._ask(self._stub.GetPublicKey, GetPublicKeyRequest(), until_seconds=until_seconds)
        if told.public_key != self._public.text:
            raise self._other_key()

    def _require_own(self, signature: Signature, manifest: Manifest) -> None:
        try:
            check_signature(with_signature(manifest, signature), trusted=[self._public])
        except UntrustedArtifact as error:
            raise self._other_key() from error

    def _other_key(self) -> SignerUnavailable:
        return SignerUnavailable(
            f"the signer at {self._address} signs with another key than {self._public.text}, which it had when this "
            "process started: give it that one again, or start this process anew"
        )

    async def _sign(self, manifest: Manifest, *, until_seconds: float) -> Signature:
        request = SignRequest(manifest=manifest)
        return (await self._ask(self._stub.Sign, request, until_seconds=until_seconds)).signature

    async def _ask(self, method: Callable[..., Awaitable[T]], request: Message, *, until_seconds: float) -> T:
        """Asks until there is an answer, whatever becomes of the signer meanwhile. A question that is asked twice is no
        harm: what was signed or announced already is refused or counts once more.
        """
        while True:
            try:
                answer = await self._ask_once(method, request, until_seconds=until_seconds)
            except (SignerGone, SignerSilent) as error:
                if isinstance(error, SignerSilent) or self._clock.monotonic() + _PAUSE_SECONDS > until_seconds:
                    self._silence = error
                    raise
                await pause(_PAUSE_SECONDS, clock=self._clock)
            except SignerUnavailable:
                self._silence = None
                raise
            else:
                self._silence = None
                return answer

    async def _ask_once(self, method: Callable[..., Awaitable[T]], request: Message, *, until_seconds: float) -> T:
        try:
            async with limited(until_seconds - self._clock.monotonic(), clock=self._clock):
                await self._asking.acquire()
        except TimeoutError:
            raise SignerSilent(f"the signer at {self._address} does not answer those who asked before") from None
        try:
            left_seconds = max(0.0, until_seconds - self._clock.monotonic())
            return await _answer_of(method(request, timeout=left_seconds, wait_for_ready=True), address=self._address)
        finally:
            self._asking.release()


class SignerRefused(SignerUnavailable):
    """The signer refused: the job was not announced."""


class SignerGone(SignerUnavailable):
    """The signer ended before it answered."""


class SignerSilent(SignerUnavailable):
    """The signer did not answer in time."""


async def open_remote_signer(address: str) -> RemoteSigner:
    """Connects with a signer.

    Args:
        address: "unix:PATH".

    Raises:
        CannotStart: it does not answer, or has no public key to tell.
    """
    channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    stub = cast("SignerServiceAsyncStub", SignerServiceStub(channel))
    try:
        told = await _answer_of(stub.GetPublicKey(GetPublicKeyRequest(), timeout=_ANSWER_SECONDS), address=address)
        public = read_public_key(told.public_key)
    except (SignerUnavailable, ValueError) as error:
        await channel.close()
        raise CannotStart(f"{error}; start it first: compilefarm signer --key FILE --listen {address}") from error
    return RemoteSigner(stub, public=public, address=address)


_KINDS = {
    grpc.StatusCode.PERMISSION_DENIED: SignerRefused,
    grpc.StatusCode.UNAVAILABLE: SignerGone,
    # As gRPC ends calls that a process does not take as fast as they come.
    grpc.StatusCode.CANCELLED: SignerGone,
    grpc.StatusCode.DEADLINE_EXCEEDED: SignerSilent,
}


async def _answer_of(call: Awaitable[T], *, address: str) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        kind = _KINDS.get(error.code(), SignerUnavailable)
        raise kind(f"the signer at {address} said {error.code().name}: {error.details()}") from error
