"""A real S3 service on this host, out of one program."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from obstore.store import S3Store

PROGRAM = Path(sysconfig.get_path("scripts"), "weed")
BUCKET = "farm"
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running service with an empty bucket.

    Attributes:
        endpoint: its URL.
        environment: what a program needs in its environment to be let in.
        reading: the same, to read and list and nothing more.
    """

    endpoint: str
    environment: Mapping[str, str]
    reading: Mapping[str, str]

    def location(self, prefix: str) -> str:
        """How a store is named that lies there."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def medium(self, prefix: str) -> S3Store:
        """The same place for tests that go behind the back of a store."""
        return S3Store(
            BUCKET,
            prefix=prefix,
            config={
                "endpoint": self.endpoint,
                "region": "us-east-1",
                "access_key_id": self.environment["AWS_ACCESS_KEY_ID"],
                "secret_access_key": self.environment["AWS_SECRET_ACCESS_KEY"],
            },
            client_options={"allow_http": True},
            # Long enough for a service that is still starting.
            retry_config={"max_retries": 100, "retry_timeout": timedelta(seconds=120)},
        )


@contextlib.contextmanager
def serving_s3(folder: Path) -> Iterator[S3Server]:
    """A service that keeps its files in a folder and is gone when the context ends."""
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    farm, reader = _credentials("farm"), _credentials("reader")
    rights = {"identities": [_identity(farm, "Admin"), _identity(reader, "Read", "List")]}
    (folder / "rights.json").write_text(json.dumps(rights))
    command = [
        *(PROGRAM, "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"),
        *(f"-{name}={port}" for name, port in ports.items()),
        *("-s3", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=true", "-master.telemetry=false"),
        f"-s3.config={folder / 'rights.json'}",
        *("-volume.max=0", "-master.volumeSizeLimitMB=64"),
        *(f"-filer.localSocket={folder / 'filer.sock'}", f"-s3.localSocket={folder / 's3.sock'}"),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = S3Server(endpoint=f"http://127.0.0.1:{ports['s3.port']}", environment=farm, reading=reader)
        server.medium("").put("ready", b"")
        yield server
    finally:
        # Asked to end, it would take half a minute.
        process.kill()
        process.wait()


def _credentials(name: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": f"secret-of-the-{name}"}


def _identity(credentials: Mapping[str, str], *actions: str) -> dict[str, object]:
    access_key, secret_key = credentials.values()
    return {
        "name": access_key,
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": list(actions),
    }


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
