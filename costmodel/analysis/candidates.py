"""Every way to lay a model out over devices and to run a step on it, legal or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from costmodel.architectures.stages import stages_of_split
from costmodel.symbolic.sizes import divisors, peek
from costmodel.training.layout import RUNTIME_SCHEDULES, ContextKind, Runtime
from costmodel.training.schedules import SCHEDULES
from costmodel.training.settings import SETTINGS

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture

AXES = (
    *("runtime", "tp", "sp", "loss_parallel", "cp", "cp_kind", "ep", "etp", "pp", "vpp", "schedule", "fsdp", "dp"),
    *("zero", "reshard"),
)
"""Settings of a layout that are chosen between unless they are given."""
CHECKPOINTS = ("none", "selective", "block")
"""What is recomputed, unless a user says between what to choose."""
Options = Mapping[str, Sequence[Any]]
"""Values of settings that a user chooses between, or the one that is given."""
Mesh = dict[str, Any]
"""Settings that lay devices out, without those at their defaults."""


class Meshes:
    """All layouts of a model over so many devices, by the settings that say them.

    Degrees are divisors whose product is the devices. Stages of a rank (vpp) are as many as cut the blocks evenly, or
    as a split that is given (`pp_split`) is of. Raises SettingError if that cuts no pipeline of the model.
    """

    def __init__(self, model: Architecture, devices: int, options: Options) -> None:
        self.devices = devices
        self.options = options
        self.layers = int(peek(getattr(model, "layers", 0) or 0))
        self.experts = int(peek(getattr(getattr(model, "experts", None), "count", 0)))
        split = next(iter(options.get("pp_split", ())), ())
        self.stages = stages_of_split(split, model) if split else None

    def __iter__(self) -> Iterator[Mesh]:
        for runtime in self._values("runtime", get_args(Runtime)):
            for degrees in self._degrees(runtime):
                names, values = [], []
                for name, choices in self._variants(runtime, **degrees):
                    names.append(name)
                    values.append(self._values(name, choices))
                for experts, *choice in product(self._experts(runtime, degrees), *values):
                    mesh = {"runtime": runtime, **degrees, **experts, **dict(zip(names, choice, strict=True))}
                    for schedule in self._schedules(runtime, degrees["pp"]):
                        if self._takes({**mesh, **schedule}):
                            yield {**mesh, **schedule}

    def _takes(self, mesh: Mesh) -> bool:
        """Whether a mesh has every setting that is given, or leaves it at its default as is given."""
        if self.stages is not None and mesh["pp"] * mesh.get("vpp", 1) not in self.stages:
            return False
        rest = (name for name in AXES if name in self.options and name not in mesh)
        return all(SETTINGS[name].default in self.options[name] for name in rest)

    def _values(self, name: str, usual: Sequence[Any]) -> Sequence[Any]:
        return self.options.get(name, usual)

    def _degrees(self, runtime: Runtime) -> Iterator[dict[str, int]]:
        """Degrees of tensor, context, pipeline, sharded and data parallel that make up the devices."""
        for tp in self._shares(self.devices, "tp"):
            for cp in self._shares(self.devices // tp, "cp"):
                for pp in self._shares(self.devices // tp // cp, "pp"):
                    rest = self.devices // tp // cp // pp
                    for fsdp in self._shares(rest if runtime == "torch" else 1, "fsdp"):
                        if "dp" not in self.options or rest // fsdp in self.options["dp"]:
                            yield {"tp": tp, "cp": cp, "pp": pp, "fsdp": fsdp, "dp": rest // fsdp}

    def _shares(self, whole: int, name: str) -> list[int]:
        allowed = self.options.get(name)
        return [n for n in divisors(whole) if allowed is None or n in allowed]

    def _variants(
        self, runtime: Runtime, tp: int, cp: int, pp: int, fsdp: int, dp: int
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """What goes with these degrees, and its values."""
        torch = runtime == "torch"
        if tp > 1:
            yield "sp", (False, True)
        if tp > 1 and torch:
            yield "loss_parallel", (False, True)
        if cp > 1:
            yield "cp_kind", get_args(ContextKind)
        if fsdp > 1:
            yield "reshard", (True, False)
        elif torch and dp == 1 and cp > 1:
            yield "zero", (3,)  # which is how weights are split over the ranks of sequences alone
        elif dp > 1:
            yield "zero", {"torch": (0, 1), "megatron": (0, 1), "deepspeed": (1, 2, 3)}[runtime]

    def _experts(self, runtime: Runtime, degrees: Mapping[str, int]) -> list[Mesh]:
        """Over how many ranks experts are dealt out (ep), and how many split each, where these are not tp's (etp)."""
        if not self.experts and self.options.keys().isdisjoint(("ep", "etp")):
            return [{}]
        tp, cp, fsdp, dp = (degrees[name] for name in ("tp", "cp", "fsdp", "dp"))
        ranks = {"torch": fsdp * cp, "megatron": tp * cp * dp, "deepspeed": dp}[runtime] if self.experts else 1
        several: list[Mesh] = []
        for etp in (splits := self._values("etp", (None,))):
            if etp is None or etp != tp or None not in splits:
                each = 1 if runtime != "megatron" else etp or tp
                dealt = self._values("ep", divisors(max(1, ranks // each)))
                several += ({"ep": ep, **({} if etp is None else {"etp": etp})} for ep in dealt)
        return several if runtime != "megatron" or "etp" in self.options else [*several, *self._apart(tp, ranks)]

    def _apart(self, tp: int, ranks: int) -> Iterator[Mesh]:
        """Ways of Megatron's ranks to split each expert that are not tp's: only where none are left to be dealt out.

        To split experts `f` times less and deal them out `f` times more, over as many ranks, sends each row to one rank
        in place of `f`, over the network as many times and never farther; weights of a rank and FLOPs are as many, and
        products of whole features. So of ways to share experts over as many ranks the one that splits least is no
        slower, and holds more by no more than what stands for gradients of one expert, `stood_for`.
        Source: Megatron-Core, transformer/moe/README.md ("Prefer EP over TP for the expert layer").
        """
        dealt = [n for n in self._values("ep", divisors(ranks)) if ranks % n == 0 and self.experts % n == 0]
        for ep in dealt:
            more = [n // ep for n in dealt if n > ep and n % ep == 0]
            for etp in divisors(ranks // ep):
                if etp != tp and not any(etp % times == 0 for times in more):
                    yield {"ep": ep, "etp": etp}

    def _schedules(self, runtime: Runtime, pp: int) -> Iterator[Mesh]:
        """Orders of a pipeline's micro-batches, with stages of a rank."""
        if pp == 1:
            yield {}
            return
        blocks = self.layers + 2 if runtime != "torch" and self.layers % pp else self.layers
        several = [vpp for vpp in range(2, blocks // pp + 1) if blocks % (pp * vpp) == 0]
        if self.stages is not None:
            several = [stages // pp for stages in self.stages if stages % pp == 0 and stages > pp]
        for name in self._values("schedule", RUNTIME_SCHEDULES[runtime]):
            only = SCHEDULES[name].only_stages
            for vpp in self._values("vpp", several if only is None else (only,)):
                yield {"schedule": name, "vpp": vpp}
