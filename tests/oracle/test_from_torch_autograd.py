"""Stretches that a module recomputes, and functions with a backward of their own, cost what they do in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import costmodel as cm
from costmodel.errors import SettingError, SpecError
from costmodel.importers.files import to_yaml

from .imports import measured
from .measure import Cost, meta
from .test_timeline import stated
from .tracker import Tracker

pytestmark = pytest.mark.oracle

Body = Callable[[Any, Tensor], Any]


def on_paper(model: Any, **settings: Any) -> Any:
    return cm.predict(model, device="cpu", optimizer="sgd", **settings)


def found(prediction: Any) -> Cost:
    """What the library says; PyTorch counts what is recomputed too."""
    kept = prediction.memory.activations
    return Cost(prediction.params, prediction.flops.forward, prediction.flops.hardware, kept, kept)


def peak(module: nn.Module, *inputs: Tensor) -> int:
    """The most alive in backward, as a tracker has it."""
    module.zero_grad()
    with Tracker([*inputs, *module.parameters(), *module.buffers()]) as tracker:
        results = [y for y in tree_leaves(module(*inputs)) if isinstance(y, Tensor) and y.requires_grad]
        gradients = [torch.empty_like(y) for y in results]
        tracker.phase = "backward"
        torch.autograd.backward(results, gradients)
    return tracker.most["backward"].alive


def assert_costs(module: nn.Module, x: Tensor, *, beyond: int = 0, **settings: Any) -> Any:
    """FLOPs and bytes kept are PyTorch's at twice the example's batch; backward's peak is within so many bytes."""
    module = module.to("meta").train()
    model = cm.from_torch(module, x)
    larger = meta(2 * x.shape[0], *x.shape[1:], dtype=x.dtype)
    paper = on_paper(model, batch=len(larger), **settings)
    assert found(paper) == measured(module, larger)
    assert 0 <= stated(paper)["backward"].alive - peak(module, larger) <= beyond
    return model


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b, self.drop = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.b(F.gelu(self.a(self.norm(x))))
        return x + self.drop(y if mask is None else y * mask)


class Net(nn.Module):
    """Blocks, called in some way."""

    def __init__(self, body: Body, blocks: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.layers = nn.Sequential(*(Block() for _ in range(blocks)))
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.last(self.body(self, self.first(x)))


class Recomputed(nn.Module):
    """A module around another, which recomputes it."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=self.reentrant)


def each(net: Any, x: Tensor, **how: Any) -> Tensor:
    for block in net.layers:
        x = checkpoint(block, x, **how)
    return x


def two_results(net: Any, x: Tensor, **how: Any) -> Tensor:
    a, b = checkpoint(lambda x: (net.layers[0](x), torch.tanh(x)), x, **how)
    return a * b


def with_a_mask(net: Any, x: Tensor, **how: Any) -> Tensor:
    return checkpoint(net.layers[0], x, (x.detach() > 0).float(), **how)


def an_input_that_is_not_read(net: Any, x: Tensor, **how: Any) -> Tensor:
    return checkpoint(lambda x, _: net.layers[0](x), x, torch.tanh(x * 2), **how) + 1


STRETCHES: dict[str, Body] = {
    "each block": each,
    "segments": lambda net, x, **how: checkpoint_sequential(net.layers, 2, x, **how),
    "all at once": lambda net, x, **how: checkpoint(net.layers, x, **how),
    "partial": lambda net, x, **how: partial(checkpoint, **how)(partial(net.layers[0], mask=None), x),
    "ends in what it saves": lambda net, x, **how: checkpoint(lambda x: net.layers[0](x).softmax(-1), x, **how),
    "ends in a product": lambda net, x, **how: checkpoint(
        lambda x: net.layers[0].a(x) @ net.layers[1].a.weight, x, **how
    ),
    "without gradients": lambda net, x, **how: x + torch.no_grad()(checkpoint)(net.layers[0], x, **how),
    "two results": two_results,
    "a mask": with_a_mask,
    "an input that is not read": an_input_that_is_not_read,
}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", STRETCHES)
def test_a_stretch_is_recomputed(name: str, reentrant: bool) -> None:
    """Run again without reentrance, a layer lets go of its input before it sums the gradient of its bias."""
    body = partial(STRETCHES[name], use_reentrant=reentrant)
    assert_costs(Net(body, 4), meta(5, 8), beyond=0 if reentrant else 64 * 4)


@pytest.mark.parametrize("reentrant", [True, False])
def test_modules_that_recompute_are_folded(reentrant: bool) -> None:
    net = Net(lambda net, x: net.layers(x), 6)
    net.layers = nn.Sequential(*(Recomputed(block, reentrant) for block in net.layers))
    model = assert_costs(net, meta(5, 8), beyond=64 * 4)
    assert {row.repeat for row in on_paper(model).layers if row.name.startswith("layers")} == {6}


def test_a_reentrant_stretch_of_what_needs_no_gradient_has_none() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(checkpoint(self.a, x, use_reentrant=True))

    model = assert_costs(First(), meta(5, 8))
    assert on_paper(model).memory.gradients == 4 * (16 * 4 + 4)


def test_what_the_function_holds_is_not_kept_by_autograd_but_is_there() -> None:
    def body(net: Any, x: Tensor) -> Tensor:
        held = torch.tanh(x)
        return checkpoint(lambda x: net.layers[0](x) * held, x, use_reentrant=False)

    assert_costs(Net(body), meta(5, 8), beyond=64 * 4)


def test_a_module_that_recomputes_says_what(tmp_path: Path) -> None:
    model = cm.from_torch(Net(partial(each, use_reentrant=False)), torch.zeros(2, 8))
    with pytest.raises(SettingError, match=r"checkpoints parts of itself .* leave the setting checkpoint out"):
        cm.predict(model, checkpoint="block")
    assert cm.predict(model, mode="inference").flops.recomputed == 0
    (tmp_path / "net.yaml").write_text(to_yaml(model))
    assert cm.predict(tmp_path / "net.yaml", batch=3).to_dict() == cm.predict(model, batch=3).to_dict()


REFUSED: dict[str, tuple[Body, str]] = {
    "nested": (
        lambda net, x: checkpoint(lambda x: each(net, x, use_reentrant=False), x, use_reentrant=False),
        "checkpoint within torch.utils.checkpoint has no rule",
    ),
    "chosen": (
        lambda net, x: checkpoint(
            net.layers, x, use_reentrant=False, context_fn=lambda: torch.utils.checkpoint.noop_context_fn()
        ),
        "with a context_fn has no rule",
    ),
    "to the end": (
        lambda net, x: checkpoint(net.layers, x, use_reentrant=False, early_stop=False),
        "without early_stop has no rule",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_stretch_without_a_rule_is_refused(name: str) -> None:
    body, why = REFUSED[name]
    with pytest.raises(SpecError, match=why):
        cm.from_torch(Net(body), torch.zeros(2, 8))


class GeluOfBloom(Function):
    """As ``transformers.models.bloom`` has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        return (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * g


class Swish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s * (1 + x * (1 - s)))


class StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.neg() * ctx.share, None


class SavesItsResult(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class HoldsItsResult(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.y = torch.exp(x)
        return ctx.y * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.y


class SavesNothing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


class Masked(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.saved_tensors[0], None


class Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        y = x.mm(weight.t())
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        dx = g.mm(weight) if ctx.needs_input_grad[0] else None
        dw = g.t().mm(x) if ctx.needs_input_grad[1] else None
        return dx, dw, None if bias is None else g.sum(0)


class LinearInTwo(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x


class SineAndCosine(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.sin(), x.cos()
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    def backward(ctx: Any, da: Tensor, db: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        return da * b - db * a


class Largest(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y, places = x.max(1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return y, places

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        return g.new_zeros(ctx.shape).scatter_(1, ctx.saved_tensors[0][:, None], g[:, None])


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.relu_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0]


class Differentiates(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = x.sin()
        return torch.autograd.grad(y, x, g)


class Using(nn.Module):
    """A function between two layers, as often as it is asked for."""

    def __init__(self, body: Body, times: int = 1) -> None:
        super().__init__()
        self.a, self.b, self.inner = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(16, 16)
        self.body, self.times = body, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.b(self.body(self, self.a(x)))
        return x


apply_swish = Swish.apply
FUNCTIONS: dict[str, Body] = {
    "GELU": lambda net, h: GeluOfBloom.apply(h),
    "swish, by a name of its own": lambda net, h: apply_swish(h),
    "straight through": lambda net, h: StraightThrough.apply(h),
    "reversal": lambda net, h: Reversed.apply(h, 0.5),
    "its result saved": lambda net, h: SavesItsResult.apply(h),
    "its result held": lambda net, h: HoldsItsResult.apply(h),
    "nothing saved": lambda net, h: SavesNothing.apply(h),
    "a mask": lambda net, h: Masked.apply(h, h.detach().sigmoid()),
    "a product": lambda net, h: Linear.apply(h, net.inner.weight),
    "a product with a bias": lambda net, h: Linear.apply(h, net.inner.weight, net.inner.bias),
    "a product of what needs no gradient": lambda net, h: h + Linear.apply(h.detach(), net.inner.weight),
    "a context of its own": lambda net, h: LinearInTwo.apply(h, net.inner.weight),
    "two results": lambda net, h: torch.mul(*SineAndCosine.apply(h)),
    "one of two results": lambda net, h: SineAndCosine.apply(h)[1],
    "places": lambda net, h: h * Largest.apply(h)[0][:, None],
    "in place": lambda net, h: InPlace.apply(h * 1),
    "once": lambda net, h: Once.apply(h),
    "of a weight": lambda net, h: h * Swish.apply(net.inner.bias),
    "no gradient asked for": lambda net, h: h * Swish.apply(h.detach()),
    "without gradients": lambda net, h: h * torch.no_grad()(Swish.apply)(h),
    "recomputed": lambda net, h: checkpoint(Swish.apply, h, use_reentrant=True),
    "recomputed as needed": lambda net, h: checkpoint(Swish.apply, h, use_reentrant=False),
}


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_its_own_backward(name: str, times: int) -> None:
    assert_costs(Using(FUNCTIONS[name], times), meta(5, 8))


def test_a_backward_that_differentiates_is_refused() -> None:
    module = Using(lambda _, h: Differentiates.apply(h))
    with pytest.raises(SpecError, match=r"Differentiates\.backward differentiates on its own"):
        cm.from_torch(module, torch.zeros(2, 8))


def test_equal_blocks_with_a_function_are_folded() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return GeluOfBloom.apply(self.layer(x))

    net = Net(lambda net, x: net.layers(x))
    net.layers = nn.Sequential(*(Inner() for _ in range(5)))
    model = assert_costs(net, meta(5, 8))
    assert ("layers.GeluOfBloom", 5) in {(row.name, row.repeat) for row in on_paper(model).layers}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["Bloom", "Llama"])
def test_models_of_transformers_that_recompute(name: str, reentrant: bool) -> None:
    import transformers

    sizes: dict[str, dict[str, Any]] = {
        "Bloom": {"hidden_size": 16, "n_layer": 3, "n_head": 2},
        "Llama": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    }
    config = getattr(transformers, f"{name}Config")(vocab_size=50, use_cache=False, **sizes[name])
    config._attn_implementation = "eager"
    module = getattr(transformers, f"{name}ForCausalLM")(config).train()
    module.gradient_checkpointing_enable({"use_reentrant": reentrant})

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(input_ids=tokens).logits

    tokens = torch.zeros(2, 6, dtype=torch.int64)
    model = cm.from_torch(Logits(), tokens)
    paper = on_paper(model, batch=2, seq=6)
    assert paper.flops.recomputed > 0
    assert found(paper)[:4] == measured(Logits(), tokens, device="cpu")[:4]


def a_leaf_of_new_numbers(net: Any, h: Tensor) -> Tensor:
    return h + torch.zeros_like(h).requires_grad_() * 2


def a_leaf_that_is_asked_for(net: Any, h: Tensor) -> Tensor:
    return h + torch.ones(h.shape, device=h.device, requires_grad=True).exp()


def a_leaf_cut_off(net: Any, h: Tensor) -> Tensor:
    cut = h.detach()
    cut.requires_grad = True
    return net.inner(cut).tanh()


def a_group_norm_of_a_slice(net: Any, h: Tensor) -> Tensor:
    return F.group_norm(h.unsqueeze(-1)[:, :8], 2).squeeze(-1).repeat(1, 2)


@pytest.mark.parametrize(
    "body", [a_leaf_of_new_numbers, a_leaf_that_is_asked_for, a_leaf_cut_off, a_group_norm_of_a_slice]
)
def test_a_tensor_that_is_told_to_need_a_gradient_has_one(body: Body) -> None:
    assert_costs(Using(body), meta(5, 8))


def test_an_input_that_is_told_to_need_a_gradient_has_one() -> None:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x.requires_grad_()).tanh())

    x = meta(5, 8)
    model = cm.from_torch(Penalised().to("meta"), x)
    assert found(on_paper(model, batch=5)) == measured(Penalised().to("meta"), meta(5, 8))


REFUSED_SETTINGS: dict[str, tuple[Body, str]] = {
    "a weight": (lambda net, h: (net.inner.weight.requires_grad_(False), h)[1], "requires_grad of a parameter is set"),
    "sparse gradients": (
        lambda net, h: h + F.embedding(h.argmax(1), net.inner.weight, sparse=True),
        "with sparse gradients has no rule",
    ),
}


@pytest.mark.parametrize("name", REFUSED_SETTINGS)
def test_what_changes_gradients_and_has_no_rule_is_refused(name: str) -> None:
    body, why = REFUSED_SETTINGS[name]
    with pytest.raises(SpecError, match=why):
        cm.from_torch(Using(body), torch.zeros(2, 8))


def test_inference_mode_is_without_gradients() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        @torch.inference_mode()
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    def body(net: Any, h: Tensor) -> Tensor:
        with torch.inference_mode():
            other = net.inner(h).relu()
        with torch.inference_mode(False):
            return h * other.clone() + net.encoder(h).clone()

    net = Using(body)
    net.encoder = Encoder()
    assert_costs(net, meta(5, 8))


@pytest.mark.parametrize("body", [FUNCTIONS["GELU"], FUNCTIONS["recomputed as needed"]])
def test_a_file_that_leaves_a_step_out_is_refused(body: Body) -> None:
    """A stretch or a function has both its start and its end."""
    model = cm.from_torch(Using(body), torch.zeros(2, 8))
    steps = model.program.steps
    marks = {"checkpoint", "checkpoint_end", "function_backward", "function"}
    for left_out in [step for step in steps if step.op in marks]:
        program = model.program._replace(steps=tuple(step for step in steps if step is not left_out))
        with pytest.raises(cm.CostModelError):
            cm.predict(type(model)(name="cut", program=program, example=model.example))
