"""A model as an engine runs it on its devices: seconds of a pass, and memory of a rank.

Engines split weights over ranks as a plan of PyTorch's does; what they do otherwise is said here. Of fewer key heads
than ranks each rank has a copy of one (vLLM, ``QKVParallelLinear``: ``num_kv_head_replicas``). Small sums inside a node
are exchanged directly (``custom_all_reduce.cu``). Stages of a pipeline work on groups of requests at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from costmodel.architectures.stages import own_parts
from costmodel.architectures.transformer import Transformer
from costmodel.cost.costs import Costs, stage_tapes
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.machine import Machine
from costmodel.importers.files import settings_of
from costmodel.performance.calibration import Calibration
from costmodel.performance.constants import typical
from costmodel.performance.time import Time, measured_times
from costmodel.training.engines import Engine
from costmodel.training.layout import Layout


class EngineStep(NamedTuple):
    """What one pass of a stage takes: of the device, waiting for others, and of the host that starts kernels [s].

    bound: what it waits for.
    """

    device: float
    exposed: float
    host: float
    bound: str


class TimedPass(NamedTuple):
    """A pass through all stages [s]; slowest: until the next group of requests may follow, on one device the same."""

    seconds: float
    slowest: float

    def __add__(self, other: TimedPass) -> TimedPass:  # type: ignore[override]
        """One after the other."""
        return TimedPass(self.seconds + other.seconds, self.slowest + other.slowest)

    def times(self, count: int) -> float:
        """So many of them, each as soon as there is room."""
        return self.seconds + (count - 1) * self.slowest if count else 0.0


class HeldBytes(NamedTuple):
    """What a rank holds throughout, and of one request [bytes]."""

    standing: int
    request: int


def attention_served(model: Transformer, settings: Mapping[str, Any]) -> str:
    """How scores of attention are kept in serving: as the settings say, else fused by what takes their sizes."""
    plain = model.latent is not None or model.positions == "relative"
    return settings.get("attention") or ("efficient" if plain else "flash")


@dataclass(frozen=True, eq=False)
class Deployment:
    """One model on devices. settings: of `predict`, degrees of a copy of the model among them, but no sizes.

    cluster: what joins the devices; None: there is one. calibration: constants that were measured on the machine.
    """

    model: Transformer
    machine: Machine
    cluster: Cluster | None
    engine: Engine
    settings: dict[str, Any]
    calibration: Calibration | None = None

    @cached_property
    def copy_layout(self) -> Layout:
        """Over the devices of a copy."""
        return settings_of({**self.settings, "mode": "inference"}).layout

    @cached_property
    def run(self) -> Transformer:
        """The model as the engine runs it, see `fusible`; as it is where a kernel of attention is named."""
        return self._copied if "attention" in self.settings else fusible(self._copied, merged=self.engine.merged)

    @cached_property
    def _copied(self) -> Transformer:
        """With as many copies of key heads as ranks need."""
        model, ranks = self.model, self.copy_layout.tp
        if model.latent is not None:
            return model
        changes: dict[str, Any] = {}
        if model.key_heads < ranks and ranks % model.key_heads == 0 and model.heads % ranks == 0:
            changes["kv_heads"] = ranks
        if model.window is not None and (own := model.window.global_kv_heads) is not None and own < ranks:
            changes["window.global_kv_heads"] = ranks
        return model.with_fields(changes) if changes else model

    def predicted(self, mode: str, batch: int, **sizes: Any) -> Costs:
        """A pass over so many requests of each rank."""
        return Costs.of(self.run, **self._asked(mode, batch, sizes))

    def _asked(self, mode: str, batch: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a pass."""
        cache: dict[str, Any] = {"cache": self.engine.cache}
        if self.engine.cache == "paged":
            cache["page_size"] = self.engine.page_size
        own = {"latent_attention": "absorbed" if mode == "decode" else "expanded"} | self.settings
        own |= {"attention": attention_served(self.model, own)}
        return {"mode": mode, "batch": batch, **cache, **own, **sizes}

    def ranks(self, mode: str, batch: int, **sizes: Any) -> list[tuple[Costs, int]]:
        """The same of each stage, in order, those that are alike once, and how many they are."""
        if self.copy_layout.pp == 1:
            return [(self.predicted(mode, batch, **sizes), 1)]
        settings = settings_of(self._asked(mode, batch, sizes))
        pattern = self.run.pattern

        def kind(layout: Layout) -> Any:
            blocks = (pattern[block % len(pattern)] for block in own_parts(layout, self.run))
            return layout.first, layout.last, *blocks

        tapes = stage_tapes(self.run, settings, kind)
        return [(Costs(self.run, settings, tape), count) for tape, count in tapes]

    def time(self, costs: Costs) -> Time:
        """Of one pass, or of one stage's part."""
        calibration, unpack = self.calibration, self.engine.unpack
        constants = typical(self.machine) if calibration is None else calibration.on(self.machine)
        constants = constants if unpack is None else constants.changed(unpack8=unpack, unpack4=unpack)
        if self.engine.unpacked is not None:
            constants = constants.changed(unpacked_weights=self.engine.unpacked)
        how: dict[str, Any] = {"cluster": self.cluster, "direct": self.engine.direct}
        if calibration is None:
            return Time(costs, self.machine, self.engine.starts, "typical", constants, **how)
        how |= {"known": calibration.known, "anchors": self._anchors, "factors": calibration.collectives}
        return Time(costs, self.machine, self.engine.starts, "calibrated", constants, **how)

    def steps(self, mode: str, batch: int, **sizes: Any) -> tuple[EngineStep, ...]:
        """What each stage takes."""
        key = (mode, batch, *sizes.items())
        if key not in self._steps:
            ranks = self.ranks(mode, batch, **sizes)
            self._steps[key] = tuple(step for costs, count in ranks for step in count * (self._step(costs),))
        return self._steps[key]

    def _step(self, costs: Costs) -> EngineStep:
        time = self.time(costs)
        phase = time.phases[0]
        return EngineStep(phase.device_seconds, time.exposed, phase.host_seconds, time.bound)

    @cached_property
    def _anchors(self) -> list[tuple[Time, float]]:
        return [] if self.calibration is None else measured_times(self.calibration, self.machine)

    @cached_property
    def _steps(self) -> dict[Any, tuple[EngineStep, ...]]:
        return {}

    def passage(self, engine: Engine, requests: int, mode: str, **sizes: Any) -> TimedPass:
        """A pass over so many requests; engine: with its speed of kernels."""
        layers = int(self.model.layers) / self.copy_layout.pp
        stages = [
            engine.kernel_seconds(step.device, step.exposed, step.host, layers)
            for step in self.steps(mode, requests, **sizes)
        ]
        added = engine.added_seconds(requests)
        whole = sum(stages) + added
        return TimedPass(whole, max(*stages, added) if len(stages) > 1 else whole)

    def held(self, longest: int, tokens: int) -> list[HeldBytes]:
        """Of stages that differ, where prompts have so many tokens, and a request keeps `longest` when it is done."""
        engine = self.engine
        count = max(1, engine.chunk // tokens) if engine.sequences > 1 else 1
        memories = [rank.memory for rank, _ in self.ranks("prefill", count, seq=min(tokens, engine.chunk))]
        standing = [m.weights + m.buffers + m.inputs + m.temporaries for m in memories]
        kept = [rank.memory.cache for rank, _ in self.ranks("decode", 1, past=longest - 1)]
        return [HeldBytes(*each) for each in zip(standing, kept, strict=True)]

    def __repr__(self) -> str:
        return f"<Deployment of {self.model.title} on {self.machine.name}, engine {self.engine.name}>"


def fusible(model: Transformer, *, merged: bool = False) -> Transformer:
    """The model as an engine runs it: fused attention without what PyTorch's own has no place for.

    merged: with one product for query, key and value.
    """
    changes: dict[str, Any] = {} if model.score_cap is None else {"score_cap": None}
    if model.sinks:
        changes["sinks"] = False
    if merged and not model.fused_qkv and model.latent is None and model.key_bias:
        changes["fused_qkv"] = True
    return model.with_fields(changes) if changes else model
