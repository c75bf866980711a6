"""What `compilefarm serve` refuses unless it is asked for by name."""

from __future__ import annotations

import os

import pytest

from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.serving.safeguards import check_user, root_allowed, sandbox_mode
from compilefarm.worker.sandbox import Mode

_ALONE = GatewayConfig()
_WITH_CALLERS = GatewayConfig(auth_file="callers.toml")
_BEYOND = GatewayConfig(listen="0.0.0.0:7077", insecure=True)


@pytest.mark.parametrize(
    ("asked", "config", "expected"),
    [
        ("auto", _ALONE, "auto"),
        ("auto", _WITH_CALLERS, "require"),
        ("auto", _BEYOND, "require"),
        ("off", _WITH_CALLERS, "off"),
        ("off", _BEYOND, "off"),
        ("require", _ALONE, "require"),
    ],
)
def test_where_there_are_strangers_a_sandbox_is_required(asked: Mode, config: GatewayConfig, expected: Mode) -> None:
    assert sandbox_mode(asked, config) == expected


@pytest.mark.parametrize(("asked", "expected"), [("auto", "require"), ("off", "off")])
def test_on_a_cluster_a_sandbox_is_required(asked: Mode, expected: Mode) -> None:
    assert sandbox_mode(asked, _ALONE, ray_address="head:6379") == expected


def test_root_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(CannotStart, match="--allow-root"):
        check_user(allow_root=False)
    check_user(allow_root=True)
    assert root_allowed() == ("--allow-root",)


def test_others_need_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_user(allow_root=False)
    assert root_allowed() == ()
