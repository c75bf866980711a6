"""Models of diffusers in tiny configurations with random weights: U-Nets, transformers, autoencoders, adapters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.wild.program import Compiler, Program, require_module

_LORA_FILE = "pytorch_lora_weights.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """How to make a model, and what it is called with.

    Attributes:
        kind: its class in diffusers.
        configuration: of the class.
        inputs: keyword arguments of one call; takes the height, in patches or pixels.
    """

    kind: str
    configuration: Mapping[str, Any]
    inputs: Callable[[int], Mapping[str, Any]]

    def make(self, **further: Any) -> Any:
        """The model, in evaluation mode."""
        cls = getattr(require_module("diffusers"), self.kind)
        return cls(**{**self.configuration, **further}).eval()


def _step(*, tensors: int = 1) -> torch.Tensor:
    return torch.full((tensors,), 3)


_BLOCKS_2D: Mapping[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_CONDITIONED = _Model(
    kind="UNet2DConditionModel",
    configuration={
        **_BLOCKS_2D, "sample_size": 16, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 32,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    },
    inputs=lambda size: {
        "sample": torch.randn(1, 4, size, size), "timestep": 10, "encoder_hidden_states": torch.randn(1, 6, 32),
    },
)  # fmt: skip
_UNCONDITIONED = _Model(
    kind="UNet2DModel",
    configuration={
        **_BLOCKS_2D, "sample_size": 16, "in_channels": 3, "out_channels": 3,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    },
    inputs=lambda size: {"sample": torch.randn(1, 3, size, size), "timestep": 5},
)  # fmt: skip
_CONTROLLED = _Model(
    kind="ControlNetModel",
    configuration={
        **_BLOCKS_2D, "in_channels": 4, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "cross_attention_dim": 32, "conditioning_embedding_out_channels": (16, 32),
    },
    inputs=lambda size: {
        "sample": torch.randn(1, 4, size, size), "timestep": 10, "encoder_hidden_states": torch.randn(1, 6, 32),
        "controlnet_cond": torch.randn(1, 3, 2 * size, 2 * size), "return_dict": False,
    },
)  # fmt: skip
_FLUX = _Model(
    kind="FluxTransformer2DModel",
    configuration={
        "patch_size": 1, "in_channels": 4, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": [4, 4, 8],
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4 * size, 4), "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.ones(1), "img_ids": torch.randn(4 * size, 3),
        "txt_ids": torch.randn(6, 3),
    },
)  # fmt: skip
_SD3 = _Model(
    kind="SD3Transformer2DModel",
    configuration={
        "sample_size": 8, "patch_size": 1, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8,
        "num_attention_heads": 4, "caption_projection_dim": 32, "joint_attention_dim": 32, "pooled_projection_dim": 64,
        "out_channels": 4,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4, size, size), "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 64), "timestep": _step(),
    },
)  # fmt: skip
_WAN = _Model(
    kind="WanTransformer3DModel",
    configuration={
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4,
        "out_channels": 4, "text_dim": 16, "freq_dim": 32, "ffn_dim": 32, "num_layers": 2, "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4, 2, size, 8), "timestep": _step(),
        "encoder_hidden_states": torch.randn(1, 6, 16),
    },
)  # fmt: skip
_DIT = _Model(
    kind="DiTTransformer2DModel",
    configuration={
        "sample_size": 8, "num_layers": 2, "patch_size": 2, "attention_head_dim": 8, "num_attention_heads": 2,
        "in_channels": 4, "out_channels": 8, "num_embeds_ada_norm": 8,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4, size, size), "timestep": _step(), "class_labels": _step(),
    },
)  # fmt: skip
_PIXART = _Model(
    kind="PixArtTransformer2DModel",
    configuration={
        "sample_size": 8, "num_layers": 2, "patch_size": 2, "attention_head_dim": 8, "num_attention_heads": 3,
        "caption_channels": 32, "in_channels": 4, "cross_attention_dim": 24, "out_channels": 8,
        "use_additional_conditions": False,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4, size, size), "encoder_hidden_states": torch.randn(1, 6, 32),
        "timestep": _step(), "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    },
)  # fmt: skip
_LTX = _Model(
    kind="LTXVideoTransformer3DModel",
    configuration={
        "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16,
        "cross_attention_dim": 32, "num_layers": 2, "caption_channels": 16,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4 * size, 4), "encoder_hidden_states": torch.randn(1, 6, 16),
        "timestep": _step(), "encoder_attention_mask": torch.ones(1, 6, dtype=torch.bool), "num_frames": 2,
        "height": 2, "width": size,
    },
)  # fmt: skip
_COGVIDEOX = _Model(
    kind="CogVideoXTransformer3DModel",
    configuration={
        "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "time_embed_dim": 8,
        "text_embed_dim": 16, "num_layers": 2, "sample_width": 8, "sample_height": 8, "sample_frames": 8,
        "patch_size": 2, "temporal_compression_ratio": 4, "max_text_seq_length": 6,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 2, 4, size, size), "encoder_hidden_states": torch.randn(1, 6, 16),
        "timestep": _step(),
    },
)  # fmt: skip
_AURAFLOW = _Model(
    kind="AuraFlowTransformer2DModel",
    configuration={
        "sample_size": 8, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
        "attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32, "joint_attention_dim": 32,
        "out_channels": 4, "pos_embed_max_size": 64,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4, size, size), "encoder_hidden_states": torch.randn(1, 6, 32),
        "timestep": torch.full((1,), 0.3),
    },
)  # fmt: skip
_SANA = _Model(
    kind="SanaTransformer2DModel",
    configuration={
        "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2,
        "num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16,
        "caption_channels": 16, "sample_size": 8, "patch_size": 1,
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4, size, size), "encoder_hidden_states": torch.randn(1, 6, 16),
        "timestep": _step(),
    },
)  # fmt: skip
_QWEN_IMAGE = _Model(
    kind="QwenImageTransformer2DModel",
    configuration={
        "patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": (4, 4, 8),
    },
    inputs=lambda size: {
        "hidden_states": torch.randn(1, 4 * size, 16), "encoder_hidden_states": torch.randn(1, 6, 16),
        "encoder_hidden_states_mask": torch.ones(1, 6, dtype=torch.int64), "timestep": torch.full((1,), 0.3),
        "img_shapes": [(1, 4, size)],
    },
)  # fmt: skip
_AUTOENCODER: Mapping[str, Any] = {
    "block_out_channels": (32, 64), "in_channels": 3, "out_channels": 3, "norm_num_groups": 8,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip
_VQ = _Model(
    kind="VQModel",
    configuration={**_AUTOENCODER, "latent_channels": 3},
    inputs=lambda size: {"sample": torch.randn(1, 3, size, size)},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """A program that compiles a model and calls it.

    Attributes:
        model: what is compiled.
        sizes: of its calls.
        dtype: of the model and its inputs.
        memory_format: of the model and its images.
        changes: arguments that are other ones in some calls, by name, one for each call.
        blocks: compile the repeated blocks alone.
    """

    model: _Model
    sizes: Sequence[int] = (8,)
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.contiguous_format
    changes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    blocks: bool = False

    def __call__(self, compiler: Compiler) -> Any:
        with compiler.device:
            model = self.model.make().to(self.dtype).to(memory_format=self.memory_format)
            calls = [dict(self.model.inputs(size)) for size in self.sizes]
            for name, values in self.changes.items():
                for given, value in zip(calls, values, strict=True):
                    given[name] = value
        compiled = compiler(model) if not self.blocks else _with_blocks_compiled(model, compiler)
        return [compiled(**{name: self._converted(value) for name, value in given.items()}) for given in calls]

    def _converted(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.to(self.dtype) if value.is_floating_point() else value
        return value.contiguous(memory_format=self.memory_format) if value.dim() == 4 else value


def _with_blocks_compiled(model: Any, compiler: Compiler) -> Any:
    if compiler.backend is not None:
        model.compile_repeated_blocks(backend=compiler.backend, fullgraph=True)
    return model


def _train(compiler: Compiler) -> Any:
    with compiler.device:
        model, inputs = _CONDITIONED.make().train(), _CONDITIONED.inputs(16)
    compiler(model)(**inputs).sample.square().mean().backward()
    return dict(model.named_parameters())


def _code(compiler: Compiler) -> Any:
    with compiler.device:
        kind = require_module("diffusers").AutoencoderKL
        autoencoder = kind(**_AUTOENCODER, latent_channels=4).eval()
        images, latents = torch.randn(1, 3, 16, 16), torch.randn(1, 4, 8, 8)
    autoencoder.encoder, autoencoder.decoder = compiler(autoencoder.encoder), compiler(autoencoder.decoder)
    return autoencoder.encode(images).latent_dist.mean, autoencoder.decode(latents).sample


def _decode_video(compiler: Compiler) -> Any:
    with compiler.device:
        kind = require_module("diffusers").AutoencoderKLWan
        autoencoder = kind(
            base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ).eval()
        latents = torch.randn(1, 4, 2, 4, 4)
    autoencoder.decoder = compiler(autoencoder.decoder)
    return autoencoder.decode(latents).sample


def _denoise(compiler: Compiler) -> Any:
    with compiler.device:
        model, inputs = _CONDITIONED.make(), dict(_CONDITIONED.inputs(16))
    scheduler = require_module("diffusers").DDIMScheduler()
    scheduler.set_timesteps(4)
    compiled, sample = compiler(model), inputs["sample"]
    for step in scheduler.timesteps:
        predicted = compiled(sample, step, inputs["encoder_hidden_states"]).sample
        sample = scheduler.step(predicted, step, sample).prev_sample
    return sample


def _adapted(*, rank: int, value: float) -> Any:
    model = _FLUX.make()
    configuration = require_module("peft").LoraConfig(r=rank, lora_alpha=rank, target_modules=["to_q", "to_k"])
    model.add_adapter(configuration)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            nn.init.constant_(parameter, value)
    return model


def _call_adapted(compiler: Compiler) -> Any:
    with compiler.device:
        model, inputs = _adapted(rank=4, value=0.01), _FLUX.inputs(4)
    return compiler(model)(**inputs).sample


def _swap_adapters(compiler: Compiler) -> Any:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        _adapted(rank=4, value=0.01).save_lora_adapter(first)
        _adapted(rank=8, value=0.02).save_lora_adapter(second)
        with compiler.device:
            model, inputs = _FLUX.make(), _FLUX.inputs(4)
        model.enable_lora_hotswap(target_rank=8)
        named: Mapping[str, Any] = {"weight_name": _LORA_FILE, "adapter_name": "default", "prefix": None}
        model.load_lora_adapter(first, **named)
        compiled = compiler(model, fullgraph=True)
        before = compiled(**inputs).sample
        model.load_lora_adapter(second, **named, hotswap=True)
        return before, compiled(**inputs).sample


_LOW: Mapping[str, Any] = {"dtype": torch.bfloat16}
_CHANNELS_LAST: Mapping[str, Any] = {"memory_format": torch.channels_last}

PROGRAMS = (
    Program(name="unet, resolutions", run=_Calls(model=_CONDITIONED, sizes=(16, 24, 32))),
    Program(
        name="unet, timesteps",
        run=_Calls(model=_CONDITIONED, sizes=(16, 16, 16), changes={"timestep": (10, 20, 31)}),
    ),
    Program(
        name="unet, bfloat16, channels last",
        run=_Calls(model=_CONDITIONED, sizes=(16, 24), **_LOW, **_CHANNELS_LAST),
        precision=torch.bfloat16,
    ),
    Program(name="unet, training", run=_train, training=True),
    Program(name="unet, denoising", run=_denoise),
    Program(name="unconditioned unet", run=_Calls(model=_UNCONDITIONED, sizes=(16,), **_CHANNELS_LAST)),
    Program(name="controlnet", run=_Calls(model=_CONTROLLED, sizes=(16,))),
    Program(name="flux, resolutions", run=_Calls(model=_FLUX, sizes=(4, 6, 8))),
    Program(name="flux, blocks", run=_Calls(model=_FLUX, sizes=(4, 6), blocks=True)),
    Program(
        name="flux, blocks, bfloat16",
        run=_Calls(model=_FLUX, sizes=(4,), blocks=True, **_LOW),
        precision=torch.bfloat16,
    ),
    Program(name="flux, LoRA", run=_call_adapted),
    Program(name="flux, LoRA swapped", run=_swap_adapters),
    Program(name="sd3, resolutions", run=_Calls(model=_SD3, sizes=(8, 6))),
    Program(name="wan, resolutions", run=_Calls(model=_WAN, sizes=(8, 12))),
    Program(name="wan, autoencoder", run=_decode_video),
    Program(name="dit", run=_Calls(model=_DIT)),
    Program(name="pixart", run=_Calls(model=_PIXART)),
    Program(name="ltx", run=_Calls(model=_LTX)),
    Program(name="cogvideox", run=_Calls(model=_COGVIDEOX)),
    Program(name="auraflow", run=_Calls(model=_AURAFLOW)),
    Program(name="sana", run=_Calls(model=_SANA)),
    Program(name="qwen image", run=_Calls(model=_QWEN_IMAGE)),
    Program(name="autoencoder", run=_code),
    Program(name="vq model", run=_Calls(model=_VQ, sizes=(16,))),
)
