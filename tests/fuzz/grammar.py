"""Random statements. Each row is a form that variables are put into; whether that runs is found by running it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import encoders
import torch
from program import Program

More = Callable[["list[Variable]", int, int], tuple[str, str]]  # (of __init__, of forward)


@dataclasses.dataclass
class Variable:
    name: str
    values: list[torch.Tensor]  # for each number of rows that the loop has

    @property
    def shape(self) -> torch.Size:
        return self.values[0].shape

    @property
    def is_float(self) -> bool:
        return self.values[0].is_floating_point()


UNARY = (
    "torch.tanh({0})", "F.relu({0})", "F.gelu({0})", "torch.sigmoid({0})", "{0}.clamp(-2, 2).exp()", "{0}.abs().add(1).sqrt()",
    "-{0}", "{0} * 2 - 1", "F.silu({0})", "F.softplus({0})", "{0}.clamp(min=-0.5)", "F.leaky_relu({0}, 0.1)", "{0}.square()",
    "{0}.sin()", "1 / ({0}.abs() + 1)", "{0}.abs().log1p()", "F.dropout({0}, 0.3, self.training)", "{0} + torch.rand_like({0})",
    "{0}.float()", "{0}.double()", "{0}.bfloat16().float()", "{0}.detach() + {0}", "{0}.clone()", "torch.erf({0})",
    "F.elu({0})", "{0}.round() + {0}", "torch.where({0} > 0, {0}, 0.1 * {0})", "{0}.masked_fill({0} > 1, 0.5)",
    "{0} * {0}.new_tensor([0.5])", "torch.zeros_like({0}) + {0}", "{0}.contiguous()", "F.hardswish({0})", "{0}.sign() * {0}",
    "{0}.detach()", "F.dropout({0}, 0.3, False)", "F.dropout({0}, 0.0)",
)  # fmt: skip
REDUCED = (
    "{0}.sum({1})", "{0}.mean({1}, keepdim=True)", "{0}.amax({1})", "{0}.softmax({1})", "{0}.log_softmax({1})", "{0}.cumsum({1})",
    "{0}.logsumexp({1})", "{0}.var({1}, unbiased=False)", "{0}.norm(dim={1}) + 1", "{0}.sort({1})[0]", "{0}.max({1})[0]",
    "{0}.argmax({1})", "{0}.flip({1})", "{0}.roll(1, {1})", "{0}.unsqueeze({1})", "{0}.narrow({1}, 0, 2)", "{0}.topk(2, {1})[0]",
    "F.normalize({0}, dim={1})", "{0}.select({1}, -1)", "{0}.cumsum({1}).flip({1})", "{0}.diff(dim={1})",
    "{0}.repeat_interleave(2, {1})",
)  # fmt: skip
VIEWS = (
    "{0}.t()", "{0}[..., ::2]", "{0}[:, 1:]", "{0}[1:]", "{0}.reshape(-1)", "{0}.transpose(0, -1)", "{0}.chunk(2, -1)[0]",
    "{0}.split(2, -1)[-1]", "{0}.unbind(-1)[0]", "{0}.view({0}.shape[0], -1)", "{0}.unsqueeze(0).expand(2, *{0}.shape)",
    "{0}.unfold(-1, 2, 1)", "{0}.diagonal()", "{0}.flatten()", "{0}[..., None]", "{0}[0]", "{0}.permute(*range({0}.dim())[::-1])",
    "torch.stack([{0}, {0} * 2])", "torch.cat([{0}, {0}.detach()], -1)", "F.pad({0}, (1, 1))", "{0}.as_strided((2, 2), (1, 2))",
    "{0}.movedim(0, -1)", "{0}.repeat(1, 2)", "torch.tril({0})",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} * {1}", "{0} - {1}", "{0} / ({1}.abs() + 1)", "torch.maximum({0}, {1})", "torch.where({0} > {1}, {0}, {1})",
    "torch.addcmul({0}, {0}, {1}, value=0.5)", "{0}.lerp({1}, 0.3)", "{0} @ {1}", "{0} @ {1}.transpose(-1, -2)",
    "torch.einsum('i...,j...->ij', {0}, {1})", "torch.atan2({0}, {1}.abs() + 1)", "F.mse_loss({0}, {1}, reduction='none')",
    "F.smooth_l1_loss({0}, {1})", "torch.cat([{0}, {1}], 0)", "torch.outer({0}.flatten()[:3], {1}.flatten()[:4])",
)  # fmt: skip
LAYERS = (  # of a variable whose last size is {1}
    ("self.{2} = nn.Linear({1}, 5)", "self.{2}({0})"),
    ("self.{2} = nn.LayerNorm({1})", "self.{2}({0})"),
    ("self.{2} = nn.Parameter(torch.randn({1}) * 0.5)", "{0} * self.{2}"),
    ("self.{2} = nn.Parameter(torch.randn({1}, 3) * 0.5)", "{0} @ self.{2}"),
    ("self.{2} = nn.BatchNorm1d({1})", "self.{2}({0})"),
    ("self.{2} = nn.GRU({1}, 3, batch_first=True)", "self.{2}({0})[0]"),
    ("self.{2} = nn.Conv1d({1}, 4, 1)", "self.{2}({0}.transpose(-1, -2)).transpose(-1, -2)"),
    ("self.{2} = nn.Sequential(nn.Linear({1}, 4), nn.Dropout(0.2), nn.Tanh())", "self.{2}({0})"),
    ("self.register_buffer('{2}', torch.ones({1}))", "{0} + self.{2}"),
    ("self.{2} = nn.Linear({1}, {1})\nself.{2}.bias.requires_grad_(False)", "self.{2}({0})"),
)
OF_IDS = (
    ("self.{1} = nn.Embedding(7, 5)", "self.{1}({0} % 7)"),
    ("self.{1} = nn.Embedding(8, 4, padding_idx=0)", "self.{1}({0} % 7).sum(-2)"),
    ("", "F.one_hot({0} % 7, 7).float()"),
    ("", "({0} % 3 == 0).float()"),
    ("self.{1} = nn.Parameter(torch.randn(7))", "self.{1}[{0} % 7]"),
    ("self.{1} = nn.EmbeddingBag(7, 3)", "self.{1}({0} % 7)"),
)
EFFECTS = (  # {0}: a float variable, {1}: a name of its own
    ("", "{1} = {0}.clone()\n{1}.mul_(0.5)"),
    ("", "{1} = {0} * 1\n{1}[0] = {1}[-1] * 2"),
    ("", "{1} = {0} * 1\n{1}[..., 0].add_(1)"),
    ("", "{1} = {0} + 0\n{1}.view(-1)[:1].zero_()"),
    ("", "{1} = torch.zeros_like({0})\n{1}.copy_({0})\n{1} += 1"),
    ("", "with torch.no_grad():\n    {1} = {0} * 3"),
    ("", "{1} = torch.utils.checkpoint.checkpoint(lambda t: t.tanh() * t, {0}, use_reentrant=False)"),
    ("self.register_buffer('b_{1}', torch.zeros(()))", "self.b_{1}.add_({0}.detach().mean())\n{1} = {0} + self.b_{1}"),
    (
        "self.register_buffer('b_{1}', torch.zeros(3))",
        "self.b_{1} = self.b_{1} * 0.9 + {0}.detach().mean()\n{1} = {0} * self.b_{1}.sum()",
    ),
    ("self.p{2} = 0", "self.p{2} += 1\n{1} = {0} * (2 if self.p{2} % 2 else 1)"),
    ("self.p{2} = []", "self.p{2}.append(len(self.p{2}))\n{1} = {0} + 1"),
    ("self.p{2} = 0.5", "{1} = {0} * self.p{2}"),
    ("", "{1} = {0} * 2 if self.training else {0}"),
    ("", "{1} = {0} if x.shape[0] > 3 else {0} * 0.5"),
    ("", "{1} = {0}\nfor i in range(3):\n    {1} = {1} * 0.5 + i"),
    ("", "with torch.autocast('cpu', torch.bfloat16):\n    {1} = ({0} @ {0}.transpose(-1, -2)).float()"),
    ("", "{1} = torch.zeros(7).scatter_add(0, ids[:, 0], {0}.flatten()[:1].expand(ids.shape[0]))"),
    ("", "{1} = F.cross_entropy({0}.flatten(1)[:, :4], ids[:, 0] % 4, reduction='none')"),
    ("", "{1} = {0}.index_select(0, ids[:2, 0] % {0}.shape[0])"),
    ("", "{1} = {0}.gather(0, torch.zeros_like({0}, dtype=torch.int64))"),
    ("", "{1} = {0}.index_put((torch.tensor([0]),), {0}.new_tensor(0.5), accumulate=True)"),
    ("", "x.add_(0.0)\n{1} = {0} + x.sum()"),
)  # fmt: skip
# Memory that is looked at in several ways, one of them written; dropout then draws in the order in which it lies.
WRITES = (
    ("", "{1} = F.dropout({0} * 1, 0.5, False)\n{1}.mul_(0.5)"),
    ("", "t = {0} * 1\n{1} = F.dropout(t, 0.0)\nt.add_(1)"),
    ("", "{1} = {0} * 1\n{1}.transpose(0, -1).masked_fill_({1}.transpose(0, -1) > 0, 0.5)"),
    ("", "{1} = F.dropout(({0} * 1).transpose(0, -1).clamp_(-1, 1), 0.3, self.training)"),
    ("", "{1} = {0} * 1\nF.relu({1}.transpose(0, -1), inplace=True)"),
    ("", "{1} = {0} * 1\n{1}.unfold(-1, 2, 2).mul_(0.5)"),
    ("", "{1} = {0} * 1\n{1}.as_strided(({0}.numel(),), (1,)).add_(1)"),
    ("", "{1} = {0} * 1\n{1}[1:].copy_({1}[:-1].clone())"),
    ("", "{1} = {0} + torch.empty_like({0}.transpose(0, -1)).normal_().transpose(0, -1)"),
    ("", "{1} = torch.empty_like({0}.transpose(0, -1)).bernoulli_(0.5) * {0}.transpose(0, -1)"),
    ("", "t = {0}.detach().clone()\n{1} = t[..., :2]\nt.mul_(2)"),
    ("", "{1} = {0}.detach().clone()\ntorch._foreach_mul_([{1}, {1}[..., :1]], 0.5)"),
    ("", "{1} = {0}.detach().clone()\ntorch._foreach_add_([{1}, {1}], [{1}, {1}])"),
    ("", "{1} = torch.empty_like({0}.detach())\ntorch.mul({0}.detach(), 2, out={1})"),
    ("", "with torch.no_grad():\n    t = {0}.clone()\n    {1} = t[:1]\n    t.add_(1)"),
    ("", "t, {1} = ({0} * 1).unsafe_chunk(2, -1)"),
    ("", "t, {1} = ({0} * 1).chunk(2, -1)\nt.mul_(2)"),
)  # fmt: skip


def loop_of(rng: random.Random) -> dict[str, Any]:
    whole = rng.random() < 0.4
    door = (
        rng.choice(["compile", "compile", "backend", "fuse_step", "train_step"])
        if whole
        else rng.choice(["compile", "compile", "backend"])
    )
    optimizer, settings = rng.choice([
        ("SGD", {"lr": 0.05}), ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}), ("Adam", {"lr": 1e-2}),
        ("AdamW", {"lr": 1e-2, "weight_decay": 0.1}), ("RMSprop", {"lr": 1e-2}), ("Adagrad", {"lr": 1e-2}),
        ("NAdam", {"lr": 1e-2}),
    ])  # fmt: skip
    return {
        "seed": rng.randrange(1000), "rows": [rng.choice([3, 5]) for _ in range(3)] if rng.random() < 0.5 else [3, 3, 3],
        "door": door, "whole": whole or door in ("train_step", "fuse_step"), "optimizer": optimizer, "settings": settings,
        "accumulate": 1 if whole else rng.choice([1, 1, 2]), "clip": rng.choice([None, None, 1.0]),
        "set_to_none": rng.random() < 0.8, "scheduler": rng.random() < 0.2, "evaluate": rng.random() < 0.3,
        "autocast": rng.random() < 0.15,
    }  # fmt: skip


def statement(rng: random.Random, pool: list[Variable], number: int) -> tuple[str, str]:
    """(of __init__, of forward); it gives the variable of this number."""
    name = f"v{number}"
    floats = [v for v in pool if v.is_float]
    one, two = rng.choice(floats[-4:]), rng.choice(floats)
    kind = rng.random()
    if kind < 0.25:
        return "", f"{name} = {rng.choice(UNARY).format(one.name)}"
    if kind < 0.38:
        return "", f"{name} = {rng.choice(REDUCED).format(one.name, rng.randrange(-1, max(1, len(one.shape))))}"
    if kind < 0.53:
        return "", f"{name} = {rng.choice(VIEWS).format(one.name)}"
    if kind < 0.67:
        return "", f"{name} = {rng.choice(BINARY).format(one.name, two.name)}"
    if kind < 0.8 and one.shape:
        made, used = rng.choice(LAYERS)
        words = one.name, one.shape[-1], f"m{number}"
        return made.format(*words), f"{name} = {used.format(*words)}"
    if kind < 0.85:
        made, used = rng.choice(OF_IDS)
        return made.format("ids", f"m{number}"), f"{name} = {used.format('ids', f'm{number}')}"
    made, used = rng.choice(EFFECTS if kind < 0.94 else WRITES)
    words = one.name, name, number
    return made.format(*words), used.format(*words)


def variables(program: Program) -> list[Variable] | None:
    """What the forward has at its end, for each number of rows; None where it does not run, or numbers run away."""
    from judge import batch_of

    probe = Program(program.seed, program.init, (*program.forward, "self.__dict__['found'] = dict(locals())"), (), program.loop)
    spaces = []
    try:
        for rows in sorted(set(program.loop["rows"])):
            torch.manual_seed(program.loop["seed"])
            net = probe.module()()
            net(*batch_of(0, rows))
            spaces.append(net.found)
    except Exception:
        return None
    found = []
    for name in [name for name in spaces[0] if name == "x" or name[0] == "v"]:
        values = [space[name] for space in spaces]
        if not isinstance(values[0], torch.Tensor) or values[0].numel() > 4000:
            return None
        if values[0].is_floating_point() and not all(
            v.isfinite().all() and (v.numel() == 0 or v.abs().max() < 100) for v in values
        ):
            return None
        found.append(Variable(name, values))
    return found


def grown(program: Program, wanted: int, tries: int, more: More) -> tuple[Program, list[Variable]]:
    """With up to so many statements in its forward, of those that `more(variables, statements, turn)` gives; its variables."""
    pool = variables(program) or []
    for turn in range(1, tries + 1):
        if len(program.forward) >= wanted:
            break
        made, used = more(pool, len(program.forward), turn)
        longer = dataclasses.replace(program, init=(*program.init, *filter(None, [made])), forward=(*program.forward, used))
        if (found := variables(longer)) is not None:
            program, pool = longer, found
    return program, pool


def program_of(seed: int) -> Program:
    rng = random.Random(seed)
    program = Program(seed, (), (), (), loop_of(rng))
    program, pool = grown(program, rng.randrange(4, 16), 80, lambda pool, at, turn: statement(rng, pool, at))
    learns = [v for v in pool if v.is_float and v.name != "x"]
    names = {v.name for v in learns[-1:]} | {v.name for v in pool[1:] if rng.random() < 0.25}
    outputs = tuple(v.name for v in pool if v.name in names)
    init = ("self.w = nn.Parameter(torch.tensor(0.5))", *program.init)
    last = ("w = self.w * x.sum()",) if rng.random() < 0.9 else ()
    return dataclasses.replace(
        program, init=init, forward=(*program.forward, *last), outputs=(*outputs, *(["w"] if last else []))
    )


def encoder_of(seed: int) -> Program:
    """Over batches with padding, of which any number of operations may pass over rows."""
    rng = random.Random(seed)
    loop = {**loop_of(rng), "config": {"skip_padding": True, "skip_hidden_flops": 1}}
    if loop["whole"]:
        loop["door"] = rng.choice(encoders.DOORS)
    init, forward = encoders.start(rng)
    program = Program(seed, init, forward, (), loop)

    def tokens(pool: list[Variable]) -> list[str]:
        return [v.name for v in pool if v.is_float and v.shape[1:] == (encoders.TOKENS, encoders.WIDTH)]

    program, pool = grown(
        program, len(forward) + rng.randrange(2, 12), 40, lambda pool, at, turn: encoders.statement(rng, tokens(pool), turn)
    )
    made, used = encoders.last(rng, tokens(pool)[-1])
    others = [v.name for v in pool[1:] if v.is_float and (len(v.shape) < 3 or rng.random() < 0.02)]
    return dataclasses.replace(
        program,
        init=(*program.init, *filter(None, [made])),
        forward=(*program.forward, used),
        outputs=(*[name for name in others if rng.random() < 0.5], "vz"),
    )


__all__ = ["encoder_of", "program_of", "variables"]
