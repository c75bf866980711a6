"""accelerate with the farm that the environment names: `Accelerator(dynamo_plugin=FarmPlugin())`.

accelerate takes the names of backends from a list of its own. Importing this imports accelerate, and torch.
"""

from __future__ import annotations

from typing import Any

from accelerate.utils import TorchDynamoPlugin


class FarmPlugin(TorchDynamoPlugin):  # type: ignore[misc]  # accelerate is read as Any
    """Has `Accelerator.prepare` compile models with a farm, whole or by their repeated blocks.

    Args:
        options: as accelerate's TorchDynamoPlugin takes them: mode, fullgraph, dynamic, options,
            use_regional_compilation.

    Raises:
        TypeError: a backend is named.
    """

    def __init__(self, **options: Any) -> None:
        if "backend" in options:
            raise TypeError("FarmPlugin has the farm as its backend")
        # Any backend of accelerate's list has it compile.
        super().__init__(backend="inductor", **options)

    def to_kwargs(self) -> dict[str, Any]:
        """Arguments of torch.compile."""
        return {**super().to_kwargs(), "backend": "compilefarm"}
