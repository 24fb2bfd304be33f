"""Trains a module in PyTorch and through one of trainc's doors, and compares all that a user could see."""

from __future__ import annotations

import copy
import math
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FLOOR = 3e-5  # relative difference of a tensor that other orders of sums explain
SHARE = 20.0  # times what eager differs from itself when its weights, or its batches, are disturbed in the last bit
CHAOTIC = 1e-2  # beyond this, eager's own numbers say nothing
HUGE = 1e15  # beyond this squares overflow, and the order of a sum decides whether it is infinite on the way
DOUBTS = 8  # further disturbances before a difference is told: a program may compare what cancels with 0


class Refused(Exception):
    """trainc says that it does not compile this: a UserError."""


class Invalid(Exception):
    """PyTorch itself does not run this."""


class OtherRounding(TorchDispatchMode):
    """Each number that an operation computes is another one in the last bits, as another kernel's would be (stochastic
    arithmetic: Vignes, Mathematics and Computers in Simulation 35, 1993). Numbers that are moved or drawn are as they were."""

    EXACT = ("clone", "copy", "zeros", "ones", "full", "fill", "empty", "one_hot", "arange", "eye", "where", "masked_fill", "cat",
             "index", "gather", "embedding", "flip", "roll", "tril", "sort", "topk", "max", "min", "sign", "round", "neg", "abs",
             "relu", "clamp", "stack", "repeat", "pad", "scalar_tensor", "lift", "detach", "threshold", "select",
             "slice")  # fmt: skip

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def other(self, value):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=self.generator, dtype=torch.float64)
        return (value * (1 + torch.finfo(value.dtype).eps / 2 * noise)).to(value.dtype)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name, schema = func._schema.name.removeprefix("aten::"), func._schema
        if schema.is_mutable or any(r.alias_info for r in schema.returns) or torch.Tag.nondeterministic_seeded in func.tags:
            return result
        if name.lstrip("_").startswith((*self.EXACT, "to_copy")):
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(self.other(value) for value in result)
        return self.other(result)


def batch_of(step: int, rows: int):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(rows, 6, generator=generator), torch.randint(0, 7, (rows, 4), generator=generator)


def seen(value):
    """What of a value is compared: tensors by a copy, the rest as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (tuple, list)):
        return [seen(each) for each in value]
    return value


def disturbed(tensor, seed, size=1e-7):
    """In its last bits."""
    return tensor * (1 + size * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)))


def train(kind, loop, door=None, weights=0, batches=0, size=1e-7):
    """{what: value} of a run, in the order in which it is seen. Seeds of what is disturbed, by `size`; 0: nothing."""
    torch._dynamo.reset()
    torch.manual_seed(loop["seed"])
    net = kind()
    if weights:
        with torch.no_grad():
            for number, p in enumerate(net.parameters()):
                p.copy_(disturbed(p, weights + 100 * number, size))
    optimizer = getattr(torch.optim, loop["optimizer"])(net.parameters(), **loop["settings"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if loop["scheduler"] else None
    model = net
    if door is not None:
        import trainc

        for name, value in loop.get("config", {}).items():
            setattr(trainc.config, name, value)
    if door in ("compile", "fuse_step"):
        model, optimizer = trainc.compile(net, optimizer, fuse_step=door == "fuse_step")
    elif door in ("backend", "dynamo"):
        model = torch.compile(net, backend="trainc" if door == "backend" else "eager")

    def body(x, ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=loop["autocast"]):
            loss, outputs = model(x, ids)
        (loss / loop["accumulate"]).backward()
        return loss, outputs

    def whole(x, ids):
        optimizer.zero_grad()
        loss, outputs = body(x, ids)
        if loop["clip"]:
            torch.nn.utils.clip_grad_norm_(net.parameters(), loop["clip"])
        optimizer.step()
        return loss.detach(), [each.detach() for each in outputs]

    step = whole
    if door == "train_step":
        step = trainc.train_step(whole)
    torch.manual_seed(7)
    found = {}
    for turn, rows in enumerate(loop["rows"]):
        x, ids = batch_of(turn, rows)
        if batches:
            x = disturbed(x, batches)
        if loop["whole"]:
            found[f"{turn}: loss and outputs"] = seen(step(x, ids))
        else:
            for part in range(loop["accumulate"]):
                found[f"{turn}.{part}: loss and outputs"] = seen(body(x, ids))
            found[f"{turn}: gradients"] = [seen(p.grad) for p in net.parameters()]
            if loop["clip"]:
                found[f"{turn}: norm"] = seen(torch.nn.utils.clip_grad_norm_(net.parameters(), loop["clip"]))
            optimizer.step()
            optimizer.zero_grad(set_to_none=loop["set_to_none"])
        if scheduler is not None:
            scheduler.step()
        if loop["evaluate"]:
            net.eval()
            with torch.no_grad():
                found[f"{turn}: evaluation"] = seen(model(x, ids))
            net.train()
        found[f"{turn}: batch"] = [x.clone(), ids.clone()]  # forward may write it
        found[f"{turn}: parameters"] = [seen(p) for p in net.parameters()]
        found[f"{turn}: buffers"] = [seen(b) for b in net.buffers()]
        found[f"{turn}: Python"] = copy.deepcopy(
            {key: value for key, value in vars(net).items() if key[0] == "p" and key[1:].isdigit()}
        )
        found[f"{turn}: generator"] = torch.get_rng_state()
    return found


def distance(a, b):
    """The largest relative difference of the tensors in two values; infinite where they differ in any other way."""
    if isinstance(b, torch.Tensor):
        if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return math.inf
        if not b.is_floating_point():
            return 0.0 if torch.equal(a, b) else math.inf
        a, b = a.double(), b.double()
        if not torch.equal(a.isfinite(), b.isfinite()):
            return math.inf
        a, b = a[b.isfinite()], b[b.isfinite()]
        norm = b.norm().item()
        return (a - b).norm().item() / max(norm, 1e-3 * max(1, b.numel()) ** 0.5)
    if isinstance(b, (list, tuple)):
        if not isinstance(a, (list, tuple)) or len(a) != len(b):
            return math.inf
        return max(map(distance, a, b), default=0.0)
    if isinstance(b, dict):
        return distance([a.get(key, "missing") for key in b], list(b.values())) if a.keys() == b.keys() else math.inf
    if isinstance(b, float) and isinstance(a, float):
        return abs(a - b) / max(abs(b), 1.0)
    return 0.0 if type(a) is type(b) and a == b else math.inf


def largest(value):
    """The largest finite magnitude in a value."""
    if isinstance(value, torch.Tensor):
        finite = value[value.isfinite()] if value.is_floating_point() else value.new_empty(0)
        return finite.abs().max().item() if finite.numel() else 0.0
    return max(map(largest, value), default=0.0) if isinstance(value, (list, tuple)) else 0.0


def _dynamo_fails(kind, loop):
    """Whether torch.compile's tracer fails by itself, whatever compiles its graphs."""
    try:
        train(kind, loop, "dynamo")
    except Exception:
        return True
    return False


def _rounding_decides(kind, loop, name, value, found):
    """Whether disturbances in the last bit, of weights and batches or of each operation's result, move eager's own `value` as
    far as what was found, or so far that it says nothing.
    Where the program has bf16, also in its last bit, which f32's does not reach: by themselves as far as what was found."""
    narrow = loop["autocast"] or "bfloat16" in kind.forward.__code__.co_names
    for seed in range(DOUBTS):
        other = train(kind, loop, weights=10 + seed, batches=50 + seed)
        if SHARE * distance(other[name], value) > min(found, CHAOTIC * SHARE):
            return True
        with OtherRounding(seed):
            other = train(kind, loop)
        if SHARE / 4 * distance(other[name], value) > found:
            return True
        if narrow and distance(train(kind, loop, weights=10 + seed, size=2**-9)[name], value) > found / 3:
            return True
    return False


def compare(kind, loop):
    """In what trainc differs from PyTorch: "" where in nothing. Refused where it says that it does not compile this."""
    import trainc

    floor = 5e-2 if loop["autocast"] else FLOOR
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eager = train(kind, loop)
            others = [train(kind, loop, weights=1), train(kind, loop, weights=2), train(kind, loop, batches=3)]
        except Exception as error:
            raise Invalid(str(error)) from error
        try:
            ours = train(kind, loop, loop["door"])
        except trainc.UserError as refused:
            raise Refused(str(refused)) from refused
        except Exception as error:
            if loop["door"] == "backend" and _dynamo_fails(kind, loop):
                raise Invalid(str(error)) from error
            raise
    spread = 0.0
    for name, value in eager.items():
        apart = [distance(other[name], value) for other in others]
        exact = name.endswith(("Python", "generator")) or "batch" in name
        spread = max(spread, *(each for each in apart if math.isfinite(each)), 0.0)
        if spread > CHAOTIC or not all(map(math.isfinite, apart)) or largest(value) > HUGE:
            return ""  # from here on eager's own numbers say nothing
        allowed = 0.0 if exact and min(apart[:2]) == 0 else max(floor, SHARE * spread)
        if (found := distance(ours.get(name), value)) > allowed:
            if allowed and _rounding_decides(kind, loop, name, value, found):
                return ""
            return f"{name}: differs by {found:.1e}, where {allowed:.1e} is allowed"
    return ""
