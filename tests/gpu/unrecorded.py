"""What becomes of a process that a GPU refuses to record for: `python -m tests.gpu.unrecorded [TEXT]`, without a farm.

Inductor's own programs are loaded as those of a farm are. What is called while they are captured is refused by CUDA, or
has no memory; or there is none at their first call, which raises then. Results have to be those of eager at every other
call, random numbers have to come as before, memory has to be given back, and another program has to be recorded
afterwards. Prints a line for each case that has the text in its name, and what was raised; the exit status is 1 if one
is wrong.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from compilefarm.loader import recording
from compilefarm.loader.recording import Recording, recorded_with
from compilefarm.torch_internals.counters import inductor_counts

from .trees import graphs_on

_BEFORE, _AFTER, _WARMING_UP = "before the kernels of", "after the kernels of", "at the first call of"
_CALLS = 6
_DEVICE = torch.device("cuda")


class Cached(nn.Module):
    """Adds what it computes to a cache, which stays where it is."""

    def __init__(self, *, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, inner), nn.GELU(), nn.Linear(inner, 256))
        self.register_buffer("cache", torch.zeros(32, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(self.layers(x).detach())
        return self.layers(x) + self.cache.softmax(-1)


def _synchronize() -> None:
    # What CUDA does not permit while a stream is captured, and ends the capture for.
    torch.cuda.current_stream().synchronize()


def _run_out_of_memory() -> None:
    torch.empty(1 << 46, dtype=torch.uint8, device="cuda")


@contextmanager
def _failing(fail: Callable[[], None], *, moment: str, backward: bool) -> Iterator[None]:
    """Inside, parts of programs fail while they are captured, before or after their kernels, or the first that warms
    up fails after its kernels."""
    part: Any = recording._Part
    original = part.__call__
    failed: list[object] = []

    def call(self: Any, inputs: list[Any]) -> Any:
        is_meant = torch.cuda.is_current_stream_capturing() == (moment != _WARMING_UP) and self._is_backward == backward
        if not is_meant or (moment == _WARMING_UP and failed):
            return original(self, inputs)
        failed.append(self)
        if moment == _BEFORE:
            fail()
        result = original(self, inputs)
        fail()
        return result

    with mock.patch.object(part, "__call__", call):
        yield


def _differences(model: Cached, *, state: Recording, training: bool) -> list[str]:
    """What differs from eager in some calls."""
    eager = copy.deepcopy(model)
    found = []
    with recorded_with(state):
        compiled = torch.compile(model, mode="reduce-overhead")
        for number in range(_CALLS):
            for weight in (*model.parameters(), *eager.parameters()):
                weight.grad = None
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(32, 256, device="cuda")
            with torch.set_grad_enabled(training):
                try:
                    result = compiled(x)
                    if training:
                        result.sum().backward()
                except Exception as error:  # noqa: BLE001 - a row of what was seen
                    traceback.print_exception(error)
                    found.append(f"call {number} raised {type(error).__name__}")
                    eager.load_state_dict(model.state_dict())
                    continue
                expected = eager(x)
                if training:
                    expected.sum().backward()
            pairs = [(result, expected), (model.cache, eager.cache)]
            if training:
                pairs += [(a.grad, b.grad) for a, b in zip(model.parameters(), eager.parameters(), strict=True)]
            off = max((a - b).abs().max().item() for a, b in pairs)
            if not off < 5e-2:
                found.append(f"call {number} is off by {off:.2g}")
    return found


def _another() -> str:
    """What becomes of a program that nothing keeps from being recorded: of other sizes, so that Dynamo traces it."""
    reasons: list[Exception] = []
    before = graphs_on(_DEVICE)
    differences = _differences(Cached(inner=384).cuda(), state=Recording(on_end=reasons.append), training=False)
    if reasons or differences:
        return "; ".join(["is NOT recorded", *map(repr, reasons), *differences])
    return "is recorded" if graphs_on(_DEVICE) == before + 1 else "is NOT recorded"


def _look(name: str, fail: Callable[[], None], *, moment: str, backward: bool) -> bool:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Cached(inner=512).cuda()
    reasons: list[str] = []
    state = Recording(on_end=lambda error: reasons.append(repr(error)))
    with _failing(fail, moment=moment, backward=backward):
        differences = _differences(model, state=state, training=backward)
    random = torch.rand(8, device="cuda").unique().numel()
    another = _another()
    torch.compiler.reset()
    del model, state
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    # What has computed in part cannot be done again.
    allowed = ["call 0 raised OutOfMemoryError"] if moment == _WARMING_UP else []
    right = len(reasons) == 1 and differences == allowed and random > 1 and another == "is recorded"
    seen = (
        f"ended by {', '.join(reasons)[:80] or 'nothing'}",
        ", ".join(differences) or "as eager",
        f"random numbers {'come' if random > 1 else 'do not come'}",
        f"another program {another}",
        f"{held / 1e6:.0f} MB not given back",
        f"skips {inductor_counts()['cudagraph_skips']}",
    )
    print(f"{'right' if right else 'WRONG'}: {name}: {'; '.join(seen)}", flush=True)
    return right


def main() -> int:
    torch._dynamo.config.recompile_limit = 64
    text, right = " ".join(sys.argv[1:]), True
    for backward in (False, True):
        part = "backward" if backward else "forward"
        for moment in (_BEFORE, _AFTER, _WARMING_UP):
            for what, fail in (("no memory", _run_out_of_memory), ("not permitted", _synchronize)):
                name = f"{what}, {moment} a {part}"
                # What is not permitted in a capture is permitted outside.
                if text in name and not (moment == _WARMING_UP and fail is _synchronize):
                    right &= _look(name, fail, moment=moment, backward=backward)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
