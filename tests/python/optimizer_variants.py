"""The variants of every optimizer that is compiled, for tests of each door; and PyTorch's others, with the reason."""

from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)  # fmt: skip

LEFT = {
    LBFGS: "it calls the model within its step",
    SparseAdam: "its gradients have no dense memory",
    Muon: "its step is made of matrix products",
}

_ALL = {"weight_decay": 0.1, "maximize": True}
_ADAMS = [
    {}, {"amsgrad": True}, {"weight_decay": 0.1}, {"maximize": True}, {"betas": (0.0, 0.5)}, {"betas": (0.3, 0.0)},
    {"amsgrad": True, **_ALL, "foreach": True}, {"fused": True, "amsgrad": True}, {"eps": 1.0},
]  # fmt: skip

FLAGS = {
    SGD: [
        {}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True, **_ALL},
        _ALL, {"momentum": 0.9, "foreach": True}, {"momentum": 0.9, "fused": True},
    ],
    Adam: [*_ADAMS, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    AdamW: [*_ADAMS, {"weight_decay": 0.0}, {"weight_decay": 0.5, "lr": 0.5}],
    RMSprop: [
        {}, {"momentum": 0.9}, {"centered": True}, {"centered": True, "momentum": 0.5, "alpha": 0.4, "eps": 0.5, **_ALL},
        {"weight_decay": 0.1, "momentum": 0.3}, {"maximize": True, "foreach": True, "centered": True},
    ],
    Adagrad: [
        {}, {"lr_decay": 0.2, "initial_accumulator_value": 0.5}, _ALL, {"weight_decay": 0.1, "foreach": True}, {"fused": True},
        {"eps": 1.0, "maximize": True},
    ],
    Adamax: [{}, _ALL, {"betas": (0.3, 0.5)}, {"weight_decay": 0.1, "eps": 0.5}, {"maximize": True, "foreach": True}],
    NAdam: [
        {}, _ALL, {"weight_decay": 0.1, "decoupled_weight_decay": True}, {"betas": (0.3, 0.5), "momentum_decay": 0.3},
        {"maximize": True, "foreach": True}, {"eps": 0.5},
    ],
    RAdam: [
        {}, _ALL, {"weight_decay": 0.1, "decoupled_weight_decay": True}, {"betas": (0.3, 0.5)}, {"betas": (0.9, 0.8)},
        {"maximize": True, "foreach": True}, {"eps": 0.5},
    ],
    Adadelta: [{}, _ALL, {"rho": 0.3, "eps": 0.1}, {"weight_decay": 0.1, "foreach": True}],
    ASGD: [{}, _ALL, {"t0": 2.0}, {"t0": 0, "lambd": 0.3, "alpha": 0.5}, {"weight_decay": 0.1, "t0": 1, "foreach": True}],
    Rprop: [{}, {"maximize": True}, {"etas": (0.3, 1.5), "step_sizes": (0.01, 0.12)}, {"foreach": True}],
    Adafactor: [{}, _ALL, {"eps": (1e-3, 0.1)}, {"d": 2.0, "beta2_decay": -0.3}, {"weight_decay": 0.1, "foreach": True}],
}  # fmt: skip
