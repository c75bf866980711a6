"""What torch calls at the end of its import: nothing that it does keeps torch from being imported."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from compilefarm import autoload
from compilefarm.client import torch_caches


def test_without_the_variable_nothing_is_imported() -> None:
    program = (
        "import sys; from compilefarm import autoload; before = set(sys.modules); autoload.load(); "
        "assert set(sys.modules) == before; assert not {'grpc', 'google.protobuf', 'torch'} & before"
    )
    environ = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environ)


def test_what_is_imported_in_a_thread_knows_nothing_of_torch() -> None:
    """Two threads that enter a circle of modules at different places may end with one of them half imported."""
    program = (
        "import sys; from compilefarm import autoload, warming; autoload.load(); warming.wait_until_warm(); "
        "assert {*warming.MODULES} <= set(sys.modules); assert 'torch' not in sys.modules"
    )
    environ = {"PYTHONPATH": ":".join(sys.path), "COMPILEFARM_WARM": "yes"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environ)


_IN_THREADS = """
import sys, threading, torch
from compilefarm import autoload, warming
from compilefarm.torch_internals.imported_modules import DYNAMO

class Searches:
    found = []
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch" and threading.current_thread() is not threading.main_thread():
            self.found.append(name)

assert not {*warming.WITH_TORCH} & set(sys.modules)
sys.meta_path.insert(0, Searches())
autoload.load()
warming.wait_until_warm()
assert {*warming.WITH_TORCH} <= set(sys.modules)
assert DYNAMO not in sys.modules and not Searches.found, Searches.found
import torch._dynamo
warming.wait_until_warm()
assert {*warming.WITH_DYNAMO} <= set(sys.modules)
import xformers
warming.wait_until_warm()
from compilefarm.graph.extensions import registrable
looked_at = registrable.cache_info().misses
registrable(xformers.LIBRARY)
assert registrable.cache_info().misses == looked_at
assert not Searches.found, Searches.found
"""
_WITH_OPERATORS = """
import ctypes
from pathlib import Path
LIBRARY = Path(__file__).with_name("operators.so")
ctypes.CDLL(LIBRARY)
"""


def test_what_is_imported_in_a_thread_has_torch_import_nothing(tmp_path: Path) -> None:
    """Neither once torch is imported, nor once Dynamo is, nor a library with operators. It is there then without being
    asked for."""
    library = tmp_path / "xformers"
    library.mkdir()
    (library / "__init__.py").write_text(_WITH_OPERATORS)
    shutil.copy(sys.modules["_ctypes"].__file__ or "", library / "operators.so")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    environ = {**os.environ, "PYTHONPATH": path, "COMPILEFARM_WARM": "yes", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", _IN_THREADS], check=True, timeout=100, env=environ)


_FORKING = """
import os, sys, threading
from compilefarm import warming

begun, go = threading.Event(), threading.Event()
sys.modules["marks"] = sys.modules["__main__"]
warming.MODULES = ("slowly",)
warming.warm()
begun.wait()
# What was registered last is called first.
os.register_at_fork(before=go.set)
if (child := os.fork()) == 0:
    import slowly
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_child_forked_meanwhile_does_not_wait_for_what_a_thread_was_importing(tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text("import marks\nmarks.begun.set()\nmarks.go.wait()\n")
    environ = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", _FORKING], check=True, timeout=60, env=environ)


_FORKING_AT_START = """
import os, sys, threading
from compilefarm import warming

failed, began, Thread = [], threading.Event(), threading.Thread
sys.unraisablehook = failed.append

def fork():
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)

forking = Thread(target=fork)

class Starting(Thread):
    def start(self):
        os.register_at_fork(before=began.set)
        forking.start()
        began.wait()
        # Who does not wait for this thread has forked by then.
        forking.join(0.2)
        super().start()

threading.Thread, warming.MODULES = Starting, ()
warming.warm()
forking.join()
assert not failed, failed
"""


def test_a_process_that_forks_waits_for_a_thread_that_is_about_to_start() -> None:
    environ = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", _FORKING_AT_START], check=True, timeout=60, env=environ)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"COMPILEFARM_TORCH_CACHES": "yes"}, "set COMPILEFARM_ADDRESS"),
        ({"COMPILEFARM_TORCH_CACHES": "maybe", "COMPILEFARM_ADDRESS": "farm:1"}, "use yes or no"),
        ({"COMPILEFARM_TORCH_CACHES": "yes", "COMPILEFARM_ADDRESS": "http://farm"}, "no address of a farm"),
        (
            {
                "COMPILEFARM_TORCH_CACHES": "yes",
                "COMPILEFARM_ADDRESS": "farm:1",
                "COMPILEFARM_CACHE_SIGNING_KEY": "/missing.pem",
            },
            "cannot be signed with /missing.pem",
        ),
        (
            {"COMPILEFARM_TORCH_CACHES": "yes", "COMPILEFARM_ADRESS": "farm:1"},
            "unknown in the environment: COMPILEFARM_ADRESS",
        ),
    ],
    ids=["no address", "neither yes nor no", "wrong address", "no key", "misspelt"],
)
def test_settings_that_cannot_be_used_are_told_and_torch_goes_on(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("COMPILEFARM_ADDRESS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    torch_caches.process_caches.cache_clear()
    autoload.load()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    # A line for whoever wrote the settings, and no traceback, which is for whoever wrote Compilefarm.
    assert record.getMessage().startswith("compilefarm: torch's caches do not ask the farm: ")
    assert said in record.getMessage()
    assert record.exc_info is None


def test_the_variable_may_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILEFARM_TORCH_CACHES", "no")
    monkeypatch.setenv("COMPILEFARM_ADDRESS", "farm:1")
    with mock.patch.object(torch_caches, "install") as install:
        autoload.load()
    install.assert_not_called()
