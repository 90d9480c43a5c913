"""What of a published configuration is more than a name: sizes of heads, rotary positions, patterns of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costmodel.errors import SpecError, shown, unknown
from costmodel.importers.huggingface.family import Config, FieldRule
from costmodel.importers.huggingface.fields import wrong

MOST_LAYERS = 10_000
"""More layers than these are not looked at one by one."""

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "su", "mrope", "ntk")
"""Ways to scale the angles; all cost the same. `su` is an older name of longrope."""

ROTARY = {"rope_parameters": None, "rope_scaling": None, "partial_rotary_factor": 1.0}
"""Fields of rotary positions, of which only the share of each head that they turn has a cost."""

ROTARY_IDLE = "rope_theta rotary_emb_base original_max_position_embeddings"


def sets(field: str, value: Callable[[Config, dict[str, Any]], Any]) -> FieldRule:
    """A field of ours is worked out of the configuration, and of what is made so far."""

    def made_so(config: Config, made: dict[str, Any]) -> None:
        made[field] = value(config, made)

    return made_so


def heads(config: Config, made: dict[str, Any]) -> None:
    """Sizes of heads that are as usual are left out: keys for each query head, width / heads features each."""
    width, count, size = made["width"], made["heads"], made["head_size"]
    if size is None and width % count:
        raise wrong("num_attention_heads", f"{count} does not divide hidden_size {width}: give head_dim, or a divisor")
    if size is not None and size * count == width:
        made["head_size"] = None
    if made["kv_heads"] == count:
        made["kv_heads"] = None


def heads_fill_width(config: Config, made: dict[str, Any]) -> None:
    """Raise SpecError for a head size that is not width / heads."""
    if config["head_dim"] is not None and config["head_dim"] * made["heads"] != made["width"]:
        raise wrong("head_dim", f"{config['head_dim']} is not hidden_size / heads")


def head_size(made: dict[str, Any]) -> int:
    """Features of a head."""
    return made.get("head_size") or made["width"] // made["heads"]


def rotary(config: Config, made: dict[str, Any]) -> None:
    """How many features of a head are turned, if not all."""
    made["rotary.size"] = turned(config, head_size(made))


def rotary_unread(config: Config, made: dict[str, Any]) -> None:
    """All features of a head are turned, whatever the share: the family's class reads none but where angles are scaled.

    Source: its ``compute_default_rope_parameters``; with the angles of ``ROPE_INIT_FUNCTIONS`` a share makes it fail.
    """
    settings = _rotary_settings(config["rope_scaling"]) + _rotary_settings(config["rope_parameters"])
    features = turned(config, head_size(made))
    if features is not None and any(_rope_type(each) != "default" for each in settings):
        check_whole(config, head_size(made))
    made["rotary.size"] = None


def rotary_whole(config: Config, made: dict[str, Any]) -> None:
    """All features of a head are turned: the family knows no share."""
    check_whole(config, head_size(made))
    made["rotary.size"] = None


def turned(config: Config, size: int) -> int | None:
    """Features of a head of `size` that are turned; None for all."""
    factor = config["partial_rotary_factor"]
    for field in ("rope_scaling", "rope_parameters"):
        for settings in _rotary_settings(config[field]):
            kind = _rope_type(settings)
            if kind not in ROPE_TYPES:
                raise SpecError(f"{field}: {unknown('rope_type', kind, ROPE_TYPES)}", (field,))
            factor = settings.get("partial_rotary_factor", factor)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise wrong("partial_rotary_factor", f"{shown(factor)} is not a share of the head: give more than 0, at most 1")
    features = int(size * factor)
    for settings in _rotary_settings(config["rope_scaling"]) + _rotary_settings(config["rope_parameters"]):
        sections = settings.get("mrope_section")
        if isinstance(sections, list) and all(isinstance(n, int) for n in sections) and 2 * sum(sections) != features:
            raise SpecError(
                f"mrope_section {shown(sections)}: twice their sum is not the {features} features that turn"
            )
    if features < 1 or features % 2:
        turns = f"{factor} of a head of {size} turns {features} features: it must be an even number of at least 2"
        raise wrong("partial_rotary_factor", turns)
    return None if features == size else features


def check_whole(config: Config, size: int) -> None:
    """Raise SpecError unless all of `size` features are turned."""
    if (features := turned(config, size)) is not None:
        raise wrong("partial_rotary_factor", f"turns {features} of {size} features, and the family turns all")


def _rope_type(settings: dict[str, Any]) -> Any:
    return settings.get("rope_type", settings.get("type", "default"))


def _rotary_settings(given: dict[str, Any] | None) -> list[dict[str, Any]]:
    """One mapping, or one for each type of layer."""
    if not given:
        return []
    nested = [value for value in given.values() if isinstance(value, dict)]
    return nested if len(nested) == len(given) else [given]


def windows(usual: Callable[[Config, int], bool]) -> FieldRule:
    """Some layers see a window, by `layer_types`; where those are left out, `usual` says of which layers."""

    def windowed(config: Config, made: dict[str, Any]) -> None:
        types, size, layers = config["layer_types"], config["sliding_window"], made["layers"]
        local = each(layers, lambda n: usual(config, n)) if types is None else sliding(types, layers)
        if any(local) and types is not None and (not size or size < 1):
            raise wrong("layer_types", "has sliding_attention, and there is no sliding_window: give its size")
        if any(local) and size and size > 0:
            made |= {"window.size": size, "window.pattern": cycle(local, layers)}

    return windowed


def sliding(types: list[str], layers: int) -> list[bool]:
    """Which layers see a window, as `layer_types` says."""
    known = ("full_attention", "sliding_attention")
    for number, kind in enumerate(types):
        if kind not in known:
            raise wrong("layer_types", f"{kind!r} is not {' or '.join(known)}", number)
    enough("layer_types", types, layers)
    return [kind == "sliding_attention" for kind in types]


def enough(field: str, entries: Sequence[Any], layers: int) -> None:
    """Raise SpecError unless a field has an entry for each layer, and no more."""
    if len(entries) != layers:
        raise wrong(field, f"has {len(entries)} entries for {layers} layers")


def each(layers: int, kind: Callable[[int], bool]) -> list[bool]:
    """What `kind` says of each layer, from 0. Raises SpecError for more than can be looked at."""
    if layers > MOST_LAYERS:
        raise SpecError(f"layers of several kinds are at most {MOST_LAYERS:,}, not {layers:,}")
    return [kind(number) for number in range(layers)]


def cycle(values: list[bool], layers: int) -> tuple[bool, ...]:
    """The shortest pattern that gives each layer its value, over and over; none where all layers are alike and true."""
    used = values[:layers]
    # The longest beginning that is an end as well (Knuth, Morris and Pratt 1977) leaves the shortest period.
    ends = [0]
    for value in used[1:]:
        length = ends[-1]
        while length and used[length] != value:
            length = ends[length - 1]
        ends.append(length + (used[length] == value))
    period = used[: len(used) - ends[-1]]
    return () if period == [True] else tuple(period)


def routed_layers(config: Config, made: dict[str, Any]) -> None:
    """Every `decoder_sparse_step`-th layer has experts, but not those that `mlp_only_layers` names."""
    dense, step = set(config["mlp_only_layers"] or []), config["decoder_sparse_step"]
    pattern(made, lambda n: n not in dense and (n + 1) % step == 0)


def pattern(made: dict[str, Any], routed: Callable[[int], bool]) -> None:
    """Those layers have experts; where none has, there is nothing to say of experts."""
    layers = each(made["layers"], routed)
    if any(layers):
        made["experts.pattern"] = cycle(layers, made["layers"])
    else:
        forget_experts(made)


def forget_experts(made: dict[str, Any]) -> None:
    """Take away all fields of experts: no layer has any."""
    for field in [name for name in made if name.startswith("experts.")]:
        del made[field]
