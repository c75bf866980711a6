"""Digests of code: equal for equal source in every process, and different for whatever differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import CodeType

import pytest

from compilefarm.core.code_digests import digest_of_code

_SOURCE = "def f(x): return x in {'a', 'b', 'c', ('d', 1), 2.0}, lambda: x[1:2], (1, (2, b'3'))"
_PRINT = f"""
from compilefarm.core.code_digests import digest_of_code
print(digest_of_code(compile({_SOURCE!r}, '', 'exec')))
"""


def test_processes_with_other_hashes_find_the_same_digest() -> None:
    found = {_digest_elsewhere(seed) for seed in ("1", "2", "3")}
    assert found == {digest_of_code(compile(_SOURCE, "elsewhere.py", "exec", dont_inherit=True))}


def _code() -> CodeType:
    def function(x: int) -> tuple[object, ...]:
        return x, 1.5

    return function.__code__


@pytest.mark.parametrize(
    "constants",
    [
        (1,), (True,), (1.0,), (0.0,), (-0.0,), (1j,), ("1",), (b"1",), (None,), (...,), ((1,),), ((True,),), (("1",),),
        (("tuple", 1),), (("code", "1"),), (("frozenset", 1),), (frozenset((1,)),), (frozenset((1.0,)),),
        (frozenset((("1",),)),), (_code(),), (_code().replace(co_consts=(2,)),), (1, 2), ((1, 2),), (2**70,),
    ],
)  # fmt: skip
def test_constants_are_told_apart(constants: tuple[object, ...], told: Callable[[str], None]) -> None:
    told(digest_of_code(_code().replace(co_consts=constants)))


@pytest.fixture(scope="module")
def told() -> Callable[[str], None]:
    known: set[str] = set()

    def tell(digest: str) -> None:
        assert digest not in known
        known.add(digest)

    return tell


def test_constants_that_no_compiler_makes_have_no_digest() -> None:
    with pytest.raises(ValueError, match="type builtins"):
        digest_of_code(_code().replace(co_consts=([1],)))


def _digest_elsewhere(seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", _PRINT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
