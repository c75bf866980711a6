"""What Inductor generates is looked at before it is compiled or run."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from compilefarm.builder.generated_sources import TUNING, watching_sources
from compilefarm.graph.compiling import compile_to_program
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv
from compilefarm.worker.source_check import UnexpectedSource, check_source
from tests.worker.single_process import Outcome, SingleProcessFarm

CPP = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0, const int64_t ks0)
{{
    #pragma GCC ivdep
    for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(4L*ks0); x0+=static_cast<int64_t>(1L))
    {{
        auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];
        AOTI_TORCH_CHECK(tmp0 < 1L, "index out of bounds: 0 <= tmp0 < 1L");
        {0}
        out_ptr0[static_cast<int64_t>(x0)] = tmp0 * static_cast<float>(2.0);
    }}
}}
"""
TRITON = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(size_hints={{'x': 64}}, filename=__file__, inductor_meta={{'kernel_name': 'triton_poi_0'}})
@triton.jit
def triton_poi_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (xindex), xindex < xnumel)
    {0}
    tl.store(out_ptr0 + (xindex), tmp0, xindex < xnumel)
"""
WRAPPER = (
    """
from ctypes import c_void_p, c_long, c_int
import torch
import os
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
aten = torch.ops.aten
async_compile = AsyncCompile()
cpp_fused_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''"""
    + CPP.format("")
    + """''')
async_compile.wait(globals())
del async_compile
{0}
def call(args):
    arg0_1, = args
    buf0 = torch.ops.aten.sort.stable(arg0_1, stable=True, dim=-1, descending=False)
    {1}
    extern_kernels.mm(arg0_1, arg0_1, out=buf0)
    return (buf0, )
"""
)
# What torch writes to measure a kernel, by both ends of the supported range.
TUNING_BLOCK = """
import torch
from torch._dynamo.testing import rand_strided
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
generate_example_value = AlgorithmSelectorCache.generate_example_value
get_raw_stream = torch._C._cuda_getCurrentRawStream
triton_poi_0 = async_compile.triton('triton_poi_0', '''{kernel}''', device_str='cuda')
async_compile.wait(globals())
del async_compile
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
with torch.cuda._DeviceGuard(0):
    stream0 = get_raw_stream(0)
    _autotune_storage_0 = generate_example_value((8,), (1,), 'cuda:0', torch.float32, 0, (8,))
    arg0_1 = torch.as_strided(_autotune_storage_0, (8,), (1,), 0)
    workspace_0 = arg0_1
    workspace_0.zero_()
    with torch.cuda._DeviceGuard(0):
        triton_poi_0.run(arg0_1, arg0_1, 8, stream=stream0)
    {line}
    del arg0_1, _autotune_storage_0
"""


def _tuning_block(line: str = "", kernel: str = "") -> str:
    return TUNING_BLOCK.format(line=line, kernel=TRITON.format(kernel))


def _wrapper(statement: str = "", call: str = "") -> str:
    return WRAPPER.replace("{{", "{").replace("}}", "}").replace("{0}", statement).replace("{1}", call)


def test_what_inductor_writes_passes() -> None:
    check_source(CPP.format(""), "main.cpp")
    check_source(TRITON.format(""), "py")
    check_source(_wrapper(), "py")


@pytest.mark.parametrize("value", [torch.sparse_coo, torch.sparse_csr, torch.complex64, torch.channels_last])
def test_values_of_torch_that_no_generator_names(value: object) -> None:
    check_source(_wrapper(call=f"buf1 = torch.ops.aten.relu(arg0_1, {value})"), "py")


def test_the_name_of_a_device_with_which_torch_measures_kernels_that_are_one() -> None:
    check_source(TRITON.format("tmp1 = tl.load(in_ptr0, device=cuda)"), "py")
    with pytest.raises(UnexpectedSource, match="system"):
        check_source(TRITON.format("cuda.system(tmp0)"), "py")


def test_names_of_parts_of_a_template_that_triton_leaves_out() -> None:
    check_source(TRITON.format("sparse_kv_num_blks_offset = sparse_full_kv_idx_offset"), "py")
    with pytest.raises(UnexpectedSource, match="getattr"):
        check_source(TRITON.format("tmp1 = getattr"), "py")


@pytest.mark.parametrize(
    "line",
    [
        'system("id");', 'std::system("id");', "popen(0, 0);", 'execl("/bin/sh", "sh", nullptr);', "syscall(59);",
        'asm("nop");', "__asm__ volatile (0);", 'std::ofstream file("x");', "dlopen(0, 0);", "PyRun_SimpleString(0);",
        "posix_spawnp();", "qzmarkqz();", "sys\\\ntem(0);", "sy\\u0073tem(0);", "kill(1, 9);",
        # Where a compiler sees other literals and comments than a reader who knows few.
        "auto a = 1'0; system(\"id\"); auto b = 1'0;", '// \\\n/*\nsystem("id");\n// */',
        '// \\ \n/*\nsystem("id");\n// */', '// ??/\n/*\nsystem("id");\n// */',
        '\n#define include system\ninclude("id");', 'int x __attribute__((section(".text"))) = 3;',
        'int x [[section(".text")]] = 3;', 'std::filesystem::remove_all("x");', 'at::from_file("x");',
        'torch::jit::load("x");',
    ],
)  # fmt: skip
def test_names_that_no_kernel_calls(line: str) -> None:
    with pytest.raises(UnexpectedSource):
        check_source(CPP.format(line), "main.cpp")
    with pytest.raises(UnexpectedSource):
        check_source(_wrapper().replace("AOTI_TORCH_CHECK(tmp0", f"{line} AOTI_TORCH_CHECK(tmp0"), "py")


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"', "#include </etc/passwd>", "#include <ATen/../../x>", "#define system abs",
        "#pragma GCC poison abs", "#pragma GCC plugin", "#line 1", "#error", "#if __has_include(</x>)", "%:include <x>",
        'auto s = R"(x)";', 'auto s = "\\x41";', "auto s = \"\u00e9\";", "auto s = \"a", "@", "`", "$x;",
    ],
)  # fmt: skip
def test_directives_and_literals_that_no_kernel_has(line: str) -> None:
    with pytest.raises(UnexpectedSource):
        check_source(CPP.format(f"\n{line}\n"), "main.cpp")


@pytest.mark.parametrize(
    "statement",
    [
        "import subprocess", "import builtins", "from os import system", "from ctypes import CDLL", "print(1)",
        "os.system('id')", "exec('1')", "eval('1')", "x = os", "x = open", "x = __import__", "x = __builtins__",
        "x = torch.load", "x = torch.ops.load_library", "x = torch.hub", "x = torch.utils.cpp_extension",
        "x = ().__class__", "x = getattr", "x = torch.classes", "x = torch.qzmarkqz", "from torch import os",
        "try:\n    pass\nexcept Exception:\n    pass", "x = (y := 1)", "while True:\n    pass", "x = 'a\\x00b'",
        "from torch._inductor.marker import x", "x = qzmarkqz", "@marker\ndef f():\n    pass", "x = (",
        # What leads to all else.
        "x = globals()['__builtins__']['exec']('1')", "async_compile.wait(globals())['exec']('1'), globals()",
        "from torch._inductor.cpp_builder import run_compile_cmd\nx = run_compile_cmd('id', '/')",
        "x = torch._inductor.cpp_builder.run_compile_cmd('id', '/')", "x = torch._inductor", "x = torch.cuda",
        "import triton\nx = triton.runtime.build.compile_module_from_src('int x;', 'x')",
        "import torch._inductor.codecache",
        "from torch._inductor.runtime import triton_heuristics\nx = triton_heuristics.torch._inductor",
        "from torch._inductor.runtime import triton_heuristics\nx = triton_heuristics.functools.partial",
        "from torch._inductor.codecache import PyCodeCache", "x = torch.from_file('x')", "x = torch.ops.aten.from_file",
        "x = torch.UntypedStorage.from_file('x')", "def f(a):\n    a.tofile('x')",
    ],
)  # fmt: skip
def test_statements_that_no_wrapper_has(statement: str) -> None:
    with pytest.raises(UnexpectedSource):
        check_source(_wrapper(statement), "py")
    with pytest.raises(UnexpectedSource):
        check_source(TRITON.format("").replace("triton_helpers.set_driver_to_gpu()", statement), "py")


@pytest.mark.parametrize("expression", ["os.system('id')", "exec('1')", "open('x')", "torch.load('x')", "qzmarkqz()"])
def test_calls_within_functions(expression: str) -> None:
    for source in (_wrapper(call=expression), TRITON.format(expression)):
        with pytest.raises(UnexpectedSource):
            check_source(source, "py")


@pytest.mark.compiles
@pytest.mark.timeout(300)
def test_a_message_that_ends_its_literal_is_neither_compiled_nor_run(tmp_path: Path) -> None:
    # As if it had got past the decoder: torch/_inductor/codegen/cpp.py: device_assert_async writes it as it is.
    proof = tmp_path / "proof"
    message = f'no"), 0), (system("touch {proof}"), 0)); //'
    with pytest.raises(UnexpectedSource, match="system"), watching_sources(check_source):
        _compile(message)
    assert not proof.exists()


def _compile(message: str) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    condition = graph.call_function(torch.ops.aten.ge.Scalar, (x, 0))
    every = graph.call_function(torch.ops.aten.all.default, (condition,))
    graph.call_function(torch.ops.aten._assert_async.msg, (every, message))
    y = graph.call_function(torch.ops.aten.relu.default, (x,))
    graph.output((y,))
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    with fake_mode:
        value = torch.ones(8)
        for node, example in ((x, value), (condition, value >= 0), (every, (value >= 0).all()), (y, value.relu())):
            node.meta["example_value"] = example
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        program = compile_to_program(module, [value], fake_mode=fake_mode, inductor_options={}, functorch_options={})
    program(-torch.ones(8))


def test_what_was_refused_is_raised_even_where_inductor_goes_on_without_it() -> None:
    codecache = importlib.import_module("torch._inductor.codecache")
    write = codecache.write
    # As the choices of max-autotune do.
    passed_over = contextlib.suppress(Exception)
    with pytest.raises(UnexpectedSource, match="subprocess"), watching_sources(check_source), passed_over:
        codecache.PyCodeCache.load("import subprocess")
    assert codecache.write is write


def test_what_measures_kernels_passes() -> None:
    check_source(_tuning_block(), TUNING)


@pytest.mark.parametrize(
    "line",
    [
        "import os\n    os.system('id')", "exec('1')", "arg0_1.tofile('x')", "triton_poi_0.run(open('x'))",
        "with open('x'):\n        pass", "torch.load('x')", "arg0_1 = [c for c in ().__class__.__bases__]",
        "qzmarkqz.run()", "triton_poi_0.run(qzmarkqz)",
    ],
)  # fmt: skip
def test_calls_that_measure_no_kernel(line: str) -> None:
    with pytest.raises(UnexpectedSource):
        check_source(_tuning_block(line), TUNING)


def test_kernels_that_are_measured_are_looked_at() -> None:
    with pytest.raises(UnexpectedSource, match="system"):
        check_source(_tuning_block(kernel="system(0)"), TUNING)


def test_a_wrapper_measures_nothing() -> None:
    with pytest.raises(UnexpectedSource):
        check_source(_tuning_block(), "py")


@pytest.mark.parametrize("line", ["open(proof, 'w')", "torch.save(arg0_1, proof)"])
def test_what_measures_kernels_is_looked_at_before_it_runs(tmp_path: Path, line: str) -> None:
    wrapper = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    proof = tmp_path / "proof"
    code = SimpleNamespace(getvalue=lambda: line.replace("proof", repr(str(proof))), splice=lambda _: None)
    writer = SimpleNamespace(kernel_autotune_defs=code, kernel_autotune_calls=code)
    with pytest.raises(UnexpectedSource), watching_sources(check_source):
        wrapper.generate_and_run_autotune_block(writer)
    assert not proof.exists()


@pytest.mark.compiles
def test_templates_for_products_on_a_cpu_pass() -> None:
    # Without ATen there is nothing else to take for such a product.
    farm = SingleProcessFarm(options={"max_autotune": True, "max_autotune_gemm_backends": "CPP"})
    program = torch.compile(lambda x, y: torch.nn.functional.gelu(torch.bmm(x, y)), backend=farm.backend)
    torch.compiler.reset()
    program(torch.randn(2, 9, 32), torch.randn(2, 32, 16))
    (report,) = farm.reports
    assert report.outcome is Outcome.RIGHT, report.message
