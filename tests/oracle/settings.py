"""How many architectures a differential test draws, and which optimizers PyTorch has."""

import os
from typing import Any

from tests.profiles import examples

DRAWN = int(os.environ.get("ORACLE_EXAMPLES", "30"))
differential = examples(DRAWN)

IN_TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop-momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop-centered": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "amsgrad": ("AdamW", {"amsgrad": True}),
    "nadam": ("NAdam", {}),
    "adamax": ("Adamax", {}),
    "radam": ("RAdam", {}),
    "adadelta": ("Adadelta", {}),
    "rprop": ("Rprop", {}),
    "asgd": ("ASGD", {}),
    "rmsprop-centered-plain": ("RMSprop", {"centered": True}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
"""The class of ``torch.optim`` that an optimizer is, and its options."""
