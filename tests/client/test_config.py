"""What the client can be told."""

from __future__ import annotations

import pytest

from compilefarm.client.config import ClientConfig, ConfigurationError, read_config
from compilefarm.client.farm import Farm
from compilefarm.client.trust import Trust


def test_the_environment_is_read() -> None:
    config = read_config(
        {
            "COMPILEFARM_ADDRESS": "farm:7077",
            "COMPILEFARM_ON_MISS": "local",
            "COMPILEFARM_PRIORITY": "background",
            "COMPILEFARM_TENANT": "search",
            "COMPILEFARM_TIMEOUT_SECONDS": "12.5",
            "COMPILEFARM_TOKEN": "abc",
        }
    )
    assert config == ClientConfig(
        address="farm:7077",
        on_miss="local",
        priority="background",
        tenant="search",
        timeout_seconds=12.5,
        trust=Trust(token="abc"),
    )


def test_what_is_given_comes_before_the_environment() -> None:
    environ = {"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_PRIORITY": "background", "COMPILEFARM_RECORD": "/a"}
    config = read_config(environ, address="other:1", priority="prewarm", record="", timeout_seconds=3)
    assert config == ClientConfig(address="other:1", priority="prewarm", timeout_seconds=3)


def test_a_farm_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILEFARM_ADDRESS", "farm:7077")
    monkeypatch.setenv("COMPILEFARM_PRIORITY", "high")
    with pytest.raises(ConfigurationError, match="'high'"):
        Farm()
    Farm(priority="background").close()


def test_defaults() -> None:
    config = read_config({"COMPILEFARM_ADDRESS": "farm:7077"})
    assert (config.on_miss, config.timeout_seconds, config.connect_timeout_seconds) == ("wait", 600.0, 5.0)
    assert config.priority == "interactive"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "COMPILEFARM_ADDRESS=host:port"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_ONMISS": "local"}, "COMPILEFARM_ONMISS; known are COMPI"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_ON_MISS": "never"}, "'never': use one of wait, local"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_ON_FAILURE": "wait"}, "'wait': use one of local, eager"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_SELF_CHECK": "2"}, "2.0: use a fraction from 0 to 1"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_SELF_CHECK": "always"}, "'always': use a number"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_PRIORITY": "high"}, "priority is 'high': use one of int"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TENANT": "a team"}, "'a team': use at most 100 ASCII"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TENANT": "x" * 101}, "use at most 100 ASCII"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TIMEOUT_SECONDS": "1m"}, "'1m': use a number"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TIMEOUT_SECONDS": "0"}, "above zero"),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TIMEOUT_SECONDS": "nan"}, "above zero"),
        ({"COMPILEFARM_ADDRESS": "http://farm:7077"}, "without http://"),
        ({"COMPILEFARM_ADDRESS": "farm"}, "use host:port"),
        (
            {"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TOKEN": "a", "COMPILEFARM_TOKEN_FILE": "b"},
            "a token and a file with a token are given",
        ),
        ({"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TOKEN": "a\n"}, "the token has characters"),
        (
            {"COMPILEFARM_ADDRESS": "farm:7077", "COMPILEFARM_TRUSTED_KEYS": "ed25519:ab"},
            "'ed25519:ab' is no public key",
        ),
        ({"COMPILEFARM_ADDRESS": "farm:70777"}, "use host:port"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_remedy(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        read_config(environ)


@pytest.mark.parametrize("address", ["farm:7077", "10.0.0.1:1", "[::1]:7077", "unix:/run/farm.sock", "a.b-c.d:65535"])
def test_addresses(address: str) -> None:
    assert ClientConfig(address=address).address == address


def test_what_kubernetes_says_about_a_service_named_compilefarm_is_no_setting() -> None:
    read_config(
        {
            "COMPILEFARM_ADDRESS": "farm:7077",
            "COMPILEFARM_SERVICE_HOST": "10.0.0.1",
            "COMPILEFARM_SERVICE_PORT": "7077",
            "COMPILEFARM_SERVICE_PORT_GRPC": "7077",
            "COMPILEFARM_PORT": "tcp://10.0.0.1:7077",
            "COMPILEFARM_PORT_7077_TCP": "tcp://10.0.0.1:7077",
            "COMPILEFARM_PORT_7077_TCP_ADDR": "10.0.0.1",
            "COMPILEFARM_GATEWAY_SERVICE_HOST": "10.0.0.1",
        }
    )


def test_a_farm_without_an_address_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPILEFARM_ADDRESS", raising=False)
    with pytest.raises(ConfigurationError, match="COMPILEFARM_ADDRESS"):
        Farm()
