"""What decoding keeps: keys and values of each token, or the latent they are made from; or a state of fixed size."""

from __future__ import annotations

from typing import NamedTuple, cast

from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Shape, Tensor
from costmodel.layers.attention import Append, Insert
from costmodel.symbolic.sizes import ceil_div, minimum, product
from costmodel.training.dtypes import Dtype, RealType
from costmodel.training.settings import CacheName


class Cache(NamedTuple):
    """How a pass keeps its tokens beside the `past` ones of each sequence.

    kind: "dynamic", new memory at every step, as DynamicCache of transformers; "static", allocated once for all tokens
    up to those of this pass; "paged", as static in pages of `page` tokens (Kwon et al. 2023). dtype: that it is kept
    in, if another than is computed in. 8-bit floats come with an fp32 scale of a layer's keys and one of its values.

    A dynamic cache with a window keeps one token less than the window, of memory that holds all that the last pass saw:
    `window` tokens where that pass was of one token, which is what a pass finds here.
    """

    past: int = 0
    kind: CacheName = "dynamic"
    page: int = 16
    dtype: RealType | None = None

    def seen(self, tokens: int, window: int | None) -> int:
        """Keys that so many new tokens attend to, masks aside: theirs, and those kept of earlier ones."""
        if window is None or not self.has_past:
            return self.past + tokens
        return minimum(self.past, window - 1) + tokens

    @property
    def has_past(self) -> bool:
        """Whether there are earlier tokens."""
        return type(self.past) is not int or self.past > 0

    def extended(self, x: Tensor, name: str, window: int | None = None) -> Tensor:
        """Of new tokens x, (..., T, d): what they attend to, (..., keys, d), which is kept from here on."""
        dtype = self.dtype or x.dtype
        scales = int(dtype == "fp8")
        *rest, length, features = x.shape
        token = features if len(rest) == 1 else rest[1] * features
        if self.kind == "dynamic":
            kept = Append(self.dtype, scales, lasting=True)
            if not self.has_past:
                y = kept(x, name=name)
            else:
                held = self.past if window is None else minimum(self.past, window)
                earlier = x.tape.cache((*rest, held, features), dtype, f"{name}.past", scales)
                shape = (*rest, self.seen(0, window), features)
                y = kept(earlier.view(shape, earlier.strides), x, name=name)
            seen = y.shape[-2] if window is None else minimum(self.past + length, window - 1)
            x.tape.keep(y.storage, token, product((*rest, seen, features)))
            return y
        tokens = self.past + length if window is None else minimum(self.past + length, window)
        room = self.page * ceil_div(tokens, self.page) if self.kind == "paged" else tokens
        memory = x.tape.cache((*rest, room, features), dtype, name, scales)
        x.tape.keep(memory.storage, token, product((*rest, tokens, features)))
        y = Insert(self.seen(length, window))(memory, x, name=name)
        return y if self.has_past else x  # attention over new tokens alone reads them as they were made


class States(NamedTuple):
    """How a pass keeps states of fixed size, which all tokens so far have left; cache: None where none is kept.

    Memory of the first pass is made there, by a static or paged cache before; later ones write in place, whatever the
    cache (LinearAttentionLayer of transformers).
    """

    cache: Cache | None = None

    @property
    def begun(self) -> bool:
        """Whether earlier tokens have left a state."""
        return self.cache is not None and self.cache.has_past

    def steps(self, tokens: int) -> bool:
        """Whether the pass is of one more token, by which the state is moved on without a scan."""
        return self.begun and tokens == 1

    def earlier(self, tape: Tape, shape: Shape, name: str, dtype: Dtype) -> Tensor | None:
        """What earlier tokens have left, if there are any."""
        return tape.cache(shape, dtype, name) if self.begun else None

    def keep(self, new: Tensor, earlier: Tensor | None, name: str, dtype: Dtype) -> None:
        """Keep a state (..., n, d), which is not complex, from here on, in the place of the earlier one."""
        assert self.cache is not None
        tape = new.tape
        if earlier is None and self.cache.kind == "dynamic":
            kept = Append(cast("RealType", dtype), lasting=True)(new, name=name)
        else:
            kept = tape.cache(new.shape, dtype, name) if earlier is None else earlier
            Insert(new.shape[-2])(kept, new, name=name)
        tape.keep(kept.storage, 0)

    def note(self, tape: Tape, shape: Shape, name: str, dtype: Dtype) -> None:
        """Without a cache, what decoding would keep: the memory is noted beside the pass."""
        if not tape.training:
            tape.keep(tape.storage(product(shape), "activation", "cache", name, dtype), 0)
