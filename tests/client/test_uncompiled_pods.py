"""Pods without a program of the farm, as processes: each computes what eager does, whatever a farm says, and whatever
torch or the machine lacks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from compilefarm.client.refusals import BY_STATUS
from compilefarm.client.testing import FarmServicer, serving
from compilefarm.core.errors import BY_REASON, REASON_KEY
from compilefarm.v1.compile_service_pb2 import CompileResponse, Finished
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind
from tests.lean import LEAN

UNCOMPILED_POD = Path(__file__).with_name("uncompiled_pod.py")
ROOT = Path(__file__).resolve().parents[2]
DEAD = "127.0.0.1:1"


class RefusingFarm(FarmServicer):
    """A farm that refuses each graph in another way, and in the end says of each how its compile failed.

    Attributes:
        answers: what is left to be said: a status and a reason, or a failure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[str, str] | int] = [
            *((status, "") for status in BY_STATUS),
            *((error.status, reason) for reason, error in BY_REASON.items()),
            *FailureKind.values(),
        ]
        self._answer_of: dict[str, tuple[str, str] | int] = {}

    def Compile(self, request: Any, context: Any) -> Iterator[CompileResponse]:
        # A client asks again after some of them.
        graph = request.job.graph.SerializeToString()
        if graph not in self._answer_of:
            self._answer_of[graph] = self.answers.pop(0)
        answer = self._answer_of[graph]
        if isinstance(answer, int):
            failure = CompileFailure(kind=answer, message="as told")  # type: ignore[arg-type]
            yield CompileResponse(finished=Finished(failure=failure))
            return
        status, reason = answer
        context.set_trailing_metadata(((REASON_KEY, reason),) if reason else ())
        context.abort(grpc.StatusCode[status], "as told")


def run_pod(*farms: str) -> list[dict[str, Any]]:
    broken = {"CC": "/bin/false", "CXX": "/bin/false"}
    done = subprocess.run(
        [sys.executable, LEAN, UNCOMPILED_POD, *farms],
        env=os.environ | broken,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    records: list[dict[str, Any]] = json.loads(done.stdout)
    return records


def test_a_pod_without_a_compiler_survives_whatever_a_farm_says() -> None:
    farm = RefusingFarm()
    count = len(farm.answers)
    with serving(farm) as address:
        records = run_pod(f"{address},{count}", f"{DEAD},2")
    assert farm.answers == []
    assert len(records) == count + 2
    assert {record["resort"] for record in records} == {"eager"}
    assert {record["outcome"] for record in records} == {"fallback"}
    assert all("/bin/false" in record["obstacle"] for record in records)
    reasons = {record["reason"] for record in records}
    assert {"not_authenticated", "not_allowed", "not_a_farm", "busy", "compile_error", "unreachable"} <= reasons


@pytest.mark.slow
def test_a_pod_goes_on_whatever_name_of_torch_is_not_there() -> None:
    command = [sys.executable, LEAN, "-m", "tests.client.renamed_torch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == {}
    assert found["cases"] > 25
    assert "torch._inductor.config.cpp.cxx as an attribute" in found["attributes"]


@pytest.mark.parametrize(
    ("mounted", "obstacle"),
    [("noexec", "cannot be loaded"), ("size=4k,nr_inodes=1", "No space left on device")],
)
def test_a_pod_whose_temporary_files_are_of_no_use_does_not_compile(
    tmp_path: Path, mounted: str, obstacle: str
) -> None:
    mount = f"mount -t tmpfs -o {mounted} none {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    unset = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "pod"]
    done = subprocess.run(
        [*command, sys.executable, LEAN, UNCOMPILED_POD, f"{DEAD},2"],
        env=unset | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for record in json.loads(done.stdout):
        assert (record["resort"], "local" in record["seconds"]) == ("eager", False)
        assert obstacle in record["obstacle"]
