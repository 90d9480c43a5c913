"""Rules of operators over complex numbers: how they are made and read, arithmetic, transforms, and what moves them."""

from __future__ import annotations

import math

from costmodel.graph.tensor import Tensor, is_contiguous, strides_of
from costmodel.importers.torch.op_call import COMPLEX_RULES, OpCall, as_complex, rule
from costmodel.importers.torch.rules.shapes import convert
from costmodel.layers.complex import (
    Assembled,
    ComplexArithmetic,
    ComplexFunction,
    FourierTransform,
    Transformed,
)
from costmodel.layers.indexing import Computed
from costmodel.layers.reduction import Reduce
from costmodel.training.dtypes import REAL

ALIKE = (
    *("view", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims", "t", "mT"),
    *("numpy_T", "movedim", "unsqueeze", "squeeze", "alias", "detach", "positive", "expand", "expand_as"),
    *("broadcast_to", "slice", "narrow", "select", "split", "split_with_sizes", "chunk", "tensor_split", "unbind"),
    *("unsafe_split", "unsafe_chunk", "hsplit", "contiguous", "clone", "flip", "roll", "repeat"),
    *("repeat_interleave", "tile", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "index"),
    *("index_select", "gather", "take_along_dim", "unfold", "copy", "atleast_1d", "atleast_2d", "broadcast_tensors"),
    *("diagonal", "diag_embed", "constant_pad_nd", "pad", "reshape"),
    *("mm", "bmm", "matmul", "einsum", "where"),
)
"""Operators that do with complex numbers what they do with real ones: move them, see them otherwise, multiply them."""


@rule("view_as_complex", rules=COMPLEX_RULES)
@rule("view_as_complex")
def paired(op: OpCall) -> Tensor:
    """Pairs of numbers as complex ones, in the same memory."""
    x = op.tensor("self")
    op.replay.reread.update(x.storage.leaves())
    return as_complex(x)


@rule("view_as_real", rules=COMPLEX_RULES)
@rule("view_as_real")
def parts(op: OpCall) -> Tensor:
    """Complex numbers as pairs, in the same memory."""
    x = op.tensor("self")
    op.replay.reread.update(x.storage.leaves())
    shape, strides = (*x.shape, 2), (*(2 * step for step in strides_of(x)), 1)
    return x.view(shape, None if is_contiguous(shape, strides) else strides, REAL[x.dtype])


@rule("_conj", rules=COMPLEX_RULES)
@rule("_conj", "_neg_view")
def conjugate(op: OpCall) -> Tensor:
    """The tensor itself, with a note for whoever reads it."""
    x = op.tensor("self")
    return x.view(x.shape, x.strides)


@rule("complex", "polar", rules=COMPLEX_RULES)
@rule("complex", "polar")
def assembled(op: OpCall) -> Tensor:
    """From real and imaginary parts, or from lengths and angles."""
    names = ("real", "imag") if op.step.op == "complex" else ("abs", "angle")
    return op.layer(Assembled(op.step.op), *(op.tensor(name) for name in names))


@rule("to", "_to_copy", "type_as", rules=COMPLEX_RULES)
def converted(op: OpCall) -> Tensor | list[Tensor]:
    """Real numbers as complex ones; complex ones as they are, or copied."""
    x = op.tensor("self")
    if "complex" not in op.makes.dtype:
        raise op.fail("of complex numbers to real ones has no rule")
    return op.layer(Assembled("real"), x) if x.dtype not in REAL else convert(op)


@rule("abs", "exp", "neg", "reciprocal", "angle", "_conj_physical", "conj_physical", rules=COMPLEX_RULES)
@rule("angle", "_conj_physical", "conj_physical")
def function(op: OpCall) -> Tensor:
    """A function of each number."""
    x, name = op.tensor("self"), "conj" if "conj" in op.step.op else op.step.op
    if x.dtype not in REAL:
        raise op.fail("of real numbers has no rule")
    return op.layer(ComplexFunction(name), x)


ARITHMETIC = {"subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div"}
"""Other names of operators."""


@rule("add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", rules=COMPLEX_RULES)
def arithmetic(op: OpCall) -> Tensor:
    """With a number, real or complex, or with a tensor."""
    x, name = op.tensor("self"), ARITHMETIC.get(op.step.op, op.step.op)
    if op.constant("alpha", 1.0) != 1 or op.has("rounding_mode"):
        raise op.fail("of complex numbers with a factor has no rule")
    if op.is_tensor("other"):
        other = op.tensor("other")
        a, b = (other, x) if name == "rsub" else (x, other)
        return op.layer(ComplexArithmetic("sub" if name == "rsub" else name), a, b)
    if x.dtype not in REAL:
        return op.layer(Assembled("scaled"), x)
    if name == "rsub":
        x = op.layer(ComplexFunction("neg"), x, name=f"{op.step.name}.negative")
    alone = not math.isnan(op.constant("other"))  # no complex number
    if name in ("mul", "div"):
        return op.layer(ComplexFunction("scale" if alone else "turn"), x)
    return op.layer(ComplexFunction("shift" if alone else "move"), x)


@rule("sum", "mean", rules=COMPLEX_RULES)
def reduced(op: OpCall) -> Tensor:
    """Over some axes, or all."""
    return op.layer(Reduce(op.step.op, op.shape), op.tensor("self"))


NEW_NUMBERS = (
    *("full", "ones", "zeros", "empty", "constant", "full_like", "ones_like", "zeros_like", "empty_like"),
    *("new_ones", "new_zeros", "new_full", "new_empty", "randn"),
)
"""Operators that make numbers of nothing but sizes, or at random, and may make complex ones."""


@rule(*NEW_NUMBERS, rules=COMPLEX_RULES)
def new_numbers(op: OpCall) -> Tensor:
    """New numbers, without arithmetic."""
    return as_complex(op.layer(Computed((*op.shape, 2))))


TRANSFORMS: dict[str, Transformed] = {"_fft_r2c": "from real", "_fft_c2c": "complex", "_fft_c2r": "to real"}


@rule(*TRANSFORMS, rules=COMPLEX_RULES)
@rule(*TRANSFORMS)
def transform(op: OpCall) -> Tensor:
    """Along some axes; real numbers are those of the last of them."""
    x, how = op.tensor("self"), TRANSFORMS[op.step.op]
    whole = how == "from real" and not op.value("onesided", True)
    kind = FourierTransform(op.shape, tuple(op.axes(x)), how, whole, op.value("normalization", 0) != 0)
    return op.layer(kind, x)
