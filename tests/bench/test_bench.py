"""`compilefarm bench`: what it compares and how it shows it, from recorded figures; and one real model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from compilefarm.benchmarks.alternatives import ALTERNATIVES, MAKERS
from compilefarm.benchmarks.cases import make_case
from compilefarm.benchmarks.comparison import compare
from compilefarm.benchmarks.entries import fill_store, variant_of
from compilefarm.benchmarks.models import MODELS, UnusableModel
from compilefarm.benchmarks.points import Point
from compilefarm.benchmarks.redis_server import why_no_redis
from compilefarm.benchmarks.report import Measured, Report, write_report
from compilefarm.benchmarks.results import PHASES, Result
from compilefarm.benchmarks.runner import Subject
from compilefarm.benchmarks.tables import show_points
from compilefarm.benchmarks.ways import WAYS
from compilefarm.cli.words import console
from compilefarm.client.config import ADDRESS, TORCH_CACHES
from compilefarm.core.keys import key_of
from compilefarm.service.testing import sample_job
from compilefarm.store.opening import open_store
from tests.cli.commands import run_command

SVG = "{http://www.w3.org/2000/svg}"


def result(**seconds: float) -> Result:
    return Result(
        total_seconds=sum(seconds.values()),
        seconds=seconds,
        difference=2e-7,
        magnitude=3.5,
        programs=9 if "compile" in seconds else 0,
        compiler_runs=7 if "compile" in seconds else 0,
        bytes_fetched=1500 if "fetch" in seconds else 0,
        call_seconds=0.002,
        peak_memory_bytes=512_000_000,
        parameters=22_700_000,
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A report of three rounds, with a way that failed."""
    farm = [
        result(dynamo=2.0 + late, encode=0.1, wait=0.2, fetch=0.1, load=0.1, first_call=0.1) for late in (0.5, 0, 1)
    ]
    measured = [
        Measured(model="mlp", way="local-cold", results=[result(dynamo=2, compile=18, first_call=1) for _ in range(3)]),
        Measured(model="mlp", way="aotinductor", reason="Unfit: torch.export takes <modules> only"),
        Measured(model="mlp", way="farm-hit", results=farm),
    ]
    machine = {"processor": "a processor & more", "cores": "2", "torch": "2.15.0", "date": "today"}
    path = tmp_path / "report.json"
    write_report(Report(machine=machine, device="cpu", mode=None, rounds=3, measured=measured), path)
    return path


def cells(said: str, way: str) -> list[list[str]]:
    rows = [line.split("│") for line in said.splitlines() if line.startswith("│") and f" {way} " in line]
    return [[cell.strip() for cell in row[1:-1]] for row in rows]


def test_shows_the_median_its_phases_and_the_spread(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("bench", "--read", str(recorded)) == 0
    said = capsys.readouterr().out
    timing, work = cells(said, "farm-hit")
    # 3.1 s is the median of 2.6, 3.1 and 3.6; its phases are those of that round.
    assert timing == ["farm-hit", "3.10", "2.60", "3.60", "2.50", "0.10", "0.20", "0.10", "", "0.10", "0.10"]
    assert work == ["farm-hit", "1.5 kB", "", "", "", "", "512.0 MB", "2.0 ms", "2.0e-07", "3.5"]
    assert cells(said, "local-cold")[1][3:5] == ["9", "7"]
    assert "22.7 million parameters" in said
    assert "a processor & more" in said


def test_a_way_that_failed_is_a_line_with_its_reason(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("bench", "--read", str(recorded)) == 0
    said = capsys.readouterr().out
    assert "aotinductor: none, or not all rounds: Unfit: torch.export takes <modules> only" in said
    assert not cells(said, "aotinductor")


def test_the_chart_has_a_bar_for_each_way_whose_phases_make_up_its_length(recorded: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    assert run_command("bench", "--read", str(recorded), "--chart", str(chart)) == 0
    drawn = ElementTree.fromstring(chart.read_text())
    lengths: dict[str, float] = {}
    for segment in drawn.iter(f"{SVG}rect"):
        if (title := segment.find(f"{SVG}title")) is not None and title.text:
            way = title.text.partition(",")[0]
            lengths[way] = lengths.get(way, 0.0) + float(segment.attrib["width"])
    assert lengths.keys() == {"local-cold", "farm-hit"}
    assert lengths["farm-hit"] / lengths["local-cold"] == pytest.approx(3.1 / 21, rel=1e-2)
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"local-cold", "farm-hit", "3.10 s", "21.00 s", "mlp: two linear layers with GELU and a norm"} <= {*words}
    # Nothing that a report says becomes markup, and nothing lies beyond the edge.
    assert any("a processor & more" in (text or "") for text in words)
    right = float(drawn.attrib["width"])
    assert all(
        float(each.attrib["x"]) + float(each.attrib["width"]) <= right
        for each in drawn.iter(f"{SVG}rect")
        if "x" in each.attrib
    )


def test_refuses_what_it_cannot_measure_or_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("bench", "--model", "bert") == 1
    assert "no model is called 'bert': name one of minilm, llama" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text('{"ways": []}')
    for path in (other, tmp_path / "missing.json"):
        assert run_command("bench", "--read", str(path)) == 1
        assert f"{path} is no report of a benchmark" in capsys.readouterr().err
    assert run_command("bench", "scale", "widths") == 1
    assert "nothing that grows is called widths: name one of layers" in capsys.readouterr().err


def test_lookups_end_when_one_process_fails() -> None:
    # Nothing listens there, so that nothing is kept.
    variables = {**os.environ, ADDRESS: "127.0.0.1:9", TORCH_CACHES: "yes"}
    command = [sys.executable, "-m", "compilefarm.benchmarks.lookup_processes", "2", "1024", str(os.getpid())]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "-0 was not found" in ended.stderr
    assert ended.stderr.endswith("one of the processes has failed\n")


class Processes:
    """Stands in for processes, and takes note of them; those of some ways fail."""

    def __init__(self, *failing: str) -> None:
        self.started: list[str] = []
        self.environments: dict[str, Mapping[str, str]] = {}
        self.caches: list[tuple[str, Path]] = []
        self._failing = failing

    def __call__(
        self, way: str, subject: Subject, *, caches: Path, bundle: Path, variables: Mapping[str, str], log: Path
    ) -> Result:
        self.started.append(way)
        self.environments[way] = variables
        self.caches.append((way, caches))
        return Result(error="TypeError: no") if way in self._failing else result(dynamo=1)


def play(processes: Processes, folder: Path, *ways: str, rounds: int) -> dict[str, Measured]:
    subject = Subject(model="mlp", device="cpu", mode=None)
    found = compare(subject, ways=ways, rounds=rounds, folder=folder, on_result=lambda *_: None, run=processes)
    return {way.way: way for way in found}


def test_rounds_go_through_all_ways_and_what_they_load_is_made_once(tmp_path: Path) -> None:
    processes = Processes()
    found = play(processes, tmp_path, "standalone", "eager", "local-warm", rounds=2)
    warm_up, round_1, round_2 = (
        ["eager"],
        ["eager", "local", "local", "standalone-maker", "standalone"],
        ["eager", "local", "standalone"],
    )
    assert processes.started == [*warm_up, *round_1, *round_2]
    assert [len(way.results) for way in found.values()] == [2, 2, 2]
    # A warm process has the caches of the cold one; all others have their own.
    local = [caches for way, caches in processes.caches if way == "local"]
    assert len({*local}) == 1
    assert len({caches for way, caches in processes.caches if way != "local"}) == 6


def test_a_way_whose_making_fails_has_the_reason_and_is_not_tried_again(tmp_path: Path) -> None:
    processes = Processes("package-maker")
    found = play(processes, tmp_path, "aotinductor", "eager", rounds=3)
    assert found["aotinductor"] == Measured(model="mlp", way="aotinductor", reason="TypeError: no")
    assert len(found["eager"].results) == 3
    assert processes.started.count("package-maker") == 1


def test_a_model_that_does_not_even_run_in_eager_fails_once(tmp_path: Path) -> None:
    processes = Processes("eager")
    found = play(processes, tmp_path, "local-cold", "standalone", rounds=3)
    assert {way.reason for way in found.values()} == {"TypeError: no"}
    assert processes.started == ["eager"]


def test_without_a_redis_server_there_is_a_line_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_no_redis() == "there is no redis-server on PATH: apt-get install redis-server"
    found = play(Processes(), tmp_path, "redis", rounds=1)
    assert found["redis"].reason == why_no_redis()


def test_every_way_has_a_process_and_what_makes_what_it_loads() -> None:
    for alternative in (*ALTERNATIVES.values(), *MAKERS.values()):
        assert alternative.process in WAYS
        assert not alternative.made_by or alternative.made_by in {*ALTERNATIVES, *MAKERS}


@pytest.mark.parametrize("name", ["mlp", "dynamic", "training", "llama-2"])
def test_a_model_is_the_same_in_every_process(name: str) -> None:
    first, again = make_case(name, device="cpu"), make_case(name, device="cpu")
    for given, given_again in zip(first.calls, again.calls, strict=True):
        ours, theirs = first.results(first.function, given), again.results(again.function, given_again)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    if name == "training":
        # A loss, and the gradients of two layers and a norm.
        assert len(ours) == 1 + 6
    assert name in MODELS


def test_a_function_of_the_users_has_to_return_a_model_and_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_models.py").write_text(
        "import torch\ndef good(): return torch.nn.Linear(2, 2), {'input': torch.ones(1, 2)}\ndef bad(): return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])
    case = make_case("bench_models:good", device="cpu")
    assert case.results(case.function, case.calls[0])[0].shape == (1, 2)
    with pytest.raises(UnusableModel, match="has to return a model and a tuple, or mapping"):
        make_case("bench_models:bad", device="cpu")
    with pytest.raises(UnusableModel, match="names no function"):
        make_case("bench_models:missing", device="cpu")


def test_entries_made_without_compiling_are_found_under_the_keys_of_their_jobs(tmp_path: Path) -> None:
    job = sample_job("grown")

    async def look() -> list[bool]:
        await fill_store(tmp_path, job=job, first=0, end=70)
        store = await open_store(str(tmp_path))
        keys = [key_of(variant_of(job, number)).text for number in (0, 69, 70)]
        return [await store.find_manifest(key) is not None for key in keys]

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert runner.run(look()) == [True, True, False]


def test_figures_of_growth_are_shown_with_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"hit seconds": 0.0023, "fetched bytes": 23_100, "share of the fewest": 1.234}
    show_points([Point(axis="entries", size=100_000, figures=figures)], console())
    assert cells(capsys.readouterr().out, "100,000") == [["100,000", "2.3 ms", "23.1 kB", "1.23"]]


@pytest.mark.compiles
def test_a_model_of_the_users_in_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.py").write_text("import torch\ndef make():\n    return torch.nn.ReLU(), (torch.randn(4, 4),)\n")
    monkeypatch.chdir(tmp_path)
    # The compile of one kernel: headers compiled ahead would take longer than it, and so do trials of instruction sets.
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    report = tmp_path / "report.json"
    options = ["--model", "tiny:make", "--ways", "eager", "--ways", "local-cold", "--rounds", "1"]
    assert run_command("bench", *options, "--json", str(report)) == 0
    content = json.loads(report.read_text())
    assert content["machine"]["torch"] == torch.__version__.partition("+")[0]
    eager, cold = ([*way["results"], way["reason"]][0] for way in content["measured"])
    assert eager["difference"] == 0
    assert eager["programs"] == 0
    # Torch's own figures, which split a local compile, have the names that they are looked for under.
    assert {"dynamo", "compile", "first_call"} == cold["seconds"].keys() <= {*PHASES}
    assert all(seconds > 0 for seconds in cold["seconds"].values())
    assert sum(cold["seconds"].values()) == pytest.approx(cold["total_seconds"])
    assert (cold["graphs"], cold["local_compiles"]) == ({"local": 1}, 1)
    assert cold["compiler_runs"] > 0
    assert cold["files"] > 0
