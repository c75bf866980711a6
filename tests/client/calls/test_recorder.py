"""What a pod asks of its farm, recorded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from compilefarm.client import Farm
from compilefarm.client.config import ConfigurationError, read_config
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeGraphModule, FakeRuntime
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import UnusableRecording
from compilefarm.core.recordings import read_recording
from compilefarm.graph.bypass import Bypass


def farm_at(address: str, folder: Path, **settings: Any) -> tuple[Farm, FakeRuntime]:
    runtime = FakeRuntime()
    farm = Farm(address, record=folder, dependencies=Dependencies(runtime=runtime, ledger=Ledger()), **settings)
    return farm, runtime


def test_every_request_is_recorded_in_order_whatever_becomes_of_it(address: str, tmp_path: Path) -> None:
    farm, runtime = farm_at(address, tmp_path / "recording")
    tensor = {digest_of(b"tensor"): b"tensor"}
    farm.backend(FakeGraphModule("one"), [], mode="default", options={"cpp.simdlen": 0}, name="encoder")
    farm.backend(FakeGraphModule("other", blobs=tensor), [])
    runtime.encoding_error = Bypass("several_devices", "the graph uses cuda:0 and cuda:1")
    farm.backend(FakeGraphModule("third"), [])
    runtime.encoding_error = None
    farm.backend(FakeGraphModule("one"), [], mode="default", options={"cpp.simdlen": 0}, name="encoder")
    recording = read_recording(tmp_path / "recording")
    assert [(each.name, each.first, each.count) for each in recording.requests] == [("encoder", 0, 2), ("", 1, 1)]
    arguments = recording.requests[0].request.arguments
    assert arguments is not None
    assert [option.name for option in arguments.options] == ["cpp.simdlen"]
    (bypass,) = recording.bypasses
    assert (bypass.reason, bypass.first, bypass.nodes) == ("several_devices", 2, 2)


def test_a_graph_that_a_defect_kept_from_the_farm_is_recorded(address: str, tmp_path: Path) -> None:
    farm, runtime = farm_at(address, tmp_path / "recording")
    runtime.encoding_error = AttributeError("no such name")
    farm.backend(FakeGraphModule("one"), [])
    (noted,) = read_recording(tmp_path / "recording").bypasses
    assert (noted.reason, noted.message) == ("defect", "AttributeError: no such name")


def test_a_farm_that_has_nothing_is_recorded_too(address: str, tmp_path: Path) -> None:
    farm, runtime = farm_at(address, tmp_path, on_miss="local")
    farm.backend(FakeGraphModule("one"), [])
    assert runtime.local_compiles == 1
    assert len(read_recording(tmp_path).requests) == 1


def test_a_recording_that_breaks_costs_no_model_and_is_loud(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    farm, _ = farm_at(address, tmp_path)
    (tmp_path / "recording.json").write_text("{")
    with caplog.at_level(logging.ERROR):
        assert farm.backend(FakeGraphModule("one"), [])()[0] == "farm"
    assert "graph 0 is missing from the recording" in caplog.text


def test_a_folder_that_cannot_be_used_is_said_at_once(address: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableRecording, match="cannot be written"):
        farm_at(address, tmp_path / "file")


def test_the_environment_names_the_folder() -> None:
    environ = {"COMPILEFARM_ADDRESS": "farm:1", "COMPILEFARM_RECORD": "/recordings/a"}
    assert (read_config(environ).record, read_config(environ).record_tensors) == ("/recordings/a", True)
    assert read_config(environ | {"COMPILEFARM_RECORD_TENSORS": "no"}).record_tensors is False
    with pytest.raises(ConfigurationError, match="COMPILEFARM_RECORD_TENSORS is 'maybe': use yes or no"):
        read_config(environ | {"COMPILEFARM_RECORD_TENSORS": "maybe"})
