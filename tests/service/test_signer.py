"""A signing key that the gateway does not have."""

from __future__ import annotations

import asyncio
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from compilefarm.core.errors import InvalidRequest, NotAllowed, SignerUnavailable
from compilefarm.core.public_keys import read_public_key
from compilefarm.core.signatures import check_signature, new_signing_key, with_signature
from compilefarm.service import signer as signer_module
from compilefarm.service.call_limits import RECEIVED_AT_ONCE_OF_ACCOUNT
from compilefarm.service.config import CannotStart
from compilefarm.service.remote_signer import RemoteSigner, open_remote_signer
from compilefarm.service.signer import Signer
from compilefarm.service.signing import open_signing_policy
from compilefarm.service.testing import ManualClock, calling, sample_job, serving
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.v1.signer_service_pb2 import GetPublicKeyResponse, SignResponse
from tests.service.signers import KEY, MANIFEST, SIGNING_KEY, have_signed, signing, signing_command


def test_each_announcement_is_good_for_one_signature() -> None:
    signer = Signer(SIGNING_KEY, clock=ManualClock())
    with pytest.raises(NotAllowed, match="nobody asked for that key"):
        signer.sign(MANIFEST)
    signer.announce(KEY, namespace="")
    check_signature(with_signature(MANIFEST, signer.sign(MANIFEST)), trusted=[SIGNING_KEY.public])
    with pytest.raises(NotAllowed, match="is signed already"):
        signer.sign(MANIFEST)


def test_an_announcement_counts_in_its_namespace_and_for_a_day() -> None:
    clock = ManualClock()
    signer = Signer(SIGNING_KEY, clock=clock)
    signer.announce(KEY, namespace="dev")
    with pytest.raises(NotAllowed):
        signer.sign(MANIFEST)
    signer.announce(KEY, namespace="")
    clock.advance(25 * 3600)
    with pytest.raises(NotAllowed):
        signer.sign(MANIFEST)


def test_what_is_announced_is_bounded_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Signer(SIGNING_KEY, clock=ManualClock())
    with pytest.raises(InvalidRequest, match="is not a key"):
        signer.announce("../../key", namespace="")
    with pytest.raises(InvalidRequest, match="is not the name of a namespace"):
        signer.announce(KEY, namespace="../a")
    monkeypatch.setattr(signer_module, "_MOST_ANNOUNCED", 2)
    for name in ("one", "two", "three"):
        signer.announce(sample_key(name), namespace="")
    # Jobs that come to nothing do not keep others from being signed.
    signer.sign(sample_artifact(sample_key("three")).manifest)
    with pytest.raises(NotAllowed):
        signer.sign(MANIFEST)


def test_what_is_no_key_is_refused_and_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    signer = Signer(SIGNING_KEY, clock=ManualClock())
    for manifest in (Manifest(key="k" * 4_000_000), Manifest(key=KEY, namespace="n" * 4_000_000)):
        with pytest.raises(InvalidRequest):
            signer.sign(manifest)
    assert caplog.text == ""


async def test_what_a_signer_forgot_among_many_is_announced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signer_module, "_MOST_ANNOUNCED", 2)
    async with signing(tmp_path) as address:
        remote = await open_remote_signer(address)
        for name in ("one", "two", "three"):
            await remote.announce(sample_key(name), namespace="")
        check_signature(with_signature(MANIFEST, await remote.signature_of(MANIFEST)), trusted=[SIGNING_KEY.public])


def test_jobs_that_come_by_the_thousand_are_all_announced(tmp_path: Path) -> None:
    # In a process of its own a signer takes them more slowly than they come.
    address = f"unix:{tmp_path / 'signer.sock'}"

    async def announce_many() -> None:
        remote = await open_remote_signer(address)
        await asyncio.gather(*(remote.announce(sample_key(f"{number}"), namespace="") for number in range(2000)))

    with signing_command(tmp_path, address):
        asyncio.run(announce_many())


async def test_a_farm_without_the_key_serves_artifacts_that_the_signer_signed(tmp_path: Path) -> None:
    async with signing(tmp_path) as address:
        policy = await open_signing_policy(key_file=None, signer=address, trusted_keys=[])
        assert policy.public_key == SIGNING_KEY.public.text
        store = await open_store("memory:", signing=policy)
        async with serving(store=store, signing=policy) as gateway, calling(gateway.address) as calls:
            finished = await calls.finish(sample_job())
            assert finished.outcome == Outcome.OUTCOME_COMPILED
            check_signature(finished.manifest, trusted=[read_public_key(policy.public_key)])
            assert (await calls.finish(sample_job())).outcome == Outcome.OUTCOME_HIT


async def test_nothing_is_signed_that_nobody_asked_for(tmp_path: Path) -> None:
    async with signing(tmp_path) as address:
        remote = await open_remote_signer(address)
        with pytest.raises(SignerUnavailable, match="nobody asked for that key"):
            await remote.signature_of(MANIFEST)


async def test_a_signer_that_is_started_anew_is_told_again(tmp_path: Path) -> None:
    async with signing(tmp_path) as address:
        remote = await open_remote_signer(address)
        await remote.announce(KEY, namespace="")
    async with signing(tmp_path):
        signature = await remote.signature_of(MANIFEST)
        check_signature(with_signature(MANIFEST, signature), trusted=[SIGNING_KEY.public])
        with pytest.raises(SignerUnavailable):
            await remote.signature_of(MANIFEST)


class Breaking:
    """The stub of a signer, whose answers may get lost. Each method is called as gRPC's are.

    Attributes:
        lost: how calls end whose answers are lost, the next first: they are answered all the same, where somebody
            listens (UNAVAILABLE).
        asked: how many calls there were.
    """

    def __init__(self, signer: Signer) -> None:
        self.lost: list[grpc.StatusCode] = []
        self.asked = 0
        self.GetPublicKey = partial(self._call, lambda _: GetPublicKeyResponse(public_key=signer.public.text))
        self.Announce = partial(self._call, lambda asked: signer.announce(asked.key, namespace=asked.namespace))
        self.Sign = partial(self._call, lambda asked: SignResponse(signature=signer.sign(asked.manifest)))

    async def _call(self, answer: Callable[[Any], Any], request: Any, *, timeout: float, wait_for_ready: bool) -> Any:
        assert wait_for_ready
        self.asked += 1
        lost = self.lost.pop(0) if self.lost else None
        if lost is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise _grpc_error(lost)
        try:
            answered = answer(request)
        except NotAllowed:
            raise _grpc_error(grpc.StatusCode.PERMISSION_DENIED) from None
        if lost is not None:
            raise _grpc_error(lost)
        return answered


def _grpc_error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="it is gone")


def breaking_signer(clock: ManualClock) -> tuple[Breaking, RemoteSigner]:
    stub = Breaking(Signer(SIGNING_KEY, clock=clock))
    return stub, RemoteSigner(cast("Any", stub), public=SIGNING_KEY.public, address="unix:/signer", clock=clock)


@pytest.mark.parametrize("lost", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_no_finished_compile_is_lost_with_the_answer_of_a_signer(lost: grpc.StatusCode) -> None:
    clock = ManualClock()
    stub, remote = breaking_signer(clock)
    await remote.announce(KEY, namespace="")
    stub.lost = [lost] * 3
    signing = asyncio.create_task(remote.signature_of(MANIFEST))
    while not signing.done():
        await asyncio.wait([signing], timeout=0.001)
        clock.advance(0.1)
    check_signature(with_signature(MANIFEST, await signing), trusted=[SIGNING_KEY.public])


async def test_nobody_waits_for_a_signer_of_whom_it_is_known_that_he_does_not_answer() -> None:
    clock = ManualClock()
    stub, remote = breaking_signer(clock)
    stub.lost = [grpc.StatusCode.DEADLINE_EXCEEDED] * 2
    for _ in range(2):
        with pytest.raises(SignerUnavailable, match="DEADLINE_EXCEEDED"):
            await remote.announce(KEY, namespace="")
    for _ in range(100):
        with pytest.raises(SignerUnavailable, match="DEADLINE_EXCEEDED"):
            await remote.announce(KEY, namespace="")
    assert stub.asked == 2
    clock.advance(1.0)
    await remote.announce(KEY, namespace="")
    await remote.announce(KEY, namespace="")


async def test_a_signer_that_has_another_key_by_now_signs_nothing_that_would_be_stored(tmp_path: Path) -> None:
    async with signing(tmp_path) as address:
        remote = await open_remote_signer(address)
        await remote.announce(KEY, namespace="")
    async with signing(tmp_path, key=new_signing_key()):
        with pytest.raises(SignerUnavailable, match="with another key than"):
            await remote.signature_of(MANIFEST)
        # No job is compiled in vain.
        with pytest.raises(SignerUnavailable, match="start this process anew"):
            await remote.announce(KEY, namespace="")
    async with signing(tmp_path):
        await remote.announce(KEY, namespace="")


async def test_only_the_user_of_the_signer_reaches_it_and_there_is_one(tmp_path: Path) -> None:
    async with signing(tmp_path):
        assert stat.S_IMODE((tmp_path / "signer.sock").stat().st_mode) == 0o600
        with pytest.raises(CannotStart, match="somebody listens at"):
            async with signing(tmp_path):
                pass
    assert not (tmp_path / "signer.sock").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (lambda folder: "127.0.0.1:7078", "write unix:/absolute/path"),
        (lambda folder: "unix:signer.sock", "write unix:/absolute/path"),
        (lambda folder: f"unix:/{'a' * 120}", "too long for a socket"),
        (lambda folder: f"unix:{folder}/none.sock", "start it first: compilefarm signer --key FILE --listen unix:"),
    ],
)
async def test_a_farm_does_not_start_without_its_signer(
    tmp_path: Path, address: Callable[[Path], str], message: str
) -> None:
    with pytest.raises(CannotStart, match=message):
        await open_signing_policy(key_file=None, signer=address(tmp_path), trusted_keys=[])


async def test_a_socket_that_a_killed_signer_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "signer.sock"))
    async with signing(tmp_path) as address:
        await open_remote_signer(address)


def test_the_command_signs_until_it_is_ended(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'signer.sock'}"
    with signing_command(tmp_path, address) as process:
        asyncio.run(have_signed(address))
        process.terminate()
        assert process.stderr is not None
        assert f"signed {KEY} in namespace ''" in process.stderr.read()
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["serve", "signer"])
def test_what_grpc_refuses_by_itself_writes_no_lines(command: str) -> None:
    # The method is one that there is not; gRPC refuses the call for its compression before it looks.
    program = f"""
import asyncio, contextlib
from compilefarm.cli.main import main
with contextlib.suppress(SystemExit):
    main([{command!r}, "--help"])
import grpc.aio
from compilefarm.service.server_options import server_options

async def call():
    server = grpc.aio.server(options=server_options(most_connections=16))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{{port}}", compression=grpc.Compression.Gzip) as channel:
        try:
            await channel.unary_unary("/none/None")(bytes(10000))
        except grpc.aio.AioRpcError as error:
            print(error.code())
    # What gRPC still has to do for the call it does; cancelled, it would say so.
    await server.stop(10)

asyncio.run(call())
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.endswith("StatusCode.UNIMPLEMENTED\n")
    assert told.stderr == ""


def test_a_gateway_that_takes_all_places_of_its_socket_keeps_no_other_waiting(tmp_path: Path) -> None:
    one, other = (f"unix:{tmp_path / name}" for name in ("one.sock", "other.sock"))

    async def have_signed_beside_calls_that_send_nothing() -> None:
        async with grpc.aio.insecure_channel(one) as channel:
            call: Any = channel.stream_unary("/compilefarm.v1.SignerService/Sign")
            waiting = [call(_nothing()) for _ in range(RECEIVED_AT_ONCE_OF_ACCOUNT)]
            while await _is_answered(channel):
                pass
            await have_signed(other)
            assert not any(each.done() for each in waiting)

    with signing_command(tmp_path, one, other):
        asyncio.run(have_signed(one))
        asyncio.run(have_signed_beside_calls_that_send_nothing())


async def _is_answered(channel: grpc.aio.Channel) -> bool:
    ask: Any = channel.unary_unary("/compilefarm.v1.SignerService/GetPublicKey")
    try:
        await ask(b"", timeout=1.0)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return False
    return True


async def _nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""
