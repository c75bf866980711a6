"""`compilefarm keys`: what it makes works."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from compilefarm.cli.main import main
from compilefarm.core.public_keys import read_public_key
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.directory import read_directory
from compilefarm.service.roles import CacheRole, Role
from compilefarm.service.signing import open_signing_policy
from compilefarm.service.testing import Authority, serving_in_thread
from compilefarm.store.signing_policy import SignedManifests


def test_a_token_is_shown_once_with_an_entry_that_lets_its_holder_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["keys", "token", "search", "--role", "admin"]) == 0
    said = capsys.readouterr().out
    auth_file = tmp_path / "callers.toml"
    # As it is: what is not an entry is a comment.
    auth_file.write_text(said)
    token = next(line for line in said.splitlines() if "cft_" in line).removeprefix("# ")
    with serving_in_thread(config=GatewayConfig(listen="127.0.0.1:0", auth_file=str(auth_file))) as address:
        assert main(["jobs", "--address", address]) == 1
        assert "set COMPILEFARM_TOKEN_FILE or COMPILEFARM_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("COMPILEFARM_TOKEN", token)
        assert main(["jobs", "--address", address]) == 0
        assert capsys.readouterr().out == "no jobs\n"


def test_a_token_that_is_written_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, auth_file = tmp_path / "token", tmp_path / "callers.toml"
    assert main(["keys", "token", "search", "--write", str(file)]) == 0
    said, token = capsys.readouterr().out, file.read_text().strip()
    assert token not in said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    auth_file.write_text(said)
    caller = read_directory(str(auth_file)).find_by_token(token)
    assert caller is not None
    assert (caller.name, caller.role) == ("search", Role.COMPILE)


def test_a_token_has_the_roles_that_were_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auth_file = tmp_path / "callers.toml"
    roles = ["--role", "prewarm", "--role", "cache-write"]
    assert main(["keys", "token", "search", "--write", str(tmp_path / "token"), *roles]) == 0
    auth_file.write_text(capsys.readouterr().out)
    (listed,) = read_directory(str(auth_file)).listed
    assert (listed.caller.role, listed.caller.cache_role) == (Role.PREWARM, CacheRole.WRITE)


def test_no_two_tokens_are_the_same(tmp_path: Path) -> None:
    for name in "ab":
        assert main(["keys", "token", name, "--write", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()
    assert len((tmp_path / "a").read_text()) > 40


async def test_a_key_for_signatures_is_made_and_its_public_half_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key.pem"
    assert main(["keys", "new", str(file)]) == 0
    public = capsys.readouterr().out.strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["keys", "public", str(file)]) == 0
    assert capsys.readouterr().out.strip() == public == read_public_key(public).text
    assert isinstance(
        await open_signing_policy(key_file=str(file), signer=None, trusted_keys=[public]), SignedManifests
    )
    assert main(["keys", "new", str(file)]) == 1, "a key is never overwritten"


def test_a_file_without_a_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key.pem"
    file.write_text("no key")
    assert main(["keys", "public", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"compilefarm keys: {file}: it is no private key in PEM")


async def test_a_farm_does_not_start_with_a_signing_key_that_it_cannot_use(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    with pytest.raises(CannotStart, match=r"the signing key .*key\.pem cannot be read: No such file"):
        await open_signing_policy(key_file=str(file), signer=None, trusted_keys=[])
    assert main(["keys", "new", str(file)]) == 0
    with pytest.raises(CannotStart, match="--trusted-key: 'ed25519:abc' is no public key"):
        await open_signing_policy(key_file=str(file), signer=None, trusted_keys=["ed25519:abc"])
    with pytest.raises(CannotStart, match="--trusted-key goes with --signing-key or --signer"):
        await open_signing_policy(key_file=None, signer=None, trusted_keys=["ed25519:abc"])
    with pytest.raises(CannotStart, match="exclude each other: the signer has the key"):
        await open_signing_policy(key_file=str(file), signer="unix:/run/signer.sock", trusted_keys=[])
    file.chmod(0o644)
    with pytest.raises(CannotStart, match="may be read or changed by others: chmod 600"):
        await open_signing_policy(key_file=str(file), signer=None, trusted_keys=[])
    file.chmod(0o600)
    file.write_bytes(Authority().issue().key)
    with pytest.raises(CannotStart, match="another kind than ed25519"):
        await open_signing_policy(key_file=str(file), signer=None, trusted_keys=[])


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("precious")
    assert main(["keys", "token", "search", "--write", str(file)]) == 1
    assert capsys.readouterr().err == f"compilefarm keys: {file}: file exists\n"
    assert file.read_text() == "precious"
