"""Models of the sizes that teams run, with random weights: for GPUs, as a CPU takes minutes for each.

What rounding does to wide sums, to many layers and to steps of activations shows in these, and in none of the small
models of the other tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Call, Case, Function, backpropagating, call, require_module
from tests.wild.program import Program, program_of_case

_Calls = Callable[[], Call]
_Model = Callable[[], nn.Module]
_TOKENS = 1000


def _text(*shape: int) -> torch.Tensor:
    return torch.randint(3, _TOKENS, shape or (8, 128))


def _image(size: int = 224, *, batch: int = 8) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _texts(*shape: int) -> Call:
    return call(input_ids=_text(*shape))


def _padded() -> Call:
    mask = torch.ones(8, 128, dtype=torch.int64)
    mask[1, -40:] = 0
    return call(input_ids=_text(), attention_mask=mask)


def _causal() -> Call:
    words = _text(4, 256)
    return call(input_ids=words, labels=words)


def _paired() -> Call:
    return call(input_ids=_text(4, 128), labels=_text(4, 64))


def _of_transformers(architecture: str, **configuration: Any) -> _Model:
    """A model in its architecture's own size. Nothing is dropped out, since eager draws other random numbers."""

    def build() -> nn.Module:
        model_type = getattr(require_module("transformers"), architecture)
        settings = model_type.config_class(**configuration)
        for each in (settings, *(value for value in vars(settings).values() if hasattr(value, "to_dict"))):
            for name, value in vars(each).items():
                if "drop" in name and isinstance(value, float):
                    setattr(each, name, 0.0)
        model: nn.Module = model_type(settings)
        return model

    return build


def _of_timm(name: str) -> _Model:
    return lambda: require_module("timm").create_model(name, pretrained=False)


def _of_torchvision(name: str, *, group: str = "", **settings: Any) -> _Model:
    def build() -> nn.Module:
        models = require_module("torchvision").models
        model: nn.Module = getattr(getattr(models, group) if group else models, name)(weights=None, **settings)
        return model

    return build


def _of_diffusers(kind: str, **configuration: Any) -> _Model:
    return lambda: getattr(require_module("diffusers"), kind)(**configuration)


def _results(given: Any) -> list[torch.Tensor]:
    """All tensors of a model's output but caches, which torch does not take apart."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, Mapping):
        given = [value for name, value in given.items() if name != "past_key_values"]
    return [result for each in given for result in _results(each)] if isinstance(given, list | tuple) else []


def _evaluated(name: str, build: _Model, calls: _Calls, dtype: torch.dtype, *, options: Any = None) -> Program:
    """Forward passes without gradients, all in one dtype."""

    def case(*, wide: bool) -> Case:
        model, given = build().eval().to(dtype), _in_dtype(calls(), dtype)
        return _case(model, given, use=lambda function, given: _results(given.to(function)), wide=wide)

    return _program(f"{name}, {_word(dtype)}", case, options=options)


def _trained(
    name: str,
    build: _Model,
    calls: _Calls,
    dtype: torch.dtype = torch.float32,
    *,
    autocast: torch.dtype | None = None,
) -> Program:
    """A forward and a backward pass, under autocast or all in one dtype."""

    def case(*, wide: bool) -> Case:
        def use(function: Function, given: Call) -> Any:
            with _autocast(None if wide else autocast, given):
                results = _results(given.to(function))
            return backpropagating(lambda: [each for each in results if each.is_floating_point()], call())

        model, given = build().train().to(dtype), _in_dtype(calls(), dtype)
        _drop_nothing(model)
        return _case(model, given, use=use, wide=wide)

    how = f"autocast {_word(autocast)}" if autocast else _word(dtype)
    return _program(f"{name}, training, {how}", case, training=True)


def _drop_nothing(model: nn.Module) -> None:
    """Has a model drop out nothing, labels for guidance included (diffusers: LabelEmbedding)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0


def _program(name: str, case: Callable[..., Case], **flags: Any) -> Program:
    """A program that is held against the same in float64, since roundings of all layers add up."""
    wide = program_of_case(name, partial(case, wide=True), training=flags.get("training", False))
    return program_of_case(name, partial(case, wide=False), reference=wide.run, **flags)


def _case(model: nn.Module, given: Call, *, use: Callable[[Function, Call], Any], wide: bool) -> Case:
    if wide:
        model, given = model.to(torch.float64), _in_dtype(given, torch.float64)
        if callable(choose := getattr(model, "set_experts_implementation", None)):
            # Products of groups of rows are of 32 bits at most.
            choose("eager")
    return Case(function=model, calls=[given], use=use)


def _autocast(dtype: torch.dtype | None, given: Call) -> AbstractContextManager[Any]:
    if dtype is None:
        return nullcontext()
    tensors = (value for value in (*given.args, *given.kwargs.values()) if isinstance(value, torch.Tensor))
    return torch.autocast(next(tensors).device.type, dtype=dtype)


def _in_dtype(given: Call, dtype: torch.dtype) -> Call:
    def converted(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return call(*map(converted, given.args), **{name: converted(value) for name, value in given.kwargs.items()})


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_FLOAT16, _BFLOAT16 = torch.float16, torch.bfloat16

_WIDE = {"vocab_size": 4000, "num_hidden_layers": 2, "pad_token_id": 0}
_LLAMA = {**_WIDE, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "vocab_size": 4000}
_DEBERTA_V3 = {
    **_DEBERTA, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
}  # fmt: skip
_EXPERTS = {**_WIDE, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64}
_UNET = {
    "sample_size": 64, "in_channels": 4, "out_channels": 4, "block_out_channels": (320, 640), "layers_per_block": 1,
    "cross_attention_dim": 768, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip


def _unet_inputs() -> Call:
    return call(_noise(2, 4, 64, 64), torch.tensor([10, 500]), _noise(2, 77, 768))


def _speech() -> Call:
    return call(input_features=_noise(2, 80, 3000), decoder_input_ids=_text(2, 64))


PROGRAMS = (
    # Text, encoders.
    _trained("BERT-base", _of_transformers("BertModel"), _padded, autocast=_BFLOAT16),
    _trained("BERT-base", _of_transformers("BertModel"), _padded, autocast=_FLOAT16),
    _evaluated("RoBERTa-base", _of_transformers("RobertaModel"), _padded, _FLOAT16),
    _trained("DeBERTa-v3-base", _of_transformers("DebertaV2Model", **_DEBERTA_V3), _padded, autocast=_BFLOAT16),
    _evaluated("DeBERTa-v3-base", _of_transformers("DebertaV2Model", **_DEBERTA_V3), _padded, _FLOAT16),
    _trained("DeBERTa-base", _of_transformers("DebertaModel", **_DEBERTA), _padded),
    _trained("ELECTRA-base", _of_transformers("ElectraModel", hidden_size=768, num_attention_heads=12,
             intermediate_size=3072, embedding_size=768), _padded),
    _trained("ALBERT-base", _of_transformers("AlbertModel", hidden_size=768, num_attention_heads=12,
             intermediate_size=3072), _padded, autocast=_BFLOAT16),
    _trained("MPNet-base", _of_transformers("MPNetModel"), _padded, _BFLOAT16),
    _trained("DistilBERT", _of_transformers("DistilBertModel"), _padded),
    _trained("ModernBERT-base", _of_transformers("ModernBertModel", num_hidden_layers=6), _padded, autocast=_BFLOAT16),
    _evaluated("ModernBERT-base", _of_transformers("ModernBertModel"), _padded, _BFLOAT16),
    _evaluated("XLNet-base", _of_transformers("XLNetModel", d_model=768, n_layer=12, n_head=12, d_inner=3072),
               _padded, _FLOAT16),
    # Text, decoders.
    _trained("GPT-2", _of_transformers("GPT2LMHeadModel"), _causal, autocast=_BFLOAT16),
    _trained("GPT-2", _of_transformers("GPT2LMHeadModel"), _causal),
    _trained("Pythia-160m", _of_transformers("GPTNeoXForCausalLM", hidden_size=768, num_hidden_layers=12,
             num_attention_heads=12, intermediate_size=3072, vocab_size=4000), _causal, _BFLOAT16),
    _evaluated("OPT-125m", _of_transformers("OPTForCausalLM"), _padded, _FLOAT16),
    _evaluated("BLOOM-560m", _of_transformers("BloomForCausalLM", hidden_size=1024, n_layer=6, n_head=16,
               vocab_size=4000), _padded, _BFLOAT16),
    _evaluated("Phi-2", _of_transformers("PhiForCausalLM", hidden_size=2560, num_attention_heads=32,
               intermediate_size=10240, **_WIDE), _padded, _FLOAT16),
    _trained("Llama", _of_transformers("LlamaForCausalLM", **_LLAMA), _causal, _BFLOAT16),
    _evaluated("Llama", _of_transformers("LlamaForCausalLM", **_LLAMA), _padded, _FLOAT16,
               options={"mode": "max-autotune-no-cudagraphs"}),
    _trained("Qwen2", _of_transformers("Qwen2ForCausalLM", hidden_size=896, num_attention_heads=14,
             num_key_value_heads=2, intermediate_size=4864, vocab_size=4000, num_hidden_layers=8), _causal,
             autocast=_BFLOAT16),
    _evaluated("Gemma 3", _of_transformers("Gemma3ForCausalLM", hidden_size=1152, num_attention_heads=4,
               num_key_value_heads=1, intermediate_size=6912, vocab_size=4000, num_hidden_layers=8), _padded,
               _BFLOAT16),
    _trained("Qwen3-MoE", _of_transformers("Qwen3MoeForCausalLM", moe_intermediate_size=768, num_experts=16,
             num_experts_per_tok=4, intermediate_size=2048, **_EXPERTS), _causal, _BFLOAT16),
    _evaluated("OLMoE", _of_transformers("OlmoeForCausalLM", num_experts=16, hidden_size=2048,
               intermediate_size=1024, **_WIDE), _padded, _BFLOAT16),
    _evaluated("DeepSeek-V3", _of_transformers("DeepseekV3ForCausalLM", hidden_size=1024, intermediate_size=2048,
               moe_intermediate_size=512, n_routed_experts=16, num_attention_heads=16, num_key_value_heads=16,
               first_k_dense_replace=1, n_group=4, topk_group=2, num_experts_per_tok=4, **_WIDE), _padded, _BFLOAT16),
    _trained("Mamba-130m", _of_transformers("MambaForCausalLM", num_hidden_layers=4, vocab_size=4000), lambda:
             _texts(2, 24), autocast=_BFLOAT16),
    _evaluated("Granite", _of_transformers("GraniteForCausalLM", **_LLAMA), _padded, _BFLOAT16),
    # Text, both.
    _trained("T5-base", _of_transformers("T5ForConditionalGeneration", d_model=768, d_ff=3072, num_heads=12,
             num_layers=6, vocab_size=4000, pad_token_id=0, decoder_start_token_id=0), _paired, _BFLOAT16),
    _trained("T5-base", _of_transformers("T5ForConditionalGeneration", d_model=768, d_ff=3072, num_heads=12,
             num_layers=6, vocab_size=4000, pad_token_id=0, decoder_start_token_id=0), _paired, autocast=_BFLOAT16),
    _trained("BART-base", _of_transformers("BartForConditionalGeneration", d_model=768, encoder_layers=6,
             decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12,
             decoder_attention_heads=12, vocab_size=4000), _paired),
    # Sounds.
    _trained("Whisper-small", _of_transformers("WhisperModel", d_model=768, encoder_layers=6, decoder_layers=6,
             encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072),
             _speech, autocast=_FLOAT16),
    _evaluated("Wav2Vec2-base", _of_transformers("Wav2Vec2Model"), lambda: call(_noise(2, 32000)), _FLOAT16),
    _trained("HuBERT-base", _of_transformers("HubertModel", apply_spec_augment=False), lambda: call(_noise(2, 32000))),
    # Images.
    _trained("ViT-B", _of_transformers("ViTModel"), lambda: call(_image()), autocast=_BFLOAT16),
    _trained("DINOv2-base", _of_transformers("Dinov2Model"), lambda: call(_image()), _BFLOAT16),
    _trained("CLIP", _of_transformers("CLIPModel"), lambda: call(_text(8, 77), _image()), autocast=_FLOAT16),
    _evaluated("SigLIP-base", _of_transformers("SiglipModel"), lambda: call(_text(8, 64), _image()), _BFLOAT16),
    _trained("SegFormer-b0", _of_transformers("SegformerForSemanticSegmentation"), lambda: call(_image(512, batch=2)),
             autocast=_BFLOAT16),
    _trained("BEiT-base", _of_transformers("BeitModel"), lambda: call(_image()), autocast=_BFLOAT16),
    _trained("resnet50", _of_timm("resnet50"), lambda: call(_image()), autocast=_FLOAT16),
    _trained("resnet50", _of_timm("resnet50"), lambda: call(_image().to(memory_format=torch.channels_last)),
             autocast=_BFLOAT16),
    _trained("efficientnet_b0", _of_timm("efficientnet_b0"), lambda: call(_image())),
    _trained("convnext_tiny", _of_timm("convnext_tiny"), lambda: call(_image()), autocast=_BFLOAT16),
    _trained("regnety_016", _of_timm("regnety_016"), lambda: call(_image()), autocast=_FLOAT16),
    _trained("densenet121", _of_timm("densenet121"), lambda: call(_image())),
    _evaluated("mobilenetv4_conv_medium", _of_timm("mobilenetv4_conv_medium"), lambda: call(_image()), _FLOAT16),
    _evaluated("maxvit_tiny_rw_224", _of_timm("maxvit_tiny_rw_224"), lambda: call(_image()), _BFLOAT16),
    _trained("swin_tiny", _of_timm("swin_tiny_patch4_window7_224"), lambda: call(_image()), autocast=_BFLOAT16),
    _trained("deit3_small", _of_timm("deit3_small_patch16_224"), lambda: call(_image()), autocast=_BFLOAT16),
    _trained("dm_nfnet_f0", _of_timm("dm_nfnet_f0"), lambda: call(_image(192)), autocast=_BFLOAT16),
    _trained("resnet18", _of_torchvision("resnet18"), lambda: call(_image().to(memory_format=torch.channels_last))),
    _trained("efficientnet_v2_s", _of_torchvision("efficientnet_v2_s", dropout=0.0, stochastic_depth_prob=0.0),
             lambda: call(_image()), autocast=_FLOAT16),
    _evaluated("deeplabv3_resnet50", _of_torchvision("deeplabv3_resnet50", group="segmentation",
               weights_backbone=None), lambda: call(_image(256, batch=2)), _FLOAT16),
    _trained("vgg11_bn", _of_torchvision("vgg11_bn", dropout=0.0), lambda: call(_image())),
    # Diffusion.
    _trained("U-Net", _of_diffusers("UNet2DConditionModel", **_UNET), _unet_inputs, autocast=_FLOAT16),
    _evaluated("U-Net", _of_diffusers("UNet2DConditionModel", **_UNET), _unet_inputs, _FLOAT16),
    _evaluated("ControlNet", _of_diffusers("ControlNetModel", block_out_channels=(320, 640), layers_per_block=1,
               cross_attention_dim=768, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D")),
               lambda: call(*_unet_inputs().args, controlnet_cond=_noise(2, 3, 512, 512)), _FLOAT16),
    _evaluated("VAE", _of_diffusers("AutoencoderKL", block_out_channels=(128, 256, 512), norm_num_groups=32,
               down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
               latent_channels=4), lambda: call(_noise(1, 3, 256, 256)), _BFLOAT16),
    _evaluated("SD3", _of_diffusers("SD3Transformer2DModel", sample_size=64, num_layers=4), lambda: call(
               _noise(1, 16, 64, 64), _noise(1, 154, 4096), _noise(1, 2048), torch.tensor([500])), _FLOAT16),
    _evaluated("Flux", _of_diffusers("FluxTransformer2DModel", num_layers=2, num_single_layers=4,
               guidance_embeds=True), lambda: call(
               hidden_states=_noise(1, 1024, 64), encoder_hidden_states=_noise(1, 512, 4096),
               pooled_projections=_noise(1, 768), timestep=torch.ones(1), img_ids=_noise(1024, 3),
               txt_ids=_noise(512, 3), guidance=torch.ones(1)), _BFLOAT16),
    _evaluated("Wan 1.3B", _of_diffusers("WanTransformer3DModel", num_attention_heads=12, ffn_dim=8960, num_layers=2),
               lambda: call(_noise(1, 16, 5, 32, 32), torch.tensor([500]), _noise(1, 226, 4096)), _BFLOAT16),
    _trained("DiT-B", _of_diffusers("DiTTransformer2DModel", num_attention_heads=12, attention_head_dim=64,
             num_layers=6, sample_size=32), lambda: call(_noise(4, 4, 32, 32), torch.randint(0, 1000, (4,)),
             torch.randint(0, 1000, (4,))), autocast=_BFLOAT16),
)  # fmt: skip
