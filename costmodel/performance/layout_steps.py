"""Seconds of very many layouts of one model on one cluster: what they have in common is timed once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from costmodel.architectures.trace import trace
from costmodel.cost.costs import Costs
from costmodel.cost.peaks import RankPeaks
from costmodel.errors import SettingError
from costmodel.performance.communication import CollectiveModel
from costmodel.performance.laws import Numbers
from costmodel.performance.parallel import PlayedStep, Prices, RankWork
from costmodel.performance.pipelines import PipelineWork, StageWork
from costmodel.performance.queues import Player
from costmodel.performance.time import Time
from costmodel.training.settings import Settings


class LayoutStep(NamedTuple):
    """Of a step its seconds, and those in which the slowest rank waits for collectives, or for other ranks [s]."""

    seconds: float
    exposed: float
    bubble: float

    @property
    def computed(self) -> float:
        """The rest: kernels, and the host where they wait for it [s]."""
        return self.seconds - self.exposed - self.bubble


class LayoutSteps:
    """Steps of layouts of the model of `ranks` on the cluster of a time, which says how seconds are worked out."""

    def __init__(self, ranks: RankPeaks, like: Time) -> None:
        if like.cluster is None:
            raise SettingError("devices=1 has one layout: ask predict for it, or give two devices or more")
        self.ranks = ranks
        self.fuses = like.stack.fuses
        self.model = like.kernel_model
        self.links = CollectiveModel(like.cluster, like.constants, like.tier, like.factors)
        self._stages: dict[tuple[int, int], tuple[StageWork, Numbers]] = {}
        self._players: dict[StageWork, dict[str, Player]] = {}
        self._endings: dict[Hashable, Player] = {}

    def step(self, settings: Settings) -> LayoutStep:
        """That of one layout, as `Time` says it. Raises CostModelError."""
        self.links.cluster.place(settings.layout)
        prices = Prices(self.links, settings.layout)
        played = self._alone(settings, prices) if settings.layout.pp == 1 else self._staged(settings, prices)
        return LayoutStep(float(played.seconds), sum(float(each.exposed) for each in played.sums), float(played.bubble))

    def _alone(self, settings: Settings, prices: Prices) -> PlayedStep:
        rank = Costs(self.ranks.model, settings, trace(self.ranks.model, settings))
        return RankWork(rank, fuse=self.fuses).step(self.model, prices)[1]

    def _staged(self, settings: Settings, prices: Prices) -> PlayedStep:
        if settings.layout.shards > 1:
            raise SettingError("seconds of a pipeline of sharded weights are not worked out: use dp in place of fsdp")
        ranks = self.ranks.staged(settings)
        work = PipelineWork(ranks, self.model, fuse=self.fuses, known=self._stages)
        for stage in work.kinds:
            if stage not in self._players:
                self._players[stage] = stage.passes(self.model, stage.kernel_seconds(self.model), prices)
        endings: list[Player] = []
        for rank in ranks:
            key = rank.key, settings.micro_batches
            if key not in self._endings:
                self._endings[key] = work.ending(rank, self.model, prices)
            endings.append(self._endings[key])
        return work.played(self._players, endings, prices)
