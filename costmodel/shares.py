"""What one part of a model has of a quantity: the sum over the layers that it is made of."""

from __future__ import annotations

from costmodel.errors import SettingError, unknown
from costmodel.prediction import Prediction
from costmodel.quantities import QUANTITIES, ROW_COLUMNS, SUMMED

DEFAULT = "flops.total"


def share(prediction: Prediction, what: str) -> int:
    """A quantity such as "params", or of one part, such as "attention", "attention.scores" or "mlp:params".

    A part is named by its place in the names of layers; FLOPs in total are meant where no quantity is given. Raises
    UnknownNameError, or SettingError for a quantity that is no sum over layers.
    """
    if what in QUANTITIES:
        return int(prediction.value(what))
    part, _, quantity = what.partition(":")
    quantity = quantity or DEFAULT
    if quantity not in SUMMED:
        if quantity in QUANTITIES:
            raise SettingError(f"{quantity} is no sum over layers: of a part ask for one of {', '.join(SUMMED)}")
        raise unknown("quantity", quantity, SUMMED)
    rows = [row for row in prediction.layers if f".{part}." in f".{row.name}."]
    if not rows:
        raise unknown("quantity or part", what, [*QUANTITIES, *part_names(prediction)])
    return sum(int(getattr(row, column)) for row in rows for column in ROW_COLUMNS[quantity])


def part_names(prediction: Prediction) -> list[str]:
    """Every word of the layers' names, and every name."""
    names = {row.name for row in prediction.layers}
    return sorted(names | {word for name in names for word in name.split(".")})
