"""Canaries: each says what broke when a release moves a private name that the loader or the builder leans on."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest
import torch

from compilefarm.builder import kernels, programs
from compilefarm.builder.programs import not_serializable_error
from compilefarm.graph import compiling
from compilefarm.loader import libraries, wrappers
from compilefarm.worker import kernel_work


def test_standalone_compile_can_make_one_serializable_program() -> None:
    module = importlib.import_module("torch._inductor.standalone_compile")
    assert {"dynamic_shapes", "options", "aot"} <= set(inspect.signature(module.standalone_compile).parameters), (
        "inductor.compile_to_program calls standalone_compile(dynamic_shapes=, options=, aot=True)"
    )
    assert hasattr(module.AOTCompiledArtifact, "serialize"), "finish_program uses it"


def test_cpp_is_built_through_load_async() -> None:
    cache = importlib.import_module("torch._inductor.codecache").CppCodeCache
    libraries._listen_to_builds()
    assert cache.load_async.__func__.compilefarm
    for kind in ("CppPythonBindingsCodeCache", "CppWrapperCodeCache"):
        other = getattr(importlib.import_module("torch._inductor.codecache"), kind)
        assert other.load_async.__func__ is cache.load_async.__func__, f"{kind} builds in a way that is not listened to"
    assert list(inspect.signature(cache._load_library).parameters) == ["path", "key"], (
        "using_libraries loads with _load_library(path, key)"
    )


def test_all_that_is_generated_is_written_by_one_function() -> None:
    # torch/_inductor/codecache.py. What is compiled or run without it would not be looked at: generated_sources.
    cache = importlib.import_module("torch._inductor.codecache")
    assert list(inspect.signature(cache.write).parameters)[:2] == ["content", "extension"]
    for writer in (cache.PyCodeCache.write, cache.PyCodeCache.load, cache.CppCodeCache.load_async):
        function = inspect.unwrap(getattr(writer, "__func__", writer))
        names = {*function.__code__.co_names, *(name for each in _closure_codes(function) for name in each.co_names)}
        assert "write" in names, writer
    submit = importlib.import_module("torch._inductor.async_compile").AsyncCompile.triton
    assert list(inspect.signature(submit).parameters)[:3] == ["self", "kernel_name", "source_code"]


def _closure_codes(function: Callable[..., object]) -> Iterator[CodeType]:
    # libraries._listen_to_builds stands in for CppCodeCache.load_async.
    for cell in getattr(function, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "__code__"):
            yield cell.cell_contents.__code__


def test_the_compiler_is_tried_through_check_build() -> None:
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    assert list(inspect.signature(module.VecISA.check_build).parameters) == ["self", "code"], (
        "run_build_trials and replay_build_trials stand in for VecISA.check_build(self, code)"
    )
    assert all(hasattr(isa, "_arch_flags") for isa in module.supported_vec_isa_list), "trials are told apart by it"
    assert callable(module.valid_vec_isa_list)


def test_settings_that_a_compile_and_a_load_rely_on_exist() -> None:
    functorch = importlib.import_module("torch._functorch.config")
    for name in ("strict_autograd_cache", "force_non_lazy_backward_lowering"):
        assert hasattr(functorch, name), f"compile_to_program sets torch._functorch.config.{name}"
    config = importlib.import_module("torch._inductor.config")
    assert hasattr(config.triton, "cudagraphs"), "deserialize_program sets it"
    assert hasattr(config, "compile_threads"), "deserialize_program sets it"
    assert issubclass(not_serializable_error(), Exception)


def test_a_cached_graph_is_reloaded_in_one_place() -> None:
    cache = importlib.import_module("torch._inductor.codecache")
    parameters = inspect.signature(cache.FxGraphCache.cache_hit_post_compile).parameters
    assert list(parameters) == ["graph", "cache_info", "constants"], "_without_the_compiler stands in for it"
    assert callable(cache.code_hash), "a finished wrapper is named by it"
    bundler = importlib.import_module("torch._inductor.triton_bundler").TritonBundler
    assert list(inspect.signature(bundler.read_and_emit).parameters) == ["bundle"], "it puts kernels into place"
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    assert list(inspect.signature(graph.after_deserialization).parameters) == ["self", "constants"]


def test_what_a_finished_program_does_without_is_where_it_was() -> None:
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    entry = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result").BundledAOTAutogradResult
    fields = {field.name for kind in (graph, entry) for field in dataclasses.fields(kind)}
    wanted = {*programs._LOGGED_BY_GRAPH, *programs._LOGGED_BY_ENTRY, "source_code", "cache_key", "fx_kwargs"}
    assert wanted | {"compiled_fw", "compiled_bw", "_triton_bundle"} <= fields, "finish_program finishes these"


def test_dynamo_compiles_under_a_lock_that_a_thread_may_take_twice() -> None:
    with compiling.compile_lock(), compiling.compile_lock():
        pass
    assert compiling.compile_lock() is importlib.import_module("torch._dynamo.convert_frame").compile_lock


def test_triton_builds_through_functions_of_its_driver() -> None:
    pytest.importorskip("triton")
    driver = importlib.import_module("triton.backends.nvidia.driver")
    assert hasattr(driver, "library_dirs"), "triton_builds keeps library_dirs from starting ldconfig"
    builders = [name for name in ("compile_module_from_src", "compile_module_from_file") if hasattr(driver, name)]
    assert builders, "Triton builds cuda_utils in another way: artifacts for CUDA would need a C compiler"
    starting = inspect.getsource(driver.CudaUtils.__init__)
    assert any(f"{name}(" in starting for name in builders), "triton_builds has CudaUtils build cuda_utils"


def test_kernels_of_triton_are_kept_as_inductor_keeps_them() -> None:
    pytest.importorskip("triton")
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    autotuner = heuristics.CachingAutotuner
    for name in ("prepare_for_pickle", "restore_after_unpickle", "_make_launchers", "_precompile_config", "bench"):
        assert callable(getattr(autotuner, name)), f"kernels.py uses CachingAutotuner.{name}"
    attributes = inspect.getsource(autotuner)
    for name in (
        "compile_results",
        "launchers",
        "inductor_meta",
        "coordesc_tuner",
        "save_cache_hook",
        "_reload_kernel",
    ):
        assert f"self.{name}" in attributes, f"kernels.py uses CachingAutotuner.{name}"
    assert "cubin_path" in inspect.getsource(heuristics.StaticTritonCompileResult.make_launcher)
    assert callable(heuristics.triton_hash_to_path_key)
    static = inspect.getsource(importlib.import_module("torch._inductor.runtime.static_triton_launcher"))
    for name in ("cubin_raw", "cubin_path", "function", "C_impl"):
        assert f"{name}" in static, f"kernels.py uses {name} of a statically launched kernel"
    assert callable(importlib.import_module("torch._inductor.runtime.runtime_utils").triton_cache_dir)
    compiled = importlib.import_module("triton.compiler").CompiledKernel
    assert all(name in inspect.getsource(compiled) for name in ("metadata_group", "self._run", "self.asm"))


def test_what_compiling_kernels_needs_once_can_be_done_before() -> None:
    assert callable(importlib.import_module("torch._inductor.async_compile").pre_fork_setup), (
        "kernel_compiles.prepare calls it"
    )
    pytest.importorskip("triton")
    assert callable(importlib.import_module("torch._inductor.runtime.triton_compat").triton_key), (
        "kernel_compiles.preload calls it"
    )
    importlib.import_module("triton.compiler.code_generator")
    # Without a GPU there is no active driver to look at.
    assert hasattr(type(importlib.import_module("triton.runtime").driver), "active")
    backend = importlib.import_module("triton.backends.nvidia.driver").CudaDriver
    assert "get_current_device" in inspect.getsource(inspect.getmro(backend)[1])


_ASSEMBLERS = """
import importlib, os
from compilefarm.builder import kernel_compiles
kernel_compiles.use_their_assembler()
here = os.environ.pop("TRITON_PTXAS_PATH", "")
compiling = importlib.import_module("torch._inductor.async_compile")
kernel_compiles.start()
there = compiling.AsyncCompile.process_pool().submit(os.getenv, "TRITON_PTXAS_PATH", "").result(timeout=120)
compiling.shutdown_compile_workers()
print([here, there])
"""


@pytest.mark.compiles
def test_kernels_are_assembled_alike_here_and_where_they_are_compiled() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    command = [sys.executable, "-W", "ignore", "-c", _ASSEMBLERS]
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    here, there = ast.literal_eval(said.stdout.splitlines()[-1])
    assert here == there, "kernel_compiles.use_their_assembler sets what torch/_inductor/compile_worker sets"


def test_places_that_a_compile_writes_to() -> None:
    cache = importlib.import_module("torch._inductor.codecache")
    folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    assert os.path.join(folder, "precompiled_headers") == cache._HEADER_DIR, "headers.use_own_folder says so again"
    assert os.path.join(cache._HEADER_DIR, "locks") == cache._HEADER_LOCK_DIR
    assert len(cache.get_path("key", "py")) == 3, "finish_program finds a wrapper's module by get_path(...)[2]"
    assert isinstance(cache.PyCodeCache.modules, list), "finish_program looks for the wrapper among these"
    assert hasattr(importlib.import_module("torch._inductor.config"), "unsafe_marked_cacheable_functions"), (
        "compile_to_program has torch save graphs that it does not know"
    )
    called = inspect.getsource(importlib.import_module("torch._inductor.output_code").CompiledFxGraph.__call__)
    assert "torch._inductor.debug" in called, "LoadedGraph imports it before it has torch make a call"
    assert "return self.current_callable(inputs)" in called, "LoadedGraph does this and nothing else"
    assert hasattr(torch.autograd.profiler, "_is_profiler_enabled"), "LoadedGraph leaves calls to torch then"


def test_a_bundle_is_one_entry_and_two_tables() -> None:
    kind = importlib.import_module("torch._dynamo.aot_compile_types").BundledAOTAutogradSerializableCallable
    assert "bundle = (serialized_entry, triton_kernels, triton_constant_args)" in inspect.getsource(
        kind.serialize_compile_artifacts
    ), "finish_program takes the entry and leaves the tables"
    assert "pickle.loads(data)" in inspect.getsource(kind.deserialize_compile_artifacts), "it makes a pickle of them"


def test_a_program_is_made_of_an_entry_by_one_method() -> None:
    result = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    names = list(inspect.signature(result.BundledAOTAutogradResult.wrap_post_compile).parameters)
    assert names == ["self", "args", "aot_config", "fx_config"], "_wrapped calls it"
    source = inspect.getsource(result.deserialize_bundled_cache_entry)
    for done in ("entry.guards_expr = None", '"cudagraphs": ', '"boxed_forward_device_index": ', "compiled_fn(list("):
        assert done in source, "_wrapped does the same"
    assert callable(importlib.import_module("torch._inductor.utils").BoxedBool)
    assert callable(importlib.import_module("torch._inductor.cudagraph_utils").BoxedDeviceIndex)
    part = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    bundled = {field.name for field in dataclasses.fields(part.BundledCompiledForward)}
    assert "result" in bundled, "the graph of compiled_fw is its result"
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    assert {"constants", "device_idxs", "_triton_bundle"} <= {field.name for field in dataclasses.fields(graph)}


def test_inductor_compiles_kernels_through_an_attribute_of_triton() -> None:
    pytest.importorskip("triton")
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    source = inspect.getsource(heuristics.CachingAutotuner)
    assert "triton.compile(*compile_args, **compile_kwargs)" in source, (
        "count_kernel_work puts a counter in the place of triton.compile: called in another way, its count stays 0"
    )
    assert "import triton\n" in inspect.getsource(importlib.import_module("torch._inductor.runtime.triton_compat"))
    assert heuristics.triton is importlib.import_module("triton")
    assert "self.bench(" in source, "count_kernel_work counts calls of CachingAutotuner.bench"


def test_what_a_finished_kernel_sets_and_leaves_out_is_where_it_was() -> None:
    pytest.importorskip("triton")
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    source = inspect.getsource(heuristics.CachingAutotuner)
    names = ("configs", "filename", "autotune_cache_info", "device_props", "triton_meta", "fn", *kernels._BOOKKEEPING)
    for name in names:
        assert re.search(rf"self\.{name}\b.* = ", source), f"kernels.py sets CachingAutotuner.{name}"
    for name in ("kernel", "config", "compile_meta"):
        assert f"self.{name} = " in inspect.getsource(heuristics.CompileResult), f"kernels.py uses its {name}"
    assert "launcher.config = " in inspect.getsource(heuristics), "the winner is launchers[0].config"
    compiled = inspect.getsource(importlib.import_module("triton.compiler").CompiledKernel)
    assert "self.src = src" in compiled


def test_triton_calls_its_builders_with_names_that_are_listened_to() -> None:
    pytest.importorskip("triton")
    driver = importlib.import_module("triton.backends.nvidia.driver")
    for name in ("compile_module_from_src", "compile_module_from_file"):
        builder = getattr(driver, name, None)
        if builder is not None:
            given = inspect.signature(inspect.unwrap(builder)).parameters
            assert next(iter(given)) in ("src", "src_path"), f"triton_builds reads the source of {name}"
            assert {"name", "library_dirs"} <= set(given), f"triton_builds passes these on to {name}"


def test_a_program_is_loaded_in_a_context_of_its_own() -> None:
    guards = importlib.import_module("torch._guards")
    mode = importlib.import_module("torch._subclasses").FakeTensorMode
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv
    context = guards.TracingContext(mode(shape_env=shapes()))
    with guards.tracing(context):
        assert guards.TracingContext.try_get() is context
    importlib.import_module("torch._inductor.compile_fx")


def test_wrappers_are_written_as_they_are_read() -> None:
    """wrappers.py and kernels.py know Inductor's texts; here they come from those who write them."""
    module = importlib.import_module("torch._inductor.codegen.cuda.device_op_overrides")
    overrides = module.CUDADeviceOpOverrides()
    guard, switch = overrides.device_guard(0), overrides.set_device(0)
    assert wrappers.moved_wrapper(f"with {guard}:\n    {switch}\n", device=3) == (
        f"with {overrides.device_guard(3)}:\n    {overrides.set_device(3)}\n"
    )
    device = torch.device("cuda", 0)
    for text in (repr(device), repr(str(device))):
        assert wrappers.moved_wrapper(text, device=3) == text.replace("0", "3")
    module = importlib.import_module("torch._inductor.codegen.wrapper")
    wrapper = inspect.getsource(module)
    assert list(inspect.signature(module.PythonWrapperCodegen.generate_and_run_autotune_block).parameters) == ["self"]
    for text in (
        "self.kernel_autotune_defs =",
        "self.kernel_autotune_calls =",
        "get_raw_stream({",
        "async_compile = AsyncCompile()",
        "async_compile.wait(globals())",
        "del async_compile",
        "def get_args(",
        "def benchmark_compiled_module(",
    ):
        assert text in wrapper, f"wrappers.py or kernels.py looks for {text}"
    kernel = inspect.getsource(importlib.import_module("torch._inductor.codegen.triton"))
    assert "async_compile.triton(" in kernel, "kernels.py takes these out of a wrapper"
    extern = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    importlib.import_module("torch._inductor.kernel.mm")
    assert callable(extern.mm), "what is left of extern_kernels comes from torch"


def test_torch_counts_what_is_measured() -> None:
    # torch/_inductor/runtime/benchmarking.py: time_and_count. Without it an artifact that measures in pods would pass.
    benchmarker = importlib.import_module("torch._inductor.runtime.benchmarking").benchmarker
    work = kernel_work.KernelWork()
    benchmarker.benchmark_cpu(lambda: None, warmup=0, rep=0)
    assert work.benchmarks == 1


def test_aot_autograd_reads_in_one_place_which_inputs_are_static() -> None:
    """_with_static_inputs stands in for what reads the marks of Dynamo."""
    module = importlib.import_module("torch._functorch.aot_autograd")
    parameters = inspect.signature(module._try_get_metadata_from_dynamo).parameters
    assert list(parameters) == ["mod", "param_keys", "full_args_num", "full_args_descs"]
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert module._try_get_metadata_from_dynamo(graph, {}.keys(), 1, []) == (None, []), "sources and numbers"


def test_entries_are_pickled_by_one_function() -> None:
    """_pickling_real_tensors stands in for it."""
    cache = importlib.import_module("torch._functorch._aot_autograd.autograd_cache").AOTAutogradCache
    assert isinstance(inspect.getattr_static(cache, "_pickle_entry"), staticmethod)
    assert list(inspect.signature(cache._pickle_entry).parameters) == ["entry", "remote"]
    assert "AOTAutogradCache._pickle_entry(entry, remote)" in inspect.getsource(cache.save)


def test_torch_records_in_a_tree_that_can_be_watched() -> None:
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    names = list(inspect.signature(trees.cudagraphify_impl).parameters)
    assert names == ["model", "inputs", "static_input_idxs", "args", "kwargs"], "recorded_with stands in for it"
    given = inspect.signature(importlib.import_module("torch._inductor.compile_fx").cudagraphify).parameters
    assert {"device_index", "is_backward", "mutated_input_idxs"} <= set(given), "_cudagraphify reads these"
    manager = trees.CUDAGraphTreeManager
    for name in ("run_eager", "record_function"):
        parameters = list(inspect.signature(getattr(manager, name)).parameters)
        assert parameters == ["self", "new_inputs", "function_id"], "WatchedManager has one of its own"
    assert callable(manager._get_cuda_graph_recorded_tensor_checker)
    assert callable(manager.set_to_running_backward)
    assert {"model", "mutated_input_idxs"} <= {field.name for field in dataclasses.fields(trees.WrappedFunction)}
    code = importlib.import_module("torch._inductor.output_code")
    graph, names = code.CompiledFxGraph, inspect.signature(code.maybe_handle_backward_generation).parameters
    assert list(names) == ["compiled_graph", "boxed_forward_device_index"], "_handle_backward stands in for it"
    assert "mutated_input_idxs" in {field.name for field in dataclasses.fields(graph)}
    assert hasattr(trees.local, "tree_manager_containers") or torch._C._is_key_in_tls("tree_manager_containers")
    assert callable(torch._C._stash_obj_in_tls)


def test_captures_that_were_left_begun_are_found_in_frames_of_graphs() -> None:
    graph = torch.cuda.CUDAGraph
    assert {"self"} == {step.__code__.co_varnames[0] for step in (graph.capture_begin, graph.capture_end)}
    assert callable(graph.pool), "it raises before a capture has ended"
    assert {"clone_state", "graphsafe_set_state"} <= set(dir(torch.Generator))


def test_a_tensor_is_made_again_where_it_lay() -> None:
    lies = torch.arange(3.0)
    storage = lies.untyped_storage()
    found = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), lies.device, storage.nbytes())
    again = torch.empty(0).set_(found, 1, (2,), (1,))
    lies[2] = 5
    assert again.tolist() == [1.0, 5.0]


def test_what_is_not_recorded_is_aligned() -> None:
    utils = importlib.import_module("torch._inductor.utils")
    written = importlib.import_module("torch.utils._ordered_set").OrderedSet([0])
    askew = torch.zeros(9)[1:]
    write = utils.align_inputs_from_check_idxs(lambda inputs: inputs[0].add_(1).data_ptr(), [0], written)
    assert write([askew]) % 16 == 0
    assert askew.sum() == 8, "what is written to a copy is written to the original"


# What the loader and the builder take of torch's and Triton's inside, by the test here that tells when it moves.
_CANARIES = {
    "torch._C": test_torch_records_in_a_tree_that_can_be_watched,
    "torch._dynamo.convert_frame": test_dynamo_compiles_under_a_lock_that_a_thread_may_take_twice,
    "torch._dynamo.utils": test_torch_counts_what_is_measured,
    "torch._functorch": test_settings_that_a_compile_and_a_load_rely_on_exist,
    "torch._functorch.aot_autograd": test_aot_autograd_reads_in_one_place_which_inputs_are_static,
    "torch._functorch._aot_autograd.aot_autograd_result": test_a_bundle_is_one_entry_and_two_tables,
    "torch._functorch._aot_autograd.autograd_cache": test_entries_are_pickled_by_one_function,
    "torch._functorch.config": test_settings_that_a_compile_and_a_load_rely_on_exist,
    "torch._guards": test_a_program_is_loaded_in_a_context_of_its_own,
    "torch._inductor": test_settings_that_a_compile_and_a_load_rely_on_exist,
    "torch._inductor.async_compile": test_what_compiling_kernels_needs_once_can_be_done_before,
    "torch._inductor.codecache": test_places_that_a_compile_writes_to,
    "torch._inductor.codegen.wrapper": test_wrappers_are_written_as_they_are_read,
    "torch._inductor.compile_fx": test_a_program_is_loaded_in_a_context_of_its_own,
    "torch._inductor.config": test_settings_that_a_compile_and_a_load_rely_on_exist,
    "torch._inductor.cudagraph_utils": test_a_program_is_made_of_an_entry_by_one_method,
    "torch._inductor.cudagraph_trees": test_torch_records_in_a_tree_that_can_be_watched,
    "torch._inductor.cpu_vec_isa": test_the_compiler_is_tried_through_check_build,
    "torch._inductor.debug": test_places_that_a_compile_writes_to,
    "torch._inductor.output_code": test_torch_records_in_a_tree_that_can_be_watched,
    "torch._inductor.runtime.cache_dir_utils": test_places_that_a_compile_writes_to,
    "torch._inductor.runtime.compile_tasks": test_kernels_are_assembled_alike_here_and_where_they_are_compiled,
    "torch._inductor.runtime.runtime_utils": test_kernels_of_triton_are_kept_as_inductor_keeps_them,
    "torch._inductor.runtime.triton_compat": test_what_compiling_kernels_needs_once_can_be_done_before,
    "torch._inductor.runtime.triton_heuristics": test_kernels_of_triton_are_kept_as_inductor_keeps_them,
    "torch._inductor.select_algorithm": test_wrappers_are_written_as_they_are_read,
    "torch._inductor.standalone_compile": test_standalone_compile_can_make_one_serializable_program,
    "torch._inductor.utils": test_what_is_not_recorded_is_aligned,
    "torch._inductor.triton_bundler": test_a_cached_graph_is_reloaded_in_one_place,
    "torch._subclasses": test_a_program_is_loaded_in_a_context_of_its_own,
    "torch.utils._ordered_set": test_what_is_not_recorded_is_aligned,
    "torch.fx.experimental.symbolic_shapes": test_a_program_is_loaded_in_a_context_of_its_own,
    "triton": test_inductor_compiles_kernels_through_an_attribute_of_triton,
    "triton.backends.nvidia.driver": test_triton_builds_through_functions_of_its_driver,
    "triton.compiler.code_generator": test_what_compiling_kernels_needs_once_can_be_done_before,
    "triton.runtime": test_what_compiling_kernels_needs_once_can_be_done_before,
}
_PRIVATE = re.compile(r"triton(\.\w+)*|torch(\.\w+)*\._\w+(\.\w+)*|torch\.fx\.experimental\.\w+")


def test_every_private_module_has_a_canary() -> None:
    folders = (Path(wrappers.__file__).parent, Path(programs.__file__).parent)
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    paths += [Path(str(module.__file__)) for module in (compiling, kernel_work)]
    modules = {name for path in paths for name in _modules_named_in(ast.parse(path.read_text()))}
    private = {name for name in modules if _PRIVATE.fullmatch(name) and _is_module(name)}
    assert private == set(_CANARIES)


def _modules_named_in(tree: ast.Module) -> Iterator[str]:
    """What is imported, by a statement or by a name in a text, and chains of attributes of torch."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                yield module
                yield from (f"{module}.{alias.name}" for alias in aliases)
            case ast.Constant(value=str(text)):
                yield text
            case ast.Attribute():
                yield ast.unparse(node)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        # An attribute of a class, or a setting such as "triton.cudagraphs".
        return False
