"""The optimizers whose step is compiled: `trainc.compile`, `train_step`, `fuse_step` and `memory=` read this registry alone.

Any other optimizer runs as it is: a subclass with a step of its own, LBFGS (which calls the model within its step), SparseAdam
(whose gradients have no dense memory), Muon (whose step is made of matrix products).
"""

from __future__ import annotations

import torch

from trainc.torch.optimizers.adadelta import Adadelta
from trainc.torch.optimizers.adafactor import Adafactor
from trainc.torch.optimizers.adagrad import Adagrad
from trainc.torch.optimizers.adam import Adam
from trainc.torch.optimizers.adamax import Adamax
from trainc.torch.optimizers.asgd import ASGD
from trainc.torch.optimizers.formula import NUMBERS, Count, Formula, Variant
from trainc.torch.optimizers.nadam import NAdam
from trainc.torch.optimizers.radam import RAdam
from trainc.torch.optimizers.rmsprop import RMSprop
from trainc.torch.optimizers.rprop import Rprop
from trainc.torch.optimizers.sgd import SGD

FORMULAS: dict[type[torch.optim.Optimizer], Formula] = {
    kind: formula
    for formula in (
        Adam(), SGD(), RMSprop(), Adagrad(), Adamax(), NAdam(), RAdam(), Adadelta(), ASGD(), Rprop(), Adafactor(),
    )
    for kind in formula.classes
}  # fmt: skip


def formula_of(optimizer: torch.optim.Optimizer) -> Formula | None:
    """None where the optimizer's step is not known: the class itself counts, for a subclass may do more."""
    return FORMULAS.get(type(optimizer))


def fits_a_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the plan of a backward, or of a whole step, can have the optimizer's updates in it."""
    formula = formula_of(optimizer)
    return formula is not None and formula.elementwise


def names(word: str = "and", in_plans: bool = False) -> str:
    """"Adam, AdamW and SGD": the optimizers that are compiled; or those of them that `fits_a_plan` takes."""
    *most, last = [kind.__name__ for kind, formula in FORMULAS.items() if formula.elementwise or not in_plans]
    return f"{', '.join(most)} {word} {last}"


__all__ = ["FORMULAS", "NUMBERS", "Count", "Formula", "Variant", "fits_a_plan", "formula_of", "names"]
