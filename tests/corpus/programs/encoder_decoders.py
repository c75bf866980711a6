"""Encoders and decoders of text together."""

from __future__ import annotations

from tests.corpus.program import Call, call

from .architectures import TOKENS, architecture, tokens


def _both() -> Call:
    return call(input_ids=tokens(), decoder_input_ids=tokens(length=5))


PROGRAMS = (
    architecture(
        "t5",
        "T5ForConditionalGeneration",
        inputs=_both,
        small=False,
        vocab_size=TOKENS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        use_cache=False,
    ),
    architecture(
        "bart",
        "BartModel",
        inputs=_both,
        small=False,
        vocab_size=TOKENS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        use_cache=False,
    ),
)
