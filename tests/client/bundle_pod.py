"""A pod that compiles locally, between a pull and a push of a Mega-Cache bundle, and prints what torch's own counters
and these say as JSON. Arguments: "pull", "push", both or none.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from torch._functorch import config as functorch_config

from compilefarm.client import Farm
from tests.client.caching_pod import compile_at_two_sizes, compile_graph


def main(*steps: str) -> None:
    told = {"pulled": asdict(Farm().load_cache_artifacts("job"))} if "pull" in steps else {}
    with functorch_config.patch(enable_autograd_cache=False):
        told["fx_graph"] = compile_graph(32)
    told["aot_autograd"] = compile_graph(48)
    told["compiles"] = compile_at_two_sizes()
    if "push" in steps:
        told["pushed"] = asdict(Farm().save_cache_artifacts("job"))
        told["pushed_again"] = asdict(Farm().save_cache_artifacts("job"))
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
