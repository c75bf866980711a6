"""Operators of other libraries than torch: what a request says of them, and where they may be called."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
import torch

from compilefarm.core.environments import differences, narrowed
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.libraries import import_libraries_of
from compilefarm.graph.operators import describe_operators, import_operators
from compilefarm.graph.testing import capture
from compilefarm.loader.environment import describe_environment
from compilefarm.v1.environment_pb2 import CustomOperator, Environment
from compilefarm.v1.graph_pb2 import Call, Graph, Node, TargetKind
from compilefarm.v1.job_pb2 import Job

MODULE = """
import torch

@torch.library.custom_op("{namespace}::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor

@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)

library = torch.library.Library("{namespace}", "FRAGMENT")
library.define("native(Tensor x) -> Tensor")
library.define("native.pair(Tensor x, Tensor y) -> Tensor")
"""
NAME = "operators_of_a_library::scaled"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[frozenset[str]]:
    """What importing a library of operators has made callable."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "operators_of_a_library.py").write_text(MODULE.format(namespace="operators_of_a_library"))
    sys.path.insert(0, str(folder))
    yield import_operators(["operators_of_a_library"])
    sys.path.remove(str(folder))


def scaled(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.operators_of_a_library.scaled(x, 3.0)
    return result + 1


def job() -> Job:
    graph = capture(scaled, torch.ones(4))
    return encode_job(graph.graph_module, graph.example_inputs, options={}, environment=describe_environment).job


def test_what_an_import_registers(imported: frozenset[str]) -> None:
    namespace = "operators_of_a_library"
    assert imported == {NAME, f"{namespace}::native", f"{namespace}::native.pair"}


def test_a_library_that_is_not_installed() -> None:
    with pytest.raises(ImportError, match="nowhere_to_be_found"):
        import_operators(["nowhere_to_be_found"])


def test_a_request_describes_the_operators_that_it_calls(imported: frozenset[str]) -> None:
    (operator,) = job().environment.operators
    assert operator.name == NAME
    assert operator.schema == f"{NAME}(Tensor x, float factor) -> Tensor"
    assert len(operator.source_digest) == 64
    assert [each.name for each in describe_operators(imported)] == sorted(imported)
    # The module that says its schema.
    assert len(describe_operators(["operators_of_a_library::native.pair"])[0].source_digest) == 64


def test_a_graph_calls_what_the_worker_imported_and_nothing_else(imported: frozenset[str]) -> None:
    x = torch.randn(4)
    decoded = decode_job(job(), blobs={}, operators=imported)
    torch.testing.assert_close(decoded.graph_module(x)[0], x * 3 + 1)
    with pytest.raises(InvalidRequest, match=NAME):
        decode_job(job(), blobs={})


def test_operators_of_torch_that_were_not_imported_stay_closed(imported: frozenset[str]) -> None:
    for name in (
        "profiler::_record_function_enter",
        "inductor::_reinterpret_tensor",
        "export::access_subclass_inner_tensor",
    ):
        request = job()
        next(node for node in request.graph.nodes if node.HasField("call")).call.target = name
        with pytest.raises(InvalidRequest, match=name):
            decode_job(request, blobs={}, operators=imported)


def test_how_an_operator_is_defined_is_in_the_key() -> None:
    one, other = job(), job()
    assert key_of(one) == key_of(other)
    other.environment.operators[0].source_digest = "0" * 64
    assert key_of(one) != key_of(other)


def offering(**facts: str) -> Environment:
    return Environment(
        torch="2.0", operators=[CustomOperator(**{"name": NAME, "schema": "s", "source_digest": "d", **facts})]
    )


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        (Environment(torch="2.0"), f"operator {NAME} is wanted .*--import"),
        (offering(schema="other"), "operator other is offered, s is wanted"),
        (offering(source_digest="e"), f"operator {NAME} is defined by another version"),
    ],
)
def test_a_worker_without_the_operator_does_not_fit(offered: Environment, message: str) -> None:
    assert differences(wanted=offering(), offered=offering()) == []
    (found,) = differences(wanted=offering(), offered=offered)
    assert re.search(message, found)


def test_the_library_of_an_operator_that_is_missing_is_named() -> None:
    (found,) = differences(wanted=offering(library="ops 1.0"), offered=Environment(torch="2.0"))
    assert f"operator {NAME} of ops 1.0 is wanted" in found


def test_an_artifact_depends_on_the_operators_of_its_job_alone(imported: frozenset[str]) -> None:
    worker = describe_environment(EnvironmentNeeds(cpu=True, cuda_device=None, operators=imported))
    assert [operator.name for operator in narrowed(worker, wanted=job().environment).operators] == [NAME]
    assert not narrowed(worker, wanted=Environment()).operators


@pytest.mark.parametrize("name", ["ps_roi_align", "ps_roi_pool", "deform_conv2d", "_deform_conv2d_backward"])
def test_kernels_in_c_are_those_of_the_library_that_registers_the_operator_by_its_name_alone(name: str) -> None:
    """torchvision has kernels for autocast in C++, and registers in Python, with a Library that it passes on."""
    version = pytest.importorskip("torchvision").__version__.partition("+")[0]
    (described,) = describe_operators([f"torchvision::{name}"])
    assert described.library == f"torchvision {version}"
    assert "torchvision._meta_registrations" in described.modules
    call = Call(kind=TargetKind.TARGET_KIND_OPERATOR_PACKET, target=described.name.partition(".")[0])
    graph = Graph(nodes=[Node(call=call)])
    imported = import_libraries_of([described], graph=graph, known=frozenset(), libraries=["torchvision"])
    assert imported >= {described.name}


def test_an_operator_without_a_word_in_python_stays_unknown() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(Bypass, match="by no library whose files are known"):
        describe_operators(["torchvision::_cuda_version"])
