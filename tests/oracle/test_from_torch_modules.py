"""Modules as people write them cost on paper what they cost in PyTorch: see each for where its like is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import costmodel as cm
from tests.graph.walking import check_tape
from tests.layers.device_kernels import check_kernels

from .imports import assert_equal, found, measured, without_data
from .measure import meta
from .vision import stub_operators

pytestmark = pytest.mark.oracle


class Translator(nn.Module):
    """Sequence to sequence with attention over what a bidirectional LSTM read."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(30, 8), nn.Embedding(30, 8)
        self.encoder = nn.LSTM(8, 6, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True)
        self.decoder, self.bridge = nn.GRU(8, 12, batch_first=True), nn.Linear(6, 12)
        self.mix, self.head = nn.Linear(24, 12), nn.Linear(12, 30)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory, (state, _) = self.encoder(self.source(x))
        read, _ = self.decoder(self.target(y), torch.tanh(self.bridge(state[-1:])))
        weights = (read @ memory.transpose(1, 2)).softmax(-1)
        return self.head(torch.tanh(self.mix(torch.cat([read, weights @ memory], -1))))


class Stepwise(nn.Module):
    """A decoder of cells that is unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(9, 6), nn.LSTMCell(6, 8), nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        state, logits = None, []
        for t in range(x.shape[1]):
            state = self.cell(self.table(x[:, t]), state)
            logits.append(self.head(state[0]))
        return torch.stack(logits, 1)


class Dilated(nn.Module):
    """Gated dilated convolutions with weight norm, as in WaveNet (van den Oord et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(1, 8, 1))
        self.gates = nn.ModuleList(weight_norm(nn.Conv1d(8, 16, 2, dilation=2**n)) for n in range(3))
        self.out = nn.ModuleList(weight_norm(nn.Conv1d(8, 8, 1)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for n, (gate, out) in enumerate(zip(self.gates, self.out, strict=True)):
            a, b = gate(F.pad(x, (2**n, 0))).chunk(2, 1)
            x = x + out(torch.tanh(a) * torch.sigmoid(b))
        return x


class Transformed(nn.Module):
    """A spatial transformer (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.find, self.read = nn.Linear(3 * 8 * 8, 6), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.find(x.flatten(1)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.read(F.grid_sample(x, grid, align_corners=False))


class Volume(nn.Module):
    """A classifier of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.one(x)), 2)
        x = F.avg_pool3d(F.relu(self.two(x)), 2)
        return self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))


class Radiance(nn.Module):
    """A radiance field with positions as waves (Mildenhall et al. 2020), summed along each ray."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.density, self.color = nn.Linear(3 * 2 * 4, 16), nn.Linear(16, 1), nn.Linear(16 + 3, 3)

    def forward(self, points: Tensor, ways: Tensor) -> Tensor:
        waves = points.unsqueeze(-1) * 2.0 ** torch.arange(4, device=points.device) * math.pi
        features = F.relu(self.body(torch.cat([waves.sin(), waves.cos()], -1).flatten(-2)))
        color = torch.sigmoid(self.color(torch.cat([features, ways.expand_as(points)], -1)))
        alpha = 1 - torch.exp(-F.softplus(self.density(features)).squeeze(-1))
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * through).unsqueeze(-1) * color).sum(1)


class Messages(nn.Module):
    """Messages along edges, gathered at nodes with attention (Veličković et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.score, self.head = nn.Linear(5, 8), nn.Linear(16, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.lift(x)
        source, target = edges[0], edges[1]
        scores = F.leaky_relu(self.score(torch.cat([x[source], x[target]], -1)), 0.2).exp()
        total = torch.zeros_like(x[:, :1]).index_add(0, target, scores)
        messages = scores / total[target] * x[source]
        return self.head(F.elu(torch.zeros_like(x).index_add(0, target, messages)))


class Denoiser(nn.Module):
    """A small U-Net of diffusion: waves of time, group norm, attention in the middle, a loss on the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.norm, self.attention = nn.GroupNorm(4, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.leave = nn.ConvTranspose2d(16, 16, 2, stride=2), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        share = torch.cos(t * math.pi / 2).view(-1, 1, 1, 1)
        waves = t[:, None] * torch.exp(-torch.arange(4, device=t.device) / 4)
        time = self.time(torch.cat([waves.sin(), waves.cos()], -1))
        first = self.enter(share * x + (1 - share**2).sqrt() * noise)
        y = F.silu(self.norm(self.down(first))) + time[:, :, None, None]
        flat = y.flatten(2).transpose(1, 2)
        y = y + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(y.shape)
        return F.mse_loss(self.leave(torch.cat([self.up(y), first], 1)), noise)


class Adversary(nn.Module):
    """The step of a critic with spectral norm: the generator's images are detached."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())
        self.critic = nn.Sequential(spectral_norm(nn.Linear(12, 16)), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))

    def forward(self, z: Tensor, real: Tensor) -> Tensor:
        fake = self.generator(z).detach()
        return F.relu(1 - self.critic(real)).mean() + F.relu(1 + self.critic(fake)).mean()


class Contrast(nn.Module):
    """Two towers, one a bag of words; cosines, a temperature, cross-entropy both ways, with smoothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.image = nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(10, 8)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, words: Tensor, image: Tensor) -> Tensor:
        a, b = self.words(words), self.image(image)
        scores = F.cosine_similarity(a[:, None], b[None], dim=-1) * self.scale.exp()
        wanted = torch.arange(len(a), device=a.device)
        return F.cross_entropy(scores, wanted, label_smoothing=0.1) + F.cross_entropy(scores.t(), wanted)


class Routed(nn.Module):
    """Codes chosen by Gumbel softmax, distances to prototypes, and a bilinear form."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.codes = nn.Linear(6, 5), nn.Parameter(torch.ones(5, 6))
        self.form, self.prototypes = nn.Bilinear(6, 6, 4), nn.Parameter(torch.ones(30, 4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = F.gumbel_softmax(self.choose(x), hard=True) @ self.codes
        return (-torch.cdist(self.form(x, chosen), self.prototypes)).log_softmax(-1)


class Boxes(nn.Module):
    """A detection head: classes and boxes on two levels, decoded, with focal and overlap losses."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)])
        self.classes, self.boxes = nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor, classes: Tensor, boxes: Tensor) -> Tensor:
        scores, sides = [], []
        for level in self.levels:
            x = F.relu(level(x))
            scores.append(self.classes(x).flatten(2))
            sides.append(self.boxes(x).exp().flatten(2))
        logits, found = torch.cat(scores, 2), torch.cat(sides, 2)
        right = F.binary_cross_entropy_with_logits(logits, classes, reduction="none")
        focal = (right * (1 - torch.exp(-right)) ** 2).sum()
        both = torch.minimum(found[:, :2], boxes[:, :2]) + torch.minimum(found[:, 2:], boxes[:, 2:])
        overlap = both.clamp(min=0).prod(1)
        union = (found[:, :2] + found[:, 2:]).prod(1) + (boxes[:, :2] + boxes[:, 2:]).prod(1) - overlap
        return focal + (1 - overlap / union.clamp(min=1e-6)).sum()


class Masked(nn.Module):
    """An encoder that is told its mask and no hint."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.encoder(x, mask=mask)


class Pixels(nn.Module):
    """Reads bytes, counts in 32 bits and levels of 16, as loaders of images and quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rows = nn.Conv2d(3, 4, 3), nn.Embedding(16, 6)
        self.register_buffer("order", torch.arange(16, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.float() / 255)
        rows = self.rows((self.order[:4] + 1) * 2)
        y = y + rows[:, None]
        levels = (y.detach() * 7).to(torch.int16)
        kept = torch.cat([levels, levels.clamp(max=3)], 1).to(torch.uint8)
        places = levels.to(torch.int32).cumsum(-1) % 6
        return torch.gather(y, 3, places.long()) * kept[:, 4:]


class Turned(nn.Module):
    """Attention whose queries and keys are turned as complex numbers, with grouped heads, as in Llama's own code."""

    turns: Tensor

    def __init__(self, width: int = 16, heads: int = 4, places: int = 12) -> None:
        super().__init__()
        self.heads, d = heads, width // heads
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        angles = torch.outer(torch.arange(places), 1.0 / (10000 ** (torch.arange(0, d, 2).float() / d)))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        b, t, n = x.shape
        q = self.q(x).view(b, t, self.heads, -1)
        k, v = self.kv(x).view(b, t, 2, self.heads // 2, -1).unbind(2)
        k, v = (y.repeat_interleave(2, dim=2) for y in (self.turned(k), v))
        q, k, v = (y.transpose(1, 2) for y in (self.turned(q), k, v))
        weights = F.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]), dim=-1)
        return self.o((weights @ v).transpose(1, 2).contiguous().view(b, t, n))


class Filtered(nn.Module):
    """Images multiplied by a trained filter of each frequency, then mixed in the lowest of them (GFNet; FNO)."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, 4, 1)
        self.filter = nn.Parameter(torch.zeros(4, 8, 5, 2))
        self.mixing = nn.Parameter(torch.zeros(4, 6, 3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        spectrum = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.filter)
        x = x + torch.fft.irfft2(spectrum, s=(8, 8), norm="ortho")
        spectrum = torch.fft.rfft2(x)
        mixed = torch.zeros(x.shape[0], 6, 8, 5, dtype=torch.cfloat, device=x.device)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :2], torch.view_as_complex(self.mixing))
        mixed[:, :, :3, :2] = low
        return torch.fft.irfft2(mixed, s=(8, 8)).abs()


class Mixed(nn.Module):
    """Tokens mixed by the real part of a transform over both axes, and by a long convolution (FNet; Hyena)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.kernel, self.head = nn.Embedding(9, 6), nn.Parameter(torch.zeros(6, 5)), nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        y = y + torch.fft.fft(torch.fft.fft(y, dim=-1), dim=-2).real
        n = 2 * x.shape[1]
        product = torch.fft.rfft(y.transpose(1, 2), n=n) * (torch.fft.rfft(self.kernel, n=n) / n)
        y = torch.fft.irfft(product, n=n, norm="forward")[..., : x.shape[1]]
        return self.head(y.transpose(1, 2))


class Variational(nn.Module):
    """A code is drawn from a distribution whose parameters are computed, with its divergence (Kingma & Welling)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.spread = nn.Linear(6, 8), nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = self.encoder(x).chunk(2, -1)
        code = torch.distributions.Normal(mean, deviation.exp())
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        z = code.rsample()
        loss = F.gaussian_nll_loss(self.decoder(z), x, self.spread(z).exp())
        return loss + torch.distributions.kl_divergence(code, prior).sum(-1).mean()


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return meta(*shape, dtype=dtype)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "translator": (Translator, (whole(3, 7), whole(3, 5))),
    "stepwise": (Stepwise, (whole(3, 5),)),
    "dilated": (Dilated, (meta(2, 1, 20),)),
    "spatial transformer": (Transformed, (meta(2, 3, 8, 8),)),
    "volume": (Volume, (meta(2, 1, 8, 8, 8),)),
    "radiance": (Radiance, (meta(4, 6, 3), meta(4, 1, 3))),
    "messages": (Messages, (meta(6, 5), whole(2, 9))),
    "denoiser": (Denoiser, (meta(2, 3, 8, 8), meta(2))),
    "adversary": (Adversary, (meta(5, 4), meta(5, 12))),
    "contrast": (Contrast, (whole(4, 6), meta(4, 10))),
    "routed": (Routed, (meta(4, 6),)),
    "pixels": (Pixels, (whole(2, 3, 8, 8, dtype=torch.uint8),)),
    "turned": (Turned, (meta(2, 6, 16),)),
    "filtered": (Filtered, (meta(2, 3, 8, 8),)),
    "mixed": (Mixed, (whole(2, 5),)),
    "boxes": (Boxes, (meta(2, 3, 8, 8), meta(2, 2, 20), meta(2, 4, 20))),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_costs_what_it_does(name: str) -> None:
    make, inputs = MODULES[name]
    module = make().to("meta").train()
    model = cm.from_torch(module, inputs, dynamic={})
    assert found(model) == measured(module, *inputs)
    check_kernels(tape := cm.predict(model).tape)
    check_tape(tape)


def test_checks_of_values_are_left_out() -> None:
    """As of parameters of distributions, and of the variances of a Gaussian loss, which need data."""
    module, x = Variational(), torch.zeros(4, 6)
    assert found(cm.from_torch(module, x), batch=4) == measured(module, x, device="cpu")


def test_whole_numbers_of_any_size_are_as_large_as_they_are() -> None:
    x = whole(2, 3, 8, 8, dtype=torch.uint8)
    memory = cm.predict(cm.from_torch(Pixels().to("meta"), x), batch=2, precision="bf16").memory
    assert (memory.inputs, memory.buffers) == (x.numel(), 16 * 4)


@pytest.mark.parametrize("batch", [2, 5])
def test_on_a_gpu_fixed_statistics_keep_room_for_those_of_a_batch(batch: int) -> None:
    """Of each channel two (batch_norm_cuda makes save_mean and save_invstd whether it trains or not)."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Conv2d(3, 7, 1), nn.BatchNorm2d(7).eval())
    model = cm.from_torch(module, meta(batch, 3, 4, 4), dynamic={})
    gpu, cpu = (cm.predict(model, device=device).memory.activations for device in ("gpu", "cpu"))
    assert gpu - cpu == 2 * 7 * 4


def test_a_recurrent_network_at_another_batch() -> None:
    module = Translator().to("meta").train()
    model = cm.from_torch(module, (whole(3, 7), whole(3, 5)))
    assert found(model, batch=6) == measured(module, whole(6, 7), whole(6, 5))


@pytest.mark.parametrize(
    ("mask", "noted"),
    [
        (nn.Transformer.generate_square_subsequent_mask(6), True),
        (torch.ones(6, 6, dtype=torch.bool).triu(1), True),
        (torch.ones(6, 6, dtype=torch.bool).triu(2), False),
    ],
)
def test_a_mask_without_a_hint_is_as_causal_as_it_is(mask: Tensor, noted: bool) -> None:
    x = torch.ones(2, 6, 16)
    model = cm.from_torch(Masked(), (x, mask), dynamic={})
    assert found(model) == measured(Masked().train(), x, mask, device="cpu")
    assert ("taken for a causal one" in model.notes) == noted


def test_a_number_worked_out_from_sizes_is_not_taken_for_one() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * x.shape[1] ** -0.5

    module = Scaled().to("meta")
    model = cm.from_torch(module, meta(2, 3, 4))
    assert found(model, batch=5, seq=7) == measured(module, meta(5, 7, 4))
    assert all(argument != 1.0 for step in model.program.steps for argument in step.args.values())


def package_model(name: str) -> nn.Module:
    """A small model of the package `transformers`, as it composes one."""
    stub_operators()
    import transformers as hf

    sizes: Any = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "vocab_size": 99}
    decoder: Any = {**sizes, "intermediate_size": 24, "num_key_value_heads": 2, "use_cache": False}
    experts: Any = {"num_experts": 4, "moe_intermediate_size": 8, "head_dim": 4}
    t5: Any = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    gpt2: Any = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 99, "use_cache": False}
    made: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt2)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**decoder)),
        "bert": lambda: hf.BertModel(hf.BertConfig(**sizes, intermediate_size=24)),
        "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**decoder, num_local_experts=4)),
        "qwen3_moe": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**decoder, **experts, num_experts_per_tok=2)),
        "t5": lambda: hf.T5Model(hf.T5Config(**t5, use_cache=False)),
    }
    return made[name]().train()


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_model_of_a_package_costs_at_any_size_what_its_own_code_does(name: str) -> None:
    module = package_model(name)
    model = cm.from_torch(module, (), {"input_ids": torch.zeros(2, 7, dtype=torch.int64)})
    tokens = torch.zeros(3, 5, dtype=torch.int64)
    assert found(model, batch=3, seq=5) == measured(module, device="cpu", input_ids=tokens)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "t5"])
def test_a_model_of_a_package_costs_what_its_own_code_does(name: str) -> None:
    module = package_model(name)
    inputs = {"input_ids": torch.zeros(2, 7, dtype=torch.int64)}
    if name == "t5":
        inputs["decoder_input_ids"] = torch.zeros(2, 5, dtype=torch.int64)
    model = cm.from_torch(module, (), inputs, dynamic={})
    assert found(model) == measured(module, device="cpu", **inputs)


class Normed(nn.Module):
    """A norm of what a convolution makes, with only a weight, only a bias, both, or none."""

    def __init__(self, norm: str, parts: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), norm
        size = 6 if norm == "layer" else 4
        self.scale, self.shift = (nn.Parameter(torch.ones(size)) if part in parts else None for part in "wb")

    def forward(self, x: Tensor) -> Tensor:
        x, w, b = self.conv(x), self.scale, self.shift
        if self.norm == "batch":
            return F.batch_norm(x, None, None, w, b, training=True).sin()
        if self.norm == "group":
            return F.group_norm(x, 2, w, b).sin()
        if self.norm == "instance":
            return F.instance_norm(x, weight=w, bias=b).sin()
        return F.layer_norm(x, x.shape[-1:], w, b).sin()


@pytest.mark.parametrize("norm", ["batch", "group", "instance", "layer"])
@pytest.mark.parametrize("parts", ["", "w", "b", "wb"])
def test_a_norm_has_a_weight_and_a_bias_each_by_itself(norm: str, parts: str) -> None:
    module = without_data(lambda: Normed(norm, parts))
    assert_equal(module, (meta(2, 3, 8, 8),), (meta(5, 3, 8, 8),), {"batch": 5})
