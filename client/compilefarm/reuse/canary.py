"""Traces every frame, also where a variant holds, and compares what it finds with that variant.

The trace comes first and the process runs what it has traced: nothing beside a program that serves is traced a second
time. Dynamo keeps state of the whole process while it traces, that of random numbers among it, which it puts back, and
a later moment has other inputs, flags and buffers than the one that was verified.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol

from compilefarm.core.dynamo_packages import Variant
from compilefarm.core.interruptions import raise_interruption
from compilefarm.reuse.capture import capture
from compilefarm.reuse.comparison import Finding, compare
from compilefarm.reuse.environment_reads import EnvironmentReads
from compilefarm.reuse.installation import require_holds
from compilefarm.reuse.interception import Outcome, Programs, VariantStore, lookup_of, said, watched
from compilefarm.reuse.refusals import Unsayable
from compilefarm.reuse.trace_questions import Questions
from compilefarm.torch_internals.dynamo_frames import Frame, Trace, Traced, backend_of

# Why a frame is traced for which there is a variant that holds.
COMPARED = "this process compares packages with traces"


class ComparedVariants(VariantStore, Protocol):
    """Where variants are kept, and told what is wrong with them."""

    def note_finding(self, frame: Frame, variant: Variant, finding: Finding) -> None:
        """Notes what a trace says of a variant."""


class Canary:
    """Traces each frame, and compares. What it traces is not published.

    Args:
        store: of variants.
        programs: what is known of programs.
        on_outcome: told what becomes of each frame, before it is traced.
    """

    def __init__(self, store: ComparedVariants, *, programs: Programs, on_outcome: Callable[[Outcome], None]) -> None:
        self._store = store
        self._programs = programs
        self._on_outcome = on_outcome
        self._generated: set[CodeType] = set()

    def __call__(self, frame: Frame, trace: Trace) -> Any:
        if not frame.is_plain or not self._programs.is_ours(backend_of(frame)):
            return trace()
        variant, reason = self._holding(frame)
        self._on_outcome(Outcome(function=frame.code.co_qualname, was_reused=False, guards=0, reason=reason))
        if variant is None:
            return trace()
        return watched(trace, on_traced=lambda traced, read, asked: self._compare(traced, frame, variant, read, asked))

    def _holding(self, frame: Frame) -> tuple[Variant | None, str]:
        """The first variant that holds, which another process would install; None, and why none does."""
        reasons = list[str]()
        try:
            lookup = lookup_of(frame, settings=self._programs.settings_of(frame))
        except Unsayable as error:
            return None, str(error)
        for variant in self._store.find(lookup, frame):
            try:
                require_holds(variant, frame)
            except Exception as error:
                raise_interruption(error)
                if isinstance(error, MemoryError):
                    raise
                reasons.append(said(error))
            else:
                return variant, COMPARED
        return None, "; ".join(dict.fromkeys(reasons)) or "nothing is stored"

    def _compare(
        self, traced: Traced, frame: Frame, variant: Variant, read: EnvironmentReads, asked: Questions
    ) -> None:
        self._store.note_finding(frame, variant, self._finding(traced, frame, variant, read, asked))

    def _finding(
        self, traced: Traced, frame: Frame, variant: Variant, read: EnvironmentReads, asked: Questions
    ) -> Finding:
        try:
            found = capture(
                traced, frame, key_of=self._programs.key_of, generated=self._generated, read=read.names(), asked=asked
            )
        except Exception as error:
            raise_interruption(error)
            if isinstance(error, MemoryError):
                raise
            # What cannot be said proves nothing.
            return Finding(outcome="skipped", detail=said(error))
        return compare(variant, found)
