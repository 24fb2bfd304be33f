"""Every row of the ATen table against eager: the imported graph in the reference (rounded, and in fp64), and compiled."""

from __future__ import annotations

import json

import pytest
import torch
from op_cases import CASES, Case, aten, random_convolution
from op_checks import assert_near, eager, graph_json, leaves, traced
from plans import compiled_text
from torch.fx.experimental.proxy_tensor import make_fx

from trainc import _core
from trainc.torch.graph import wire

EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def to_numpy(x: torch.Tensor):
    return x.detach().to(torch.float64).numpy() if x.dtype.is_floating_point else x.numpy()


def call(target: str, arguments: str, inputs: list) -> list:
    """An extern of the reference, run by eager."""
    spec = json.loads(arguments)
    tensors = [torch.from_numpy(x.copy()).to(torch.float32 if x.dtype.kind == "f" else None) for x in inputs]
    args = wire.parse_argument(spec["args"], tensors)
    kwargs = {key: wire.parse_argument(arg, tensors) for key, arg in spec["kwargs"].items()}
    _, name, overload = target.split(".")
    return [to_numpy(out) for out in leaves(getattr(getattr(aten, name), overload)(*args, **kwargs))]


def evaluate(case: Case, precision: str) -> list[torch.Tensor]:
    masks = []
    if case.masks:
        masks = [to_numpy(m.contiguous()) for m in case.masks(eager(case, case.tensors()))]
    results = _core.evaluate(graph_json(case), [to_numpy(x) for x in case.tensors()], precision, masks, call)
    return [torch.from_numpy(r.copy()) for r in results]


@pytest.mark.sampled(4)
@EACH
def test_rounded(case: Case) -> None:
    for i, (got, want) in enumerate(zip(evaluate(case, "rounded"), eager(case, case.tensors()), strict=True)):
        assert_near(got, want, case.ulps, case.slack, f"result {i}")


WIDE = [c for c in CASES if c.truth and not c.extern and all(s.dtype != torch.bfloat16 for s in c.inputs)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)
def test_truth(case: Case) -> None:
    """In fp64 both are the same formula; what is left is the constants, which the graph holds in f32."""
    wide = [x.double() if x.dtype == torch.float32 else x for x in case.tensors()]
    for i, (got, want) in enumerate(zip(evaluate(case, "truth"), eager(case, wide), strict=True)):
        assert_near(got, want, 1e9, 1e9, f"result {i}")  # x 2.2e-16: 2e-7


def test_convolutions_of_any_form() -> None:
    for case in map(random_convolution, range(40)):
        assert " extern " not in _core.import_text(graph_json(case)), case.name
        wide = [x.double() for x in case.tensors()]
        for i, (got, want) in enumerate(zip(evaluate(case, "truth"), eager(case, wide), strict=True)):
            assert_near(got, want, 1e4, 1e4, f"{case.name}, result {i}")


@pytest.mark.sampled(4)
@EACH
def test_compiled(case: Case) -> None:
    executable = compiled_text(graph_json(case), case.name)
    torch.manual_seed(7)
    got = executable(case.tensors())
    want = eager(case, case.tensors())
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.dtype == w.dtype
        # Vector exp, tanh, ... are one or two units from eager's.
        assert_near(g, w, case.ulps + 4, case.slack + 2, f"result {i}")


@pytest.mark.sampled(4)
@EACH
def test_extern_only_where_expected(case: Case) -> None:
    assert (" extern " in _core.import_text(graph_json(case))) == case.extern


def is_decomposed(target: str) -> bool:
    """PyTorch's own dispatch takes the operation apart before a graph is made; the row is there for graphs of other makers."""
    name = target.removesuffix(".default").replace("aten.", "aten::")
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


@pytest.mark.thorough
def test_every_row_has_a_case() -> None:
    called = {wire.target_name(node.target) for case in CASES for node in traced(case).graph.nodes if node.op == "call_function"}
    missing = set(_core.supported_operations()) - called
    assert {target for target in missing if not is_decomposed(target)} == set()


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("compiled", [False, True], ids=["reference", "compiled"])
@pytest.mark.parametrize("index", [[0, 3], [-4, 0]], ids=["above", "below"])
def test_an_index_out_of_bounds_raises(compiled: bool, index: list[int]) -> None:
    """Also where two axes are indexed at once, and the place that they make is in bounds."""
    tensors = [torch.randn(3, 3), torch.tensor(index), torch.tensor([1, 1])]
    gm = make_fx(lambda x, i, j: [aten.index.Tensor(x, [j, i])], tracing_mode="fake")(*tensors)
    text = wire.graph_json(gm.graph, "out_of_bounds")
    with pytest.raises(IndexError):
        if compiled:
            compiled_text(text, "out_of_bounds")(tensors)
        else:
            _core.evaluate(text, [to_numpy(x) for x in tensors], "rounded")
