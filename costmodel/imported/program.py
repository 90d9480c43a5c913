"""What one forward pass of a module calls, as plain data: operators in order, with the tensors they read and make."""

from __future__ import annotations

from typing import Any, NamedTuple

from costmodel.imported.trees import Tree

TENSOR, SIZE = "tensor", "size"
"""Keys of arguments that are no plain values: {"tensor": name}, {"size": tree}."""


class Weight(NamedTuple):
    """A parameter of the module: where it is, and whether it is trained."""

    path: str
    shape: tuple[int, ...]
    trained: bool


class Given(NamedTuple):
    """A buffer of the module, or an input; its sizes may depend on the batch."""

    path: str
    shape: tuple[Tree, ...]
    dtype: str


class Made(NamedTuple):
    """A tensor that a step makes."""

    name: str
    shape: tuple[Tree, ...]
    dtype: str


class Step(NamedTuple):
    """One operator as it was called, every argument by the name that its schema gives it.

    op: its name without namespace and overload. path: the module that called it. name: what its layer is called there.
    changes: the tensor that it changes in place. grad: whether gradients were recorded.
    """

    op: str
    path: tuple[str, ...]
    name: str
    args: dict[str, Any]
    makes: tuple[Made, ...]
    changes: str | None = None
    grad: bool = True


class Program(NamedTuple):
    """A forward pass. Tensors go by name, those of weights, buffers and inputs too; outputs are those of `outputs`."""

    weights: dict[str, Weight]
    buffers: dict[str, Given]
    inputs: dict[str, Given]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


def tensors_in(value: Any) -> list[str]:
    """Names of the tensors in an argument, in order."""
    if isinstance(value, dict):
        return [value[TENSOR]] if TENSOR in value else []
    if isinstance(value, list | tuple):
        return [name for item in value for name in tensors_in(item)]
    return []
