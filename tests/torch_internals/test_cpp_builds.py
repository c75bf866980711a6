"""Canaries of torch_internals/cpp_builds.py."""

from __future__ import annotations

from compilefarm.torch_internals.cpp_builds import compilers_tried
from compilefarm.torch_internals.settings import INDUCTOR


def test_inductor_names_its_compilers() -> None:
    # Without it client/compilers.py goes by CXX.
    assert isinstance(compilers_tried(), tuple | str)
    with INDUCTOR.patch({"cpp.cxx": (None, "/a/compiler")}):
        assert compilers_tried() == (None, "/a/compiler")
