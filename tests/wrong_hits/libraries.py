"""A library of operators as files. Each operator takes its factor from another module, or another way."""

from __future__ import annotations

from pathlib import Path

NAMESPACE = "wrong_hits_library"
# By operator: the module that registers it, in which {factor} stands for a number, and the module beside it.
_HELPER = "def factor():\n    return {factor}\n"
_MODULES = {
    "implicit": (
        "from torch.library import Library\n"
        "from wrong_hits_library.helpers.implicit import factor\n"
        'library = Library("wrong_hits_library", "FRAGMENT")\n'
        'library.define("implicit(Tensor x) -> Tensor")\n'
        'library.impl("implicit", lambda x: x * factor(), "CompositeImplicitAutograd")\n',
        _HELPER,
    ),
    "elsewhere": (
        "import torch\n"
        'torch.library.define("wrong_hits_library::elsewhere", "(Tensor x) -> Tensor")\n'
        "import wrong_hits_library.helpers.elsewhere\n",
        "import torch\n"
        '@torch.library.impl("wrong_hits_library::elsewhere", "CompositeImplicitAutograd")\n'
        "def _(x):\n    return x * {factor}\n",
    ),
    "launched": (
        "import torch\n"
        "from ..helpers import launched as helper\n"
        '@torch.library.triton_op("wrong_hits_library::launched", mutates_args=())\n'
        "def launched(x: torch.Tensor) -> torch.Tensor:\n    return x * helper.factor()\n",
        _HELPER,
    ),
    "gradient": (
        "import torch\n"
        '@torch.library.custom_op("wrong_hits_library::gradient", mutates_args=())\n'
        "def gradient(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
        "@gradient.register_fake\n"
        "def _(x):\n    return torch.empty_like(x)\n"
        "def backward(ctx, grad):\n"
        "    from wrong_hits_library.helpers.gradient import factor\n"
        "    return grad * factor()\n"
        "gradient.register_autograd(backward)\n",
        _HELPER,
    ),
    "faked": (
        "import torch\n"
        "import wrong_hits_library.helpers.faked\n"
        '@torch.library.custom_op("wrong_hits_library::faked", mutates_args=())\n'
        "def faked(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
        "@torch.library.register_fake('wrong_hits_library::faked')\n"
        "def _(x):\n    return wrong_hits_library.helpers.faked.like(x)\n",
        "import torch\n\ndef like(x):\n    assert {factor}\n    return torch.empty_like(x)\n",
    ),
    "closed": (
        "import torch\n"
        "from wrong_hits_library.helpers import closed as helper\n"
        "def make(factor):\n"
        "    def body(x: torch.Tensor) -> torch.Tensor:\n        return x * factor\n"
        "    return body\n"
        "import os\n"
        'torch.library.triton_op("wrong_hits_library::closed", make(float(os.environ["FACTOR"])), mutates_args=())\n',
        "",
    ),
    "unchanged": (
        "import torch\n"
        '@torch.library.triton_op("wrong_hits_library::unchanged", mutates_args=())\n'
        "def unchanged(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n",
        "# What it does not import: {factor}\n",
    ),
}
OPERATORS = tuple(_MODULES)


def write_library(folder: Path, *, factor: float) -> Path:
    """Writes the library into a folder.

    Args:
        folder: to be found by imports.
        factor: what its operators, all but "unchanged", multiply with.
    """
    package = folder / NAMESPACE
    for part in (package, package / "operators", package / "helpers"):
        part.mkdir(parents=True, exist_ok=True)
        (part / "__init__.py").touch()
    for name, (module, helper) in _MODULES.items():
        (package / "operators" / f"{name}.py").write_text(module)
        (package / "helpers" / f"{name}.py").write_text(helper.replace("{factor}", str(factor)))
    return folder
