"""How a child ends that has done its task."""

from __future__ import annotations

import subprocess
import sys

_ENDING = """
import atexit, sys, threading
from compilefarm.worker.forks import end_child

class Freed:
    def __del__(self):
        print("freed")

def wait_for_the_end():
    threading.main_thread().join()
    print("a thread", end=", ")

sys.freed = Freed()
threading.Thread(target=wait_for_the_end).start()
atexit.register(print, "exit functions")
print("an unfinished line", end=", ")
end_child(3)
"""


def test_a_child_says_all_and_leaves_nothing_and_frees_no_module() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "an unfinished line, a thread, exit functions\n", "")
