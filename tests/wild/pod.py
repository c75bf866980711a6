"""One pod: `python -m tests.wild.pod LIBRARY DEVICE HOW NAME...`. Prints a row for each program, as JSON by line."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import torch

from .run import run_on_farm, run_through_codec, run_with_inductor
from .table import PROGRAMS

WAYS = {"farm": run_on_farm, "codec": run_through_codec, "inductor": run_with_inductor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("device", type=torch.device)
    parser.add_argument("how", choices=WAYS)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    # Eager and Inductor choose kernels of cuDNN by themselves, which with TF32 differ by a thousandth.
    torch.backends.cudnn.allow_tf32 = False
    for name in arguments.names:
        program = PROGRAMS[arguments.library][name]
        row = WAYS[arguments.how](program, library=arguments.library, device=arguments.device)
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
