"""A program for test_farm.py: asks for one graph and waits as long as it takes."""

from __future__ import annotations

import signal
import sys

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.testing import FakeGraphModule, FakeRuntime

# A shell that starts the tests in the background has its children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
farm = Farm(sys.argv[1], connect_timeout_seconds=300, dependencies=Dependencies(runtime=FakeRuntime()))
farm.backend(FakeGraphModule(), [])
