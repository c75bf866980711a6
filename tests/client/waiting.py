"""A program for test_farm.py: asks for one graph and waits as long as it takes."""

from __future__ import annotations

import sys

from compilefarm.client.farm import Farm, Surroundings
from compilefarm.client.testing import FakeGraphModule, FakeRuntime

farm = Farm(sys.argv[1], connect_timeout_seconds=300, surroundings=Surroundings(runtime=FakeRuntime()))
farm.backend(FakeGraphModule(), [])
