"""What decoding keeps of tokens, so that further ones attend to them: appended to, or written in place."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Call, Shape, Tensor, contiguous_strides
from costmodel.layers.base import layer
from costmodel.layers.kernels import forward_pass, moved, stream
from costmodel.layers.shape import Joining
from costmodel.layers.spatial import channels_last, last_strides
from costmodel.training.dtypes import Dtype, size_bytes


class Caching(Joining):
    """Abstract: tensors (..., tokens, features) that are put one after another along the tokens; no arithmetic."""

    def check(self, call: Call) -> None:
        shapes = [x.shape for x in call.inputs]
        if not 1 <= len(shapes) <= 2 or any(
            len(s) < 2 or (*s[:-2], s[-1]) != (*shapes[0][:-2], shapes[0][-1]) for s in shapes
        ):
            raise call.fail(
                f"{self.kind} takes what is kept and (..., tokens, features) of the same sizes but the tokens"
            )

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return ()


@layer
class Append(Caching):
    """What is kept of earlier tokens and new ones, in new memory: (..., P, d), (..., T, d) → (..., P + T, d).

    The new ones alone may be given: (..., T, d), in a copy. dtype: that the cache is kept in, the input's unless given;
    it comes with `scales` in fp32. lasting: whether the memory stays after the pass.
    """

    source = "torch.cat along the tokens, which makes a new tensor every time (DynamicCache of transformers)"

    dtype: Dtype | None = None
    scales: int = 0
    lasting: bool = False

    def output(self, call: Call) -> Tensor:
        """New memory, contiguous unless all inputs have the axis before the tokens' last in memory (``torch.cat``)."""
        *rest, _, features = call.x.shape
        shape: Shape = (*rest, sum(x.shape[-2] for x in call.inputs), features)
        new = call.inputs[-1]
        strides = last_strides(shape) if all(channels_last(x) for x in call.inputs) else None
        origin = "cache" if self.lasting else "computed"
        made = call.run.tensor(shape, strides=strides, origin=origin, dtype=self.dtype or new.dtype)
        made.storage.scales = self.scales
        return made

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call)


@layer
class Insert(Caching):
    """New tokens are written into memory that is there: cache (..., n, d), x (..., T, d) → `tokens` of the cache."""

    source = "torch.Tensor.index_copy_ (StaticCache of transformers); blocks of tokens (Kwon et al. 2023, §4.1)"

    tokens: int

    def output(self, call: Call) -> Tensor:
        *rest, _, features = call.x.shape
        strides = contiguous_strides(call.x.shape) if call.x.strides is None else call.x.strides
        return call.x.view((*rest, self.tokens, features), strides)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        x = call.inputs[1]
        yield stream(call, "", "pointwise", 0, moved(x), size_bytes(x.size, call.y.dtype))
