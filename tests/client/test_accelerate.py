"""accelerate compiles with a farm by a plugin."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")
from compilefarm.client.accelerate import FarmPlugin


def test_the_plugin_has_torch_compile_ask_the_farm() -> None:
    assert FarmPlugin().to_kwargs() == {"backend": "compilefarm"}
    given = FarmPlugin(mode="reduce-overhead", dynamic=True, use_regional_compilation=True)
    assert given.to_kwargs() == {"backend": "compilefarm", "mode": "reduce-overhead", "dynamic": True}
    assert given.use_regional_compilation


def test_another_backend_is_refused() -> None:
    with pytest.raises(TypeError, match="backend"):
        FarmPlugin(backend="eager")
