"""Block masks of flexible attention on CPUs: what they say of blocks is asserted to be there.

Inductor's templates believe it (torch/_inductor/codegen/cpp_flex_attention_template.py): they go through as many
entries as a mask says that it has, and read keys and values where an entry says.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

_ATTENTION, _DECODING = "FLEX_ATTENTION_TEMPLATE", "FLEX_DECODING_TEMPLATE"
_COUNT = re.compile(r"(?P<count>(?P<kind>full_|)kv_indice_num) = \*\w+_num_data;")
_ENTRY = re.compile(r"(?P<entry>(full_|)kv_indice_list\[kv_i\]) = \*\w+_data;")
_TOKENS = "int64_t cur_kvSplitSize = std::min(kvSplitSize, kvSize - n);"


@contextlib.contextmanager
def keeping_block_masks_in_bounds() -> Iterator[None]:
    """Inside, no program is generated that believes a block mask."""
    # The templates cannot be imported before what uses them.
    importlib.import_module("torch._inductor.lowering")
    templates: Any = importlib.import_module("torch._inductor.codegen.cpp_flex_attention_template")
    with contextlib.ExitStack() as stack:
        # Torch 2.11 has no template of its own for decoding.
        for name in (_ATTENTION, _DECODING):
            if hasattr(templates, name):
                stack.enter_context(mock.patch.object(templates, name, _asserted(name, getattr(templates, name))))
        yield


def _asserted(name: str, template: str) -> str:
    template = _COUNT.sub(
        lambda found: found[0] + _check(f"0 <= {found['count']} && {found['count']} <= {_entries(found['kind'])}"),
        template,
    )
    template = _ENTRY.sub(
        lambda found: found[0] + _check(f"0 <= {found['entry']} && {found['entry']} * kvBlockSize < kvSize"), template
    )
    # Products of a part of the keys lie side by side; an entry may be there twice.
    room = _check("token_num + cur_kvSplitSize <= PARTITION_SIZE")
    return template.replace(_TOKENS, _TOKENS + room) if name == _DECODING else template


def _entries(kind: str) -> str:
    return f"{{{{kernel.size({kind}kv_indices, 3)}}}}"


def _check(condition: str) -> str:
    return f'\n        TORCH_CHECK({condition}, "index out of bounds: block mask");'
