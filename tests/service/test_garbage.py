"""What a gateway tells the C library about memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from compilefarm.service import garbage
from compilefarm.service.entry_batches import _MOST_AHEAD_BYTES
from compilefarm.store.checked_entries import _LARGEST_IN_MEMORY_BYTES

# In a process of its own: what the C library was told cannot be taken back.
FAULTS = """
import resource, sys
from compilefarm.service.garbage import return_freed_memory

def copy(times):
    for _ in range(times):
        b"x" * int(sys.argv[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

return_freed_memory()
before = copy(2)
print(copy(10) - before)
"""
LARGEST_ANSWER_BYTES = _MOST_AHEAD_BYTES + _LARGEST_IN_MEMORY_BYTES


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are told nothing")
def test_copies_of_answers_find_the_pages_of_earlier_ones() -> None:
    command = [sys.executable, "-c", FAULTS, str(LARGEST_ANSWER_BYTES)]
    faults = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    # Some hundred for each copy otherwise.
    assert faults < 100


def test_an_answer_with_its_descriptions_is_no_large_piece() -> None:
    assert LARGEST_ANSWER_BYTES * 1.1 < garbage._LARGE_BYTES
