"""One farm for the tests of this folder: `compilefarm serve` with the real worker, as a user starts it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from compilefarm.client import stats

from .libraries import MODULES
from .serving import ServedFarm, run, serve


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFarm]:
    folder = tmp_path_factory.mktemp("farm")
    key = str(folder / "signing-key.pem")
    assert run("keys", "new", key).returncode == 0
    config = folder / "farm.toml"
    config.write_text(f'log-format = "json"\nmetrics-listen = "127.0.0.1:0"\nsigning-key = "{key}"\n')
    with serve(folder, ["--config", str(config)]) as served:
        yield served


@pytest.fixture(scope="session")
def library_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFarm]:
    """A farm that has libraries of operators, as this process has then, and takes kernels of Triton. It is in a sandbox
    where there is one."""
    folder = tmp_path_factory.mktemp("libraries")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for name in MODULES:
            importlib.import_module(name)
        with serve(folder, ["--allow-triton-kernels"], modules=list(MODULES), module_folder=folder) as served:
            yield served


@pytest.fixture(scope="session")
def bare_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFarm]:
    """A farm without a sandbox whose compiles have little memory."""
    with serve(tmp_path_factory.mktemp("bare"), ["--sandbox", "off", "--memory-limit", "4"]) as served:
        yield served


@pytest.fixture(autouse=True)
def right_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Holds the first call of every program to the uncompiled graph."""
    monkeypatch.setenv("COMPILEFARM_SELF_CHECK", "1")
    known = len(stats())
    yield
    checks = [record.self_check for record in stats()[known:] if record.self_check is not None]
    assert [check for check in checks if check.outcome == "differs"] == []


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
