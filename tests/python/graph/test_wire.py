"""FX graph -> the text of src/frontend/aten/import.h."""

import json
import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trainc.base.errors import InternalError
from trainc.torch.graph import wire


def nodes(function, *inputs):
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    output = next(iter(gm.graph.find_nodes(op="output")))
    if not isinstance(output.args[0], tuple):
        output.args = ((output.args[0],),)
    return json.loads(wire.graph_json(gm.graph, "f"))["nodes"]


def test_a_graph_as_text():
    def f(x):
        mask = torch.ops.aten.native_dropout(x.to(torch.bfloat16), 0.5, True)
        return mask[0], torch.full_like(x, float("-inf")), torch.ops.aten.sum.dim_IntList(x, [1], dtype=torch.float64)

    found = nodes(f, torch.randn(2, 3).t())
    assert found[0] == {"op": "placeholder", "name": "x_1", "val": {"dtype": "f32", "shape": [3, 2], "stride": [1, 3]}}
    by_target = {node["target"]: node for node in reversed(found) if node["op"] == "call"}
    drop = by_target["aten.native_dropout.default"]
    assert drop["random"] and drop["args"][1:] == [0.5, True]
    assert [v["dtype"] for v in drop["val"]] == ["bf16", "bool"]
    assert by_target["getitem"]["args"][1] == 0 and not by_target["getitem"]["random"]
    assert by_target["aten.full_like.default"]["args"][1] == {"float": "-inf"}
    assert by_target["aten.sum.dim_IntList"]["kwargs"] == {"dtype": {"dtype": "f64"}}
    assert found[-1]["op"] == "output" and len(found[-1]["args"]) == 3


@pytest.mark.parametrize(
    "value",
    [1, 1.0, True, None, "none", torch.float16, float("inf"), [1, [2.5]], torch.device("cpu"), torch.strided]
    + [torch.contiguous_format],
)
def test_arguments_come_back(value):
    text = json.loads(json.dumps(wire.argument(value)))
    back = wire.parse_argument(text, [])
    assert back == value and type(back) is type(value)
    assert wire.parse_argument([{"$": 1}], ["a", "b"]) == ["b"]


def test_the_origin_is_the_users_line():
    graph = torch.fx.Graph()
    node = graph.call_function(operator.neg, (1,))
    assert wire.origin(node) == ""
    node.stack_trace = (
        '  File "/home/me/model.py", line 41, in forward\n    y = f(x)\n'
        f'  File "{torch.__file__}", line 7, in relu\n    return relu(x)\n'
    )
    assert wire.origin(node) == "model.py:41"


def test_what_the_text_cannot_hold():
    graph = torch.fx.Graph()
    graph.get_attr("weight")
    with pytest.raises(InternalError, match="get_attr weight"):
        wire.graph_json(graph, "f")
