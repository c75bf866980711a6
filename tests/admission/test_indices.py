"""Indices that a graph computes: what is generated asserts them, whatever Inductor takes for proven."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from unittest import mock

import pytest
import torch

from compilefarm.builder.generated_sources import watching_sources
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import trace
from compilefarm.torch_internals.cpp_builds import stand_in_for_trials
from compilefarm.worker.source_check import check_source
from tests.worker.inductor import compiled
from tests.worker.verifying import encoded_of

_FAR = 10**8


class _Written(Exception):
    """A program in C++ was generated, and is not built.

    Attributes:
        source: its text.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


def _program(job: EncodedJob) -> str:
    """The first program that is generated for a job."""

    def look_at(source: str, _: str) -> None:
        if "async_compile.cpp_pybinding" in source:
            raise _Written(source)

    # Which vector instructions work is found out by building programs.
    end = stand_in_for_trials(lambda *_: False)
    try:
        with pytest.raises(_Written) as written, watching_sources(look_at):
            compiled(job)
    finally:
        end()
    return written.value.source


def _wrapped() -> torch.Tensor:
    # Twice this is beyond 64 bits.
    return torch.clamp(torch.arange(4) * (2**62 + _FAR), max=9)


def _out_of_floats() -> torch.Tensor:
    return torch.clamp((torch.arange(4).float() * 1e30).long() + _FAR, max=9)


TABLE = torch.ones(10)


@pytest.mark.parametrize(
    "model",
    [
        lambda table: table[_wrapped()],
        lambda table: table[_out_of_floats()],
        lambda table: torch.index_put(table, [_wrapped()], torch.ones(4)),
        # The last places of so many are rounded: with 4 elements in 32 bits one is the fifth.
        lambda table: torch.nn.functional.interpolate(table.view(1, 1, -1), size=2**24 + 4),
        lambda table: torch.nn.functional.interpolate(table.view(1, 2, -1), scale_factor=2**23, mode="linear"),
        # Nothing is counted from the end.
        lambda table: table.scatter(0, torch.arange(4) - 4, 2.0),
        lambda table: table.scatter(0, torch.arange(4) - 10, torch.ones(4)),
    ],
)
def test_an_index_that_may_lie_outside(model: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert "index out of bounds" in _program(trace(model, TABLE).encode())


@pytest.mark.parametrize(
    "model",
    [lambda table: table[torch.arange(3) + 2], lambda table: table.roll(3), lambda table: table[torch.arange(12) % 10]],
)
def test_what_is_proven_is_not_asserted(model: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert "index out of bounds" not in _program(trace(model, TABLE).encode())


def test_an_element_that_a_graph_selects_by() -> None:
    def model(tables: torch.Tensor, number: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(tables[number.item()], x)  # type: ignore[index]

    tables, x = torch.randn(4, 2, 2), torch.randn(2, 2)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        job = trace(model, tables, torch.tensor(1), x).encode()
    with watching_sources(check_source):
        program = compiled(job)
    order = [len(given.tensor.shape) for given in job.job.inputs]
    for number in (0, 3, -4, -1):
        given = {3: tables, 0: torch.tensor(number), 2: x}
        assert torch.equal(program(*(given[dimensions] for dimensions in order))[0], tables[number] @ x)
    for number in (4, -5, 10**9, -(10**9)):
        given = {3: tables, 0: torch.tensor(number), 2: x}
        with pytest.raises(RuntimeError, match=r"u\d+ (<|>=) -?4"):
            program(*(given[dimensions] for dimensions in order))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_masked_loads_end_with_their_loop(dtype: torch.dtype) -> None:
    instructions = importlib.import_module("torch._inductor.cpu_vec_isa")
    # Of 64 bytes, whatever this processor has: nothing is built.
    vectors = type("Vectors", (instructions.VecAVX512,), {"__bool__": lambda _: True})
    job = trace(lambda x: torch.nn.functional.pad(x, (3, 4)), torch.ones(13).to(dtype)).encode()
    with mock.patch.object(instructions, "pick_vec_isa", vectors):
        program = _program(job)
    loads = [line for line in program.splitlines() if ".template loadu<" in line]
    assert len(loads) == 2
    assert "static_cast<int64_t>(4L))" in loads[1]


def _padded(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(table[rows], (3, 5))


def _joined(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    found = table[rows]
    return torch.cat([found, found.neg()], 1)


def _padded_rows(table: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(table[:, columns], (0, 0, 1, 1))


@pytest.mark.parametrize("columns", [5, 67])
@pytest.mark.parametrize("model", [_padded, _joined])
def test_a_row_that_is_looked_up_under_a_mask(
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], columns: int
) -> None:
    behind = torch.arange(1000.0 * columns).reshape(1000, columns)
    table = behind[:2]
    program = compiled(trace(model, torch.ones(2, columns), torch.tensor([1, 0, 1])).encode())
    for right in ([0, 1, 1], [0, -1, -2]):
        assert torch.equal(program(table, torch.tensor(right))[0], model(table, torch.tensor(right)))
    for row in (2, 500, -3):
        with pytest.raises(RuntimeError, match="index out of bounds"):
            program(table, torch.tensor([0, 1, row]))


def test_columns_that_are_looked_up_under_a_mask_of_rows() -> None:
    table, columns = torch.randn(3, 4), torch.arange(40) % 4
    program = compiled(trace(_padded_rows, table, columns).encode())
    assert torch.equal(program(table, columns)[0], _padded_rows(table, columns))
    for column in (4, -5):
        columns[39] = column
        with pytest.raises(RuntimeError, match="index out of bounds"):
            program(table, columns)


@pytest.mark.parametrize("model", [_padded, _joined, _padded_rows])
def test_no_assertion_is_taken_back_by_a_mask_of_type_bool(
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    program = _program(trace(model, torch.ones(2, 64), torch.tensor([1, 0] * 20)).encode())
    checks = re.findall(r"TORCH_CHECK\((.+), \"index out of bounds", program)
    assert checks
    for check in checks:
        assert "| ~(" not in check or check.endswith(".all_masked()") or "| ~(-static_cast<int>(" in check


def _pooled(image: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.fractional_max_pool2d(image, [20, 1], [8, 4], places)[1]  # type: ignore[no-any-return]


def test_regions_of_fractional_pooling_end_within_the_image() -> None:
    image, places = torch.randn(1, 1, 153, 4), torch.full((1, 1, 2), 0.1)
    program = compiled(trace(_pooled, image, places).encode())
    assert torch.equal(program(image, places)[0], _pooled(image, places))
    # Where numbers are eight apart, the last region but one begins in the last row.
    places[..., 1] = 2.0**26
    with pytest.raises(RuntimeError, match="index out of bounds"):
        program(image, places)


_VIEWED = [0, 1, 200, 255]


def _written_by_bytes(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    table.index_put_((x.view(torch.bool).to(torch.int64),), torch.full((4,), -7, dtype=torch.int16))
    return table + 1


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="torch 2.11 compiles no views of bytes as booleans")
def test_bytes_that_are_viewed_as_booleans() -> None:
    behind = torch.arange(1000, dtype=torch.int16)
    job = trace(_written_by_bytes, torch.ones(2, dtype=torch.int16), torch.tensor([0, 1, 1, 0], dtype=torch.uint8))
    compiled(job.encode())(behind[:2], torch.tensor(_VIEWED, dtype=torch.uint8))
    assert behind.tolist() == [-7, -7, *range(2, 1000)]


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="torch 2.11 compiles no views of bytes as booleans")
@pytest.mark.parametrize("options", [{}, {"cpp.simdlen": 1}])
def test_no_program_has_bits_of_bytes_for_booleans(options: dict[str, int]) -> None:
    def viewed(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).view(torch.bool).to(torch.int64)

    program = _program(encoded_of(viewed, torch.ones(256, dtype=torch.uint8), options=options))
    assert "c10::bit_cast<bool>" not in program
    assert "c10::bit_cast<uint8_t>" in program


def _read_by_booleans(x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = x.view(-1).to(torch.int64)
    return table[numbers], numbers


def test_booleans_of_other_bits() -> None:
    behind = torch.arange(1000, dtype=torch.int16)
    right = torch.ones(64, 64, dtype=torch.bool)
    job = trace(_read_by_booleans, right, torch.ones(2, dtype=torch.int16)).encode()
    # Torch's cache on disk would give what another state of this code has made of the graph.
    with torch._inductor.config.patch(force_disable_caches=True):
        program = compiled(job)
    bits = torch.tensor(_VIEWED * 1024, dtype=torch.uint8).view(64, 64)
    assert program(bits.view(torch.bool), behind[:2])[0].tolist() == [0, 1, 1, 1] * 1024


def _unwritten(table: torch.Tensor) -> torch.Tensor:
    return table[torch.empty_permuted((64, 64), (0, 1), dtype=torch.bool).view(-1).to(torch.int64)]


def _numbers(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64)


def _columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, ::3].float() * 2


def _padded_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (3, 5)).float()


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (1, 1)).t().contiguous() | x.new_ones(66, 64)


@pytest.mark.parametrize("options", [{}, {"cpp.simdlen": 1}])
@pytest.mark.parametrize("model", [_unwritten, _numbers, _columns, _padded_numbers, _transposed])
def test_booleans_are_loaded_as_bytes(model: Callable[[torch.Tensor], torch.Tensor], options: dict[str, int]) -> None:
    x = torch.ones(2) if model is _unwritten else torch.ones(64, 64, dtype=torch.bool)
    instructions = importlib.import_module("torch._inductor.cpu_vec_isa")
    # Of 64 bytes, whatever this processor has: nothing is built.
    vectors = type("Vectors", (instructions.VecAVX512,), {"__bool__": lambda _: True})
    with mock.patch.object(instructions, "pick_vec_isa", instructions.pick_vec_isa if options else vectors):
        program = _program(encoded_of(model, x, options=options))
    names = re.findall(r"const bool\* (\w+)", program)
    assert names
    # Tiles that are transposed are copied, and loaded from the copy.
    lines = [line for line in program.splitlines() if "const bool*" not in line and "transpose_mxn<bool," not in line]
    loads = [line for line in lines if any(name in line for name in names)]
    assert loads
    assert all(f"reinterpret_cast<const uint8_t*>({name})" in line for line in loads for name in names if name in line)
