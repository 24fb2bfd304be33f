"""What a program does, and in what two runs of it differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

Tensor = torch.Tensor
# Operations whose results hold whatever was in memory: nothing is asked of their values.
UNINITIALISED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)
# Their zeros have no sign of their own: eager's vector kernels give 0.0, and -0.0 in the rest that fills no vector.
UNSIGNED = ("nn.functional.softshrink", "Softshrink")
ZERO = "signs of zero"


@dataclass
class Observed:
    structure: str = ""  # of what came back, with the types of containers, and values that are no tensors
    outputs: list[Tensor] = field(default_factory=list)
    aliases: list[Any] = field(default_factory=list)  # by output: which tensors' memory it lies in, and where
    gradients: list[Tensor | None] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)  # as they are afterwards
    buffers: dict[str, Tensor] = field(default_factory=dict)
    generator: Tensor | None = None  # what it gives afterwards
    drew: bool = False
    error: Exception | None = None
    where: str = "forward"


def run(
    call: Callable[..., Any], module: torch.nn.Module, args: tuple, kwargs: dict, tangents: torch.dtype | None = None
) -> Observed:
    """One forward, and one backward of everything that has a gradient. `tangents`: their type, where it is not the outputs'."""
    o = Observed()
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    try:
        result = call(*args, **kwargs)
        leaves, spec = tree_flatten(result)
        o.outputs = [x for x in leaves if isinstance(x, Tensor)]
        o.structure = str(tree_unflatten([_leaf(x) for x in leaves], spec))
        o.aliases = [_alias(x, given, o.outputs[:i]) for i, x in enumerate(o.outputs)]
        o.where = "backward"
        wanted = [x for x in (*given, *module.parameters()) if x.requires_grad]
        made = [x for x in o.outputs if x.requires_grad]
        if wanted and made:
            o.gradients = list(
                torch.autograd.grad(made, wanted, [_tangent(x, tangents) for x in made], allow_unused=True)
            )
    except Exception as error:
        o.error = error
    o.inputs, o.buffers = given, {name: b.clone() for name, b in module.named_buffers()}
    o.drew = not torch.equal(before, torch.get_rng_state())
    o.generator = _next_numbers()
    return o


def _next_numbers() -> Tensor:
    after = torch.get_rng_state()  # two states may differ as bytes and mean the same
    numbers = torch.cat([torch.rand(3), torch.randn(20), torch.rand(3)])
    torch.set_rng_state(after)
    return numbers


def _leaf(x: Any) -> Any:
    if isinstance(x, Tensor):
        return "T"
    return (
        f"{type(x).__name__} {x!r}"
        if isinstance(x, (bool, int, float, complex, str, torch.dtype, type(None)))
        else type(x).__name__
    )


def _tangent(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    numbers = torch.linspace(-1, 1.5, x.numel() or 1, dtype=torch.float64)[: x.numel()].reshape(x.shape)
    given = x.dtype if dtype is None or x.dtype.is_complex else dtype
    numbers = numbers.to(given).to(x.dtype)
    return numbers if x.layout is torch.strided else numbers.to_sparse(layout=x.layout)


def _storage(x: Tensor) -> int | None:
    return x.untyped_storage()._cdata if x.layout is torch.strided and x.numel() else None


def _alias(x: Tensor, given: list[Tensor], before: list[Tensor]) -> Any:
    if _storage(x) is None:
        return None
    found = [("input", i, x is y) for i, y in enumerate(given) if _storage(y) == _storage(x)]
    found += [("output", i, x is y) for i, y in enumerate(before) if _storage(y) == _storage(x)]
    return (found, x.storage_offset() if found else 0)


# ---- differences ------------------------------------------------------------------------------------------------------


def differences(got: Observed, want: Observed, truth: Observed | None, values: bool = True) -> list[str]:
    """In what `got` is not `want`, eager's own; numbers by the distance of both from `truth`."""
    if want.error is not None or got.error is not None:
        return _errors(got, want)
    found = []
    if got.structure != want.structure:
        found.append(f"result: {got.structure} for {want.structure}")
    pairs = [("output", got.outputs, want.outputs, truth and truth.outputs)]
    pairs += [("gradient", got.gradients, want.gradients, truth and truth.gradients)]
    pairs += [("input afterwards", got.inputs, want.inputs, truth and truth.inputs)]
    pairs += [
        ("buffer", list(got.buffers.values()), list(want.buffers.values()), truth and list(truth.buffers.values()))
    ]
    for what, gots, wants, truths in pairs:
        if len(gots) != len(wants):
            found.append(f"{what}s: {len(gots)} for {len(wants)}")
            continue
        for i, (g, w) in enumerate(zip(gots, wants, strict=True)):
            t = truths[i] if truths and len(truths) == len(wants) else None
            found += [f"{what} {i}: {d}" for d in tensor_differences(g, w, t, strides=what == "output", values=values)]
    for i, (g, w) in enumerate(zip(got.aliases, want.aliases, strict=False)):
        if g != w and not (i < len(want.outputs) and want.outputs[i].numel() == 0):
            found.append(f"output {i}: alias {g} for {w}")
    if want.generator is not None and not torch.equal(got.generator, want.generator):
        found.append("generator: it goes on with other numbers")
    return found


def _errors(got: Observed, want: Observed) -> list[str]:
    if want.error is None:
        return [
            f"error: {type(got.error).__name__} in {got.where} where eager has none: {str(got.error).splitlines()[:1]}"
        ]
    if got.error is None:
        return [
            f"error: none where eager raises {type(want.error).__name__} in {want.where}: {str(want.error).splitlines()[:1]}"
        ]
    if not isinstance(got.error, type(want.error)):
        named = [f"{type(error).__name__} ({str(error).splitlines()[:1]})" for error in (got.error, want.error)]
        return [f"error: {' for '.join(named)}"]
    return []


def tensor_differences(
    g: Tensor | None, w: Tensor | None, t: Tensor | None, strides: bool = False, values: bool = True
) -> list[str]:
    if g is None or w is None:
        return [] if g is w else [f"{'None' if g is None else 'a tensor'} for {'None' if w is None else 'a tensor'}"]
    found = []
    if g.dtype != w.dtype or g.layout != w.layout:
        return [f"dtype {g.dtype} {g.layout} for {w.dtype} {w.layout}"]
    if g.shape != w.shape:
        return [f"shape {list(g.shape)} for {list(w.shape)}"]
    if g.requires_grad != w.requires_grad:
        found.append(f"requires_grad {g.requires_grad}")
    if strides and w.layout is torch.strided and w.numel() > 0 and _strides(g) != _strides(w):
        found.append(f"strides {list(g.stride())} for {list(w.stride())} of {list(w.shape)}")
    if values:
        found += _values(_plain(g), _plain(w), None if t is None or t.shape != w.shape else _plain(t))
    return found


def _strides(x: Tensor) -> list[int]:
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n != 1]


def _plain(x: Tensor) -> Tensor:
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.is_quantized:
        x = x.dequantize()
    x = x.resolve_conj().resolve_neg()
    return torch.view_as_real(x) if x.dtype.is_complex else x


ULPS, SLACK = (
    8,
    4,
)  # in units of the type's epsilon: of each element, and of the largest, where no truth tells what eager's error is


def _values(g: Tensor, w: Tensor, t: Tensor | None) -> list[str]:
    if w.numel() == 0:
        return []
    if not w.dtype.is_floating_point:
        wrong = g != w
        return [f"values: {int(wrong.sum())} of {w.numel()} differ"] if wrong.any() else []
    if torch.equal(torch.nan_to_num(g), torch.nan_to_num(w)) and torch.equal(g.isnan(), w.isnan()):
        return _signs(g, w)
    eps = torch.finfo(w.dtype).eps
    tiny = 4 * torch.finfo(w.dtype).smallest_normal
    if t is None or not t.dtype.is_floating_point or w.dtype == torch.float64:
        t, slack = w.double(), SLACK * (16 if w.dtype == torch.float64 else 4)
    else:
        t, slack = t.double(), SLACK
    g, w = g.double(), w.double()
    special = ~w.isfinite() | ~t.isfinite()
    if not torch.equal(g[special].nan_to_num(), w[special].nan_to_num()) or not torch.equal(
        g.isnan()[special], w.isnan()[special]
    ):
        return [
            f"values: not finite where eager is, or the reverse ({int((g.isfinite() != w.isfinite()).sum())} elements)"
        ]
    if not g[~special].isfinite().all():
        return ["values: not finite where eager is"]
    g, w, t = g[~special], w[~special], t[~special]
    if not g.numel():
        return []
    own = (w - t).abs().max()
    bound = 2 * own + ULPS * eps * t.abs() + slack * eps * t.abs().max() + tiny
    times = ((g - t).abs() / bound).max()
    if times > 1:
        worst = int(((g - t).abs() / bound).argmax())
        numbers = f"{float(g[worst]):.9g} for {float(w[worst]):.9g}, true {float(t[worst]):.9g}"
        return [f"values: {float(times):.3g} times the bound; {numbers}"]
    return []


def _signs(g: Tensor, w: Tensor) -> list[str]:
    wrong = (g == 0) & (w == 0) & (torch.signbit(g) != torch.signbit(w))
    return [f"{ZERO}: {int(wrong.sum())} of {w.numel()}"] if wrong.any() else []
