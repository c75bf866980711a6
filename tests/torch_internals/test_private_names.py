"""Private names of torch, functorch, Inductor and Triton are used in one package, where each has a canary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilefarm.torch_internals import traced_functions
from tests.torch_internals.private_names import Use, private_uses

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "proto" / "compilefarm" / "torch_internals"
FOLDERS = ("proto", "service", "worker", "client")
# Modules of the product that use private names themselves, with the reason.
EXCEPTIONS = {
    "client/compilefarm/client/local.py": "what a pod does without ours imports nothing of ours that needs torch",
    "service/compilefarm/service/servers.py": "names of gRPC, whose server a stranger could end otherwise",
}

# What programs of users hold, and how they have Dynamo and Inductor treat it, by the names of torch's own documents.
_OF_USERS = re.compile(
    r"torch\._(assert|check|foreach|fused)\w*"
    r"|torch\._C\._(fft|linalg|nn|special)(\.\w+)*"
    r"|torch\._higher_order_ops(\.\w+)*"
    r"|torch\._dynamo(\.(config(\.\w+)*|decorators\.mark_unbacked|disable|graph_break|mark_\w+|maybe_mark_dynamic))?"
    r"|torch\._(functorch|inductor)\.config(\.\w+)*"
    r"|torch\._inductor(\.(list_mode_options|list_options))?"
)
# Tests that use others, with the reason.
_TESTS = {
    "admission/test_bounds.py": "names on the wire of what a request asks for",
    "admission/test_indices.py": "has Inductor write for vectors that this processor may not have",
    "benchmarks/compilefarm/benchmarks/lookup_processes.py": "opens torch's remote cache as Inductor does",
    "benchmarks/compilefarm/benchmarks/ways.py": "torch's own ways, which a farm is compared with",
    "builder/test_kernels.py": "makes kernels as Inductor does",
    "builder/test_wrappers.py": "loads wrappers as Inductor does",
    "client/caching_pod.py": "asks torch's caches, and counts what torch does",
    "client/kernel_choices.py": "asks torch's autotune cache as a process does that compiles kernels",
    "client/library_pod.py": "counts what torch does",
    "client/test_torch_caches.py": "asks torch's remote caches",
    "client/test_triton_cache.py": "Triton's own cache managers, with the farm behind them",
    "client/registering_pod.py": "counts what torch does",
    "client/renamed_torch.py": "takes private names away",
    "client/test_cache_keys.py": "puts entries into Inductor's tables, as users do",
    "client/starting_pod.py": "counts what Dynamo has traced",
    "client/test_growth.py": "compiles a frame of Dynamo's, which it never did",
    "client/test_resorts.py": "takes private names away",
    "conftest.py": "keeps pytest from listening to what torch says of its traces",
    "corpus/programs/inputs.py": "a subclass of tensors that comes with torch",
    "farm/plain_pod.py": "loads an exported program as torch does, where ours is not installed",
    "farm/rank.py": "collectives, for which torch has no public name that Dynamo traces",
    "farm/saved_pod.py": "counts what Dynamo has traced",
    "farm/subclass_pod.py": "a subclass of tensors that comes with torch, and what a pod does not import",
    "farm/test_contained.py": "the error that a local compile ends with",
    "farm/test_triton_kernels.py": "has torch believe in a GPU, and the error that a compile ends with",
    "farm/workload.py": "what a start without tracing does not import",
    "forked_pods.py": "imports what compiles import",
    "graph/test_checkpoint_policies.py": "counts what a checkpoint computes again",
    "fuzz/": "drives generators of Inductor by hand, for a GPU that is not there",
    "gpu/": "looks at what torch keeps and counts beside what a farm does",
    "graph/test_dead_nodes.py": "asks torch for a state as libraries do",
    "graph/test_hostile.py": "names that a request must not reach",
    "graph/test_plain_attention.py": "traces for a GPU that is not there, as AOTAutograd does",
    "graph/test_plain_graphs.py": "a subclass of tensors that comes with torch, and one as torch wants it written",
    "graph/test_symbols.py": "makes a symbol that Dynamo would not",
    "graph/test_triton_kernels.py": "has torch believe in a GPU, and compares with Inductor's own reading of kernels",
    "guard_timing.py": "leaves out what takes Dynamo the longest",
    "loader/": "stands in for a driver that records, and compares with the compiler that a pod does not import",
    "op_infos.py": "torch's own samples for its operators",
    "reuse/": "has Dynamo begin anew, and patches what torch calls",
    "worker/decomposition.py": "compiles as Inductor does, in parts",
    "worker/test_failures.py": "the error that a local compile ends with",
    "worker/test_source_check.py": "has Inductor write sources",
    "worker/test_verify.py": "measures as Inductor does",
    "wrong_hits/": "changes one thing of torch after the other, after which a key has to be another one",
}


def product() -> Iterator[Path]:
    """The modules of ours, without what is generated."""
    for folder in FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules() -> list[Path]:
    """The modules of the package."""
    return sorted(PACKAGE.glob("*.py"))


def test_private_names_are_used_in_one_package() -> None:
    elsewhere = (path for path in product() if path.parent != PACKAGE and named(path) not in EXCEPTIONS)
    found = [f"{named(path)}:{use.line}: {use.name}" for path in elsewhere for use in private_uses(path.read_text())]
    assert not found, "take it in proto/compilefarm/torch_internals, by what it is for, with a canary in this folder"


def test_exceptions_are_used() -> None:
    assert [path for path in EXCEPTIONS if not private_uses((ROOT / path).read_text())] == []


def uses_in_tests() -> Iterator[tuple[str, Use]]:
    """What tests use that programs of users do not; attributes of objects may be ours, which tests look into."""
    in_graphs = {*traced_functions.OF_MODES, traced_functions.GRAD_MODE, "torch._C._log_api_usage_once"}
    folder = Path(__file__).parent.parent
    for path in sorted(folder.rglob("*.py")):
        if path.parent != Path(__file__).parent:
            for use in private_uses(path.read_text()):
                if not (use.name.startswith(".") or _OF_USERS.fullmatch(use.name) or use.name in in_graphs):
                    yield path.relative_to(folder).as_posix(), use


def test_tests_use_those_that_they_have_a_reason_for() -> None:
    used = list(uses_in_tests())
    found = [f"{path}:{use.line}: {use.name}" for path, use in used if not path.startswith(tuple(_TESTS))]
    assert not found, "take it from compilefarm.torch_internals, or say here why not"
    assert [reason for reason in _TESTS if not any(path.startswith(reason) for path, _ in used)] == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch._dynamo", ["torch._dynamo"]),
        ("from torch._ops import OpOverload", ["torch._ops.OpOverload"]),
        ("from torch import _guards", ["torch._guards"]),
        ("def late():\n    from functorch import _C", ["functorch._C"]),
        ("import torch\ntorch._C._set_grad_enabled(True)", ["torch._C._set_grad_enabled"]),
        ("import torch as t\nt.library._impls", ["torch.library._impls"]),
        ("from torch import library\nlibrary._impls", ["torch.library._impls"]),
        ("from torch.fx.experimental.symbolic_shapes import ShapeEnv",
         ["torch.fx.experimental.symbolic_shapes.ShapeEnv"]),
        ("from triton import knobs", ["triton.knobs"]),
        ("import triton.runtime.jit", ["triton.runtime.jit"]),
        ("mode.shape_env._suppressed", ["._suppressed"]),
        ("make()._schema", ["._schema"]),
        ("find('torch._inductor.codecache')", ["torch._inductor.codecache"]),
        ("f'torch._inductor.{name}'", ["torch._inductor."]),
        ("getattr(kernel, '_make_launchers')", ["._make_launchers"]),
        ("attrgetter('fn._code')", ["._code"]),
        ("vars(kernel)['_run']", ["._run"]),
        ("kernel.update(_run=None)", ["._run"]),
        ("'_run' in vars(kernel)", ["._run"]),
    ],
)  # fmt: skip
def test_each_way_to_use_a_private_name_is_found(source: str, names: list[str]) -> None:
    assert [use.name for use in private_uses(source)] == names


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.ops.aten._foreach_add_(x)",
        "names = ('_foreach_add_', 'aten::_foreach_add_')",
        "class Kernel:\n    def __init__(self):\n        self._run = None\n\nkernel._run",
        "import os\nos._exit(0)",
        "device._replace(index=0)",
        "from triton import language, jit",
        "value.__dict__.update(a=1)",
        "for _ in range(3): pass",
    ],
)
def test_what_is_no_private_name_is_left_alone(source: str) -> None:
    assert private_uses(source) == []


@pytest.mark.parametrize("module", modules(), ids=lambda path: path.stem)
def test_everything_that_the_package_gives_has_a_canary(module: Path) -> None:
    canaries = (Path(__file__).parent / f"test_{module.stem}.py").read_text()
    untried = [name for name in given_by(ast.parse(module.read_text())) if not re.search(rf"\b{name}\b", canaries)]
    assert untried == []


def given_by(tree: ast.Module) -> Iterator[str]:
    """The public names of a module."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                yield from ast.literal_eval(value)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield from [name] if not name.startswith("_") else []
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield from [name] if name.isupper() and not name.startswith("_") else []


def test_the_package_needs_torch_and_nothing_of_ours() -> None:
    imported = {
        node.module or ""
        for module in modules()
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {name for name in imported if name.startswith("compilefarm")}
    assert {name for name in ours if not name.startswith("compilefarm.torch_internals")} == set()


def test_architecture_says_how_many_there_are() -> None:
    names = {use.name for module in modules() for use in private_uses(module.read_text())}
    said = re.search(r"(\d+) private names\s+in (\d+) modules", (ROOT / "ARCHITECTURE.md").read_text())
    assert said is not None
    assert [int(number) for number in said.groups()] == [len(names), len(modules())]
