"""Models and functions of libraries that are not among those of the tests: each is tried where it is installed, as all
are by `python3 dev.py wild`.

A program begins with the name under which its library is locked (requirements/wild.txt).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Case, Function, backpropagating, call, plainly
from tests.wild.program import Compiler, Program, program_of_case, require_module

_Build = Callable[[], tuple[Function, list[tuple[Any, ...]]]]


def program_of(name: str, build: _Build, *, training: bool = False, **flags: Any) -> Program:
    """A program of what `build` gives: a model or a function, and arguments of each call."""

    def case() -> Case:
        function, calls = build()
        if isinstance(function, nn.Module):
            function.train(training)
        use = backpropagating if training else plainly
        return Case(function=function, calls=[call(*arguments) for arguments in calls], use=use)

    return program_of_case(f"{name}, training" if training else name, case, training=training, **flags)


def tokens_of(*shape: int) -> torch.Tensor:
    """Numbers of tokens below 64."""
    return torch.randint(0, 64, shape)


def _x_transformers_decoder() -> Any:
    library = require_module("x_transformers")
    layers = library.Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, attn_flash=True, ff_glu=True)
    model = library.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)
    return model, [(tokens_of(2, 16),), (tokens_of(2, 24),)]


def _x_transformers_pair() -> Any:
    library = require_module("x_transformers")
    model = library.XTransformer(
        dim=32, enc_num_tokens=64, enc_depth=1, enc_heads=2, enc_max_seq_len=16,
        dec_num_tokens=64, dec_depth=1, dec_heads=2, dec_max_seq_len=16,
    )  # fmt: skip
    return model, [(tokens_of(2, 16), tokens_of(2, 16))]


def _quantizer() -> Any:
    library = require_module("vector_quantize_pytorch")
    return library.VectorQuantize(dim=16, codebook_size=32, decay=0.8), [(torch.randn(2, 12, 16),) for _ in range(2)]


def _residual_quantizer() -> Any:
    library = require_module("vector_quantize_pytorch")
    return library.ResidualVQ(dim=16, codebook_size=32, num_quantizers=3), [(torch.randn(2, 12, 16),)]


def _scalar_quantizer() -> Any:
    return require_module("vector_quantize_pytorch").FSQ(levels=[8, 5, 5]), [(torch.randn(2, 12, 3),)]


def _kornia_filters() -> Any:
    kornia = require_module("kornia")

    def filtered(x: torch.Tensor) -> torch.Tensor:
        blurred = kornia.filters.gaussian_blur2d(x, (5, 5), (1.2, 1.2))
        return kornia.filters.sobel(blurred) + kornia.filters.median_blur(x, (3, 3)) + kornia.color.rgb_to_hsv(x)

    return filtered, [(torch.rand(2, 3, 24, 32),), (torch.rand(3, 3, 24, 32),)]


def _kornia_warp() -> Any:
    kornia = require_module("kornia")

    def warped(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        turned = kornia.geometry.transform.rotate(x, angle)
        return kornia.geometry.transform.resize(turned, (16, 16)) - kornia.losses.ssim_loss(x, turned, 5)

    return warped, [(torch.rand(2, 3, 24, 24), torch.tensor([10.0, 75.0]))]


def _kornia_features() -> Any:
    kornia = require_module("kornia")
    return kornia.feature.HardNet(pretrained=False), [(torch.rand(4, 1, 32, 32),)]


def _e3nn_product() -> Any:
    o3 = require_module("e3nn.o3")
    require_module("e3nn").set_optimization_defaults(jit_mode="eager")
    product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "1x0e+1x1o", "3x0e+2x1o")
    return product, [(torch.randn(6, 10), torch.randn(6, 4))]


def _e3nn_harmonics() -> Any:
    o3 = require_module("e3nn.o3")
    return (lambda x: o3.spherical_harmonics([0, 1, 2], x, normalize=True)), [(torch.randn(9, 3),)]


def edges_of(nodes: int, edges: int) -> torch.Tensor:
    """Edges of a graph, each by the numbers of two nodes."""
    return torch.randint(0, nodes, (2, edges))


def _geometric(layer: str, **configuration: Any) -> _Build:
    def build() -> Any:
        library = require_module("torch_geometric.nn")
        model = getattr(library, layer)(8, 16, num_layers=2, out_channels=4, **configuration)
        return model, [(torch.randn(12, 8), edges_of(12, 30)), (torch.randn(15, 8), edges_of(15, 40))]

    return build


def _geometric_pooled() -> Any:
    library = require_module("torch_geometric.nn")
    layer = library.GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))

    def pooled(x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        features = layer(x, edges).relu()
        return torch.cat([library.global_mean_pool(features, batch, 3), library.global_max_pool(features, batch, 3)], 1)

    return pooled, [(torch.randn(12, 8), edges_of(12, 30), torch.arange(3).repeat_interleave(4))]


def _open_clip() -> Any:
    library = require_module("open_clip.model")
    model = library.CLIP(
        embed_dim=32,
        vision_cfg=library.CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=32),
        text_cfg=library.CLIPTextCfg(context_length=16, vocab_size=64, width=32, heads=2, layers=2),
    )
    return model, [(torch.randn(2, 3, 32, 32), tokens_of(2, 16))]


def _segment_anything() -> Any:
    modeling = require_module("segment_anything.modeling")
    encoder = modeling.ImageEncoderViT(
        img_size=64, patch_size=8, embed_dim=32, depth=2, num_heads=2, out_chans=16,
        use_rel_pos=True, window_size=4, global_attn_indexes=(1,),
    )  # fmt: skip
    return encoder, [(torch.randn(1, 3, 64, 64),), (torch.randn(2, 3, 64, 64),)]


def _segment_anything_decoder() -> Any:
    modeling = require_module("segment_anything.modeling")
    transformer = modeling.TwoWayTransformer(depth=2, embedding_dim=16, num_heads=2, mlp_dim=32)
    decoder = modeling.MaskDecoder(transformer_dim=16, transformer=transformer, num_multimask_outputs=3)
    prompts = modeling.PromptEncoder(16, image_embedding_size=(8, 8), input_image_size=(64, 64), mask_in_chans=4)

    def decoded(image: torch.Tensor, points: torch.Tensor, labels: torch.Tensor) -> Any:
        sparse, dense = prompts(points=(points, labels), boxes=None, masks=None)
        return decoder(image, prompts.get_dense_pe(), sparse, dense, True)

    return decoded, [(torch.randn(1, 16, 8, 8), torch.rand(1, 2, 2) * 64, torch.ones(1, 2))]


def _gaussian_process() -> Any:
    gpytorch = require_module("gpytorch")

    class Exact(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 10)
    model = Exact(x, x.sin())
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -loss(model(x), y)

    model.train()
    return step, [(x, x.sin())]


def _metrics() -> Any:
    functional = require_module("torchmetrics.functional")

    def measured(scores: torch.Tensor, labels: torch.Tensor, image: torch.Tensor) -> Any:
        return (
            functional.accuracy(scores, labels, task="multiclass", num_classes=5, validate_args=False),
            functional.f1_score(scores, labels, task="multiclass", num_classes=5, average="macro", validate_args=False),
            functional.image.structural_similarity_index_measure(image, image * 0.9, data_range=1.0),
            functional.mean_squared_error(image, image * 0.5),
        )

    return measured, [(torch.rand(8, 5), torch.randint(0, 5, (8,)), torch.rand(2, 3, 24, 24))]


def _monai_unet() -> Any:
    nets = require_module("monai.networks.nets")
    model = nets.UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2))
    return model, [(torch.randn(1, 1, 16, 16, 16),)]


def _monai_unetr() -> Any:
    nets = require_module("monai.networks.nets")
    model = nets.UNETR(1, 2, img_size=(32, 32), feature_size=4, hidden_size=32, mlp_dim=32, num_heads=2, spatial_dims=2)
    return model, [(torch.randn(1, 1, 32, 32),)]


def _monai_losses() -> Any:
    losses = require_module("monai.losses")
    dice, focal = losses.DiceCELoss(to_onehot_y=True, softmax=True), losses.FocalLoss(to_onehot_y=True)

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> Any:
        return dice(scores, labels) + focal(scores, labels)

    return loss, [(torch.randn(2, 3, 8, 8, requires_grad=True), torch.randint(0, 3, (2, 1, 8, 8)))]


def _segmentation(architecture: str) -> _Build:
    def build() -> Any:
        library = require_module("segmentation_models_pytorch")
        model = library.create_model(architecture, encoder_name="resnet18", encoder_weights=None, classes=2)
        return model.eval(), [(torch.randn(2, 3, 64, 64),)]

    return build


def _vit() -> Any:
    library = require_module("vit_pytorch")
    model = library.ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=32)
    return model, [(torch.randn(2, 3, 32, 32),)]


def _max_vit() -> Any:
    library = require_module("vit_pytorch.max_vit")
    model = library.MaxViT(
        num_classes=5, dim=16, depth=(1, 1), dim_head=8, dim_conv_stem=16, window_size=4,
        mbconv_expansion_rate=2, mbconv_shrinkage_rate=0.25, dropout=0.0,
    )  # fmt: skip
    return model, [(torch.randn(1, 3, 64, 64),)]


def _denoiser() -> Any:
    library = require_module("denoising_diffusion_pytorch")
    model = library.Unet(dim=16, dim_mults=(1, 2), attn_dim_head=8, attn_heads=2)
    return model, [(torch.randn(2, 3, 16, 16), torch.tensor([3, 7]))]


def _forecasting() -> Any:
    modules = require_module("pytorch_forecasting.models.temporal_fusion_transformer.sub_modules")
    network = modules.GatedResidualNetwork(8, 16, 8, dropout=0.0)
    attention = modules.InterpretableMultiHeadAttention(n_head=2, d_model=8, dropout=0.0)

    def forecast(x: torch.Tensor) -> Any:
        hidden = network(x)
        return attention(q=hidden, k=hidden, v=hidden)

    return forecast, [(torch.randn(3, 6, 8),)]


def _nbeats() -> Any:
    modules = require_module("pytorch_forecasting.models.nbeats.sub_modules")
    block = modules.NBEATSSeasonalBlock(units=16, backcast_length=12, forecast_length=6, dropout=0.0)
    return block, [(torch.randn(4, 12),)]


def _linear_attention() -> Any:
    naive = require_module("fla.ops.delta_rule.naive")

    def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> Any:
        return naive.delta_rule_recurrence(q, k, v, beta)

    parts = [torch.randn(2, 2, 8, 4) for _ in range(3)]
    return attended, [(*parts, torch.rand(2, 2, 8))]


def _gated_attention() -> Any:
    naive = require_module("fla.ops.gla.naive")
    q, k, v = (torch.randn(2, 8, 2, 4) for _ in range(3))
    return naive.naive_recurrent_gla, [(q, k, v, -torch.rand(2, 8, 2, 4))]


def _differential_equation() -> Any:
    odeint = require_module("torchdiffeq").odeint
    field = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def solve(x: torch.Tensor, times: torch.Tensor) -> Any:
        return odeint(lambda t, y: field(y) * t.cos(), x, times, method="rk4")

    return solve, [(torch.randn(4, 3), torch.linspace(0, 1, 5))]


def _neural_operator() -> Any:
    models = require_module("neuralop.models")
    return models.FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8), [(torch.randn(2, 1, 16, 16),)]


def _equivariant() -> Any:
    library = require_module("egnn_pytorch")
    return library.EGNN(dim=16, num_nearest_neighbors=4), [(torch.randn(1, 8, 16), torch.randn(1, 8, 3))]


def _local_attention() -> Any:
    library = require_module("local_attention")
    model = library.LocalTransformer(
        num_tokens=64, dim=32, depth=2, max_seq_len=32, local_attn_window_size=8, heads=2, dim_head=16
    )
    return model, [(tokens_of(2, 32),)]


def _performer() -> Any:
    library = require_module("performer_pytorch")
    model = library.Performer(dim=32, depth=2, heads=2, dim_head=16, causal=False)
    return model, [(torch.randn(1, 16, 32),)]


def _temporal() -> Any:
    return require_module("pytorch_tcn").TCN(8, [8, 16], kernel_size=3, dropout=0.0), [(torch.randn(2, 8, 20),)]


def _tabular() -> Any:
    library = require_module("rtdl_revisiting_models")
    model = library.FTTransformer(
        n_cont_features=4, cat_cardinalities=[3, 5], d_out=2, n_blocks=2, d_block=16, attention_n_heads=2,
        attention_dropout=0.0, ffn_d_hidden_multiplier=2.0, ffn_dropout=0.0, residual_dropout=0.0,
    )  # fmt: skip
    return model, [(torch.randn(6, 4), torch.randint(0, 3, (6, 2)))]


def _spiking() -> Any:
    snntorch = require_module("snntorch")
    layer, leaky = nn.Linear(8, 4), snntorch.Leaky(beta=0.9)

    def spikes(x: torch.Tensor) -> Any:
        potential, seen = torch.zeros(x.shape[1], 4), []
        for step in x:
            spike, potential = leaky(layer(step), potential)
            seen.append(spike)
        return torch.stack(seen), potential

    return spikes, [(torch.randn(5, 3, 8),)]


def _tensor_dict() -> Any:
    library = require_module("tensordict")
    nets = require_module("tensordict.nn")
    first = nets.TensorDictModule(nn.Linear(4, 8), in_keys=["x"], out_keys=["hidden"])
    model = nets.TensorDictSequential(first, nets.TensorDictModule(nn.Tanh(), in_keys=["hidden"], out_keys=["y"]))

    def called(x: torch.Tensor) -> Any:
        return model(library.TensorDict({"x": x}, batch_size=[x.shape[0]]))["y"]

    return called, [(torch.randn(3, 4),)]


def _ensemble() -> Any:
    """Layers whose parameters lie in one dictionary, which torch.vmap batches by functions of the library's own."""
    library = require_module("tensordict")
    layers, single = [nn.Linear(4, 2) for _ in range(3)], nn.Linear(4, 2)
    parameters = library.TensorDict.from_modules(*layers, as_module=True)

    def one(parameters: Any, x: torch.Tensor) -> Any:
        with parameters.to_module(single):
            return single(x)

    return (lambda x: torch.vmap(one, (0, None))(parameters, x)), [(torch.randn(5, 4, requires_grad=True),)]


def _faces() -> Any:
    library = require_module("facenet_pytorch")
    return library.InceptionResnetV1(pretrained=None, classify=True, num_classes=5), [(torch.randn(2, 3, 96, 96),)]


def _chronos() -> Any:
    library = require_module("chronos.chronos_bolt")
    configuration = require_module("transformers").T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=2, feed_forward_proj="relu",
        is_encoder_decoder=True, decoder_start_token_id=0, pad_token_id=0,
        chronos_config={
            "context_length": 32, "prediction_length": 8, "input_patch_size": 8, "input_patch_stride": 8,
            "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
        },
    )  # fmt: skip
    model = library.ChronosBoltModelForForecasting(configuration).eval()
    return (lambda context: model(context=context).quantile_preds), [(torch.randn(2, 32),)]


def _linformer() -> Any:
    return require_module("linformer").Linformer(dim=32, seq_len=16, depth=2, heads=2, k=8), [(torch.randn(2, 16, 32),)]


def _nystrom() -> Any:
    layer = require_module("nystrom_attention").NystromAttention(dim=32, heads=2, dim_head=16, num_landmarks=4)
    return layer, [(torch.randn(1, 17, 32),)]


def _memory() -> Any:
    library = require_module("titans_pytorch")
    return library.NeuralMemory(dim=16, chunk_size=4, heads=1), [(torch.randn(1, 8, 16),)]


def _random_field() -> Any:
    model = require_module("torchcrf").CRF(5, batch_first=True)
    return model, [(torch.randn(2, 6, 5), torch.randint(0, 5, (2, 6)), torch.ones(2, 6, dtype=torch.bool))]


def _sparse_softmax() -> Any:
    entmax = require_module("entmax")
    return (lambda x: entmax.entmax15(x, dim=-1) + entmax.sparsemax(x, dim=-1)), [(torch.randn(3, 8),)]


def _contrastive() -> Any:
    loss = require_module("lightly.loss").NTXentLoss()
    return loss, [(torch.randn(4, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True))]


def _equiformer() -> Any:
    library = require_module("equiformer_pytorch")
    model = library.Equiformer(
        dim=(8, 4), dim_head=(4, 2), heads=(2, 1), depth=1, num_degrees=2, num_linear_attn_heads=0,
        num_neighbors=4, attend_self=True, num_tokens=8,
    )  # fmt: skip
    return model, [(torch.randint(0, 8, (1, 8)), torch.randn(1, 8, 3), torch.ones(1, 8, dtype=torch.bool))]


def _adapted() -> Any:
    transformers, peft = require_module("transformers"), require_module("peft")
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1,
        )
    )  # fmt: skip
    adapted = peft.get_peft_model(llama, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, use_dora=True))
    return (lambda tokens: adapted(tokens, labels=tokens).loss), [(tokens_of(2, 12),)]


def _rearranged() -> Any:
    einops = require_module("einops")

    def attended(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        heads = einops.rearrange(x, "b n (h d) -> b h n d", h=4)
        packed, shapes = einops.pack([heads, einops.repeat(y, "n d -> b h n d", b=2, h=4)], "b h * d")
        first, _ = einops.unpack(packed.softmax(-1), shapes, "b h * d")
        return einops.einsum(first, heads, "b h i d, b h j d -> b i j") + einops.reduce(x, "b n c -> b n 1", "max")

    return attended, [(torch.randn(2, 5, 16), torch.randn(5, 4)), (torch.randn(2, 7, 16), torch.randn(7, 4))]


def _lion(compiler: Compiler) -> Any:
    """Steps of an optimizer, and of a moving average of the weights."""
    lion, ema = require_module("lion_pytorch"), require_module("ema_pytorch")
    with compiler.device:
        model = nn.Linear(6, 3)
        x = torch.randn(4, 6)
    optimizer = lion.Lion(model.parameters(), lr=1e-2, weight_decay=1e-2)
    averaged = ema.EMA(model, beta=0.9, update_after_step=0, update_every=1)
    step = compiler(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        step()
        averaged.update()
    return dict(model.named_parameters()), dict(averaged.ema_model.named_parameters())


def _lightning(compiler: Compiler) -> Any:
    """A compiled module that Lightning trains."""
    lightning = require_module("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            (x,) = batch
            return self.layers(x).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 6)), batch_size=4)
    module = Module()
    compiler.in_place(module.layers)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator=compiler.device.type, devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with torch.enable_grad():
        trainer.fit(module, data)
    return dict(module.named_parameters())


def _sentences(compiler: Compiler) -> Any:
    """Similarities of pooled embeddings of a small encoder."""
    modules = require_module("sentence_transformers.sentence_transformer.modules.pooling")
    util, transformers = require_module("sentence_transformers.util"), require_module("transformers")
    with compiler.device:
        encoder = transformers.BertModel(
            transformers.BertConfig(
                vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            )
        )  # fmt: skip
        tokens, mask = tokens_of(4, 12), torch.ones(4, 12, dtype=torch.int64)
    pooling = modules.Pooling(32, pooling_mode="mean")

    def embed(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = encoder(tokens, attention_mask=mask).last_hidden_state
        pooled = pooling({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"]
        return util.cos_sim(pooled, pooled)

    return compiler(embed)(tokens, mask)


PROGRAMS = (
    program_of("x-transformers: decoder", _x_transformers_decoder),
    program_of("x-transformers: encoder and decoder", _x_transformers_pair, training=True),
    program_of("vector-quantize-pytorch: codebook", _quantizer),
    program_of("vector-quantize-pytorch: codebook", _quantizer, training=True),
    program_of("vector-quantize-pytorch: residuals", _residual_quantizer),
    program_of("vector-quantize-pytorch: scalars", _scalar_quantizer, training=True),
    program_of("kornia: filters", _kornia_filters),
    program_of("kornia: rotation", _kornia_warp),
    program_of("kornia: HardNet", _kornia_features),
    program_of("e3nn: tensor product", _e3nn_product, training=True),
    program_of("e3nn: harmonics", _e3nn_harmonics),
    program_of("torch-geometric: GCN", _geometric("GCN")),
    program_of("torch-geometric: GCN", _geometric("GCN"), training=True),
    program_of("torch-geometric: GAT", _geometric("GAT", heads=2)),
    program_of("torch-geometric: GraphSAGE", _geometric("GraphSAGE"), training=True),
    program_of("torch-geometric: pooling", _geometric_pooled),
    program_of("open-clip-torch: CLIP", _open_clip, training=True),
    program_of("segment-anything: encoder", _segment_anything),
    program_of("segment-anything: prompts and masks", _segment_anything_decoder),
    program_of("gpytorch: marginal likelihood", _gaussian_process, training=True),
    program_of("torchmetrics: metrics", _metrics),
    program_of("monai: U-Net", _monai_unet),
    program_of("monai: UNETR", _monai_unetr),
    program_of("monai: losses", _monai_losses, training=True),
    program_of("segmentation-models-pytorch: Unet", _segmentation("unet")),
    program_of("segmentation-models-pytorch: FPN", _segmentation("fpn")),
    program_of("vit-pytorch: ViT", _vit, training=True),
    program_of("vit-pytorch: MaxViT", _max_vit),
    program_of("denoising-diffusion-pytorch: U-Net", _denoiser),
    program_of("pytorch-forecasting: attention", _forecasting),
    program_of("pytorch-forecasting: N-BEATS", _nbeats, training=True),
    program_of("flash-linear-attention: delta rule", _linear_attention),
    program_of("flash-linear-attention: gated", _gated_attention),
    program_of("torchdiffeq: Runge-Kutta", _differential_equation, training=True),
    program_of("neuraloperator: FNO", _neural_operator, training=True),
    program_of("egnn-pytorch: EGNN", _equivariant),
    program_of("local-attention: transformer", _local_attention),
    program_of("performer-pytorch: Performer", _performer),
    program_of("pytorch-tcn: TCN", _temporal, training=True),
    program_of("rtdl-revisiting-models: transformer", _tabular, training=True),
    program_of("snntorch: leaky neurons", _spiking, training=True),
    program_of("tensordict: modules", _tensor_dict),
    program_of("tensordict: ensemble", _ensemble, training=True),
    program_of("facenet-pytorch: InceptionResnet", _faces),
    program_of("chronos-forecasting: Bolt", _chronos),
    program_of("linformer: Linformer", _linformer),
    program_of("nystrom-attention: layer", _nystrom),
    program_of("titans-pytorch: memory", _memory),
    program_of("pytorch-crf: CRF", _random_field, training=True),
    program_of("entmax: softmax", _sparse_softmax, training=True),
    program_of("lightly: NT-Xent", _contrastive, training=True),
    program_of("equiformer-pytorch: Equiformer", _equiformer),
    program_of("peft: DoRA", _adapted, training=True),
    program_of("einops: attention", _rearranged),
    Program(name="lion-pytorch: steps", run=_lion, training=True),
    Program(name="lightning: training", run=_lightning, training=True),
    Program(name="sentence-transformers: embeddings", run=_sentences),
)
