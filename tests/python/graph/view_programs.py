"""Random programs of views and writes: views of views, some made without gradients, detached ones, parts whose schemas deny that
they are parts, windows, `as_strided`, views of an autograd.Function; written in place; some returned beside what they lie in.
What a caller can see of them is compared: values, strides, which tensors share memory and where in it, whether they want a
gradient, gradients, and what was written to arguments.

    python tests/python/graph/view_programs.py FROM TO [compile|backend]    # seeds; prints programs that differ, made smaller
"""

from __future__ import annotations

import random
import sys
import warnings

import torch
from torch import nn

import trainc
from trainc.base.errors import InternalError, NotCompiled, SideEffect, UserError


class Doubled(torch.autograd.Function):
    """A view whose gradient is not that of the view."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


CONTEXTS = ["", "", "", "", "with torch.no_grad(): ", "with torch.no_grad(): ", "with torch.enable_grad(): "]


def view_of(rng: random.Random, name: str, value: torch.Tensor) -> str:
    """An expression that gives a view of `name`."""
    dims = value.dim()
    kinds = ["detach()", "view_as({0})", "flatten()", "unsqueeze(0)", "expand(2, *{0}.shape)", "reshape(-1)", "data", "squeeze()"]
    if dims:
        d, e = rng.randrange(dims), rng.randrange(dims)
        size = value.shape[d]
        i, step, length = rng.randrange(max(1, size)), rng.randint(1, 2), rng.randint(1, max(1, size))
        kinds += [
            f"transpose({d}, {e})", f"transpose({d}, {e})", f"select({d}, {i})", f"narrow({d}, {i}, {size - i})",
            f"unfold({d}, {length}, {step})", f"diagonal(0, {d}, {e})", f"unbind({d})[{i}]", f"chunk(2, {d})[0]",
            f"unsafe_chunk(2, {d})[0]", f"unsafe_chunk(2, {d})[-1]", f"unsafe_split({max(1, size - 1)}, {d})[0]",
            f"split({max(1, size // 2)}, {d})[-1]",
        ]  # fmt: skip
        sizes = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))]
        strides = [rng.choice([0, 1, 1, 2, 3]) for _ in sizes]
        place = value.storage_offset() + rng.randint(-1, 2)
        kinds += [f"as_strided({sizes}, {strides})", f"as_strided({sizes}, {strides}, {max(0, place)})"]
    kinds = [f"{{0}}.{kind}" for kind in kinds] + ["Doubled.apply({0})"]
    if dims:
        kinds += [f"{{0}}[{i}:]", f"{{0}}[::{step}]"]
    return rng.choice(kinds).format(name)


WRITES = [
    "{0}.add_(1)", "{0}.mul_(2)", "{0}.zero_()", "{0}.sin_()", "{0}.copy_({1})", "{0}.add_({1})", "{0}.masked_fill_({0} > 0, 3)",
    "{0}.detach().mul_(3)", "{0}.data.add_(2)",
]  # fmt: skip
# Of which many are refused: what reads its own writes, calls with lists, turns in place.
RARE_WRITES = [
    "{0}[1:].copy_({0}[:-1])", "{0}[..., 1:].add_({0}[..., :-1])", "{0}.add_({0}.mT)", "torch._foreach_mul_([{0}], 2)",
    "torch._foreach_add_([{0}, {1}], [{1}, {0}])", "{0}.t_()", "{0}.unsqueeze_(0)", "{0}.squeeze_()", "{0}.transpose_(0, -1)",
]  # fmt: skip
VALUES = ["{0} * 2", "{0}.sin()", "{0} + {1}", "{0}.sum(0)", "{0}.clone()"]


class Program(nn.Module):
    """`lines`: of forward; `results`: names of what it gives."""

    def __init__(self, lines: list[str], results: list[str]):
        super().__init__()
        self.lines, self.results = lines, results
        self.w = nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6))
        self.register_buffer("b", torch.linspace(0, 2, 24).reshape(4, 6))
        space = {"torch": torch, "Doubled": Doubled}
        exec(compile(self.text(), "<program>", "exec"), space)
        self.run = space["forward"]

    def text(self) -> str:
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def forward(self, x, z):\n    w, b = self.w, self.b\n{body}    return [{', '.join(self.results)}]\n"

    def forward(self, x, z):
        return self.run(self, x, z)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    """Data, and what the second argument is made of."""
    return torch.linspace(-2, 2, 24).reshape(4, 6), torch.linspace(1, 3, 24).reshape(4, 6).requires_grad_()


def random_program(seed: int) -> Program | None:
    rng = random.Random(seed)
    x, leaf = arguments()
    module = Program([], [])
    space = {"torch": torch, "Doubled": Doubled, "x": x, "z": leaf * 1, "w": module.w, "b": module.b}
    names, lines = ["x", "z", "w", "b"], []

    def add(line: str, name: str | None = None) -> bool:
        try:
            exec(line, space)
        except (RuntimeError, IndexError, TypeError):
            return False
        if name is not None:
            value = space[name]
            if not value.numel() or value.numel() > 200 or value.dim() > 4:
                return False
            names.append(name)
        lines.append(line)
        return True

    start = rng.choice(["x * w", "z.sin()", "z * w", "x * 1", "w * 1"])
    add(f"v0 = {start}", "v0")
    for _ in range(rng.randint(2, 8)):
        favourite = names[-1] if rng.random() < 0.5 else rng.choice(names)
        other, new = rng.choice(names), f"v{len(names)}"
        kind, context = rng.random(), rng.choice(CONTEXTS)
        if kind < 0.62:
            add(f"{context}{new} = {view_of(rng, favourite, space[favourite])}", new)
        elif kind < 0.87:
            add(context + rng.choice(WRITES if rng.random() < 0.9 else RARE_WRITES).format(favourite, other))
        else:
            add(f"{context}{new} = {rng.choice(VALUES).format(favourite, other)}", new)
    made = names[4:]
    if not made:
        return None
    results = [rng.choice(made) for _ in range(rng.randint(1, 2))] + [rng.choice(names) for _ in range(rng.randint(0, 2))]
    rng.shuffle(results)
    return Program(lines, results)


def seen(program: Program, door=None, only: int | None = None) -> list[tuple]:
    """What a caller sees of two calls. `only`: the loss has this result alone."""
    program = Program(program.lines, program.results)
    call, found = (program if door is None else door(program)), []
    for _ in range(2):
        x, leaf = arguments()
        program.w.grad = None
        z = leaf * 1
        results = call(x, z)
        wants = [r.requires_grad for r in results]
        loss = [(r * torch.arange(1.0, 1 + r.numel()).reshape(r.shape)).sum() for r in results if r.requires_grad]
        if only is not None and loss:
            loss = [loss[only % len(loss)]]
        if loss and sum(loss).requires_grad:
            sum(loss).backward()
        everything = [x, z, program.w, program.b, *results]
        places: dict[int, int] = {}
        memory = []
        for t in everything:
            first = places.setdefault(t.untyped_storage().data_ptr(), t.data_ptr())
            memory.append((list(places).index(t.untyped_storage().data_ptr()), t.data_ptr() - first))
        strides = [[step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in everything]
        values = [t.detach().clone() for t in everything]
        found.append((values, wants, memory, strides, [leaf.grad, program.w.grad]))
    return found


REFUSALS = (InternalError, NotCompiled, SideEffect, UserError)
WHAT = ["values", "whether results want gradients", "shared memory", "strides", "gradients"]


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a, b, 1e-5, 1e-5, equal_nan=True)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def difference(program: Program, door, only: int | None = None) -> str | None:
    """What differs from eager, of what a caller sees; None also where either refuses the program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = seen(program, None, only)
        except RuntimeError:
            return None
        torch._dynamo.reset()
        try:
            got = seen(program, door, only)
        except Exception as error:
            cause = getattr(error, "inner_exception", error)  # of Dynamo's BackendCompilerFailed
            # (a trace makes the gradients of all results)
            if isinstance(cause, REFUSALS) or "modified by an inplace operation" in str(error):
                return "refused"
            return f"error: {type(error).__name__}: {str(cause).strip().partition(chr(10))[0]}"
    for a, b in zip(got, wanted, strict=True):
        for what, mine, theirs in zip(WHAT, a, b, strict=True):
            if not equal(mine, theirs):
                return what
    return None


def by_dynamo(module):
    return torch.compile(module, backend="eager")


def shrunk(program: Program, door, what: str, only: int | None) -> Program:
    """The same difference, of fewer lines and results."""

    def still(other: Program) -> bool:
        try:
            return difference(other, door, only) == what
        except Exception:
            return False

    progress = True
    while progress:
        progress = False
        for kind in ("lines", "results"):
            parts = getattr(program, kind)
            for i in range(len(parts)):
                fewer = {"lines": program.lines, "results": program.results, kind: parts[:i] + parts[i + 1 :]}
                if fewer["results"] and still(other := Program(**fewer)):
                    program, progress = other, True
                    break
    return program


def main() -> None:
    begin, end, *asked = sys.argv[1:]
    torch.set_num_threads(1)
    trainc.config.fallback = False
    doors = {"compile": trainc.compile, "backend": lambda module: torch.compile(module, backend="trainc")}
    told: dict[str, int] = {}
    for seed in range(int(begin), int(end)):
        program = random_program(seed)
        if program is None:
            continue
        only = seed // 3 if seed % 3 == 0 else None
        for name in asked or doors:
            what = difference(program, doors[name], only)
            kind = "same" if what is None else what.split(":")[0]
            told[f"{name} {kind}"] = told.get(f"{name} {kind}", 0) + 1
            if what in (None, "refused") or (name == "backend" and difference(program, by_dynamo, only) == what):
                continue
            print(f"seed {seed}, {name}: {what} (loss of {only})\n{shrunk(program, doors[name], what, only).text()}", flush=True)
        if seed % 100 == 0:
            print(seed, told, flush=True)
    print(told)


if __name__ == "__main__":
    main()
