"""The numbers of a question that can be turned: sizes of its batch and of its model, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.cnn import CNN
from costmodel.architectures.transformer import Transformer
from costmodel.architectures.translator import EncoderDecoder
from costmodel.architectures.vision import VisionTransformer
from costmodel.errors import CostModelError, SettingError, unknown
from costmodel.imported.model import Imported
from costmodel.prediction import Prediction, trace
from costmodel.scaling import deepened, depth_of, turnable, widened, width_of, with_fields
from costmodel.search import last_true
from costmodel.sizes import LARGEST_SIZE

OF_RUNS = ("batch", "accumulate", "loss_chunks")
COARSEST = 128
"""Of a CNN's widths and images, steps up to this are tried for one that the model can take."""


@dataclass(frozen=True)
class Knob:
    """One number of a question: its values, which the model can take, in order; why there are no larger ones.

    note: which values are left out, if not every whole number is one; "" otherwise. stretched: whether the context
    grows with a sequence that is longer.
    """

    name: str
    asked: Prediction
    values: Sequence[int]
    limit: str = ""
    note: str = ""
    stretched: bool = False

    def at(self, value: int) -> Prediction:
        """The same question with this number. Raises CostModelError where there is no such model or batch."""
        asked = self.asked
        if self.stretched and isinstance(asked.model, Transformer) and value > asked.model.context:
            asked = Prediction(with_fields(asked.model, context=value), asked.settings, asked.extent, asked.run)
        return turned(asked, self.name, value)


def knob_names(model: Architecture) -> tuple[str, ...]:
    """What can be turned of a question about `model`."""
    if isinstance(model, Transformer | VisionTransformer | EncoderDecoder):
        return (*OF_RUNS, *model.EXTENT, *model.LETTERS)
    return (*OF_RUNS, *model.EXTENT, *turnable(model))


def knob_of(asked: Prediction, name: str, *, stretched: bool = False) -> Knob:
    """A knob by name. Raises UnknownNameError, or SettingError if this model has nothing there to turn."""
    model = asked.model
    if name not in knob_names(model):
        raise unknown(f"size of {model.title} to turn", name, knob_names(model))
    if name in ("accumulate", "loss_chunks") and not asked.settings.training:
        raise SettingError(f"{name} is for training: there is none in mode {asked.settings.mode!r}")
    if stretched and name == "seq":
        return Knob(name, asked, _all(), note=_stretched(asked.model), stretched=True)
    values, limit, note = _values(asked, name)
    return Knob(name, asked, values, limit, note)


def _stretched(model: Architecture) -> str:
    if not isinstance(model, Transformer) or model.positions != "learned":
        return ""
    return f"beyond the context {model.context:,} the position table grows with the sequence"


def current(asked: Prediction, name: str) -> int:
    """The number that a question has now; of an image its height."""
    if name in OF_RUNS:
        return int(getattr(asked.settings, name))
    if name in ("seq", "target_seq"):
        return int((asked.extent.seq if name == "seq" else asked.extent.target) or 0)
    if name == "image":
        return int((asked.extent.image or (0,))[0])
    if isinstance(asked.model, Transformer | VisionTransformer | EncoderDecoder):
        return _field(asked.model, name)
    return {"width": width_of, "layers": depth_of}[name](asked.model)


def turned(asked: Prediction, name: str, value: int) -> Prediction:
    """The same question with another number; a sequence beyond learned positions is refused as `predict` does."""
    model, settings = asked.model, asked.settings
    if name in (*OF_RUNS, "seq", "target_seq", "image"):
        return trace(model, replace(settings, **{name: value}))
    if name == "width":
        return trace(widened(model, value), settings)
    return trace(deepened(model, value) if name == "layers" else with_fields(model, **{name: value}), settings)


def _field(model: Architecture, name: str) -> int:
    """A size of a transformer, by default the one that follows from the others; 0 of what it does not have."""
    value = getattr(model, name)
    if value is not None:
        return int(value)
    if isinstance(model, EncoderDecoder):
        name, model = name.removeprefix("decoder_"), model.decoder if name.startswith("decoder_") else model.encoder
    if isinstance(model, VisionTransformer):
        model = model.encoder
    if not isinstance(model, Transformer):
        return 0
    derived = {"kv_heads": model.key_heads, "head_size": model.head_features, "mlp_width": 4 * model.width}
    derived |= {"rotary_size": model.rotated, "window": model.context, "relative_buckets": model.buckets}
    value = derived.get(name, getattr(model, name, None))
    return int(value or 0)


Values = tuple[Sequence[int], str, str]


def _values(asked: Prediction, name: str) -> Values:
    model = asked.model
    if isinstance(model, EncoderDecoder | VisionTransformer):
        return _of_sides(asked, model, name)
    if isinstance(model, Transformer):
        return _of_transformer(asked, model, name)
    if isinstance(model, Imported):
        least, most = model.limits.get({"image": "height"}.get(name, name), (1, None))
        return range(least, (most or LARGEST_SIZE) + 1), f"the module takes at most {most:,}" if most else "", ""
    if name == "layers":
        depth = depth_of(asked.model)
        turned(asked, name, depth)  # refuses what has no equal layers
    if isinstance(asked.model, CNN) and name in ("width", "image"):
        return _found(asked, name)
    if name == "width":
        width_of(asked.model)
    return _all(), "", ""


def _of_sides(asked: Prediction, model: EncoderDecoder | VisionTransformer, name: str) -> Values:
    """Of what is made of transformers' blocks: heads divide the width, and positions have a table or none."""
    sides = [model.encoder, model.decoder] if isinstance(model, EncoderDecoder) else [model.encoder]
    if name in ("seq", "target_seq"):
        if sides[-1].positions != "learned":
            return _all(), "", ""
        most = sides[-1].context
        return range(1, most + 1), f"the learned position table has {most:,} entries", ""
    split = all(side.head_size is None for side in sides)
    if name == "width" and split:
        step = lcm(*(side.heads for side in sides))
        return range(step, LARGEST_SIZE + 1, step), "", f"width in steps of {step}, so that heads divide it"
    if name in ("heads", "decoder_heads") and split:
        return _those(asked, name, sides[0].width), f"heads divide the width {sides[0].width:,}", ""
    if name == "patch" and isinstance(model, VisionTransformer):
        return range(1, min(model.input[1:]) + 1), "a patch is within the image", ""
    return _all(), "", ""


def _of_transformer(asked: Prediction, model: Transformer, name: str) -> Values:
    if name == "seq" and model.positions == "learned":
        return range(1, model.context + 1), f"the learned position table has {model.context:,} entries", ""
    if name == "width" and model.head_size is None:
        rotary = model.positions == "rotary" and model.rotary_size is None
        step = model.heads * (2 if rotary else 1)
        return (
            range(step, LARGEST_SIZE + 1, step),
            "",
            f"width in steps of {step}, so that {model.heads} heads divide it",
        )
    if name == "context":
        return range(int(asked.extent.seq or 1), LARGEST_SIZE + 1), "", ""
    if name == "rotary_size":
        most = model.head_features
        return range(2, most + 1, 2), f"a head has {most} features", "rotary_size is even"
    if name == "heads" and model.head_size is None:
        return _those(asked, name, model.width), f"heads divide the width {model.width:,}", "heads divide the width"
    if name in ("heads", "kv_heads"):
        step = model.key_heads if name == "heads" and model.kv_heads else 1
        if name == "heads":
            return range(step, LARGEST_SIZE + 1, step), "", f"heads in steps of {step}" if step > 1 else ""
        return _those(asked, name, model.heads), f"kv_heads divide the {model.heads} heads", "kv_heads divide the heads"
    if name == "head_size" and model.positions == "rotary" and model.rotary_size is None:
        return range(2, LARGEST_SIZE + 1, 2), "", "head_size is even, for rotary positions"
    return _all(), "", ""


def _all() -> Sequence[int]:
    return range(1, LARGEST_SIZE + 1)


def _those(asked: Prediction, name: str, whole: int) -> Sequence[int]:
    """Divisors of `whole` with which there is a model."""
    small = [n for n in range(1, min(int(whole**0.5) + 1, 100_000)) if whole % n == 0]
    divisors = sorted({*small, *(whole // n for n in small)})
    return [n for n in divisors if exists(lambda n=n: with_fields(asked.model, **{name: n}))]


def exists(made: Callable[[], Any]) -> bool:
    """Whether there is such a model or batch."""
    try:
        made()
    except CostModelError:
        return False
    return True


def _found(asked: Prediction, name: str) -> Values:
    """Of a CNN: values in the finest step that it can take, down to the smallest that it can."""
    base, step = current(asked, name), 1
    while step < COARSEST and not exists(lambda step=step: turned(asked, name, base + step)):
        step *= 2
    below = last_true(lambda n: exists(lambda: turned(asked, name, base - n * step)), -(-base // step))
    note = "" if step == 1 else f"{name} in steps of {step}, which this network takes"
    return range(base - below * step, LARGEST_SIZE + 1, step), "", note
