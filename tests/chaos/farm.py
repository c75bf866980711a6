"""Gateways as processes: started, killed, looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilefarm.serving.farm import READY_LINE
from tests.processes import descendants, last_descendants

from .ray_cluster import RayCluster

ROOT = Path(__file__).parent.parent.parent


class DidNotStart(Exception):
    """A gateway ended before it served. The message is the end of its log."""


class KilledFarm:
    """A farm whose gateway is killed and started again, at the same address, with the same store.

    Attributes:
        address: where it listens, once it has been started.
        kills: how often it was killed.

    Args:
        folder: for store, journal and log.
        options: of tests.chaos.gateway.
        child: options of its children.
        log: where what it prints goes; None is a file in the folder.
        cluster: has its workers, which go on when the gateway is killed; None: they are its own processes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        child: Sequence[str] = (),
        log: Path | None = None,
        cluster: RayCluster | None = None,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._log = log or folder / "gateway.log"
        self._options = options
        self._child = child
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        self.kills = 0

    def start(self) -> None:
        """Starts the gateway; returns when it serves.

        Raises:
            DidNotStart: it does not.
        """
        module = "tests.chaos.gateway"
        command = [sys.executable, "-m", module, str(self._folder), "--listen", self.address, *self._options]
        if self._cluster is not None:
            command += ["--ray-address", self._cluster.address]
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                [*command, *self._child],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=with_root(os.environ),
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY_LINE):
            self._process.stdout.close()
            self._process.wait()
            raise DidNotStart(self._log.read_text()[-2000:])
        self.address = line.removeprefix(READY_LINE).strip()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it was not started"
        return self._process

    def kill(self) -> None:
        """Ends the gateway as a power failure would: nothing of it is left to tidy up."""
        # Its children notice, but not always at once.
        children = [] if self._cluster is not None else self.children()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.kills += 1

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[int]:
        """The processes of its workers."""
        return sorted(descendants(self.process.pid)) if self._cluster is None else self._cluster.children()

    def last_children(self) -> list[int]:
        """Those of them that have no children themselves: some have a task."""
        return sorted(last_descendants(self.process.pid)) if self._cluster is None else self._cluster.last_children()

    def resident_bytes(self) -> int:
        """What the gateway itself has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])


@contextlib.contextmanager
def running(
    folder: Path, *, options: Sequence[str] = (), child: Sequence[str] = (), cluster: RayCluster | None = None
) -> Iterator[KilledFarm]:
    """A farm, killed in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    farm = KilledFarm(folder, options=options, child=child, cluster=cluster)
    farm.start()
    try:
        yield farm
    finally:
        farm.kill()


def with_root(variables: os._Environ[str]) -> dict[str, str]:
    """Variables with which Python finds this checkout's tests."""
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))}
