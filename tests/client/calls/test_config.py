"""What the client can be told."""

from __future__ import annotations

import inspect
import pydoc

import pytest

from compilefarm.client.config import SETTINGS, ClientConfig, ConfigurationError, Settings, read_config
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeGraphModule, FakeRuntime
from compilefarm.client.trust import Trust
from compilefarm.core.errors import Unreachable
from compilefarm.core.signatures import new_signing_key


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


def test_a_farm_of_a_configuration_reads_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILEFARM_ADDRESS", "elsewhere:1")
    monkeypatch.setenv("COMPILEFARM_ON_FAILURE", "eager")
    # Nobody listens there.
    config = ClientConfig(address="127.0.0.1:1", on_failure="error", connect_timeout_seconds=5.0)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        Farm(config, dependencies=Dependencies(runtime=FakeRuntime(), ledger=Ledger())).backend(FakeGraphModule(), [])


def test_a_setting_beside_a_configuration_is_refused() -> None:
    with pytest.raises(TypeError, match="no settings beside the configuration: put on_miss into it"):
        Farm(ClientConfig(address="farm:7077"), on_miss="local", tenant=None)


def test_arguments_variables_and_documentation_follow_from_one_table() -> None:
    arguments = [setting.name for setting in SETTINGS if setting.is_argument]
    assert [name for name in inspect.signature(Farm).parameters if name in arguments] == arguments
    assert {"address", *Settings.__annotations__} == set(arguments)
    with pytest.raises(ConfigurationError) as refused:
        read_config({"COMPILEFARM_X": ""})
    help_text = pydoc.render_doc(Farm)
    for setting in SETTINGS:
        assert setting.meaning.endswith("."), setting
        assert setting.name in help_text or not setting.is_argument
        assert setting.variable in help_text or not setting.is_argument
        assert setting.variable in str(refused.value)


def test_every_variable_is_read() -> None:
    texts = {
        "address": "unix:/farm",
        "on_miss": "local",
        "on_failure": "eager",
        "self_check": "0.5",
        "priority": "prewarm",
        "tenant": "search",
        "token": "abc",
        "tls_ca": "ca",
        "tls_certificate": "certificate",
        "tls_key": "key",
        "record": "folder",
        "record_tensors": "no",
        "torch_caches": "yes",
        "warm": "yes",
        "cache_timeout_seconds": "4",
        "cache_signing_key": "signing",
        "dynamo": "publish",
        "dynamo_canary": "0.25",
        "package_signing_key": "publisher",
        "timeout_seconds": "3",
    }
    variables = {setting.name: setting.variable for setting in SETTINGS if setting.variable}
    assert variables.keys() - texts.keys() == {
        "token_file",
        "trusted_keys",
        "trusted_cache_keys",
        "trusted_package_keys",
    }
    config = read_config({variables[name]: text for name, text in texts.items()})
    trust = Trust(
        token="abc",
        tls_ca="ca",
        tls_certificate="certificate",
        tls_key="key",
        cache_signing_key="signing",
        package_signing_key="publisher",
    )
    assert config == ClientConfig(
        address="unix:/farm",
        on_miss="local",
        on_failure="eager",
        self_check=0.5,
        priority="prewarm",
        dynamo="publish",
        dynamo_canary=0.25,
        tenant="search",
        trust=trust,
        record="folder",
        record_tensors=False,
        torch_caches=True,
        warm=True,
        cache_timeout_seconds=4.0,
        timeout_seconds=3.0,
    )
    public = new_signing_key().public
    config = read_config({"COMPILEFARM_TOKEN_FILE": "file", "COMPILEFARM_TRUSTED_KEYS": public.text}, address="farm:1")
    assert config.trust == Trust(token_file="file", trusted_keys=(public,))
    config = read_config({"COMPILEFARM_TRUSTED_CACHE_KEYS": public.text}, address="farm:1")
    assert config.trust == Trust(trusted_cache_keys=(public,))
    config = read_config({"COMPILEFARM_TRUSTED_PACKAGE_KEYS": public.text}, address="farm:1")
    assert config.trust == Trust(trusted_package_keys=(public,))


def test_an_argument_for_the_token_leaves_both_variables_unread() -> None:
    environ = {"COMPILEFARM_TOKEN_FILE": "file", "COMPILEFARM_TLS_CA": "ca"}
    assert read_config(environ, address="farm:1", token="mine").trust == Trust(token="mine", tls_ca="ca")


def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'on_mis'; known are address, on_miss"):
        Farm("farm:7077", on_mis="wait")  # type: ignore[call-arg]
