"""Libraries that a worker imports for a request: only what is listed, installed as the request says, and found there.

The pod is another process, so that nothing of the library is loaded in this one, which does what a worker does.
"""

from __future__ import annotations

import base64
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from compilefarm.core.environments import differences, narrowed
from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.admission import Admitted, decode, with_libraries_of
from compilefarm.graph.libraries import installed_libraries
from compilefarm.graph.operators import describe_operators
from compilefarm.v1.environment_pb2 import Environment, LibraryVersion
from compilefarm.v1.job_pb2 import Job
from tests.lean import LEAN

OPERATORS = """
import torch

library = torch.library.Library("farm_test_ops", "DEF")
library.define("scaled(Tensor x, float factor) -> Tensor")


def _register(function):
    library.impl(function.__name__, function, "CompositeImplicitAutograd")


@_register
def scaled(x, factor):
    return x * factor


@torch.library.custom_op("farm_test_ops::unused", mutates_args=())
def unused(x: torch.Tensor) -> torch.Tensor:
    return x + 1
"""
POD = """
import base64, sys
import torch
import farm_test_ops.operators
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import capture
from compilefarm.loader.environment import describe_environment

graph = capture(lambda x: torch.ops.farm_test_ops.scaled(x, 3.0), torch.ones(4))
job = encode_job(graph.graph_module, graph.example_inputs, options={}, environment=describe_environment).job
print(base64.b64encode(job.SerializeToString()).decode())
"""
# What an installer is told to unpack is odd: files outside, of others, that are no modules, or that another hides.
FILES = {
    "farm_test_ops/__init__.py": "",
    "farm_test_ops/operators.py": OPERATORS,
    "farm_test_ops/silent.py": "import farm_test_ops\n",
    "farm_test_ops/__main__.py": "call('farm_test_ops::scaled')\n",
    "farm_test_ops/odd name.py": "call('farm_test_ops::scaled')\n",
    "farm_test_ops/notes.txt": "call('farm_test_ops::scaled')\n",
    "../beside.py": "call('farm_test_ops::scaled')\n",
    "json/farm_test_ops.py": "call('farm_test_ops::scaled')\n",
}
ADMITTED = Admitted(libraries=frozenset({"Farm.Test_Ops"}))


@pytest.fixture(scope="module")
def request_of_a_pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A request that calls an operator of a distribution that is installed here, too."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    notes = folder / "farm_test_ops-1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: farm-test-ops\nVersion: 1.0\n")
    (notes / "RECORD").write_text("".join(f"{name},sha256={len(text)},1\n" for name, text in FILES.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield Job.FromString(base64.b64decode(_run(POD, folder)))
    _forget()


def _run(program: str, folder: Path) -> str:
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-W", "ignore", LEAN, "-c", program],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def _forget() -> None:
    for module in [name for name in sys.modules if name.startswith("farm_test_ops")]:
        del sys.modules[module]


def changed(job: Job, **facts: object) -> Job:
    """A request that says other things of its operator."""
    other = Job()
    other.CopyFrom(job)
    operator = other.environment.operators[0]
    for name, value in facts.items():
        if isinstance(value, list):
            operator.modules[:] = value
        else:
            setattr(operator, name, value)
    return other


def with_another(job: Job, name: str, *, library: str) -> Job:
    """A request that describes another operator, too, of which it says the same else."""
    other = changed(job)
    other.environment.operators.add().CopyFrom(job.environment.operators[0])
    other.environment.operators[1].name, other.environment.operators[1].library = name, library
    return other


def calling(job: Job, target: str) -> Job:
    """A request whose graph also calls something of torch."""
    other = changed(job)
    node = next(node for node in other.graph.nodes if node.HasField("call"))
    added = type(node)()
    added.CopyFrom(node)
    added.call.target = target
    nodes = [*other.graph.nodes[:-1], added, other.graph.nodes[-1]]
    del other.graph.nodes[:]
    other.graph.nodes.extend(nodes)
    return other


LIES: Mapping[str, tuple[Callable[[Job], Job], str]] = {
    "a module of Python": (lambda job: changed(job, modules=["antigravity"]), "'antigravity' is said to register"),
    "a module of another library": (lambda job: changed(job, modules=["tqdm.auto"]), "no module that"),
    "a module again and again": (
        lambda job: changed(job, modules=["farm_test_ops.operators"] * 1000),
        "are not sorted, or one occurs twice",
    ),
    "a module that registers nothing": (lambda job: changed(job, modules=["farm_test_ops.silent"]), "no module that"),
    "the library's program": (lambda job: changed(job, modules=["farm_test_ops.__main__"]), "no module that"),
    "a file that no import names": (lambda job: changed(job, modules=["farm_test_ops.odd name"]), "no module that"),
    "a file outside": (lambda job: changed(job, modules=["...beside"]), "no module that"),
    "a path": (lambda job: changed(job, modules=["../beside"]), "no module that"),
    "a file in a package of Python": (lambda job: changed(job, modules=["json.farm_test_ops"]), "no module that"),
    "a version that is not installed": (
        lambda job: changed(job, library="farm-test-ops 2.0"),
        "farm-test-ops 2.0 is wanted, farm-test-ops 1.0 is installed",
    ),
    "a library that is not listed": (lambda job: changed(job, library="numpy 1.0"), "none that is taken"),
    "another operator, of a library that is not listed": (
        lambda job: with_another(job, "numpy::other", library="numpy 1.0"),
        "numpy::other of numpy 1.0 is none that is taken",
    ),
    "an operator that the graph does not call": (
        lambda job: with_another(job, "farm_test_ops::unused", library="farm-test-ops 1.0"),
        "farm_test_ops::unused is described, and the graph does not call it",
    ),
    "a call that no graph may make": (
        lambda job: calling(job, "aten::from_file"),
        "'aten::from_file' is not among the functions that a request may call",
    ),
    "a call of an operator that is not described": (
        lambda job: calling(job, "farm_test_ops::unused"),
        "'farm_test_ops::unused' is not among the functions that a request may call",
    ),
    "no library": (lambda job: changed(job, library=""), "of no library is none that is taken"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_imports_nothing(request_of_a_pod: Job, lie: str) -> None:
    change, message = LIES[lie]
    before = set(sys.modules)
    with pytest.raises(InvalidRequest, match=message):
        with_libraries_of(change(request_of_a_pod), admitted=ADMITTED)
    added = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not added - {"importlib", "compilefarm"}


def test_a_library_that_is_not_on_the_list_is_not_imported(request_of_a_pod: Job) -> None:
    with pytest.raises(InvalidRequest, match=r"farm-test-ops 1\.0 is none that is taken"):
        with_libraries_of(request_of_a_pod, admitted=Admitted())
    assert "farm_test_ops" not in sys.modules


def test_an_operator_is_that_of_the_installed_library(request_of_a_pod: Job) -> None:
    for said in ({"source_digest": "0" * 64}, {"schema": "farm_test_ops::scaled(Tensor x, float f) -> Tensor"}):
        with pytest.raises(InvalidRequest, match="is another one at the worker"):
            with_libraries_of(changed(request_of_a_pod, **said), admitted=ADMITTED)
    admitted = with_libraries_of(request_of_a_pod, admitted=ADMITTED)
    assert admitted.operators == {"farm_test_ops::scaled"}
    decoded = decode(request_of_a_pod, blobs={}, admitted=admitted)
    torch.testing.assert_close(decoded.graph_module(torch.ones(4))[0], torch.full((4,), 3.0))
    assert describe_operators(["farm_test_ops::scaled"])[0].modules == ["farm_test_ops.operators"]


def test_the_files_of_a_library_are_listed_once(request_of_a_pod: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those of a large one take a tenth of a second, and were listed for each module that a request named.
    listed: list[str] = []
    files = importlib.metadata.Distribution.files

    def list_files(distribution: importlib.metadata.Distribution) -> list[importlib.metadata.PackagePath] | None:
        listed.append(distribution.name)
        return files.fget(distribution)  # type: ignore[attr-defined,no-any-return]

    with_libraries_of(request_of_a_pod, admitted=ADMITTED)
    monkeypatch.setattr(importlib.metadata.Distribution, "files", property(list_files))
    with_libraries_of(request_of_a_pod, admitted=ADMITTED)
    assert "farm-test-ops" not in listed


def test_what_the_request_does_not_describe_is_not_called(request_of_a_pod: Job) -> None:
    other = changed(request_of_a_pod)
    call = next(node.call for node in other.graph.nodes if node.HasField("call"))
    call.target = "farm_test_ops::unused"
    with pytest.raises(InvalidRequest, match="farm_test_ops::unused"):
        decode(other, blobs={}, admitted=with_libraries_of(other, admitted=ADMITTED))


def test_installed_libraries_are_named_without_being_imported(request_of_a_pod: Job) -> None:
    named = ("farm_test_ops", "nowhere-to-be-found")
    assert installed_libraries(named) == [LibraryVersion(name="farm-test-ops", version="1.0")]


def test_a_worker_fits_that_has_the_library_in_the_same_version(request_of_a_pod: Job) -> None:
    wanted = request_of_a_pod.environment
    worker = Environment()
    worker.CopyFrom(wanted)
    del worker.operators[:]
    worker.operator_libraries.add(name="farm-test-ops", version="1.0")
    assert differences(wanted=wanted, offered=worker) == []
    # An artifact says what it calls, and nothing of what else its worker has.
    made = narrowed(worker, wanted=wanted)
    assert (made.operators, list(made.operator_libraries)) == (wanted.operators, [])
    assert differences(wanted=wanted, offered=made) == []


def test_a_refusal_names_the_library_here_and_there(request_of_a_pod: Job) -> None:
    wanted = request_of_a_pod.environment
    worker = Environment()
    worker.CopyFrom(wanted)
    del worker.operators[:]
    (found,) = differences(wanted=wanted, offered=worker)
    assert "farm_test_ops::scaled of farm-test-ops 1.0 is wanted (install it beside the worker" in found
    worker.operator_libraries.add(name="farm-test-ops", version="2.0")
    (found,) = differences(wanted=wanted, offered=worker)
    assert found.endswith("of farm-test-ops 1.0 is wanted, farm-test-ops 2.0 is offered")
