"""What torch.compile was called with decides which packages a function may start by."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.records import Ledger
from compilefarm.client.starts import Starts
from compilefarm.torch_internals.dynamo_frames import Frame

FACTOR = 2.0


def doubling_pass(graph: Any) -> float:
    return FACTOR * len(graph.nodes)


class Pass:
    """A pass of a class of its own."""

    __call__ = staticmethod(doubling_pass)


@pytest.mark.parametrize("code", [doubling_pass, [doubling_pass], Pass()], ids=["function", "several", "object"])
def test_where_code_of_the_pod_is_an_option_nothing_is_looked_for(
    code: object, caplog: pytest.LogCaptureFixture
) -> None:
    packages = _packages_asked({"mode": "default", "options": {"pre_grad_custom_pass": code}}, caplog)
    packages.find.assert_not_called()
    assert "pre_grad_custom_pass is an object that may rest on anything" in caplog.text


def test_where_options_are_constants_packages_are_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    packages = _packages_asked({"options": {"max_autotune": True, "cpp.threads": 2}}, caplog)
    packages.find.assert_called_once()


def _packages_asked(arguments: dict[str, Any], caplog: pytest.LogCaptureFixture) -> mock.Mock:
    """Where a function that torch.compile was called for with some arguments looked for packages."""
    packages = mock.Mock(spec=FarmPackages)
    packages.find.return_value = SimpleNamespace(found=(), reasons=())
    frame = Frame(
        code=_packages_asked.__code__,
        local_variables={},
        global_variables=globals(),
        builtins={},
        closure=(),
        backend=SimpleNamespace(kwargs=arguments),  # type: ignore[arg-type]
        is_whole=False,
        is_plain=True,
    )
    starts = Starts(packages, begin_request=mock.Mock(), withdraw_package=mock.Mock(), ledger=Ledger(), publishes=False)
    with caplog.at_level(logging.INFO, logger="compilefarm.client"):
        assert starts.start(frame, lambda: "traced") == "traced"
    return packages
