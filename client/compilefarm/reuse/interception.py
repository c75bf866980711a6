"""Stands before Dynamo's tracing: a variant that holds is installed, and what is traced all the same is published."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from compilefarm.core.dynamo_packages import Lookup, Variant
from compilefarm.core.garbage import PausedCollections
from compilefarm.core.interruptions import raise_interruption
from compilefarm.reuse.code_objects import digest_of_code
from compilefarm.reuse.refusals import Refusal, Unsayable
from compilefarm.torch_internals.dynamo_frames import Frame, Trace, Traced, backend_of, traced_of

# What installs and what records is imported where it is needed: most processes do one of the two, or neither.
if TYPE_CHECKING:
    from compilefarm.reuse.capture import KeyOf
    from compilefarm.reuse.environment_reads import EnvironmentReads
    from compilefarm.reuse.installation import LoadProgram
    from compilefarm.reuse.trace_questions import Questions


class VariantStore(Protocol):
    """Where variants are kept."""

    def find(self, lookup: Lookup, frame: Frame) -> Sequence[Variant]:
        """Returns the variants of a code object; none if there are none."""

    def publish(self, lookup: Lookup, frame: Frame, variant: Variant) -> None:
        """Keeps a variant beside the others."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What is known of programs.

    Attributes:
        is_ours: whether a frame is compiled with our backend.
        settings_of: backend, mode and options of a frame, as text.
        key_of: the key of a program that our backend has returned.
        load: the program of a key.
    """

    is_ours: Callable[[Any], bool]
    settings_of: Callable[[Frame], str]
    key_of: KeyOf
    load: LoadProgram


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What becomes of a frame.

    Attributes:
        function: its name.
        was_reused: without tracing.
        guards: how many are checked, where it was reused.
        reason: why it is traced; empty otherwise.
    """

    function: str
    was_reused: bool
    guards: int
    reason: str


class Interceptor:
    """Decides of each frame whether it is traced.

    Args:
        store: of variants.
        programs: what is known of programs.
        publishes: whether what is traced is published.
        on_outcome: told what becomes of each frame, before it is traced.
        on_unpublished: told the function and the reason where what was traced is not published.
    """

    def __init__(
        self,
        store: VariantStore,
        *,
        programs: Programs,
        publishes: bool,
        on_outcome: Callable[[Outcome], None],
        on_unpublished: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._programs = programs
        self._publishes = publishes
        self._on_outcome = on_outcome
        self._on_unpublished = on_unpublished
        self._generated: set[CodeType] = set()

    def __call__(self, frame: Frame, trace: Trace) -> Any:
        if not frame.is_plain or not self._programs.is_ours(backend_of(frame)):
            return trace()
        collections = PausedCollections()

        def resumed() -> Any:
            collections.resume()
            return trace()

        with collections:
            return self._started(frame, resumed)

    def _started(self, frame: Frame, trace: Trace) -> Any:
        try:
            lookup = lookup_of(frame, settings=self._programs.settings_of(frame))
        except Unsayable as error:
            self._on_outcome(Outcome(function=frame.code.co_qualname, was_reused=False, guards=0, reason=str(error)))
            return trace()
        reasons = list[str]()
        for variant in self._store.find(lookup, frame):
            try:
                found = self._install(variant, frame)
            except Exception as error:
                raise_interruption(error)
                if isinstance(error, MemoryError):
                    raise
                reasons.append(said(error))
            else:
                guards = len(variant.guards)
                self._on_outcome(Outcome(function=frame.code.co_qualname, was_reused=True, guards=guards, reason=""))
                return found
        return self._traced(
            frame, trace, lookup=lookup, reason="; ".join(dict.fromkeys(reasons)) or "nothing is stored"
        )

    def _install(self, variant: Variant, frame: Frame) -> Any:
        from compilefarm.reuse.installation import install

        return install(variant, frame, load=self._programs.load, generated=self._generated)

    def _traced(self, frame: Frame, trace: Trace, *, lookup: Lookup, reason: str) -> Any:
        # Before the trace, in which the backend asks for programs and says why.
        self._on_outcome(Outcome(function=frame.code.co_qualname, was_reused=False, guards=0, reason=reason))
        if not self._publishes:
            return trace()
        return watched(trace, on_traced=lambda traced, read, asked: self._publish(traced, frame, lookup, read, asked))

    def _publish(self, traced: Traced, frame: Frame, lookup: Lookup, read: EnvironmentReads, asked: Questions) -> None:
        from compilefarm.reuse.capture import capture

        try:
            variant = capture(
                traced,
                frame,
                key_of=self._programs.key_of,
                generated=self._generated,
                read=read.names(),
                asked=asked,
            )
        except Exception as error:
            raise_interruption(error)
            if isinstance(error, MemoryError):
                raise
            self._on_unpublished(frame.code.co_qualname, said(error))
        else:
            self._store.publish(lookup, frame, variant)


def lookup_of(frame: Frame, *, settings: str) -> Lookup:
    """Says which variants are looked for.

    Args:
        frame: that is about to be traced.
        settings: backend, mode and options, as text.

    Raises:
        Unsayable: the code holds what has no form as data.
    """
    return Lookup(
        module=str(frame.global_variables.get("__name__", "")),
        qualified_name=frame.code.co_qualname,
        code_digest=digest_of_code(frame.code),
        settings=f"{settings} fullgraph={frame.is_whole}",
    )


def watched(trace: Trace, *, on_traced: Callable[[Traced, EnvironmentReads, Questions], None]) -> Any:
    """Traces, and has `on_traced` called with what was found, the environment variables that were read, and what the
    trace asked for."""
    from compilefarm.reuse.environment_reads import reading_environment
    from compilefarm.reuse.trace_questions import noting_questions

    with reading_environment() as read, noting_questions() as asked:
        output = trace()
    return traced_of(output, on_guards=lambda traced, _: on_traced(traced, read, asked))


def said(error: Exception) -> str:
    """Why a variant is not recorded, or not installed, for people.

    A defect of ours costs a trace, as if there were no variant; what it is stands in the reason.
    """
    return str(error) if isinstance(error, Refusal) else f"a defect: {type(error).__name__}: {error}"
