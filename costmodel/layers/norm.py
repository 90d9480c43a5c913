"""Normalisations of activations and of a weight. Statistics (mean, inverse deviation) are fp32, one of each a group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.call import Buffers, Call, Gradient, GradientOrder, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import NO_WORKSPACE, KeepsInputs, Layer, OneKernel, Unary, Unbuffered, layer
from costmodel.layers.kernels import backward_pass, forward_pass, new_gradients, saved_bytes, stream
from costmodel.layers.shape import Moving
from costmodel.layers.spatial import arranged, order_of_images
from costmodel.symbolic.sizes import exact_div
from costmodel.training.dtypes import size_bytes


class Norm(OneKernel, Unbuffered):
    """Abstract: scaled (and shifted) by a weight per feature after normalising."""

    sorts = "reduction", "reduction"

    def check(self, call: Call) -> None:
        super().check(call)
        if not call.x.shape:
            raise call.fail(f"{self.kind} takes an input of at least one axis")

    def output(self, call: Call) -> Shape | Tensor:
        return call.x.shape

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One for the input's gradient, one for those of the weights, which sum over rows."""
        gradients = new_gradients(call)
        read = call.y.bytes + saved_bytes(call)
        for of_input in (True, False):
            group = [g for g in gradients if (g.operand is call.x) is of_input]
            if group:
                flops, written = sum(g.work.pointwise for g in group), sum(g.operand.bytes for g in group)
                yield stream(call, "backward" if of_input else "backward weight", "reduction", flops, read, written)


class Centred(Norm):
    """Abstract: (x − μ)/√(σ² + ε)·w + b, with μ and σ over groups of elements.

    Per element: mean 1, centring 1, variance 2, scaling 1, weight 1, bias 1; per group: 3 for the inverse deviation.
    """

    @abstractmethod
    def groups_of(self, call: Call) -> int:
        """How many means and inverse deviations there are."""

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, (5 + len(call.weights)) * call.x.size + 3 * self.groups_of(call))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx = (h − mean(h) − x̂·mean(h·x̂))/σ with h = g·w: ten per element, two of them x̂; dw = Σ g·x̂, db = Σ g."""
        n = call.x.size
        scaling = 2 if call.x.requires_grad else 4
        yield Gradient(call.x, LayerFlops(0, (9 + ("weight" in call.weights)) * n))
        for name, weight in call.weights.items():
            yield Gradient(weight, LayerFlops(0, scaling * n if name == "weight" else n))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input, and the mean and inverse deviation of each group: fp32, or as the input on a CPU without weights."""
        dtype = call.x.dtype if call.tape.device == "cpu" and not (call.weights or call.buffers) else None
        yield call.x
        for _ in ("mean", "inverse deviation"):
            yield call.tape.storage(self.groups_of(call), "statistic", "computed", call.name, dtype)
        yield from call.weights.values()


@layer
class Layernorm(Centred):
    """Over the last axis, x: (..., d), w and b: (d); or one for each head, x: (..., heads, d), w and b: (heads, d)."""

    source = "(x − μ)/√(σ² + ε)·w + b (torch.nn.LayerNorm; Ba et al. 2016, eq. 4); keeps x, μ and 1/σ"

    affine: bool = True
    bias: bool = True
    heads: int | None = None

    def check(self, call: Call) -> None:
        super().check(call)
        if self.heads is not None and call.x.shape[-2:-1] != (self.heads,):
            raise call.fail(f"layernorm has weights for {self.heads} heads: it takes (..., {self.heads}, features)")

    def groups_of(self, call: Call) -> int:
        return call.x.rows

    def gradient_copy(self, call: Call) -> int:
        return call.y.size

    def weights(self, call: Call) -> Weights:
        d = call.x.shape[-1:] if self.heads is None else (self.heads, call.x.shape[-1])
        return ({"weight": d} if self.affine else {}) | ({"bias": d} if self.affine and self.bias else {})


class Channelled(Layer):
    """Abstract: a scale and a shift for each channel."""

    affine: bool
    bias: bool

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return order_of_images(x)

    def weights(self, call: Call) -> Weights:
        channels = (call.x.shape[1],)
        return dict.fromkeys(("weight", "bias") if self.bias else ("weight",), channels) if self.affine else {}


class PerChannel(Channelled, Centred):
    """Abstract: weights per channel, x: (batch, C, ...), w and b: (C)."""

    input_axes = "batch, channels, ..."

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input, statistics and scale; a shift is not needed, which matters where it is computed."""
        yield from (tensor for tensor in super().saved(call) if tensor is not call.weights.get("bias"))


class Tracked(Layer):
    """Abstract: a batch norm that has running statistics."""

    def buffers(self, call: Call) -> Buffers:
        channels = (call.x.shape[1],)
        return {
            "running_mean": (channels, "statistic"),
            "running_var": (channels, "statistic"),
            "num_batches_tracked": ((), "index"),
        }


class BatchStatistics(PerChannel):
    """Abstract: by the mean and deviation of each channel over the batch, which is read twice."""

    passes = 2

    def over_batch(self, call: Call) -> bool:
        return True

    def groups_of(self, call: Call) -> int:
        return call.x.shape[1]

    def output(self, call: Call) -> Shape | Tensor:
        """In row-major order, or with channels last as in the input, whatever else its order is."""
        return arranged(call, call.x.shape)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """One kernel that reads the batch and its gradient twice."""
        return backward_pass(call, "reduction", kept=2 * saved_bytes(call) + call.y.bytes)


@layer
class Batchnorm(Tracked, BatchStatistics):
    """Over all axes but the channels.

    Training takes μ and σ from the batch and updates running ones, 7 per channel; inference only centres and scales by
    the running ones.
    """

    source = "(x − μ)/√(σ² + ε)·w + b per channel (torch.nn.BatchNorm; Ioffe & Szegedy 2015, alg. 1 and §3)"

    affine: bool = True
    bias: bool = True

    def forward(self, call: Call) -> LayerFlops:
        if call.tape.training:
            return LayerFlops(0, super().forward(call).pointwise + 7 * call.x.shape[1])
        return LayerFlops(0, (2 + len(call.weights)) * call.x.size + 3 * call.x.shape[1])

    def over_batch(self, call: Call) -> bool:
        return call.tape.training

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Training: one that reads the batch twice, and the count of batches; inference: pointwise."""
        if not call.tape.training:
            yield from forward_pass(call)
            return
        yield from super().forward_kernels(call)
        count = call.buffers["num_batches_tracked"]
        yield stream(call, "count", "pointwise", 0, count.bytes, count.bytes)


@layer
class BatchnormUntracked(BatchStatistics):
    """Batch norm by the batch's statistics, which nothing keeps running ones of."""

    source = "(x − μ)/√(σ² + ε)·w + b per channel (torch.nn.BatchNorm, track_running_stats=False; Ioffe & Szegedy 2015)"
    in_lists = False

    affine: bool = True
    bias: bool = True


@layer
class BatchnormFixed(Tracked, Channelled, OneKernel):
    """Batch norm by running statistics that are no longer updated: y = (x − μ)/√(σ² + ε)·w + b per channel."""

    source = "torch.nn.BatchNorm2d in evaluation mode; dx = g·w/√(σ² + ε)"
    in_lists = False
    sorts = "pointwise", "reduction"

    affine: bool = True
    bias: bool = True

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, (2 + len(call.weights)) * call.x.size + 3 * call.x.shape[1])

    def output(self, call: Call) -> Shape | Tensor:
        """In row-major order, or with channels last as in the input, whatever else its order is."""
        return arranged(call, call.x.shape)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g·w/√(σ² + ε), whose root is made again; Σ g·x̂ from x̂ made again, Σ g."""
        n, roots = call.x.size, 3 * call.x.shape[1]
        yield Gradient(call.x, LayerFlops(0, (1 + self.affine) * n + roots))
        for name, weight in call.weights.items():
            alone = name == "weight" and not call.x.requires_grad
            yield Gradient(weight, LayerFlops(0, (4 if name == "weight" else 1) * n + (roots if alone else 0)))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input and the scale; on a GPU also room for the batch's mean and inverse deviation, which stays empty."""
        yield call.x
        yield from (weight for name, weight in call.weights.items() if name == "weight")
        for _ in ("mean", "inverse deviation") if call.tape.device == "gpu" else ():
            yield call.fresh("statistic", call.x.shape[1])


@layer
class Groupnorm(PerChannel):
    """Over each sample's groups of channels; as many groups as channels is instance norm."""

    source = "(x − μ)/√(σ² + ε)·w + b per group (torch.nn.GroupNorm; Wu & He 2018, eq. 1 and 7)"
    launches, passes = (3, 4), 2  # forward: moments, scales for each channel, and the result

    groups: int
    affine: bool = True
    bias: bool = True

    def check(self, call: Call) -> None:
        super().check(call)
        if call.x.shape[1] % self.groups:
            raise call.fail(f"groups {self.groups} does not divide {call.x.shape[1]} channels")

    def groups_of(self, call: Call) -> int:
        return call.x.shape[0] * self.groups

    def gradient_copy(self, call: Call) -> int:
        return call.y.size

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Sums for each channel, scales, the input's gradient, and the weights'."""
        return backward_pass(call, "reduction", launches=4, kept=2 * saved_bytes(call) + call.y.bytes)


@layer
class Rmsnorm(Norm):
    """y = x/√(mean(x²) + ε)·w over the last axis, x: (..., d), w: (d).

    Per row of d: mean of squares 2d, inverse root 3, scaling d, weight d.
    """

    source = "x/√(mean(x²) + ε)·w (torch.nn.RMSNorm; Zhang & Sennrich 2019, eq. 4); fused on GPU, composed on CPU"

    affine: bool = True

    def weights(self, call: Call) -> Weights:
        return {"weight": (call.x.shape[-1],)} if self.affine else {}

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, (3 + len(call.weights)) * call.x.size + 3 * call.x.rows)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx = (h − x̂·mean(h·x̂))/rms with h = g·w: seven per element, one of them x̂ = x/rms; dw = Σ g·x̂.

        The CPU's steps have dw first.
        """
        n = call.x.size
        gradients = [Gradient(call.x, LayerFlops(0, (6 + len(call.weights)) * n))]
        for weight in call.weights.values():
            gradients.append(Gradient(weight, LayerFlops(0, 2 * n if call.x.requires_grad else 3 * n)))
        return reversed(gradients) if call.tape.device == "cpu" else gradients

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input and inverse root per row, in one kernel; the CPU composes it in fp32 and keeps what each product needs.

        There the input's gradient needs input and root, the weight's the normalised input.
        """
        composed = call.tape.device == "cpu"
        if call.x.requires_grad or not composed:
            yield call.fresh("statistic", *call.x.shape) if composed and call.x.dtype != "fp32" else call.x
            yield call.fresh("statistic", call.x.rows)
        if composed and any(weight.requires_grad for weight in call.weights.values()):
            yield call.fresh("statistic", *call.x.shape)
        if call.x.requires_grad or not composed:
            yield from call.weights.values()

    def workspace(self, call: Call) -> Workspace:
        """None in one kernel; of the CPU's steps, which are in fp32, what is there beside results, gradients and kept.

        Forward makes x̂ and the root, without a weight x² and its mean, and copies of another type's x and y. Backward
        makes g·w and g·x̂, or without a weight g/rms, g·x and its sums; once those and g have gone, the gradient of
        the mean goes back to x: there are h/rms, that gradient at each place of a row, x again, 2x and their product.
        """
        if call.tape.device != "cpu":
            return NO_WORKSPACE
        x, n, unit = call.x, call.x.size, size_bytes(1, call.y.dtype)
        wide, raised = size_bytes(1, "fp32") // unit, x.dtype != "fp32"
        operands = [operand.storage for operand in call.operands()]
        kept = sum(s.elements for s in (*call.saved, *call.detached) if s not in operands)
        copied = raised and x.requires_grad  # else the copy of x has gone when y is cast
        forward = wide * (x.rows + 2 * raised * n + (n if self.affine else 0 if copied else x.rows) - kept)
        forward = forward - (n if raised and not copied else 0)
        trained = [weight for weight in call.weights.values() if weight.requires_grad]
        summed = n if any(not x.has(weight.shape) for weight in trained) else 0
        backward = wide * (summed if self.affine else n + x.rows)
        if raised:  # a copy of g in its place, gradients that are still to be cast
            cast = n + (n if x.requires_grad else 0) + sum(weight.size for weight in trained)
            gradients = (n if x.requires_grad else 0) + exact_div(sum(weight.bytes for weight in trained), unit)
            backward = backward + wide * cast - gradients - n
        steps = 5 if x.shape[-1] == 1 else 4  # rows of one number: the root's cube, that halved, times g·x, which are n
        return Workspace(forward, backward, later=wide * (1 + steps + raised) * n - n if x.requires_grad else None)


@layer
class WeightNorm(Moving):
    """y = v·(g/|v|), a length g for each row of v, or of its last axis."""

    source = "Salimans and Kingma 2016, eq. 2 and 3 (torch.nn.utils.weight_norm)"
    arity = 2

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor(call.x.shape)

    def forward(self, call: Call) -> LayerFlops:
        """The norms, a quotient for each, and a product per element."""
        return LayerFlops(0, 3 * call.x.size + call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Σ dy·v for both; dv = (g/|v|)·(dy − v·Σ/|v|²), dg = Σ/|v|."""
        v, lengths = call.inputs
        both = 2 * v.size
        for x, work in ((v, 3 * v.size + 3 * lengths.size), (lengths, lengths.size)):
            if x.requires_grad:
                yield Gradient(x, LayerFlops(0, both + work))
                both = 0

    def workspace(self, call: Call) -> Workspace:
        """PyTorch makes both gradients, needed or not."""
        return Workspace(0, sum(x.size for x in call.inputs if not x.requires_grad))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs
        yield call.fresh("activation", *call.inputs[1].shape)


@layer
class Renorm(KeepsInputs, Unary):
    """y = x·m/‖x‖ for each slice across an axis whose norm is above m, else x."""

    source = "torch.renorm; dx = m/‖x‖·(g − x·Σ g·x/‖x‖²) of a slice that is shortened"
    in_lists = False

    axis: int = 0

    def output(self, call: Call) -> Tensor:
        """In row-major order."""
        return call.tape.tensor(call.x.shape)

    def forward(self, call: Call) -> LayerFlops:
        """Norms, a comparison and a quotient of them, a choice, and a product per element."""
        return LayerFlops(0, 3 * call.x.size + 3 * call.x.shape[self.axis])

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Norms, g·x and their sum, x times that over the square, a difference, a product and a choice per element.

        Of each slice a square, two quotients and a comparison, less the addition that a sum spares.
        """
        yield Gradient(call.x, LayerFlops(0, 8 * call.x.size + 3 * call.x.shape[self.axis]))

    def workspace(self, call: Call) -> Workspace:
        """The norms' gradient, that over the norm, its difference from g, that scaled, and three numbers of each slice.

        All are in the type of sums, on a CPU of eight bytes, else of four (``renorm_backward``).
        """
        steps = 4 * call.x.size + 3 * call.x.shape[self.axis]
        return Workspace(0, 0, (8 if call.tape.device == "cpu" else 4) * steps - call.x.bytes)
