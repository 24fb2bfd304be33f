"""Hooks on nodes of autograd's graph (`grad_fn.register_hook`), in forward and on a compiled call's results: eager's gradients,
or an error that says so, and eager's from then on."""

import warnings

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

import trainc
from trainc.base.errors import UserError

SCALE = [2.0]


def _doubled(gradients):
    return tuple(None if g is None else 2 * g for g in gradients)


def _scaled(gradients):
    return (gradients[0] * SCALE[0],)


# In forward: of a hidden state.
WITHIN = {
    "hook": lambda h: h.grad_fn.register_hook(lambda given, _: _doubled(given)),
    "pre-hook": lambda h: h.grad_fn.register_prehook(_doubled),
    "behind": lambda h: h.grad_fn.next_functions[0][0].register_prehook(_doubled),
    "edge": lambda h: get_gradient_edge(h).node.register_prehook(_doubled),
    "edge, a value that changes": lambda h: get_gradient_edge(h).node.register_prehook(_scaled),
}
# Of (loss, hidden) of a call.
OUTSIDE = {
    "hook": lambda loss, h: loss.grad_fn.register_hook(lambda given, _: (given[0] * 2,)),
    "pre-hook": lambda loss, h: loss.grad_fn.register_prehook(_doubled),
    "hook of a hidden state": lambda loss, h: h.grad_fn.register_hook(lambda given, _: _doubled(given)),
    "pre-hook of a hidden state": lambda loss, h: h.grad_fn.register_prehook(_doubled),
    "behind": lambda loss, h: loss.grad_fn.next_functions[0][0].register_prehook(_doubled),
    "edge": lambda loss, h: get_gradient_edge(h).node.register_prehook(_doubled),
}


class Net(nn.Module):
    """`gives`: (loss, hidden), the loss alone, or, with AOTAutograd's node, a part of the argument, too."""

    def __init__(self, within=lambda h: None, gives="both"):
        super().__init__()
        self.one, self.two, self.within, self.gives = nn.Linear(4, 4), nn.Linear(4, 4), within, gives

    def forward(self, x):
        h = self.one(x).tanh()
        self.within(h)
        loss = self.two(h).square().mean()
        return loss if self.gives == "loss" else (loss, h) if self.gives == "both" else (loss, h, x[1:])


def _step(model, x, outside):
    model.zero_grad()
    result = model(x)
    loss, h = (result, result) if isinstance(result, torch.Tensor) else result[:2]
    outside(loss, h)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _steps(compiled, within=lambda h: None, outside=lambda loss, h: None, gives="both"):
    """Gradients of three steps, each done again where it is refused; how often one was."""
    torch.manual_seed(0)
    net, found, refused = Net(within, gives), [], 0
    model, x = trainc.compile(net) if compiled else net, torch.linspace(-1, 1, 8).reshape(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for SCALE[0] in (2.0, 2.0, 3.0):
            try:
                found.append(_step(model, x, outside))
            except UserError as error:
                assert "one node" in str(error)
                refused += 1
                found.append(_step(model, x, outside))
    return torch.stack(found), refused


@pytest.mark.parametrize("name", WITHIN)
def test_hooks_that_forward_sets_on_nodes_are_eagers(name):
    found, refused = _steps(True, within=WITHIN[name])
    assert not refused
    torch.testing.assert_close(found, _steps(False, within=WITHIN[name])[0])


@pytest.mark.parametrize("gives", ["both", "a part of the argument"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_hooks_on_the_node_of_a_call_are_refused_once_and_then_eagers(name, gives):
    found, refused = _steps(True, outside=OUTSIDE[name], gives=gives)
    assert refused == 1
    torch.testing.assert_close(found, _steps(False, outside=OUTSIDE[name], gives=gives)[0])


def test_a_pre_hook_of_the_only_result_is_eagers():
    found, refused = _steps(True, outside=OUTSIDE["pre-hook"], gives="loss")
    assert not refused
    torch.testing.assert_close(found, _steps(False, outside=OUTSIDE["pre-hook"], gives="loss")[0])


class Heads(nn.Module):
    """Two results; one layer leads to none of them."""

    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b, self.unused = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 3)

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        return self.a(hidden), self.b(hidden)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("hook", [lambda g: g * 0.5, lambda g: torch.ones(3, 3)])
def test_hooks_of_a_parameter_without_a_gradient_are_never_called(hook, early):
    model = Heads()
    trainc.compile(model)
    if not early:
        sum(model(torch.ones(2, 3))).sum().backward()
    model.unused.weight.register_hook(hook)
    for _ in range(2):
        sum(model(torch.ones(2, 3))).sum().backward()
    assert model.unused.weight.grad is None and model.trunk.weight.grad is not None


def _heads_updated_in_backward(compiled: bool) -> tuple[list[torch.Tensor], int]:
    """Each parameter is updated as soon as its gradient is there; a loss of one head, then of the other. And how many steps
    raised."""
    torch.manual_seed(0)
    model, raised = Heads(), 0
    if compiled:
        trainc.compile(model)

    def update(parameter):
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for step in range(3):
        model.zero_grad()
        for head in (0, 1):
            for _ in range(2):  # once more where it raised
                try:
                    model(torch.ones(2, 3) * (step + 1))[head].square().sum().backward()
                    break
                except UserError as error:
                    assert "has a hook" in str(error)
                    raised += 1
    return [p.detach() for p in model.parameters()], raised


def test_hooks_of_a_head_that_the_loss_does_not_use_run_as_eagers():
    expected, _ = _heads_updated_in_backward(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, raised = _heads_updated_in_backward(True)
    assert raised == 1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_unused_results_are_no_matter_without_hooks():
    model = Heads()
    trainc.compile(model)
    for _ in range(2):
        model(torch.ones(2, 3))[0].sum().backward()
    assert model.b.weight.grad is None and model.a.weight.grad is not None
