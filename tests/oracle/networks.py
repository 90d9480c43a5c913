"""Block lists interpreted in PyTorch: plain data, as model files hold it, to modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Data = list[Any]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "hard_swish": nn.Hardswish,
    "hard_sigmoid": nn.Hardsigmoid,
    "relu6": nn.ReLU6,
    "identity": nn.Identity,
}


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class LayerScale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class StochasticDepth(nn.Module):
    """By row, as torchvision.ops.StochasticDepth."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0 or not self.training:
            return x
        noise = torch.empty([len(x)] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(1 - self.p).div_(1 - self.p)


class Dropout(nn.Module):
    """On the GPU the mask is bool (aten::native_dropout), on the CPU it has the data's type (aten::dropout)."""

    def __init__(self, p: float, device: str) -> None:
        super().__init__()
        self.p, self.device = p, device

    def forward(self, x: Tensor) -> Tensor:
        if self.device == "gpu" and self.training and self.p > 0:
            return torch.native_dropout(x, self.p, True)[0]
        return F.dropout(x, self.p, self.training)


class Joined(nn.Module):
    def __init__(self, paths: list[nn.Module], join: str) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.joined([path(x) for path in self.paths])

    def joined(self, ends: list[Tensor]) -> Tensor:
        if self.join == "concat":
            return torch.cat(ends, 1)
        total = ends[0]
        for end in ends[1:]:
            total = total + end if self.join == "add" else total * end
        return total


def build(items: Data, x: Tensor, device: str) -> tuple[nn.Module, Tensor]:
    """The modules, and what they make of `x`. Raises as PyTorch does if an item does not fit."""
    modules = []
    for item in items:
        [(name, fields)] = [(item, {})] if isinstance(item, str) else item.items()
        module, x = _block(name, fields, x, device)
        modules.append(module)
    return nn.Sequential(*modules), x


def parts(items: Data, x: Tensor) -> list[nn.Module]:
    """What a stage may begin with: each item, each time of one that repeats, those of a list with such."""
    found: list[nn.Module] = []
    for item in items:
        [(name, fields)] = [(item, {})] if isinstance(item, str) else item.items()
        inner = fields.get("blocks", []) if isinstance(fields, dict) else fields
        if name == "repeat":
            for _ in range(fields["times"]):
                module, x = build(inner, x, "gpu")
                found.append(module)
        elif name == "sequence" and any(isinstance(each, dict) and "repeat" in each for each in inner):
            own = parts(inner, x)
            found += own
            x = nn.Sequential(*own)(x)
        else:
            module, x = _block(name, fields, x, "gpu")
            found.append(module)
    return found


def _block(name: str, fields: Any, x: Tensor, device: str) -> tuple[nn.Module, Tensor]:
    if name == "sequence":
        return build(fields if isinstance(fields, list) else fields["blocks"], x, device)
    if name == "repeat":
        return build(fields["blocks"] * fields["times"], x, device)
    if name == "residual":
        paths = [fields["body"], fields.get("projection", [])]
        return _joined(paths, "add", x, device)
    if name == "response_norm":
        module = ResponseNorm(x.shape[-1]).to(x.device)
        return module, module(x)
    if name == "branches":
        return _joined(fields["paths"], fields["join"], x, device)
    module = ACTIVATIONS[name]() if name in ACTIVATIONS and not fields else _layer(name, dict(fields), x, device)
    return module, module(x)


class ResponseNorm(nn.Module):
    """Channels, which come last, normed by their response over the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.bias = (nn.Parameter(torch.zeros(1, 1, 1, channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        response = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        relative = response / (response.mean(-1, keepdim=True) + 1e-6)
        return self.scale * (x * relative) + self.bias + x


def _joined(paths: list[Data], join: str, x: Tensor, device: str) -> tuple[nn.Module, Tensor]:
    modules, ends = zip(*(build(path, x, device) for path in paths), strict=True)
    module = Joined(list(modules), join)
    return module, module.joined(list(ends))


def _pair(value: int | list[int]) -> int | tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else value


def _layer(name: str, f: dict[str, Any], x: Tensor, device: str) -> nn.Module:
    f = {field: _pair(value) for field, value in f.items()}
    channels = x.shape[1]
    match name:
        case "conv":
            return nn.Conv2d(channels, f.pop("channels"), f.pop("kernel"), **f, device=x.device)
        case "conv_transpose":
            return nn.ConvTranspose2d(channels, f.pop("channels"), f.pop("kernel"), **f, device=x.device)
        case "max_pool":
            return nn.MaxPool2d(f.pop("kernel"), **f)
        case "avg_pool":
            return nn.AvgPool2d(f.pop("kernel"), **f)
        case "adaptive_avg_pool":
            return nn.AdaptiveAvgPool2d(f["size"])
        case "adaptive_max_pool":
            return nn.AdaptiveMaxPool2d(f["size"])
        case "global_avg_pool":
            return Apply(lambda x: x.mean((2, 3), keepdim=f.get("keepdims", False)))
        case "upsample":
            return nn.Upsample(scale_factor=f["scale"], mode=f.get("mode", "nearest"))
        case "pixel_shuffle":
            return nn.PixelShuffle(f["factor"])
        case "channel_shuffle":
            return nn.ChannelShuffle(f["groups"])
        case "pad":
            return nn.ZeroPad2d(f["sides"])
        case "dropout":
            return Dropout(f["p"], device)
        case "channel_dropout":
            return nn.Dropout2d(f["p"])
        case "stochastic_depth":
            return StochasticDepth(f["p"])
        case "batchnorm":
            return nn.BatchNorm2d(channels, **f, device=x.device)
        case "groupnorm":
            return nn.GroupNorm(f.pop("groups"), channels, **f, device=x.device)
        case "layernorm":
            affine, bias = f.get("affine", True), f.get("bias", True)
            return nn.LayerNorm(x.shape[-1], elementwise_affine=affine, bias=bias, device=x.device)
        case "scale":
            return Apply(lambda x: x * f["factor"])
        case "shift":
            return Apply(lambda x: x + f["constant"])
        case "clamp":
            return Apply(lambda x: x.clamp(f["low"], f["high"]))
        case "leaky_relu":
            return nn.LeakyReLU(f["slope"])
        case "elu":
            return nn.ELU(f["alpha"])
        case "layer_scale":
            return LayerScale(channels).to(x.device)
        case "linear":
            return nn.Linear(x.shape[-1], f.pop("features"), **f, device=x.device)
        case "permute":
            return Apply(lambda x: x.permute(f["axes"]))
        case "flatten":
            return nn.Flatten()
    raise KeyError(name)
