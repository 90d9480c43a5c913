"""Optimizers: each a small declaration of the states it holds for a weight of a given shape.

Sizes equal those of `torch.optim` where PyTorch has the optimizer: states of a weight's own precision, and fp32 scalars
such as step counters, which are counted apart.
"""

from __future__ import annotations

from typing import Literal

from costmodel.errors import SettingError, shown
from costmodel.symbolic.sizes import branch_value, ceil_div, product
from costmodel.training.declaration import Declaration, ready
from costmodel.training.dtypes import Shape
from costmodel.training.fields import Count
from costmodel.training.frozen import Frozen, frozen

StateExtent = Literal["weight", "rows", "columns", "axes", "scalar"]
"""Shape of a state: the weight's; a number for each row or column of its last two axes; a square for each axis; one."""


MOST_STATES = 64
MOST_FLAT = 1024
"""Of an optimizer whose states are of all weights in a row."""


@frozen()
class State(Frozen):
    """One state tensor a weight, or `count` alike. `bytes` an element (None: those of the weight).

    block: one fp32 scale for every so many elements, as quantised states have. least: weights of fewer elements hold
    this state in fp32 and unscaled.
    """

    name: str
    extent: StateExtent = "weight"
    bytes: int | None = None
    block: int | None = None
    least: int = 0
    count: int = 1

    def size_bytes(self, shape: Shape, weight_bytes: int) -> int:
        """Bytes of this state for one weight of `shape` with elements of `weight_bytes`."""
        elements = _elements(self.extent, shape)
        if branch_value(elements) < self.least:
            return 4 * elements
        element_bytes = self.bytes or weight_bytes
        scales = 4 * ceil_div(elements, self.block) if self.block else 0
        return element_bytes * elements + scales


def _elements(extent: StateExtent, shape: Shape) -> int:
    if extent == "weight":
        return product(shape)
    if extent == "rows":
        return product(shape[:-1])
    if extent == "columns":
        return product((*shape[:-2], shape[-1]))
    if extent == "axes":
        total = 0
        for size in shape:
            total = total + size * size
        return total
    return 1


@frozen()
class Optimizer(Declaration):
    """States for weights of two or more axes, and `vectors` for the rest (None: the same).

    only_matrices: `states` are for weights of exactly two axes; all others have those of `vectors`. flat: each state is
    one tensor for all weights, and so is what an update makes. makes: tensors of a weight's size that its update makes
    and drops; vectors_make: of a weight that has the states of `vectors` (None: as many). lasts: whether the last of
    them is there until the next weight's. together: how many it makes for all weights at once where it updates all at
    once (PyTorch's ``foreach``; None: it cannot). in_turn: what it then makes beside those for one weight after
    another. by_itself: whether PyTorch does so on a GPU without being asked. fused: whether it can update all in one
    kernel that makes none (PyTorch's ``fused``). passes: kernels of an update that is not fused, and the elements that
    they read and write for each of a weight (None: what follows from its states); a fused one reads weight, gradient
    and states and writes all but the gradient. reads: how often an update of one weight reads its gradient, which
    DTensor sums or cuts each time where it is not split as the weight is (None: not worked out). copies_gradient:
    whether its state begins as a copy of the gradient, and so is as long where that is. multiplies: the matrix products
    that it takes for a weight of two axes beside them.
    """

    name: str
    states: tuple[State, ...]
    source: str = "as declared"
    vectors: tuple[State, ...] | None = None
    only_matrices: bool = False
    flat: bool = False
    makes: Count = 2
    vectors_make: Count | None = None
    lasts: bool = True
    together: Count | None = None
    in_turn: tuple[State, ...] = ()
    by_itself: bool = True
    fused: bool = False
    passes: tuple[int, int, int] | None = None
    reads: Count | None = 1
    copies_gradient: bool = False
    multiplies: Literal["nothing", "newton-schulz", "kronecker"] = "nothing"

    @property
    def by_element(self) -> bool:
        """Whether an update of a share of a weight takes nothing of its other shares."""
        states = (*self.states, *(self.vectors or ()))
        whole = all(state.extent in ("weight", "scalar") for state in states)
        return whole and not self.flat and self.multiplies == "nothing" and self.name not in OF_NORMS

    def check_agreement(self, where: str) -> None:
        """Raise SettingError for more states, or tensors of an update, than any optimizer has: each is looked at."""
        most = MOST_FLAT if self.flat else MOST_STATES
        for field in ("states", "vectors", "in_turn", "makes", "vectors_make", "together"):
            value = getattr(self, field)
            count = sum(state.count for state in value) if isinstance(value, tuple) else value or 0
            if count > most:
                raise SettingError(f"{where}.{field}: {shown(count)} are too many for a weight: use at most {most}")

    def passes_of(self, shape: Shape) -> tuple[int, int, int]:
        """Kernels of an update of one weight, and elements that they read and write for each of the weight's.

        Where it is not declared: every state is scaled and added to, every tensor made takes a kernel, and so does the
        weight.
        """
        if self.passes is not None and (self.vectors is None or self.states_of(shape) == self.states):
            return self.passes
        if self.vectors == ADAM and self.states_of(shape) == ADAM:
            return ADAMW_PASSES
        states = sum(state.count for state in self.states_of(shape) if state.extent != "scalar")
        makes = self.makes_of(shape)
        return 2 * states + makes + 1, 3 * states + makes + 2 + states, 2 * states + makes + 1

    def states_of(self, shape: Shape) -> tuple[State, ...]:
        """The states of one weight."""
        return self.states if self.vectors is None or self._fits(shape) else self.vectors

    def makes_of(self, shape: Shape) -> int:
        """Tensors of a weight's size that the update of one weight makes and drops."""
        return self.makes if self.vectors_make is None or self._fits(shape) else self.vectors_make

    def _fits(self, shape: Shape) -> bool:
        """Whether a weight is one that `states` are for."""
        return len(shape) == 2 if self.only_matrices else len(shape) >= 2

    def state_sizes(self, shape: Shape, weight_bytes: int) -> list[int]:
        """Bytes of each state of one weight but its scalars."""
        kept = self.states_of(shape)
        return [n for s in kept if s.extent != "scalar" for n in [s.size_bytes(shape, weight_bytes)] * s.count]

    def scalar_bytes(self, shape: Shape) -> int:
        """Bytes of the fp32 scalars (step counters and the like) of one weight."""
        return 4 * sum([s.count for s in self.states_of(shape) if s.extent == "scalar"])

    def describe(self) -> str:
        """Its states, in a phrase."""
        names = [s.name for s in self.states if s.extent != "scalar"]
        return f"{self.name}: {' and '.join(names) if names else 'no state'} for each weight"


OF_NORMS = ("lamb",)
"""Optimizers that scale an update by the norm of the weight, of all of it."""
STEP = State("step", "scalar", 4)
ADAMW_PASSES = (8, 12, 8)
"""w·(1 − ηλ); m by lerp; v·β₂, + (1 − β₂)g²; √v, /√(1 − β₂ᵗ), + ε; w − η·m/…: operators of torch.optim's own loop."""
MOMENTS = (State("exp_avg"), State("exp_avg_sq"))
ADAM = (*MOMENTS, STEP)
HISTORY = 100
"""Steps that L-BFGS looks back on (torch.optim.LBFGS's history_size)."""
QUANTISED = [State(s.name, bytes=1, block=256, least=4096) for s in MOMENTS]

OptimizerName = Literal[
    "sgd",
    "momentum",
    "nesterov",
    "adagrad",
    "rmsprop",
    "rmsprop-momentum",
    "rmsprop-centered",
    "adam",
    "adamw",
    "amsgrad",
    "nadam",
    "adamax",
    "radam",
    "adadelta",
    "rprop",
    "asgd",
    "rmsprop-centered-plain",
    "adafactor",
    "lion",
    "muon",
    "adam-8bit",
    "lamb",
    "shampoo",
    "lbfgs",
]
"""Names of the ready-made optimizers, for a type checker and an editor."""
OPTIMIZERS = ready(
    Optimizer(
        "sgd",
        (),
        "w ← w − ηg (torch.optim.SGD; Robbins & Monro 1951)",
        makes=0,
        together=0,
        fused=True,
        passes=(1, 2, 1),
    ),
    Optimizer(
        "momentum",
        (State("momentum_buffer"),),
        "heavy ball (torch.optim.SGD; Polyak 1964)",
        makes=0,
        together=0,
        fused=True,
        passes=(3, 5, 3),
        copies_gradient=True,
    ),
    Optimizer(
        "nesterov",
        (State("momentum_buffer"),),
        "torch.optim.SGD, nesterov (Sutskever et al. 2013)",
        makes=1,
        lasts=False,
        together=0,
        fused=True,
        passes=(4, 7, 4),
        reads=None,
        copies_gradient=True,
    ),
    Optimizer(
        "adagrad",
        (State("sum"), STEP),
        "torch.optim.Adagrad (Duchi et al. 2011)",
        makes=1,
        together=2,
        fused=True,
        passes=(4, 7, 4),
        reads=3,
    ),
    Optimizer(
        "rmsprop",
        (State("square_avg"), STEP),
        "torch.optim.RMSprop (Tieleman & Hinton 2012)",
        makes=1,
        together=1,
        passes=(5, 8, 5),
        reads=3,
    ),
    Optimizer(
        "rmsprop-momentum",
        (State("square_avg"), State("momentum_buffer"), STEP),
        "torch.optim.RMSprop, momentum (Tieleman & Hinton 2012)",
        makes=1,
        together=1,
        passes=(7, 11, 7),
        reads=3,
    ),
    Optimizer(
        "rmsprop-centered",
        (State("square_avg"), State("momentum_buffer"), State("grad_avg"), STEP),
        "torch.optim.RMSprop, momentum, centered (Graves 2013, eq. 38 to 41)",
        makes=1,
        together=1,
        passes=(9, 15, 9),
        reads=4,
    ),
    Optimizer(
        "adam", ADAM, "torch.optim.Adam (Kingma & Ba 2015, alg. 1)", together=1, fused=True, passes=(7, 11, 7), reads=3
    ),
    Optimizer(
        "adamw",
        ADAM,
        "torch.optim.AdamW (Loshchilov & Hutter 2019, alg. 2)",
        together=1,
        fused=True,
        passes=ADAMW_PASSES,
        reads=3,
    ),
    Optimizer(
        "amsgrad",
        (*MOMENTS, State("max_exp_avg_sq"), STEP),
        "torch.optim.AdamW, amsgrad (Reddi et al. 2018)",
        together=1,
        fused=True,
        passes=(9, 14, 9),
        reads=3,
    ),
    Optimizer(
        "nadam",
        (*ADAM, State("mu_product", "scalar", 4)),
        "torch.optim.NAdam (Dozat 2016)",
        together=1,
        passes=(8, 14, 8),
        reads=None,
    ),
    Optimizer(
        "adamax",
        (State("exp_avg"), State("exp_inf"), STEP),
        "torch.optim.Adamax (Kingma & Ba 2015, alg. 2)",
        makes=1,
        lasts=False,
        together=1,
        reads=None,
    ),
    Optimizer("radam", ADAM, "torch.optim.RAdam (Liu et al. 2020)", lasts=False, together=1, reads=3),
    Optimizer(
        "adadelta",
        (State("square_avg"), State("acc_delta"), STEP),
        "torch.optim.Adadelta (Zeiler 2012)",
        together=2,
        reads=None,
    ),
    Optimizer(
        "rprop",
        (State("prev"), State("step_size"), STEP),
        "torch.optim.Rprop (Riedmiller & Braun 1993)",
        makes=3,
        lasts=False,
        together=1,
        in_turn=(State("gradient"), State("turned", bytes=1), State("zero", "scalar")),
        reads=None,
    ),
    Optimizer(
        "asgd",
        (State("ax"), State("eta", "scalar", 4), State("mu", "scalar", 4), STEP),
        "torch.optim.ASGD (Polyak & Juditsky 1992), before its mean begins",
        makes=0,
        together=1,
        reads=None,
    ),
    Optimizer(
        "rmsprop-centered-plain",
        (State("square_avg"), State("grad_avg"), STEP),
        "torch.optim.RMSprop, centered, without momentum (Graves 2013)",
        makes=1,
        together=1,
        reads=4,
    ),
    Optimizer(
        "adafactor",
        (State("row_var", "rows"), State("col_var", "columns"), STEP),
        "torch.optim.Adafactor (Shazeer & Stern 2018, alg. 4)",
        vectors=(State("variance"), STEP),
        makes=1,
        vectors_make=2,
        together=1,
        by_itself=False,
    ),
    Optimizer("lion", (State("exp_avg"),), "Chen et al. 2023, alg. 2", passes=(5, 8, 5)),
    Optimizer(
        "muon",
        (State("momentum_buffer"),),
        "torch.optim.Muon (Jordan et al. 2024) for matrices, torch.optim.AdamW for the rest",
        vectors=ADAM,
        only_matrices=True,
        makes=3,
        vectors_make=2,
        lasts=False,
        multiplies="newton-schulz",
    ),
    Optimizer(
        "adam-8bit",
        (*QUANTISED, STEP),
        "Dettmers et al. 2022, §2: a byte each, an fp32 scale a block of 256; fp32 below 4,096 elements; of a rank's "
        "share by itself (torchao.optim)",
        reads=None,
    ),
    Optimizer("lamb", ADAM, "You et al. 2020, alg. 2: Adam's moments; the trust ratio is not kept", passes=(10, 16, 9)),
    Optimizer(
        "shampoo",
        (State("preconditioners", "axes"), State("inverse_roots", "axes")),
        "Gupta et al. 2018, alg. 2, with the inverse roots kept between updates (Anil et al. 2021, §3)",
        multiplies="kronecker",
    ),
    Optimizer(
        "lbfgs",
        (
            *(State(name) for name in ("d", "prev_flat_grad")),
            *(State(name, count=HISTORY) for name in ("old_dirs", "old_stps")),
            *(State(name, "scalar", 4, count=HISTORY) for name in ("ro", "al")),
            State("H_diag", "scalar", 4),
        ),
        "torch.optim.LBFGS (Liu & Nocedal 1989), max_iter=1, line_search_fn=None, once its history is full",
        flat=True,
        makes=3,
        lasts=False,
        passes=(12 + 4 * HISTORY, 16 + 8 * HISTORY, 8 + 2 * HISTORY),
    ),
)
"""The ready-made optimizers, by name."""
