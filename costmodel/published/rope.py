"""Rotary positions as published configurations describe them, in their older and newer form."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from costmodel.architectures.base import Factor
from costmodel.errors import SpecError, shown, unknown
from costmodel.published.config import Published

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "su", "mrope")
"""Ways to scale the angles; all cost the same. `su` is an older name of longrope."""


class Rotating(Published):
    """Abstract: a family with rotary positions, of which only the share of each head that they turn has a cost."""

    IDLE: ClassVar = frozenset({"rope_theta", "rotary_emb_base", "original_max_position_embeddings"})

    rope_parameters: dict[str, Any] | None = Field(default=None, description="a mapping of rotary settings")
    rope_scaling: dict[str, Any] | None = Field(default=None, description="a mapping of rotary settings")
    partial_rotary_factor: Factor = 1.0

    def rotated(self, head_size: int) -> int | None:
        """Features of a head that are turned; None for all."""
        factor = self.partial_rotary_factor
        for field in ("rope_scaling", "rope_parameters"):
            for settings in _settings(getattr(self, field)):
                _check(settings, field)
                factor = settings.get("partial_rotary_factor", factor)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1:
            raise SpecError(
                f"{self.MODEL_TYPE}: partial_rotary_factor {shown(factor)} is not a share of the head: give more than "
                "0, at most 1",
                ("partial_rotary_factor",),
            )
        turned = int(head_size * factor)
        if turned < 1 or turned % 2:
            raise SpecError(
                f"{self.MODEL_TYPE}: partial_rotary_factor {factor} of a head of {head_size} turns {turned} features: "
                "it must be an even number of at least 2",
                ("partial_rotary_factor",),
            )
        return None if turned == head_size else turned

    def check_whole(self, size: int) -> None:
        """Raise SpecError unless all features of a head of `size` are turned, where the family knows no share."""
        if (turned := self.rotated(size)) is not None:
            raise SpecError(
                f"{self.MODEL_TYPE}: partial_rotary_factor turns {turned} of {size} features, and the family turns all",
                ("partial_rotary_factor",),
            )


def _settings(given: dict[str, Any] | None) -> list[dict[str, Any]]:
    """One mapping, or one for each type of layer."""
    if not given:
        return []
    nested = [value for value in given.values() if isinstance(value, dict)]
    return nested if len(nested) == len(given) else [given]


def _check(settings: dict[str, Any], field: str) -> None:
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise SpecError(f"{field}: {unknown('rope_type', kind, ROPE_TYPES)}", (field,))
