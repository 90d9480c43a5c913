"""What verbs take for settings, as typed dictionaries; `keywords.pyi` says the same to type checkers."""

from typing import Any, TypedDict

from costmodel.training.setting import several_of
from costmodel.training.settings import SETTINGS
from costmodel.training.values import Over

_typed: Any = TypedDict  # a type checker wants its fields written out, as the stub does
_types = {name: setting.takes for name, setting in SETTINGS.items()}

GivenSettings = _typed("GivenSettings", {**_types, "over": Over}, total=False)
SeveralSettings = _typed(
    "SeveralSettings", {name: several_of(kind) for name, kind in _types.items()} | {"over": Over}, total=False
)
ServedSettings = _typed(
    "ServedSettings", {n: kind for n, kind in _types.items() if SETTINGS[n].served} | {"over": Over}, total=False
)
