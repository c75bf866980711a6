"""Encoders of text."""

from __future__ import annotations

from tests.corpus.program import Call, call

from .architectures import architecture, tokens


def _without_mask() -> Call:
    return call(input_ids=tokens())


PROGRAMS = (
    architecture("bert", "BertModel", num_hidden_layers=1),
    architecture(
        "deberta_v2", "DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
    ),
    architecture(
        "modernbert",
        "ModernBertModel",
        num_hidden_layers=2,
        local_attention=8,
        global_attn_every_n_layers=1,
        bos_token_id=2,
        eos_token_id=1,
        cls_token_id=1,
        sep_token_id=2,
    ),
    architecture("fnet", "FNetModel", inputs=_without_mask),
    architecture("convbert", "ConvBertModel", embedding_size=32, conv_kernel_size=3),
)
