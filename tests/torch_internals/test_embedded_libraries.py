"""Canaries of torch_internals/embedded_libraries.py; tests/farm/test_exports.py runs it in a process without ours."""

from __future__ import annotations

import base64
import importlib
import platform
import sysconfig
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from compilefarm.torch_internals.embedded_libraries import (
    answer_builds,
    processor_flags,
    require_machine,
    source_digest,
)

HERE: dict[str, Any] = {
    "python_abi": str(sysconfig.get_config_var("SOABI")),
    "architecture": platform.machine(),
    "instruction_sets": processor_flags(),
}


@pytest.mark.parametrize("is_exact", [True, False])
def test_this_machine_runs_what_was_built_on_it(is_exact: bool) -> None:
    require_machine(**HERE, is_exact=is_exact)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"python_abi": "cpython-399"}, "for Python cpython-399"),
        ({"architecture": "riscv64"}, "for riscv64"),
        ({"instruction_sets": ["avx9"]}, r"lacking are \['avx9'\]"),
    ],
)
def test_another_machine_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        require_machine(**{**HERE, **change}, is_exact=False)


def test_sources_for_shorter_vectors_are_not_compiled_for_longer_ones() -> None:
    flags = {flag for flag in processor_flags() if not flag.startswith(("avx", "amx", "sve"))}
    if flags == processor_flags():
        pytest.skip("a processor without vectors")
    require_machine(**{**HERE, "instruction_sets": flags}, is_exact=False)
    with pytest.raises(RuntimeError, match="further ones"):
        require_machine(**{**HERE, "instruction_sets": flags}, is_exact=True)


def test_builds_of_this_thread_are_answered_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cache: Any = importlib.import_module("torch._inductor.codecache").CppCodeCache
    built: list[str] = []
    monkeypatch.setattr(cache, "load_async", classmethod(lambda _, source, **__: built.append(source)))
    monkeypatch.setattr(cache, "_load_library", staticmethod(lambda path, name: (name, Path(path).read_bytes())))
    digest = source_digest("CppCodeCache", "a source", (), {"device_type": "cpu", "submit_fn": None})
    assert digest == source_digest("CppCodeCache", "a source", (), {"device_type": "cpu"})
    content = base64.b64encode(zlib.compress(b"a library")).decode()
    end = answer_builds({digest: ("its name", content)})
    assert cache.load_async("a source", device_type="cpu")() == ("its name", b"a library")
    with pytest.raises(KeyError):
        cache.load_async("another", device_type="cpu")
    beside = threading.Thread(target=cache.load_async, args=("of another thread",))
    beside.start()
    beside.join()
    end()
    cache.load_async("a source", device_type="cpu")
    assert built == ["of another thread", "a source"]
