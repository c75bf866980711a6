"""What the options of `compilefarm serve` set."""

from __future__ import annotations

import argparse

import pytest

from compilefarm.cli import serve
from compilefarm.service.config import GatewayConfig


def config(*arguments: str) -> GatewayConfig:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return serve.gateway_config(parser.parse_args(arguments))


def test_without_options_the_defaults_hold() -> None:
    assert config() == GatewayConfig()


def test_every_option_reaches_the_gateway() -> None:
    given = config(
        *("--listen", "[::]:1", "--insecure"),
        *("--metrics-listen", "127.0.0.1:9100"),
        *("--verify", "after"),
        *("--queue-limit", "7", "--tenant-limit", "3", "--orphan-grace", "0"),
    )
    assert given == GatewayConfig(
        listen="[::]:1",
        metrics_listen="127.0.0.1:9100",
        insecure=True,
        max_queued_jobs=7,
        max_queued_jobs_of_tenant=3,
        orphan_seconds=0.0,
        verify="after",
    )


def test_each_farm_keeps_its_accepted_jobs_in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    folders = [
        serve.state_folder(parser.parse_args(arguments))
        for arguments in ([], ["--store", "/other"], ["--listen", "127.0.0.1:1"], ["--state", "/mine"])
    ]
    assert folders[0] == serve.state_folder(parser.parse_args([]))
    assert len(set(folders)) == 4
    assert all(str(folder).startswith("/state/compilefarm/") for folder in folders[:3])
    assert str(folders[3]) == "/mine"


def test_the_store_can_be_limited() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    assert parser.parse_args([]).store_size_limit is None
    assert parser.parse_args(["--store-size-limit", "50GB"]).store_size_limit == 50 * 10**9


@pytest.mark.parametrize("option", ["--queue-limit", "--tenant-limit"])
def test_a_queue_without_room_is_no_queue(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config(option, "0")
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err
