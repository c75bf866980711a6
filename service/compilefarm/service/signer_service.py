"""compilefarm.v1.SignerService on the wire, and the socket that it listens at."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from compilefarm.service.authenticators import AnonymousAuthenticator
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.clock import Clock
from compilefarm.service.config import CannotStart
from compilefarm.service.grpc_types import Context
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.interceptor import interceptors
from compilefarm.service.server_options import server_options
from compilefarm.service.servers import make_server
from compilefarm.service.signer import Signer
from compilefarm.service.socket_connections import MOST_CONNECTIONS_OF_SOCKET, SocketConnections
from compilefarm.v1.signer_service_pb2 import (
    AnnounceRequest,
    AnnounceResponse,
    GetPublicKeyRequest,
    GetPublicKeyResponse,
    SignRequest,
    SignResponse,
)
from compilefarm.v1.signer_service_pb2_grpc import SignerServiceServicer, add_SignerServiceServicer_to_server

SCHEME = "unix:"
# Linux: struct sockaddr_un has room for so many bytes of a path and its end.
_LONGEST_PATH = 107


class SignerService(SignerServiceServicer):
    """Adapts the signer to the wire."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    async def GetPublicKey(self, _request: GetPublicKeyRequest, _context: Context) -> GetPublicKeyResponse:
        return GetPublicKeyResponse(public_key=self._signer.public.text)

    async def Announce(self, request: AnnounceRequest, _context: Context) -> AnnounceResponse:
        self._signer.announce(request.key, namespace=request.namespace)
        return AnnounceResponse()

    async def Sign(self, request: SignRequest, _context: Context) -> SignResponse:
        return SignResponse(signature=self._signer.sign(request.manifest))


def socket_path(address: str) -> Path:
    """The socket that "unix:PATH" names.

    Raises:
        CannotStart: it is written otherwise, or the path is too long for a socket.
    """
    path = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME) or not os.path.isabs(path):
        raise CannotStart(f"{address!r} is no address of a signer: write unix:/absolute/path")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise CannotStart(f"{path} is too long for a socket: at most {_LONGEST_PATH} bytes")
    return Path(path)


@asynccontextmanager
async def serving_signer(signer: Signer, *, address: str, group: str | None, clock: Clock) -> AsyncIterator[None]:
    """Serves at a socket. Only this user reaches it, and a group if one is named.

    Raises:
        CannotStart: the socket cannot be made, or a signer listens there already.
    """
    path = socket_path(address)
    _refuse_second(path)
    call_limits = CallLimits()
    passed = interceptors(AnonymousAuthenticator(), clock=clock, heavy=HeavyWork(), call_limits=call_limits)
    options = server_options(most_connections=MOST_CONNECTIONS_OF_SOCKET)
    server = make_server(interceptors=passed, options=options, call_limits=call_limits)
    add_SignerServiceServicer_to_server(SignerService(signer), server)
    _bind(server, path=path)
    if group is not None:
        _admit_group(path, group=group)
    await server.start()
    connections = SocketConnections(path, call_limits=call_limits, clock=clock)
    watching = asyncio.create_task(connections.watch(), name=f"connections at {path}")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        # gRPC removes the socket.
        await server.stop(1.0)


def _bind(server: grpc.aio.Server, *, path: Path) -> None:
    # Nobody else reaches it, not even until its rights are set.
    mask = os.umask(0o177)
    try:
        bound = server.add_insecure_port(f"{SCHEME}{path}")
    except RuntimeError as error:
        raise CannotStart(f"cannot listen at {path}: see that its folder exists and is this user's") from error
    finally:
        os.umask(mask)
    if not bound:
        raise CannotStart(f"cannot listen at {path}")


def _refuse_second(path: Path) -> None:
    """A socket at which nobody listens is what a killed signer left; gRPC replaces it."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise CannotStart(f"{path} cannot be used: {error.strerror or error}") from error
    raise CannotStart(f"somebody listens at {path} already")


def _admit_group(path: Path, *, group: str) -> None:
    try:
        shutil.chown(path, group=group)
        path.chmod(0o660)
    except (LookupError, OSError) as error:
        raise CannotStart(f"{path} cannot be given to the group {group}: {error}") from error
