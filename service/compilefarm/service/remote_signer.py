"""Has manifests signed by another process, `compilefarm signer`, so that the gateway does not hold the signing key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar, cast

import grpc
import grpc.aio

from compilefarm.core.errors import SignerUnavailable
from compilefarm.core.public_keys import PublicKey, read_public_key
from compilefarm.service.config import CannotStart
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.manifest_pb2 import Manifest, Signature
from compilefarm.v1.signer_service_pb2 import AnnounceRequest, GetPublicKeyRequest, SignRequest
from compilefarm.v1.signer_service_pb2_grpc import SignerServiceStub

if TYPE_CHECKING:
    from compilefarm.v1.signer_service_pb2_grpc import SignerServiceAsyncStub

# A signature takes a fraction of a millisecond; a signer that is started anew is back within this.
_ANSWER_SECONDS = 10.0

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

    @property
    def public(self) -> PublicKey:
        return self._public

    async def announce(self, key: str, *, namespace: str) -> None:
        request = AnnounceRequest(key=key, namespace=namespace)
        await _ask(self._stub.Announce(request, timeout=_ANSWER_SECONDS, wait_for_ready=True), address=self._address)
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
        self._announced.pop(place, None)
        return signature

    def signature_of_toolchain(self, record: ToolchainRecord) -> Signature | None:
        # It signs what was announced, one manifest for each job.
        del record
        return None

    async def _sign(self, manifest: Manifest) -> Signature:
        call = self._stub.Sign(SignRequest(manifest=manifest), timeout=_ANSWER_SECONDS, wait_for_ready=True)
        return (await _ask(call, address=self._address)).signature


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
        told = await _ask(stub.GetPublicKey(GetPublicKeyRequest(), timeout=_ANSWER_SECONDS), address=address)
        public = read_public_key(told.public_key)
    except (SignerUnavailable, ValueError) as error:
        await channel.close()
        raise CannotStart(f"{error}; start it first: compilefarm signer --key FILE --listen {address}") from error
    return RemoteSigner(stub, public=public, address=address)


async def _ask(call: Awaitable[T], *, address: str) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
        kind = SignerRefused if refused else SignerUnavailable
        raise kind(f"the signer at {address} said {error.code().name}: {error.details()}") from error
