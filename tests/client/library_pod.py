"""A pod that compiles a model of transformers with torch's own Inductor; prints torch's counters and its seconds."""

from __future__ import annotations

import json
import time

import torch
from torch._dynamo.utils import counters
from transformers import BertConfig, BertModel

from compilefarm.client.torch_caches import install


def main() -> None:
    install()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model, tokens = BertModel(BertConfig(vocab_size=100, **sizes)).eval(), torch.arange(16).reshape(1, 16)
    with torch.no_grad():
        started = time.perf_counter()
        found = torch.compile(model, backend="inductor")(tokens).last_hidden_state
        seconds = time.perf_counter() - started
        torch.testing.assert_close(found, model(tokens).last_hidden_state, rtol=1e-4, atol=1e-4)
    counted = {name: counters["inductor"][name] for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")}
    counted |= {name: counters["aot_autograd"][name] for name in ("autograd_cache_hit", "autograd_cache_miss")}
    print(json.dumps({**counted, "seconds": seconds}))


if __name__ == "__main__":
    main()
