"""Convolutional networks, written with torch.nn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.corpus.program import Case, Program, call


class Residual(nn.Module):
    """A residual block of two convolutions; the shortcut is one of its own where shapes change."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        changes = stride != 1 or channels_in != channels_out
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


class InvertedResidual(nn.Module):
    """A block of a mobile network: widen, filter each channel, squeeze and excite, narrow."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.widen = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.filter = nn.Sequential(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6())
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, channels, 1),
            nn.ReLU(),
            nn.Conv2d(channels, wide, 1),
            nn.Hardsigmoid(),
        )
        self.narrow = nn.Conv2d(wide, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filtered = self.filter(self.widen(x))
        return x + self.narrow(filtered * self.excite(filtered))


class UNet(nn.Module):
    """Down and up again, with connections across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.InstanceNorm2d(16, affine=True), nn.SiLU()
        )
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shallow = self.down(x)
        logits: torch.Tensor = self.out(torch.cat([shallow, self.up(self.deep(shallow))], dim=1))
        return logits


class Pyramid(nn.Module):
    """Looks at an image at several scales."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.branches = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=rate, dilation=rate) for rate in (1, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = nn.functional.leaky_relu(self.stem(x), 0.1)
        seen = torch.cat([branch(features) for branch in self.branches], dim=1)
        return nn.functional.interpolate(seen, size=x.shape[-2:], mode="bilinear", align_corners=False)


def _vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, stride=2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(16 * 16, 32),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(32, 10),
    )


def _temporal() -> nn.Module:
    return nn.Sequential(
        nn.ConstantPad1d((4, 0), 0.0),
        nn.Conv1d(4, 8, 3, dilation=2),
        nn.BatchNorm1d(8),
        nn.ELU(),
        nn.Conv1d(8, 8, 5, padding="same", padding_mode="circular"),
        nn.AvgPool1d(2),
        nn.Softmax(dim=1),
    )


def _volumetric() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.BatchNorm3d(4),
        nn.PReLU(4),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 4, (1, 3, 3)),
        nn.AdaptiveMaxPool3d(1),
    )


def _super_resolution() -> nn.Module:
    return nn.Sequential(
        nn.ReflectionPad2d(2),
        nn.Conv2d(3, 12, 5),
        nn.Tanh(),
        nn.PixelShuffle(2),
        nn.Upsample(scale_factor=2),
        nn.Softsign(),
    )


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(16, 8, 4, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1, output_padding=1),
        nn.Sigmoid(),
    )


def _image() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


def _network(name: str, build: Callable[[], nn.Module], given: Callable[[], torch.Tensor] = _image) -> Program:
    return Program(name=name, build=lambda: Case(function=_settled(build()), calls=[call(given())]))


def _settled(model: nn.Module) -> nn.Module:
    """In eval mode, with running statistics that are not the identity."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def _channels_last() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(8, 8), Residual(8, 16, stride=2))
    image = _image().to(memory_format=torch.channels_last)
    return Case(function=_settled(model).to(memory_format=torch.channels_last), calls=[call(image)])


PROGRAMS = (
    _network("resnet_like", lambda: nn.Sequential(Residual(3, 8), Residual(8, 16, stride=2), Residual(16, 16))),
    _network("mobilenet_like", lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), InvertedResidual(8))),
    _network("unet_like", UNet),
    _network("vgg_like", _vgg),
    _network("dilated_pyramid", Pyramid),
    _network(
        "grouped_and_shuffled",
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.ChannelShuffle(4)),
        lambda: torch.randn(2, 4, 8, 8),
    ),
    _network("transposed_generator", _generator, lambda: torch.randn(2, 16, 1, 1)),
    _network("temporal_1d", _temporal, lambda: torch.randn(2, 4, 16)),
    _network("volumetric_3d", _volumetric, lambda: torch.randn(1, 1, 6, 8, 8)),
    _network("super_resolution", _super_resolution),
    Program(name="channels_last_resnet", build=_channels_last),
)
