"""Models of sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tests.corpus.program import Call, call

from .models import TOKENS, model_program, tokens

_WAVE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 8, 4],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
WHISPER = {
    "vocab_size": TOKENS,
    "num_mel_bins": 16,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SPECTROGRAM = {
    "max_length": 32,
    "num_mel_bins": 16,
    "patch_size": 8,
    "frequency_stride": 4,
    "time_stride": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


def _waves(*lengths: int) -> Callable[[], Sequence[Call]]:
    return lambda: [call(input_values=torch.randn(2, length)) for length in lengths]


def _spectrograms() -> Sequence[Call]:
    return [call(input_values=torch.randn(2, 32, 16))]


def _frames_and_tokens() -> Sequence[Call]:
    return [
        call(input_features=torch.randn(1, 16, 40), decoder_input_ids=tokens(batch=1, length=length))
        for length in (5, 7, 4)
    ]


PROGRAMS = (
    model_program("wav2vec2", "Wav2Vec2ForCTC", calls=_waves(800, 1200), configuration=_WAVE),
    model_program("hubert", "HubertModel", calls=_waves(800), configuration=_WAVE),
    model_program("wavlm", "WavLMModel", calls=_waves(800), configuration=_WAVE),
    model_program("whisper", "WhisperForConditionalGeneration", calls=_frames_and_tokens, configuration=WHISPER),
    model_program("spectrogram transformer", "ASTModel", calls=_spectrograms, configuration=_SPECTROGRAM),
)
