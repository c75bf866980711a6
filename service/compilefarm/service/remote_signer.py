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
from compilefarm.service.config import CannotStart
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.manifest_pb2 import Manifest, Signature
from compilefarm.v1.signer_service_pb2 import AnnounceRequest, GetPublicKeyRequest, SignRequest
from compilefarm.v1.signer_service_pb2_grpc import SignerServiceStub

if TYPE_CHECKING:
    from compilefarm.v1.signer_service_pb2_grpc import SignerServiceAsyncStub

# A signature takes a fraction of a millisecond; a signer that is started anew is back within this.
_ANSWER_SECONDS = 10.0

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
    """

    def __init__(self, stub: SignerServiceAsyncStub, *, public: PublicKey, address: str) -> None:
        self._stub = stub
        self._public = public
        self._address = address
        self._announced: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)

    @property
    def public(self) -> PublicKey:
        return self._public

    async def announce(self, key: str, *, namespace: str) -> None:
        await self._require_same_key()
        await self._ask(self._stub.Announce, AnnounceRequest(key=key, namespace=namespace))
        self._announced[key, namespace] = None
        self._announced.move_to_end((key, namespace))
        if len(self._announced) > _MOST_REMEMBERED:
            self._announced.popitem(last=False)

    async def signature_of(self, manifest: Manifest) -> Signature:
        place = (manifest.key, manifest.namespace)
        try:
            signature = await self._sign(manifest)
        except SignerRefused:
            if place not in self._announced:
                raise
            await self.announce(manifest.key, namespace=manifest.namespace)
            signature = await self._sign(manifest)
        self._require_own(signature, manifest)
        self._announced.pop(place, None)
        return signature

    def signature_of_toolchain(self, record: ToolchainRecord) -> Signature | None:
        # It signs what was announced, one manifest for each job.
        del record
        return None

    async def _require_same_key(self) -> None:
        """Passes if the signer has the key that this process knows: no job is compiled whose artifact nobody trusts."""
        told = await self._ask(self._stub.GetPublicKey, GetPublicKeyRequest())
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

    async def _sign(self, manifest: Manifest) -> Signature:
        return (await self._ask(self._stub.Sign, SignRequest(manifest=manifest))).signature

    async def _ask(self, method: Callable[..., Awaitable[T]], request: Message) -> T:
        async with self._asking:
            call = method(request, timeout=_ANSWER_SECONDS, wait_for_ready=True)
            return await _answer_of(call, address=self._address)


class SignerRefused(SignerUnavailable):
    """The signer refused: the job was not announced."""


async def open_remote_signer(address: str) -> RemoteSigner:
    """Connects with a signer.

    Args:
        address: "unix:PATH".

    Raises:
        CannotStart: it does not answer, or has no public key to tell.
    """
    # Settings of proxies are for other machines.
    channel = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    stub = cast("SignerServiceAsyncStub", SignerServiceStub(channel))
    try:
        told = await _answer_of(stub.GetPublicKey(GetPublicKeyRequest(), timeout=_ANSWER_SECONDS), address=address)
        public = read_public_key(told.public_key)
    except (SignerUnavailable, ValueError) as error:
        await channel.close()
        raise CannotStart(f"{error}; start it first: compilefarm signer --key FILE --listen {address}") from error
    return RemoteSigner(stub, public=public, address=address)


async def _answer_of(call: Awaitable[T], *, address: str) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
        kind = SignerRefused if refused else SignerUnavailable
        raise kind(f"the signer at {address} said {error.code().name}: {error.details()}") from error
