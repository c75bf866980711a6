"""Encoders and decoders of text together, at lengths that differ."""

from __future__ import annotations

from collections.abc import Sequence

from tests.corpus.program import Call, call

from .models import TOKENS, model_program, tokens, training_program

_T5 = {
    "vocab_size": TOKENS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 4,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": TOKENS,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}


def _both() -> Sequence[Call]:
    pairs = ((12, 5), (17, 7), (9, 4))
    return [call(input_ids=tokens(length=source), decoder_input_ids=tokens(length=target)) for source, target in pairs]


def _translated() -> Sequence[Call]:
    return [call(input_ids=tokens(), labels=tokens(length=5))]


PROGRAMS = (
    model_program("t5", "T5ForConditionalGeneration", calls=_both, configuration=_T5),
    model_program(
        "flan_t5", "T5Model", calls=_both, configuration={**_T5, "feed_forward_proj": "gated-gelu", "num_layers": 2}
    ),
    model_program("mt5", "MT5ForConditionalGeneration", calls=_both, configuration=_T5),
    model_program("bart", "BartForConditionalGeneration", calls=_both, configuration=_BART),
    model_program("marian", "MarianModel", calls=_both, configuration=_BART),
    model_program("pegasus", "PegasusForConditionalGeneration", calls=_both, configuration=_BART),
    model_program("m2m_100", "M2M100Model", calls=_both, configuration=_BART),
    training_program("t5 translates", "T5ForConditionalGeneration", {**_T5, "dropout_rate": 0.0}, inputs=_translated),
)
