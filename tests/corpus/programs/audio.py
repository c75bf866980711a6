"""Models of sound."""

from __future__ import annotations

import torch

from tests.corpus.program import Call, call

from .architectures import SMALL, TOKENS, architecture, tokens


def _waveform() -> Call:
    return call(torch.randn(2, 800))


def _spectrogram() -> Call:
    return call(torch.randn(2, 32, 16))


def _frames_and_tokens() -> Call:
    return call(input_features=torch.randn(1, 16, 40), decoder_input_ids=tokens(batch=1, length=5))


_TRANSFORMER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}

PROGRAMS = (
    architecture(
        "wav2vec2",
        "Wav2Vec2Model",
        inputs=_waveform,
        conv_dim=[16, 16, 16],
        conv_stride=[5, 4, 2],
        conv_kernel=[10, 8, 4],
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    ),
    architecture(
        "whisper",
        "WhisperForConditionalGeneration",
        inputs=_frames_and_tokens,
        small=False,
        vocab_size=TOKENS,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=SMALL["pad_token_id"],
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    ),
    architecture(
        "audio_spectrogram_transformer",
        "ASTModel",
        inputs=_spectrogram,
        small=False,
        max_length=32,
        num_mel_bins=16,
        patch_size=8,
        frequency_stride=4,
        time_stride=4,
        **_TRANSFORMER,
    ),
)
