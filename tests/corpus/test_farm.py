"""Every program of the table, compiled by a farm: `pytest -m corpus` (an hour on two cores)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rich.console import Console

from compilefarm.client import Farm
from tests.farm.serving import serve

from .report import print_report
from .run import Row, check_farm
from .table import LIBRARIES, PROGRAMS, ROOT

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    options = ("--allow-triton-kernels",)
    with serve(tmp_path_factory.mktemp("corpus"), options, modules=LIBRARIES, module_folder=ROOT) as farm:
        yield Farm(farm.address)


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[list[Row]]:
    """The rows of all tests, printed in the end."""
    collected: list[Row] = []
    yield collected
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print_report(Console(), collected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_farm_compiles_what_eager_computes(client: Farm, rows: list[Row], name: str) -> None:
    row = check_farm(PROGRAMS[name], client)
    rows.append(row)
    if row.lacking is not None:
        pytest.skip(row.lacking)
    assert not row.crashes, "\n".join(row.crashes)
    assert not row.differences
