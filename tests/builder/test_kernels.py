"""Kernels as they are kept: equal ones in equal bytes, and nothing of the process that made them."""

from __future__ import annotations

import copy
import importlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compilefarm.builder import kernels
from compilefarm.core.kernel_choices import read_choices
from compilefarm.v1.manifest_pb2 import SourceFile
from compilefarm.worker.child_variables import child_variables

triton = pytest.importorskip("triton")
heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
hints = importlib.import_module("torch._inductor.runtime.hints")
static = importlib.import_module("torch._inductor.runtime.static_triton_launcher")

CODE = b"machine code"
SOURCE = """
import triton
import triton.language as tl

@triton.jit
def doubled(x, XBLOCK: tl.constexpr):
    i = tl.arange(0, XBLOCK)
    tl.store(x + i, tl.load(x + i) * 2)
"""


@dataclass
class Launcher:
    """What a launcher says of the variant that it launches."""

    config: Any


def another(text: str) -> str:
    """An equal text that is another object."""
    return "".join(list(text))


def autotuner_of(folder: Path) -> Any:
    """A kernel as Inductor has it once it has run, its source and its machine code in a folder."""
    folder.mkdir()
    path = folder / "kernel.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = triton.Config({"XBLOCK": 128}, num_warps=4, num_stages=1)
    autotuner = heuristics.CachingAutotuner(
        fn=module.doubled,
        triton_meta={
            "signature": {"x": "*fp32", "XBLOCK": "constexpr"},
            "device": hints.DeviceProperties(
                type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32
            ),
            "constants": {},
            "configs": [((0,), "divisible")],
        },
        configs=[config],
        save_cache_hook=None,
        mutated_arg_names=["x"],
        optimize_mem=True,
        heuristic_type=hints.HeuristicType.POINTWISE,
        size_hints={"x": 128},
        inductor_meta={"kernel_name": "doubled", "grid_type": "Grid1D"},
        filename=str(path),
    )
    kernel = object.__new__(static.StaticallyLaunchedCudaKernel)
    kernel.__dict__.update(
        name="doubled", hash="00ff", arg_names=["x", "XBLOCK"], cubin_path=str(path), cubin_raw=None, function=4711
    )
    autotuner.compile_results = [
        heuristics.StaticTritonCompileResult(
            kernel, config, autotuner._create_compile_meta(config), autotuner.inductor_meta
        )
    ]
    autotuner.launchers = [Launcher(config)]
    return autotuner


@pytest.fixture(autouse=True)
def _machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_machine_code", lambda result: CODE)
    monkeypatch.setattr(kernels, "_steps", lambda result: {})


def elsewhere(autotuner: Any) -> None:
    """Changes all that another compile of the same kernel would have changed."""
    autotuner.precompile_time_taken_ns, autotuner.autotune_time_taken_ns = 12_345, 67_890
    autotuner.kernel_hash = "another"
    autotuner.compile_id = importlib.import_module("torch._guards").CompileId(frame_id=3, frame_compile_id=1)
    autotuner.is_backward = True
    autotuner.size_hints = {another("x"): 128}
    autotuner.mutated_arg_names = [another("x")]
    autotuner.triton_meta["configs"] = copy.deepcopy([((0,), another("divisible"))])
    autotuner.inductor_meta["kernel_name"] = another("doubled")
    kernel = autotuner.compile_results[0].kernel
    kernel.n_regs, kernel.n_spills, kernel.name = 32, 0, another("doubled")


def test_a_kernel_that_is_compiled_again_has_the_same_bytes(tmp_path: Path) -> None:
    first, second = autotuner_of(tmp_path / "first"), autotuner_of(tmp_path / "second")
    elsewhere(second)
    ours, theirs = kernels._finish("doubled", first), kernels._finish("doubled", second)
    assert ours.content == theirs.content
    assert ours.digest == theirs.digest


def test_another_kernel_has_other_bytes(tmp_path: Path) -> None:
    first, second = autotuner_of(tmp_path / "first"), autotuner_of(tmp_path / "second")
    second.compile_results[0].config.kwargs["XBLOCK"] = 256
    assert kernels._finish("doubled", first).content != kernels._finish("doubled", second).content


def test_a_kept_kernel_says_nothing_of_where_it_was_made(tmp_path: Path) -> None:
    autotuner = autotuner_of(tmp_path / "first")
    before = {**autotuner.__dict__}, {**autotuner.fn.__dict__}
    content = kernels._finish("doubled", autotuner).content
    assert str(tmp_path).encode() not in content
    assert CODE in content
    assert (autotuner.__dict__, autotuner.fn.__dict__)[0] == before[0], "the kernel goes on where it was made"
    assert autotuner.fn.fn is before[1]["fn"]
    assert getattr(autotuner.fn, "file_name", None) == before[1].get("file_name")


def test_what_was_chosen_is_told_with_the_source(tmp_path: Path) -> None:
    finished = kernels._finish("doubled", autotuner_of(tmp_path / "first"))
    wrapper = (
        "async_compile = AsyncCompile()\ndoubled = async_compile.triton('doubled', 'its source', device_str='cuda')"
    )
    texts = {"forward/wrapper.py": wrapper} | {
        f"kernels/doubled.{kind}": text for kind, text in finished.sources.items()
    }
    (choice,) = read_choices(SourceFile(path=path, text=text) for path, text in texts.items())
    assert choice.configuration.items() >= {"XBLOCK": 128, "num_warps": 4}.items()
    assert (choice.name, choice.among, choice.source) == ("doubled", 1, "its source")


def test_a_kept_kernel_is_what_it_was(tmp_path: Path) -> None:
    kernel = pickle.loads(kernels._finish("doubled", autotuner_of(tmp_path / "first")).content)
    (winner,) = kernel.compile_results
    assert winner.config.kwargs == {"XBLOCK": 128}
    assert winner.kernel.cubin_raw == CODE
    assert winner.compile_meta["signature"] == {"x": "*fp32", "XBLOCK": "constexpr"}
    assert kernel.triton_meta["configs"] == [((0,), "divisible")]
    assert kernel.fn.arg_names == ["x", "XBLOCK"]


def test_machine_code_is_the_same_wherever_the_source_lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables that children have. Triton's own assembler needs no GPU."""
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", child_variables(tmp_path)["TRITON_DISABLE_LINE_INFO"])
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    codes = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
        function = autotuner_of(folder).fn
        source = triton.compiler.ASTSource(function, {"x": "*fp32", "XBLOCK": "constexpr"}, {(1,): 128})
        codes.append(triton.compile(source, target=target, options={"enable_fp_fusion": True}).asm["cubin"])
    assert codes[0] == codes[1]
    assert str(tmp_path).encode() not in codes[0]


def test_what_is_one_object_stays_one() -> None:
    """Texts are told apart by what they say alone; what can be changed is told apart by which it is."""
    shared = ["x"]
    both, apart = pickle.loads(kernels._pickled([(shared, shared), ([another("x")], ["x"])]))
    assert both[0] is both[1]
    assert apart[0] is not apart[1]
    assert kernels._pickled(["ab", another("ab")]) == kernels._pickled(["ab"] * 2)
