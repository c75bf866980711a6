"""Garbage is not looked for while a start makes what is kept, and as before where something is traced."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from compilefarm.core.garbage import PausedCollections, leave_to_others


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_collections_go_on_after_a_start_and_after_one_that_fails() -> None:
    gc.enable()
    with PausedCollections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="of the start"), PausedCollections():
        raise ValueError("of the start")
    assert gc.isenabled()


def test_what_is_traced_within_a_start_has_its_garbage_collected() -> None:
    gc.enable()
    collections = PausedCollections()
    with collections:
        collections.resume()
        assert gc.isenabled()
        # Whoever turns them off meanwhile has them off.
        gc.disable()
    assert not gc.isenabled()


def test_who_has_them_off_keeps_them_off() -> None:
    gc.disable()
    with PausedCollections():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_thread_beside_the_program_pauses_nothing() -> None:
    """The program may switch collections off while the thread imports, and they would go on when it is done."""
    gc.enable()
    within = []

    def run() -> None:
        leave_to_others()
        with PausedCollections():
            within.append(gc.isenabled())
            gc.disable()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert within == [True]
    assert not gc.isenabled()


def test_imports_of_a_pod_set_no_search_off() -> None:
    """Nothing that is imported is garbage, and what a search goes through grows with the pod's own libraries."""
    script = """
import gc

gc.collect()
searches = []
gc.callbacks.append(lambda what, of: searches.append(of["generation"]) if what == "start" else None)
import compilefarm.client
# Of the youngest objects alone, a few times: what is older is gone through after many of those.
assert not any(searches) and len(searches) < 10, searches
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize("freezes", [False, True], ids=["nothing is frozen", "few objects are frozen"])
def test_the_next_search_does_not_go_through_what_a_start_has_made(freezes: bool) -> None:
    script = f"""
import gc

if {freezes}:
    gc.freeze()
    assert gc.get_freeze_count() > 0
from compilefarm.core.garbage import PausedCollections, leave_to_others

with PausedCollections():
    made = [[number] for number in range(50_000)]
young = {{id(each) for generation in (0, 1) for each in gc.get_objects(generation=generation)}}
assert not any(id(each) in young for each in made)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_what_a_process_has_frozen_stays_frozen() -> None:
    # A process of its own: other threads of this one free what they have had frozen.
    script = f"""
import gc
from {PausedCollections.__module__} import PausedCollections

kept = [["forked"], *([number] for number in range(20_000))]
gc.freeze()
before = gc.get_freeze_count()
with PausedCollections():
    pass
assert gc.get_freeze_count() == before, (gc.get_freeze_count(), before)
assert not any(each is kept for each in gc.get_objects())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
