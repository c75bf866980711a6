"""Models of speech, tables, images, recommendation, reinforcement learning and sampling, of further libraries that are
tried where they are installed, as those of others.py are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.wild.program import Compiler, Program, require_module

from .others import edges_of, program_of, tokens_of


def _conformer() -> Any:
    sizes = {"dim_head": 16, "heads": 2, "ff_mult": 2, "conv_expansion_factor": 2, "conv_kernel_size": 7}
    return require_module("conformer").Conformer(dim=32, depth=1, **sizes), [(torch.randn(2, 20, 32),)]


def _spectral_loss() -> Any:
    sizes = {"fft_sizes": [64, 128], "hop_sizes": [16, 32], "win_lengths": [64, 128]}
    loss = require_module("auraloss.freq").MultiResolutionSTFTLoss(**sizes)
    return loss, [(torch.randn(2, 1, 512, requires_grad=True), torch.randn(2, 1, 512))]


def _codec() -> Any:
    model = require_module("snac").SNAC(
        sampling_rate=8000, encoder_dim=8, encoder_rates=[2, 2], decoder_dim=32, decoder_rates=[2, 2],
        attn_window_size=None, codebook_size=16, codebook_dim=4, vq_strides=[2, 1], noise=False,
    )  # fmt: skip
    return model, [(torch.randn(1, 1, 64),)]


def _filterbank() -> Any:
    encoder, decoder = require_module("asteroid_filterbanks").make_enc_dec("stft", n_filters=64, kernel_size=64)
    # Its filters are made by NumPy, which knows no default device.
    encoder.to(torch.get_default_device())
    decoder.to(torch.get_default_device())
    return (lambda x: decoder(encoder(x))), [(torch.randn(2, 1, 256),)]


def _tabular_ensemble() -> Any:
    model = require_module("tabm").TabM.make(
        n_num_features=4, cat_cardinalities=[3, 5], d_out=2, k=4, n_blocks=2, d_block=16, dropout=0.0
    )
    return model, [(torch.randn(6, 4), torch.randint(0, 3, (6, 2)))]


def _numbers_embedded() -> Any:
    library = require_module("rtdl_num_embeddings")
    periodic = library.PeriodicEmbeddings(4, 8, lite=False)
    pieces = library.PiecewiseLinearEmbeddings([torch.linspace(-1, 1, 5)] * 4, 8, activation=True, version="B")
    return (lambda x: periodic(x) + pieces(x)), [(torch.randn(6, 4, requires_grad=True),)]


def _flow() -> Any:
    path, field = require_module("flow_matching.path").CondOTProbPath(), nn.Linear(4, 4)

    def loss(first: torch.Tensor, last: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        found = path.sample(t=times, x_0=first, x_1=last)
        return (field(found.x_t) - found.dx_t).square().mean()

    return loss, [(torch.randn(5, 4), torch.randn(5, 4), torch.rand(5))]


def _hooked() -> Any:
    library = require_module("transformer_lens")
    configuration = library.HookedTransformerConfig(
        n_layers=2, d_model=32, n_ctx=16, d_head=16, n_heads=2, d_vocab=64, act_fn="gelu", device="cpu", seed=0
    )
    return library.HookedTransformer(configuration), [(tokens_of(2, 12),)]


def _invariant_points() -> Any:
    """Turns TF32 off around its products."""
    sizes = {"scalar_key_dim": 4, "scalar_value_dim": 4, "point_key_dim": 2, "point_value_dim": 2}
    library = require_module("invariant_point_attention")
    block = library.IPABlock(dim=16, heads=2, require_pairwise_repr=False, **sizes)
    rotations = torch.eye(3).repeat(1, 7, 1, 1)
    return (lambda x, turned, moved: block(x, rotations=turned, translations=moved)), [
        (torch.randn(1, 7, 16), rotations, torch.randn(1, 7, 3))
    ]


def _sines() -> Any:
    model = require_module("siren_pytorch").SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=3, w0_initial=30.0)
    return model, [(torch.rand(20, 2),)]


def _perceiver() -> Any:
    model = require_module("perceiver_pytorch").Perceiver(
        input_channels=3, input_axis=2, num_freq_bands=2, max_freq=4.0, depth=2, num_latents=8, latent_dim=16,
        cross_heads=1, latent_heads=2, cross_dim_head=8, latent_dim_head=8, num_classes=5, weight_tie_layers=True,
    )  # fmt: skip
    return model, [(torch.randn(2, 8, 8, 3),)]


def _axial() -> Any:
    layer = require_module("axial_attention").AxialAttention(dim=16, dim_index=1, heads=2, num_dimensions=2)
    return layer, [(torch.randn(1, 16, 6, 6),)]


def _retention() -> Any:
    config, retnet = (require_module(f"torchscale.architecture.{name}") for name in ("config", "retnet"))
    configuration = config.RetNetConfig(
        vocab_size=64, decoder_embed_dim=32, decoder_value_embed_dim=64, decoder_retention_heads=2,
        decoder_ffn_embed_dim=32, decoder_layers=2,
    )  # fmt: skip
    model = retnet.RetNetDecoder(configuration, embed_tokens=nn.Embedding(64, 32))
    return (lambda tokens: model(tokens)[0]), [(tokens_of(2, 8),)]


def _windows_shifted() -> Any:
    """Counts windows with NumPy."""
    nets = require_module("monai.networks.nets")
    sizes = {"feature_size": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2), "spatial_dims": 2}
    return nets.SwinUNETR(in_channels=1, out_channels=2, **sizes), [(torch.randn(1, 1, 64, 64),)]


def _residual_segmentation() -> Any:
    nets = require_module("monai.networks.nets")
    model = nets.SegResNet(
        spatial_dims=3, init_filters=4, blocks_down=(1, 1), blocks_up=(1,), norm=("GROUP", {"num_groups": 2})
    )
    return model, [(torch.randn(1, 1, 8, 8, 8),)]


def _neighbours() -> Any:
    layer = require_module("torch_geometric.nn").PNAConv(
        8, 8, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=torch.tensor([2, 3, 4, 1])
    )
    return layer, [(torch.randn(12, 8), edges_of(12, 30))]


def _policy() -> Any:
    heads = require_module("pfrl.policies")
    head = heads.GaussianHeadWithStateIndependentCovariance(2, var_type="diagonal", var_func=lambda x: (2 * x).exp())
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2), head)

    def loss(states: torch.Tensor, actions: torch.Tensor, before: torch.Tensor, advantage: torch.Tensor) -> Any:
        found = model(states)
        ratio = (found.log_prob(actions) - before).exp()
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -clipped.mean() - 0.01 * found.entropy().mean()

    return loss, [(torch.randn(8, 4), torch.randn(8, 2), torch.randn(8), torch.randn(8))]


def _values_distributed() -> Any:
    functions = require_module("pfrl.q_functions")
    model = functions.DistributionalFCStateQFunctionWithDiscreteAction(4, 3, 11, -1, 1, 16, 1)
    # Its values are made by NumPy, which knows no default device.
    model.to(torch.get_default_device())

    def values(states: torch.Tensor) -> Any:
        found = model(states)
        return found.max, found.q_values, found.greedy_actions

    return values, [(torch.randn(5, 4),)]


def _ranking() -> Any:
    models, basic = require_module("torch_rechub.models.ranking"), require_module("torch_rechub.basic.features")
    dense = [basic.DenseFeature(name) for name in ("a", "b")]
    sparse = [basic.SparseFeature(name, vocab_size=10, embed_dim=4) for name in ("c", "d")]
    layers = {"dims": [16], "dropout": 0.0, "activation": "relu"}
    model = models.DeepFM(deep_features=dense + sparse, fm_features=sparse, mlp_params=layers)
    columns = [torch.randn(6), torch.randn(6), torch.randint(0, 10, (6,)), torch.randint(0, 10, (6,))]
    return (lambda *given: model(dict(zip("abcd", given, strict=True)))), [tuple(columns)]


def _interactions() -> Any:
    inputs, models = require_module("deepctr_torch.inputs"), require_module("deepctr_torch.models")
    columns = [*(inputs.SparseFeat(name, 10, embedding_dim=4) for name in "ab"), inputs.DenseFeat("c", 1)]
    model = models.xDeepFM(columns, columns, dnn_hidden_units=(16,), cin_layer_size=(8, 4), device="cpu")
    return model, [(torch.cat([torch.randint(0, 10, (6, 2)).float(), torch.randn(6, 1)], 1),)]


_SCHEDULERS = ("DDIM", "DPMSolverMultistep", "EulerDiscrete", "UniPCMultistep", "HeunDiscrete", "DEISMultistep")


def _schedulers(compiler: Compiler) -> Any:
    """Steps of samplers, some of which solve a system of equations and write to what they have kept."""
    library, results = require_module("diffusers"), []
    for name in _SCHEDULERS:
        scheduler = getattr(library, f"{name}Scheduler")(num_train_timesteps=100)
        scheduler.set_timesteps(4)
        step = compiler(lambda noise, time, x, by=scheduler: by.step(noise, time, x, return_dict=False)[0])
        with compiler.device:
            x = torch.randn(1, 3, 8, 8)
        for time in scheduler.timesteps:
            x = step(x * 0.3 + 0.01, time, x)
        results.append(x)
    return results


PROGRAMS = (
    program_of("conformer: Conformer", _conformer, training=True),
    program_of("auraloss: spectral loss", _spectral_loss, training=True),
    program_of("snac: codec", _codec),
    program_of("asteroid-filterbanks: STFT", _filterbank),
    program_of("tabm: ensemble", _tabular_ensemble, training=True),
    program_of("rtdl-num-embeddings: embeddings", _numbers_embedded, training=True),
    program_of("flow-matching: loss", _flow, training=True),
    program_of("transformer-lens: transformer", _hooked, training=True),
    program_of("invariant-point-attention: block", _invariant_points),
    program_of("siren-pytorch: sines", _sines, training=True),
    program_of("perceiver-pytorch: Perceiver", _perceiver, training=True),
    program_of("axial-attention: layer", _axial, training=True),
    program_of("torchscale: RetNet", _retention),
    program_of("monai: SwinUNETR", _windows_shifted),
    program_of("monai: SegResNet", _residual_segmentation, training=True),
    program_of("torch-geometric: PNA", _neighbours, training=True),
    program_of("pfrl: PPO", _policy, training=True),
    program_of("pfrl: distributions of values", _values_distributed),
    program_of("torch-rechub: DeepFM", _ranking, training=True),
    program_of("deepctr-torch: xDeepFM", _interactions, training=True),
    Program(name="diffusers: schedulers", run=_schedulers),
)
