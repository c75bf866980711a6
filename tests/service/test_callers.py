"""Who may do what: tokens, roles, tenants, and a list of callers that changes while the farm runs."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotAllowed
from compilefarm.core.metadata import BEARER, TOKEN_KEY
from compilefarm.service.authenticators import DirectoryAuthenticator
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.directory import read_directory
from compilefarm.service.roles import Role, find_needed_role
from compilefarm.service.testing import (
    Calls,
    HeldCompiles,
    Refused,
    ScriptedPool,
    calling,
    refusals,
    sample_job,
    serving,
)
from compilefarm.service.watched import Watched
from compilefarm.v1 import (
    admin_service_pb2,
    blob_service_pb2,
    cache_service_pb2,
    compile_service_pb2,
    package_service_pb2,
)
from compilefarm.v1.compile_service_pb2 import GraphReport, Priority

ROLES = ("read", "compile", "prewarm", "admin")


def token_of(name: str) -> str:
    return f"token of {name}".replace(" ", "-")


def listing(*names: str) -> str:
    """A list of callers that are called like their roles."""
    return "".join(
        f'[[callers]]\nname = "{name}"\nrole = "{name}"\ntokens = ["sha256:{digest_of(token_of(name).encode())}"]\n'
        for name in names
    )


def replace(path: Path, text: str) -> None:
    """Replaces a file as whoever cares does: at once."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def delete(path: Path) -> None:
    path.unlink()


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    path = tmp_path / "callers.toml"
    path.write_text(listing(*ROLES))
    return path


@pytest.fixture
def config(auth_file: Path) -> GatewayConfig:
    return GatewayConfig(listen="127.0.0.1:0", auth_file=str(auth_file))


async def prewarm(calls: Calls) -> None:
    await (await calls.watch(sample_job("torch.sin"), priority=Priority.PRIORITY_PREWARM)).finish()


async def reflect(calls: Calls) -> None:
    ask = ServerReflectionRequest(list_services="")
    with refusals():
        async for _ in ServerReflectionStub(calls.channel).ServerReflectionInfo(iter([ask])):
            pass


ACTS: dict[str, tuple[str, Callable[[Calls], Awaitable[object]]]] = {
    "look up": ("read", lambda calls: calls.lookup(sample_job())),
    "read": ("read", lambda calls: calls.read("ab" * 32)),
    "find missing": ("read", lambda calls: calls.find_missing([])),
    "report": ("read", lambda calls: calls.report(GraphReport(outcome=compile_service_pb2.GRAPH_OUTCOME_HIT))),
    "status": ("read", lambda calls: calls.status()),
    "inspect": ("read", lambda calls: calls.inspect("abcdef")),
    "reflect": ("read", reflect),
    "compile": ("compile", lambda calls: calls.finish(sample_job())),
    "write": ("compile", lambda calls: calls.write(b"content")),
    "prewarm": ("prewarm", prewarm),
    "jobs": ("admin", lambda calls: calls.list_jobs()),
    "cancel": ("admin", lambda calls: calls.cancel("abcdef")),
    "retry": ("admin", lambda calls: calls.retry("abcdef")),
    "drain": ("admin", lambda calls: calls.drain()),
}


CACHE_ROLES = ("cache-read", "cache-write")
CACHE_ACTS: dict[str, tuple[str, Callable[[Calls], Awaitable[object]]]] = {
    "read an entry": ("cache-read", lambda calls: calls.get_entry("key")),
    "write an entry": ("cache-write", lambda calls: calls.put_entry(b"content", key="key")),
}


@pytest.mark.parametrize("act", CACHE_ACTS)
@pytest.mark.parametrize("role", [*ROLES, *CACHE_ROLES])
async def test_entries_of_caches_need_roles_of_their_own(act: str, role: str, auth_file: Path) -> None:
    replace(auth_file, listing(role))
    config, (needed, do) = GatewayConfig(listen="127.0.0.1:0", auth_file=str(auth_file)), CACHE_ACTS[act]
    async with serving(config=config) as gateway, calling(gateway.address, token=token_of(role)) as calls:
        # This farm keeps no caches; whoever gets to hear that was let in.
        allowed = role in CACHE_ROLES[CACHE_ROLES.index(needed) :]
        with pytest.raises(Refused) as refused:
            await do(calls)
    assert refused.value.reason == ("no_caches" if allowed else "not_allowed")


async def test_a_role_for_caches_allows_nothing_else(auth_file: Path, config: GatewayConfig) -> None:
    replace(auth_file, listing("cache-write"))
    async with serving(config=config) as gateway, calling(gateway.address, token=token_of("cache-write")) as calls:
        for _, do in ACTS.values():
            with pytest.raises(Refused, match=r"has role 'cache-write', and .* needs"):
                await do(calls)


async def test_a_caller_may_have_a_role_of_each_kind(auth_file: Path, config: GatewayConfig) -> None:
    replace(auth_file, listing("compile").replace('role = "compile"', 'role = ["compile", "cache-read"]'))
    async with serving(config=config) as gateway, calling(gateway.address, token=token_of("compile")) as calls:
        await calls.finish(sample_job())
        with pytest.raises(Refused, match="keeps no entries"):
            await calls.get_entry("key")
        with pytest.raises(Refused, match="has role 'compile, cache-read', and Put needs 'cache-write'"):
            await calls.put_entry(b"content", key="key")


@pytest.mark.parametrize("act", ACTS)
async def test_each_role_may_do_what_it_may_and_no_more(act: str, config: GatewayConfig) -> None:
    needed, do = ACTS[act]
    for role in ROLES:
        async with serving(config=config) as gateway, calling(gateway.address, token=token_of(role)) as calls:
            if ROLES.index(role) < ROLES.index(needed):
                with pytest.raises(Refused, match=f"caller '{role}' has role '{role}', and .* needs") as refused:
                    await do(calls)
                assert (refused.value.status, refused.value.reason) == ("PERMISSION_DENIED", "not_allowed")
                continue
            try:
                await do(calls)
            except Refused as error:
                # There is nothing under the keys and digests that are asked for.
                assert error.status == "NOT_FOUND"  # noqa: PT017


def test_every_rpc_has_a_role() -> None:
    modules = (compile_service_pb2, blob_service_pb2, cache_service_pb2, package_service_pb2, admin_service_pb2)
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                assert find_needed_role(path), f"compilefarm.service.roles does not say who may call {path}"


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("token", ["", "wrong"])
async def test_strangers_may_do_nothing(act: str, token: str, config: GatewayConfig) -> None:
    pool = ScriptedPool()
    async with serving(config=config, pool=pool) as gateway, calling(gateway.address, token=token) as calls:
        with pytest.raises(Refused, match="does not know the token" if token else "set COMPILEFARM_TOKEN") as refused:
            await ACTS[act][1](calls)
    assert (refused.value.status, refused.value.reason) == ("UNAUTHENTICATED", "not_authenticated")
    assert pool.assignments == []


async def test_what_strangers_send_is_not_even_parsed(config: GatewayConfig) -> None:
    async with serving(config=config) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="UNAUTHENTICATED"), refusals():
            await calls.channel.unary_unary("/compilefarm.v1.CompileService/Lookup")(b"\xfa\x7f\xff")


async def test_health_is_told_to_everybody(config: GatewayConfig) -> None:
    async with serving(config=config) as gateway, calling(gateway.address) as calls:
        answer = await HealthStub(calls.channel).Check(HealthCheckRequest())
    assert answer.status == HealthCheckResponse.SERVING


async def test_the_tenant_is_the_callers_whatever_the_request_says(auth_file: Path, config: GatewayConfig) -> None:
    other = digest_of(b"other")
    replace(
        auth_file,
        listing("admin") + f'[[callers]]\nname = "x"\nrole = "compile"\ntenant = "team"\ntokens = ["sha256:{other}"]\n',
    )
    held = HeldCompiles()
    async with (
        serving(config=config, pool=ScriptedPool(held)) as gateway,
        calling(gateway.address, token="other") as calls,
        calling(gateway.address, token=token_of("admin")) as admin,
    ):
        watches = [await calls.watch(sample_job("torch.sin"), tenant="somebody-else")]
        await held.next()
        assert [job.tenant for job in (await admin.list_jobs()).jobs] == ["team"]
        watches.append(await admin.watch(sample_job("torch.cos"), tenant="somebody-else"))
        await admin.wait_until_queued(1)
        assert [job.tenant for job in (await admin.list_jobs()).jobs] == ["team", "admin"]
        assert len(watches) == 2


async def test_the_list_is_read_again_when_it_changes(
    auth_file: Path, config: GatewayConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(config=config) as gateway,
        calling(gateway.address, token=token_of("read")) as reader,
        calling(gateway.address, token=token_of("admin")) as admin,
    ):
        await reader.status()
        replace(auth_file, listing("admin"))
        await admin.status()
        with pytest.raises(Refused, match="does not know the token"):
            await reader.status()
        replace(auth_file, listing("read"))
        await reader.status()
        with pytest.raises(Refused, match="does not know the token"):
            await admin.status()
    assert f"{auth_file} changed, and was read again" in caplog.text


@pytest.mark.parametrize("change", ["spoil", "delete"])
async def test_a_list_that_becomes_unusable_is_ignored_loudly(
    change: str, auth_file: Path, config: GatewayConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(config=config) as gateway, calling(gateway.address, token=token_of("read")) as calls:
        replace(auth_file, "[[callers]\n")
        if change == "delete":
            delete(auth_file)
        for _ in range(3):
            await calls.status()
        (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert f"{auth_file} can" in record.message
        assert "what was read before holds" in record.message
        replace(auth_file, listing("admin"))
        with pytest.raises(Refused, match="does not know the token"):
            await calls.status()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[callers]\n", r"at line 1"),
        ("", "it lists nobody"),
        ("callers = 3", "it lists nobody"),
        ('names = ["a"]', "at the top: 'names' is unknown; known are"),
        ('[[callers]]\nrole = "read"', r"callers\[0\]: name has to be"),
        ('[[callers]]\nname = "a b"', r"callers\[0\]: name has to be"),
        ('[[callers]]\nname = "a"\nroles = "read"', r"callers\[0\]: 'roles' is unknown; known are name, role"),
        (
            '[[callers]]\nname = "a"\nrole = "reader"\ntokens = []\ncertificates = ["x"]',
            r"\(a\): role is 'reader': use",
        ),
        ('[[callers]]\nname = "a"\nrole = "read"', r"\(a\): it has neither tokens nor certificates"),
        ('[[callers]]\nname = "a"\nrole = "read"\ntokens = "x"', r"\(a\): tokens has to be a list"),
        ('[[callers]]\nname = "a"\nrole = "read"\ntokens = ["s3cret"]', r"\(a\): a token is not written as sha256:"),
        ('[[callers]]\nname = "a"\nrole = "read"\ntenant = 3\ntokens = []', "it has neither"),
        (2 * '[[callers]]\nname = "a"\nrole = "read"\ncertificates = ["x"]\n', "the name a is there twice"),
        (
            listing("read") + listing("read").replace('name = "read"', 'name = "b"'),
            "the token sha256:.* is there twice",
        ),
    ],
)
async def test_a_farm_does_not_start_with_a_list_that_it_cannot_use(
    text: str, message: str, auth_file: Path, config: GatewayConfig
) -> None:
    replace(auth_file, text)
    with pytest.raises(CannotStart, match=message) as error:
        async with serving(config=config):
            pass
    assert str(auth_file) in str(error.value)
    assert "s3cret" not in str(error.value)


async def test_a_farm_does_not_start_without_the_list_that_it_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"missing\.toml cannot be read: No such file"):
        async with serving(config=GatewayConfig(listen="127.0.0.1:0", auth_file=str(tmp_path / "missing.toml"))):
            pass


def test_a_caller_may_have_several_tokens_while_one_replaces_another(auth_file: Path) -> None:
    both = f'["sha256:{digest_of(b"old")}", "sha256:{digest_of(b"new")}"]'
    auth_file.write_text(f'[[callers]]\nname = "a"\nrole = "admin"\ntokens = {both}\n')
    directory = read_directory(str(auth_file))
    for token in ("old", "new"):
        caller = directory.find_by_token(token)
        assert caller is not None
        assert (caller.name, caller.role, caller.tenant) == ("a", Role.ADMIN, "a")
    assert directory.find_by_token("other") is None


async def test_a_farm_beyond_this_machine_needs_a_list_of_callers(auth_file: Path) -> None:
    with pytest.raises(CannotStart, match=r"--auth FILE, listen on 127\.0\.0\.1, or pass --insecure"):
        async with serving(config=GatewayConfig(listen="0.0.0.0:0")):
            pass
    config = GatewayConfig(listen="0.0.0.0:0", auth_file=str(auth_file))
    async with serving(config=config) as gateway:
        address = gateway.address.replace("0.0.0.0", "127.0.0.1")
        async with calling(address, token=token_of("read")) as calls:
            await calls.status()


async def test_tokens_that_travel_in_clear_are_warned_of(
    auth_file: Path, config: GatewayConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(config=config):
        assert "in clear" not in caplog.text
    async with serving(config=GatewayConfig(listen="0.0.0.0:0", auth_file=str(auth_file))):
        assert "tokens travel in clear" in caplog.text


async def test_no_token_shows_in_the_log(config: GatewayConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with serving(config=config) as gateway:
        for token in ("wrong-but-secret", token_of("compile")):
            async with calling(gateway.address, token=token) as calls:
                await asyncio.gather(calls.status(), calls.finish(sample_job()), return_exceptions=True)
    assert "is refused to" in caplog.text
    assert "wrong-but-secret" not in caplog.text
    assert token_of("compile") not in caplog.text


def test_a_method_that_no_role_is_said_to_need_is_open_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "callers.toml").write_text(listing("admin"))
    file = str(tmp_path / "callers.toml")
    authenticator = DirectoryAuthenticator(Watched([file], read=partial(read_directory, file)))
    context = mock.Mock(**{"invocation_metadata.return_value": [(TOKEN_KEY, f"{BEARER}{token_of('admin')}")]})
    context.peer.return_value = "ipv4:127.0.0.1:1"
    assert authenticator.authenticate(context, method="/compilefarm.v1.AdminService/Drain").name == "admin"
    with pytest.raises(NotAllowed, match="open to nobody"):
        authenticator.authenticate(context, method="/compilefarm.v1.AdminService/Later")


def test_all_tokens_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "callers.toml").write_text(listing(*ROLES))
    directory = read_directory(str(tmp_path / "callers.toml"))
    compare = mock.Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token, name in ((token_of("read"), "read"), (token_of("admin"), "admin"), ("none", None)):
        compare.reset_mock()
        found = directory.find_by_token(token)
        assert (found and found.name, compare.call_count) == (name, len(ROLES))
