"""Artifacts of a farm in torch's own forms, which torch loads where nothing of ours is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from compilefarm.client.blobs import fetch
from compilefarm.client.clock import Budget, Clock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.core.artifacts import blobs_of
from compilefarm.core.bundles import torch_differences
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact, NotStored, UnusableFolder
from compilefarm.v1.admin_service_pb2 import InspectRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.manifest_pb2 import Manifest

if TYPE_CHECKING:
    from compilefarm.loader.exports import Format


class Exports:
    """Writes artifacts of a farm to files.

    Args:
        config: of the client.
        connection: to the farm.
        clock: time.
    """

    def __init__(self, config: ClientConfig, *, connection: Connection, clock: Clock) -> None:
        self._config = config
        self._connection = connection
        self._clock = clock

    def write(self, key: str, path: str | Path, *, format: Format) -> None:
        """Writes the artifact of a key in one of torch's forms. Unpickles it, as loading it would.

        Args:
            key: of the artifact, or a beginning of it that is unique.
            path: a file, which is replaced, or for "unpacked" a folder that is empty or not there.
            format: of `compilefarm.loader.exports.write_export`.

        Raises:
            NotStored: nothing is served under the key.
            UntrustedArtifact: no trusted key has signed it.
            IncompatibleArtifact: another torch has made it, or torch's form cannot hold it.
            UnusableFolder: the path cannot be written.
            FarmError: the farm gives it not.
        """
        budget = Budget(self._config.timeout_seconds, clock=self._clock)
        manifest = self._find(key, budget=budget)
        _require_this_torch(manifest)
        blobs = fetch(blobs_of(manifest), connection=self._connection, budget=budget)
        from compilefarm.loader.exports import write_export

        try:
            write_export(manifest, blobs=blobs, path=_place_of(Path(path), format=format), format=format)
        except OSError as error:
            raise UnusableFolder(f"{path} cannot be written: {error}") from error

    def _find(self, key: str, *, budget: Budget) -> Manifest:
        stubs = self._connection.stubs(within_seconds=budget.left())
        with self._connection.calls():
            found = AdminServiceStub(stubs.channel).Inspect(InspectRequest(key=key), timeout=budget.timeout())
        if not found.HasField("manifest"):
            raise NotStored(f"no artifact of {key} is served")
        if not found.manifest.key.startswith(key):
            raise CorruptArtifact(f"the farm answered with the artifact {found.manifest.key!r} instead of {key!r}")
        self._require_trusted(found.manifest)
        return found.manifest

    def _require_trusted(self, manifest: Manifest) -> None:
        if trusted := self._config.trust.trusted_keys:
            from compilefarm.core.signatures import check_signature

            check_signature(manifest, trusted=trusted)


def _require_this_torch(manifest: Manifest) -> None:
    from compilefarm.graph.encoded_jobs import EnvironmentNeeds
    from compilefarm.loader.environment import describe_environment

    here = describe_environment(EnvironmentNeeds(cpu=False, cuda_device=None))
    if differing := torch_differences(here=here, there=manifest.environment):
        raise IncompatibleArtifact(f"the torch that has made an artifact has to export it: {'; '.join(differing)}")


def _place_of(path: Path, *, format: Format) -> Path:
    """The path, if what is there may be replaced."""
    if format == "binary" and path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if format == "unpacked":
        require_empty(path)
    return path


def require_empty(folder: Path) -> None:
    """Passes if a folder is empty or not there.

    Raises:
        OSError: there is something in it, or it is none.
    """
    if folder.exists() and os.listdir(folder):
        raise FileExistsError(f"{folder} is not empty")
