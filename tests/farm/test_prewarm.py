"""From a recording to pods that compile nothing: prewarming as a release does it, with processes that are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.recorder import Recorder
from compilefarm.core.requests import Request, read_request
from compilefarm.core.signatures import new_signing_key
from tests.lean import LEAN

from .serving import COMMAND, ServedFarm, bare_environment, run, serve

pytestmark = pytest.mark.compiles

# The interpreter of the other end of the supported range, which dev.py names where it has set that up.
OTHER_PYTHON = os.environ.get("OTHER_TORCH_PYTHON", "")
PUBLISHER = new_signing_key()
KEEPING_PACKAGES = ("--cache-size-limit", "1GB")


# Prints where everything lies that the first package needs and the second does not.
_PACKAGES = """
import sys
from importlib.metadata import distribution
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def needs(name, found):
    if canonicalize_name(name) not in found:
        package = found[canonicalize_name(name)] = distribution(name)
        for need in map(Requirement, package.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                needs(need.name, found)
    return found

wanted, others = (needs(name, {}) for name in sys.argv[1:])
for name in wanted.keys() - others.keys():
    for part in {file.parts[0] for file in wanted[name].files} - {".."}:
        print(wanted[name].locate_file(part))
"""


def transformers_of(python: str, folder: Path) -> Path:
    """A folder from which any torch can import the transformers of an interpreter."""
    found = subprocess.run(
        [python, "-c", _PACKAGES, "transformers", "torch"], capture_output=True, text=True, check=True
    )
    folder.mkdir()
    for package in map(Path, found.stdout.splitlines()):
        (folder / package.name).symlink_to(package)
    return folder


class Release:
    """Somebody who rolls out a workload.

    Args:
        folder: for the recording, and for what pods write.
        farm: that serves the pods.
        programs: of the workload.
        libraries: a folder of packages that the reference pod imports instead of its own.
    """

    def __init__(
        self, folder: Path, farm: ServedFarm, programs: Sequence[str], *, libraries: Path | None = None
    ) -> None:
        self.recording = folder / "recording"
        self._libraries = libraries
        self._folder = folder
        self._farm = farm
        self._programs = programs

    def record(self) -> list[dict[str, str]]:
        """Runs the workload in a reference pod, which compiles nothing and may publish packages."""
        key = self._folder / "publisher.pem"
        key.write_bytes(PUBLISHER.pem())
        settings = {"COMPILEFARM_RECORD": str(self.recording), "COMPILEFARM_ON_MISS": "local"}
        settings |= {"COMPILEFARM_DYNAMO": "publish", "COMPILEFARM_PACKAGE_SIGNING_KEY": str(key)}
        settings["COMPILEFARM_ADDRESS"] = self._farm.address
        if self._libraries is not None:
            settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._libraries), os.environ.get("PYTHONPATH"))))
        return self.pod("--uncompiled", environment=os.environ | settings)

    def requests(self) -> list[Path]:
        """The files of the recording, a request each."""
        return sorted((self.recording / "requests").iterdir())

    def pod(
        self, *arguments: str, python: str = sys.executable, environment: dict[str, str] | None = None
    ) -> list[dict[str, str]]:
        """Runs the workload in a process; by default a strict one, without a compiler and with empty caches."""
        if environment is None:
            environment = bare_environment(self._folder, self._farm.address) | {"COMPILEFARM_ON_MISS": "error"}
            environment |= {"COMPILEFARM_DYNAMO": "reuse", "COMPILEFARM_TRUSTED_PACKAGE_KEYS": PUBLISHER.public.text}
            environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        pod = subprocess.run(
            [python, LEAN, str(Path(__file__).with_name("workload.py")), *self._programs, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert pod.returncode == 0, pod.stderr
        graphs: list[dict[str, str]] = json.loads(pod.stdout.splitlines()[-1])
        return graphs

    def command(self, step: str, *options: str) -> Sequence[str]:
        return ("prewarm", step, str(self.recording), *options, "--address", self._farm.address)

    def step(self, step: str, *options: str, status: int = 0) -> dict[str, Any]:
        """What a step of prewarming says as JSON."""
        done = run(*self.command(step, *options, "--json"))
        assert done.returncode == status, done.stdout + done.stderr
        data: dict[str, Any] = json.loads(done.stdout)
        return data

    def run_until_killed(self) -> None:
        """Prewarms, one graph at a time, and is killed as soon as one is done."""
        command = [*COMMAND, *self.command("run", "--parallel", "1")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("1 served"):
                    break
            process.kill()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFarm]:
    """A farm with workers of both ends of the range, where both are there.

    Its artifacts are checked by the pods of these tests, in processes as clean as a worker's.
    """
    other = (f"--worker=other={OTHER_PYTHON}",) if OTHER_PYTHON else ()
    with serve(tmp_path_factory.mktemp("both"), ("--verify", "off", *KEEPING_PACKAGES, *other)) as served:
        yield served


@pytest.fixture(scope="module")
def recorded(both: ServedFarm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the smallest program, which differs with torch. Compiles take most of the time of these tests: all
    programs are run when that is asked for (-m corpus).
    """
    release = Release(tmp_path_factory.mktemp("reference"), both, ["broken"])
    release.record()
    return release.recording


@pytest.fixture
def broken(both: ServedFarm, recorded: Path, tmp_path: Path) -> Release:
    """A release of that program, which has a copy of the recording."""
    release = Release(tmp_path, both, ["broken"])
    shutil.copytree(recorded, release.recording)
    return release


def prove(release: Release, farm: ServedFarm) -> None:
    """Takes a recording, which the farm knows nothing of, from a first attempt that is killed to strict pods."""
    graphs = len(release.requests())
    assert graphs >= 2
    assert release.step("plan")["totals"]["miss"] == graphs
    compiled_before = farm.count("compiled")
    release.run_until_killed()
    assert 1 <= release.step("check", "--threshold", "0")["stored"] < graphs
    assert release.step("check", status=1)["enough"] is False
    totals = release.step("run")["totals"]
    assert (totals["failed"], totals["hit"] >= 1) == (0, True)
    assert release.step("check")["percent"] == 100.0
    assert farm.count("compiled") == compiled_before + graphs
    assert {package["standing"] for package in release.step("check")["packages"]} == {"stored"}
    seen = [(graph["outcome"], graph["dynamo"], graph["imported"]) for graph in release.pod()]
    assert seen == [("hit", "reused", "")] * graphs
    assert farm.count("compiled") == compiled_before + graphs


def prove_for_other_torch(release: Release, farm: ServedFarm) -> None:
    """Has a recording compiled for the other torch, and runs a strict pod of that."""
    graphs = len(release.requests())
    assert release.step("check", "--environment", "other", status=1)["stored"] == 0
    assert release.step("run", "--environment", "other")["totals"]["compiled"] == graphs
    assert release.step("check", "--environment", "other")["percent"] == 100.0
    compiled = farm.count("compiled")
    assert [graph["outcome"] for graph in release.pod(python=OTHER_PYTHON)] == ["hit"] * graphs
    assert farm.count("compiled") == compiled


needs_both = pytest.mark.skipif(not OTHER_PYTHON, reason="OTHER_TORCH_PYTHON names no interpreter with another torch")


def test_a_recording_is_compiled_ahead_and_strict_pods_prove_it(both: ServedFarm, broken: Release) -> None:
    prove(broken, both)


@needs_both
def test_the_same_recording_serves_pods_of_another_torch(both: ServedFarm, broken: Release) -> None:
    assert {worker["environment_name"] for worker in both.status()["workers"]} == {"default", "other"}
    prove_for_other_torch(broken, both)


@needs_both
def test_an_operator_that_another_torch_lacks_is_named(broken: Release) -> None:
    request = read_request(broken.requests()[0])
    call = next(node.call for node in request.job.graph.nodes if node.HasField("call"))
    call.target = "torch.of_a_later_release"
    Recorder(broken.recording).note_request(
        Request(job=request.job, arguments=request.arguments), name="later", position=9
    )
    graphs = {graph["name"]: graph for graph in broken.step("plan", "--environment", "other")["graphs"]}
    assert graphs["later"]["standing"] == "cannot"
    assert graphs["later"]["reason"] == "unknown_operator"
    assert "has no function torch.of_a_later_release" in graphs["later"]["problem"]
    assert broken.step("run", "--environment", "other", status=1)["totals"]["failed"] == 1


@pytest.mark.corpus
def test_the_demo_model_as_well(tmp_path: Path) -> None:
    with serve(tmp_path, KEEPING_PACKAGES) as farm:
        release = Release(tmp_path, farm, ("demo", "decoder", "broken"))
        release.record()
        prove(release, farm)


@pytest.mark.corpus
@needs_both
def test_a_decoder_for_another_torch(both: ServedFarm, tmp_path: Path) -> None:
    release = Release(tmp_path, both, ["decoder"])
    release.record()
    prove_for_other_torch(release, both)


@pytest.mark.corpus
@needs_both
def test_the_demo_model_for_another_torch(both: ServedFarm, tmp_path: Path) -> None:
    # It does what its library says, which differs between releases of that: a rollout changes one thing at a time.
    libraries = transformers_of(OTHER_PYTHON, tmp_path / "libraries")
    release = Release(tmp_path, both, ["demo"], libraries=libraries)
    release.record()
    prove_for_other_torch(release, both)
