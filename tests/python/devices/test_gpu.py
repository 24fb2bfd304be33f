"""Models on a GPU through every door, on a stand-in (standin.py): what is captured, what is asked of the framework, eager's
masks, TF32, the library's products, tensors on several devices."""

from __future__ import annotations

import copy
import functools
import operator
import sys
import types

import loss_rule
import models
import pytest
import torch
from standin import STREAM, EagerDropout, StandIn
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import trainc
from trainc import _core
from trainc.base import config, messages, records
from trainc.base.errors import NotCompiled
from trainc.torch import device
from trainc.torch.capture import trace
from trainc.torch.graph import wire
from trainc.torch.run import executable

STEPS = 3


@pytest.fixture
def gpu(monkeypatch, request):
    """The CPU's tensors lie on a GPU that is none."""
    stand_in = StandIn(seed=0x1234_5678_9ABC_DEF0)
    monkeypatch.setattr(config, "fallback", False)
    monkeypatch.setattr(device, "gpu_in_use", lambda: True)
    monkeypatch.setitem(device._devices, torch.device("cpu"), stand_in)
    _core.interpreted_streams()
    return stand_in


class Small(nn.Module):
    """Dropout on sizes that a thread takes 2 and 1 at a time, more than the threads hold in a turn, and on a transposed one."""

    def __init__(self, width: int = 33):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 130), nn.Linear(130, width), nn.Linear(width, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, features, labels):
        x = self.drop(torch.tanh(self.first(features)))  # 41 x 130: 2 at a time, 6 turns
        x = self.drop(torch.relu(self.second(x)))  # 41 x 33: 1 at a time
        x = self.drop(x.t()).t()  # the same memory, in another order
        return nn.functional.cross_entropy(self.third(x), labels)


def small() -> models.Case:
    torch.manual_seed(0)
    batches = [{"features": torch.randn(41, 16), "labels": torch.randint(0, 10, (41,))} for _ in range(STEPS)]
    return models.Case(Small().train(), batches, loss=lambda loss: loss)


def gpt2() -> models.Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager"))
    tokens = [torch.randint(4, 64, (2, 16)) for _ in range(STEPS)]
    return models.Case(model.train(), [{"input_ids": ids, "labels": ids} for ids in tokens])


CASES = {"small": small, "gpt2": gpt2}
OPTIMIZERS = {
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-3),
    "sgd": functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9, weight_decay=0.1),
}


def losses_of(case: models.Case, step) -> list[float]:
    return [step(case, i).item() for i in range(STEPS)]


def eager(name: str, optimizer: str, gpu: StandIn, disturbance: int = 0) -> tuple[list[float], int]:
    """(losses, the generator's offset afterwards)."""
    case = CASES[name]()
    if disturbance:
        loss_rule.disturb(case.model, disturbance)
    made = OPTIMIZERS[optimizer](case.model.parameters())

    def step(case, i):
        loss = case.step_loss(i)
        loss.backward()
        made.step()
        made.zero_grad()
        return loss.detach()

    with EagerDropout(gpu) as dropout:
        found = losses_of(case, step)
    return found, dropout.offset


def through(door: str, case: models.Case, optimizer):
    """(a step of training, what `records.of` knows)."""
    if door == "train_step":
        model, loss_of = case.model, case.loss

        def body(**batch):
            loss = loss_of(model(**batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        compiled = trainc.train_step(body)
        return lambda case, i: compiled(**case.batches[i]), compiled
    if door == "backend":
        model, made = torch.compile(case.model, backend="trainc"), optimizer
    else:
        model, made = trainc.compile(case.model, optimizer)

    def step(case, i):
        loss = case.step_loss(i, model)
        loss.backward()
        made.step()
        made.zero_grad()
        return loss.detach()

    return step, case.model


@pytest.mark.parametrize("door", ["compile", "backend", "train_step"])
@pytest.mark.parametrize("name, optimizer", [("small", "adamw"), ("small", "sgd"), ("gpt2", "adamw")])
def test_trains_as_eager_does_with_its_masks(name, optimizer, door, gpu):
    wanted, offset = eager(name, optimizer, gpu)
    case = CASES[name]()
    step, _ = through(door, case, OPTIMIZERS[optimizer](case.model.parameters()))
    before = gpu.reads, gpu.writes
    found = losses_of(case, step)
    assert gpu.offset == offset
    # Once a plan that draws, of which there is one a step; it is read again where it is written, to see that nobody drew. And
    # once before there is a backward plan, in case PyTorch must run the forward again.
    assert gpu.reads - before[0] == 2 * STEPS + (door != "train_step") and gpu.writes - before[1] == STEPS
    broken = loss_rule.violations(found, wanted, [eager(name, optimizer, gpu_at(0), seed)[0] for seed in loss_rule.SEEDS])
    assert not broken, "\n".join(broken)
    assert _core.interpreted_streams() == [STREAM]


def gpu_at(offset: int) -> StandIn:
    fresh = StandIn(seed=0x1234_5678_9ABC_DEF0)
    fresh.offset = offset
    return fresh


def test_another_seed_draws_other_masks(gpu):
    case = small()
    model = trainc.compile(case.model)
    same = [model(**case.batches[0]).item()]
    offset, gpu.offset = gpu.offset, 0
    same.append(model(**case.batches[0]).item())
    assert same[0] == same[1] and gpu.offset == offset
    gpu.offset, gpu.seed = 0, gpu.seed + 1
    assert model(**case.batches[0]).item() != same[0]


class Attention(nn.Module):
    """Two calls of PyTorch's attention with dropout: causal with grouped heads, and with a mask that `kind` names."""

    def __init__(self, kind: str):
        super().__init__()
        self.queries, self.others, self.kind = nn.Linear(8, 32), nn.Linear(8, 16), kind

    def forward(self, x):
        attend = nn.functional.scaled_dot_product_attention
        q = self.queries(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k = self.others(x).unflatten(-1, (2, 8)).transpose(1, 2)
        places = torch.arange(x.shape[1])
        mask = places[:, None] >= places - 2 if self.kind == "bool" else (places[:, None] - places).abs() * -0.25
        y = attend(q, k, k, dropout_p=0.3, is_causal=True, enable_gqa=True)
        y = attend(y, y, q, attn_mask=mask if self.kind == "bool" else mask.to(y.dtype), dropout_p=0.2, scale=0.5)
        return y.float().square().mean()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_draws_eagers_masks(kind, bf16, gpu):
    """Where the trace writes it out; where a GPU fuses it, it is the framework's."""
    torch.manual_seed(0)
    model, x = Attention(kind), torch.randn(3, 11, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16), EagerDropout(gpu) as dropout:
        wanted = model(x)
        wanted.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = trainc.compile(model)(x)
    found.backward()
    assert gpu.offset == dropout.offset > 0
    near = {"rtol": 2e-2, "atol": 1e-3} if bf16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, wanted, **near)
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients, **near)


def test_memory_is_the_frameworks(gpu):
    case = small()
    model, optimizer = trainc.compile(case.model, OPTIMIZERS["adamw"](case.model.parameters()))
    step, _ = through("compile", models.Case(model, case.batches, loss=case.loss), optimizer)
    step(case, 0)
    gpu.allocated.clear()
    loss = model(**case.batches[0])
    compilation = trainc.explain(model).compilations[0]
    forward = compilation.forward.plan
    # the arena of what is saved, the temporaries, and each result: nothing else
    results = [4 * max(1, torch.Size(info[1]).numel()) for info in forward.output_info if info is not None and info[3] < 0]
    wanted = [max(forward.saved_bytes, 1), *([forward.temp_bytes] if forward.temp_bytes else []), *results]
    assert sorted(gpu.allocated) == sorted(wanted)
    loss.backward()


@pytest.fixture
def tf32():
    """Sets the user's flag, and puts it back."""
    before = torch.backends.cuda.matmul.fp32_precision
    yield lambda allowed: setattr(torch.backends.cuda.matmul, "allow_tf32", allowed)
    torch.backends.cuda.matmul.fp32_precision = before


def test_a_change_of_tf32_compiles_again(gpu, tf32, monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINC_DUMP", "loop")

    def dumped(where: str) -> str:
        monkeypatch.setenv("TRAINC_DUMP_DIR", str(tmp_path / where))
        model(**case.batches[0]).backward()
        return "\n".join(file.read_text() for file in (tmp_path / where).rglob("*.loop"))

    case = small()
    model = trainc.compile(case.model)
    strict = dumped("strict")
    assert "contract" in strict and "mma" not in strict  # fp32 means fp32: fused multiply-adds
    tf32(True)
    assert "mma" in dumped("tf32")
    assert len(trainc.explain(model).compilations) == 2
    tf32(False)
    assert dumped("again") == ""
    assert len(trainc.explain(model).compilations) == 2


def test_large_products_go_to_the_library(gpu, monkeypatch):
    wanted, _ = eager("small", "adamw", gpu)
    gpu.vendor_product_flops = 1
    case = small()
    model, optimizer = trainc.compile(case.model, OPTIMIZERS["adamw"](case.model.parameters()))
    step, _ = through("compile", models.Case(model, case.batches, loss=case.loss), optimizer)
    found = losses_of(case, step)
    kinds = [s["kind"] for plans in trainc.explain(model).reports for plan in plans for s in plan["steps"]]
    assert "product" in kinds and "kernel" in kinds
    assert not loss_rule.violations(found, wanted, [eager("small", "adamw", gpu_at(0), seed)[0] for seed in loss_rule.SEEDS])


@pytest.mark.parametrize("read", [False, True], ids=["loss", "logits"])
def test_logits_over_an_odd_number_of_words(gpu, read):
    """Their rows are longer for the library; the caller sees eager's, and may give them a gradient."""
    gpu.vendor_product_flops = 1

    class Head(nn.Linear):
        def forward(self, x, labels):
            logits = super().forward(x)
            return nn.functional.cross_entropy(logits.float(), labels), logits

    torch.manual_seed(0)
    x, labels = torch.randn(272, 256), torch.randint(0, 275, (272,))

    def step(call, module):
        with torch.autocast("cpu", torch.bfloat16):
            loss, logits = call(x, labels)
        (loss + logits.float().square().mean() if read else loss).backward()
        return loss, logits, module.weight.grad, module.bias.grad

    compiled = Head(256, 275)
    wanted = step(*[copy.deepcopy(compiled)] * 2)
    found = step(trainc.compile(compiled), compiled)
    steps = [s for plans in trainc.explain(compiled).reports for plan in plans for s in plan["steps"]]
    assert all(s["aligned"] for s in steps if s["kind"] == "product") and any("pad" in s["name"] for s in steps)
    assert found[1].stride() == (275, 1)
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=2e-2, atol=2e-2 * w.detach().abs().max().item())


def test_fused_steps_are_not_read_again(gpu):
    """Hugging Face's default optimizer keeps its step on the device, where to read it is to wait."""
    from trainc.torch.optimizers.state import Numbers

    reads = []

    class OnDevice(torch.Tensor):
        is_cpu = False

        def item(self):
            reads.append(1)
            return super().item()

    step, numbers = torch.zeros(()).as_subclass(OnDevice), Numbers()
    for i in range(4):
        column = numbers.column([step])
        assert column.read() == [i]
        column.write([i + 1.0])
    assert len(reads) == 1
    step.fill_(40)  # load_state_dict
    assert numbers.read(step) == 40 and len(reads) == 2


# ---- several devices ------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(gpu, monkeypatch):
    """A second device, of tensors without memory."""
    monkeypatch.setitem(device._devices, torch.device("meta"), StandIn())
    return torch.device("meta")


def test_an_argument_elsewhere_is_named(elsewhere):
    case = small()
    model = trainc.compile(case.model)
    batch = case.batches[0] | {"labels": case.batches[0]["labels"].to(elsewhere)}
    wanted = r"`labels` is on meta, Small on cpu: give it labels.to\('cpu'\)"
    with pytest.raises(trainc.UserError, match=wanted):
        model(**batch)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    step, _ = through("train_step", case, optimizer)
    case.batches[0] = batch
    with pytest.raises(trainc.UserError, match="`labels` is on meta, the model on cpu"):
        step(case, 0)


def test_a_model_that_moves_its_arguments_itself_runs_in_pytorch(elsewhere, monkeypatch):
    monkeypatch.setattr(config, "fallback", True)

    class Moves(nn.Linear):
        def forward(self, x):
            return super().forward(torch.ones(x.shape, device=self.weight.device))

    model = trainc.compile(Moves(3, 2))
    with pytest.warns(messages.TraincWarning, match="Moves runs in PyTorch: `x` is on meta, Moves on cpu"):
        assert model(torch.empty(4, 3, device=elsewhere)).shape == (4, 2)
    model(torch.empty(4, 3, device=elsewhere))
    assert [c.route for c in trainc.explain(model).compilations] == ["eager"]


def test_where_pytorch_fails_too_the_argument_is_named(elsewhere, monkeypatch):
    monkeypatch.setattr(config, "fallback", True)

    class Fails(nn.Linear):
        def forward(self, x):
            raise RuntimeError("Expected all tensors to be on the same device")

    with pytest.raises(trainc.UserError, match=r"`x` is on meta, Fails on cpu.*\(Expected all tensors to be on the same"):
        trainc.compile(Fails(3, 2))(torch.empty(4, 3, device=elsewhere))


def test_a_model_on_two_devices_is_not_compiled(elsewhere):
    class Spread(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.unused = nn.Linear(3, 3, device=elsewhere)

    model = Spread()
    with pytest.raises(NotCompiled, match="the model's tensors are on cpu and meta"):
        trainc.compile(model)(torch.ones(2, 3))


def test_a_number_on_the_cpu_goes_with_any_device():
    assert device.devices_of([torch.ones(()), torch.ones(3, device="meta")]) == {torch.device("meta")}
    assert device.devices_of([torch.ones(())]) == {torch.device("cpu")}


# ---- how dropout is dealt out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, wanted",
    [
        (lambda: torch.ones(4096), [1024, 4]),
        (lambda: torch.ones(4096, dtype=torch.bfloat16), [1024, 8]),
        (lambda: torch.ones(4096, dtype=torch.float64), [1024, 2]),
        (lambda: torch.ones(100), [256, 4]),
        (lambda: torch.ones(257), [512, 1]),
        (lambda: torch.ones(258), [512, 2]),
        (lambda: torch.ones(8, 8).t(), [256, 4]),  # dense, in another order
        (lambda: torch.ones(8, 9)[:, :8], [256, 1]),  # with gaps
        (lambda: torch.ones(1).expand(64), [256, 1]),
        (lambda: torch.ones(66)[2:], [256, 2]),  # memory that begins at no multiple of 16 bytes
    ],
)
def test_how_elements_are_dealt_out(make, wanted):
    assert StandIn().deal(make()) == wanted


def test_torch_is_asked_how_many_neighbours_a_thread_takes(monkeypatch):
    asked = StandIn(seed=5)
    asked.offset = 8

    def native_dropout(x, p, train):
        asked.offset += 4
        drawn = _core.dropout_mask(5, 8, x.numel(), 1024, takes, 1 - p)
        return x, torch.frombuffer(bytearray(drawn), dtype=torch.uint8).bool()

    monkeypatch.setattr(torch, "native_dropout", native_dropout)
    for takes in (8, 4, 2):
        assert device.Cuda._find_vector(asked, torch.float32) == takes
        assert asked.offset == 8  # as if nothing had been drawn
    monkeypatch.setattr(torch, "native_dropout", lambda x, p, train: (x, torch.ones(x.shape, dtype=torch.bool)))
    with pytest.raises(trainc.InternalError, match="draws dropout masks of torch.float32 .* in a way that trainc does not know"):
        device.Cuda._find_vector(asked, torch.float32)


# ---- the host's side of a real architecture -------------------------------------------------------------------------
# (Fake CUDA tensors cannot stand in for real ones: torch's CPU build has no guard for their device, which autograd and
# functionalisation ask.)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("door", ["compile", "train_step"])
def test_steps_are_compiled_and_queued_for_a_gpu(door, bf16, gpu, monkeypatch):
    """Cubins, launches and graphs on a driver that holds kernels and runs none: no step fails, whatever the numbers."""
    config.name_nvrtc()
    target = {"device": "null:sm_90a", "tf32": False, "vendor_product_flops": config.vendor_product_flops}
    monkeypatch.setattr(gpu, "target", lambda: target)
    case = gpt2()
    step, compiled = through(door, case, OPTIMIZERS["adamw"](case.model.parameters()))
    if bf16:
        case.model.forward = torch.autocast("cpu", torch.bfloat16)(case.model.forward)
    for i in range(2):
        step(case, i)
    plans = [report for record in records.of(compiled) for report in record.reports()]
    kinds = [s["kind"] for plan in plans for s in plan["steps"]]
    assert {plan["cpu"] for plan in plans} == {"sm_90a"}
    assert "extern" not in kinds and "random" in kinds and kinds.count("kernel") > 20


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_transformers_contractions_are_the_librarys(bf16, gpu, monkeypatch):
    config.name_nvrtc()
    monkeypatch.setattr(gpu, "target", lambda: {"device": "null:sm_90a", "tf32": False, "vendor_product_flops": 1})
    case = gpt2()
    model = trainc.compile(case.model)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        model(**case.batches[0]).loss.backward()
    steps = [step for record in records.of(model) for plan in record.reports() for step in plan["steps"]]
    flops = {kind: sum(step["flops"] for step in steps if step["kind"] == kind) for kind in ("product", "kernel")}
    assert flops["product"] and not flops["kernel"]


def test_a_result_elsewhere_is_the_frameworks(gpu):
    class Reports(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y, y.detach().to("meta")

    model = trainc.compile(Reports(3, 2))
    with pytest.raises(trainc.InternalError, match=r"test_gpu.py:\d+: a result is on meta, the model on cpu"):
        model(torch.ones(4, 3))


# ---- what fused attention gives on a GPU ------------------------------------------------------------------------------


@pytest.fixture
def keyed():
    """An operation with a backward that, like fused attention, hands a generator's state (uint64) and a number over to it."""
    library = torch.library.Library("trainc_test", "DEF")
    library.define("keyed(Tensor x) -> (Tensor, Tensor, SymInt)")
    library.define("keyed_backward(Tensor grad, Tensor state, SymInt n) -> Tensor")
    big = torch.tensor([2**63 + 5], dtype=torch.uint64)

    def forward(x):
        return x * 2, big.clone(), x.shape[0]

    def backward(grad, state, n):
        assert state.dtype is torch.uint64 and n == 4
        return grad * 2 * (1.0 if state.item() == 2**63 + 5 else float("nan"))

    library.impl("keyed", forward, "CPU")
    library.impl("keyed_backward", backward, "CPU")
    library.impl("keyed", lambda x: (torch.empty_like(x), x.new_empty(1, dtype=torch.uint64), x.shape[0]), "Meta")
    library.impl("keyed_backward", lambda grad, state, n: torch.empty_like(grad), "Meta")

    class Keyed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y, state, n = torch.ops.trainc_test.keyed(x)
            ctx.save_for_backward(state)
            ctx.n = n
            return y

        @staticmethod
        def backward(ctx, grad):
            return torch.ops.trainc_test.keyed_backward(grad, ctx.saved_tensors[0], ctx.n)

    yield Keyed.apply
    library._destroy()


def test_a_generators_state_goes_through_a_plan(keyed, gpu):
    class Model(nn.Linear):
        def forward(self, x):
            return keyed(super().forward(x)).square().sum()

    model = Model(3, 2)
    x = torch.randn(4, 3)
    model(x).backward()
    eager = model.weight.grad.clone()
    model.zero_grad()
    compiled = trainc.compile(model)
    compiled(x).backward()
    torch.testing.assert_close(model.weight.grad, eager)
    (made,) = trainc.explain(model).compilations
    assert [name for name, _ in made.externs()] == ["trainc_test.keyed.default", "trainc_test.keyed_backward.default"]


def test_uint64_is_not_computed_with(gpu):
    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x).sum(), torch.ones(3, dtype=torch.uint64).clone()

    with pytest.raises(trainc.InternalError, match="dtype uint64 is not compiled"):
        trainc.compile(Model(3, 2))(torch.ones(4, 3))


def test_flash_attention_with_dropout_is_the_frameworks():
    """As torch 2.13 captures it on a GPU: a result that lies [batch, position, head], numbers and a uint64 state beside it."""
    shape, lies = (2, 4, 16, 8), (512, 8, 32, 1)
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in "qkv"]
    call = graph.call_function(torch.ops.aten._scaled_dot_product_flash_attention.default, (*inputs, 0.1, True))
    results = [graph.call_function(operator.getitem, (call, i)) for i in (0, 1, 4, 6)]
    graph.output((results[0], results[1], results[3]))
    for node in inputs:
        node.meta["val"] = torch.empty_strided(shape, lies, device="meta")
    state = torch.empty(2, dtype=torch.uint64, device="meta")
    out, sums = torch.empty_strided(shape, lies, device="meta"), torch.empty(2, 4, 16, device="meta")
    vals = [out, sums, None, None, 16, 16, state, state[:0], None]
    call.meta["val"] = vals
    for result, i in zip(results, (0, 1, 4, 6), strict=True):
        result.meta["val"] = vals[i]
    where = StandIn()
    where.torch = torch.device("meta")
    text = _core.import_text(wire.graph_json(graph, "attention", where))
    assert "aten._scaled_dot_product_flash_attention.default" in text and "i64[2]" in text


class Heads(nn.Module):
    """Attention as GPT-2 has it: queries, keys and values are parts of one product."""

    def __init__(self):
        super().__init__()
        self.parts, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 6)).transpose(1, 2) for part in self.parts(x).split(24, dim=-1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape)).float().square().mean()


class Grouped(nn.Module):
    """Keys that several heads share are repeated, which no strides can tell, and queries are turned before."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys = nn.Linear(24, 24), nn.Linear(24, 12)

    def forward(self, x):
        q = self.queries(x).unflatten(-1, (4, 6)).transpose(1, 2)
        k = self.keys(x).unflatten(-1, (2, 6)).transpose(1, 2)
        k = k[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape)
        y = nn.functional.scaled_dot_product_attention(torch.cat([-q[..., 3:], q[..., :3]], -1), k[:, :, :, :], k)
        return y.transpose(1, 2).float().square().mean()


class Strides(TorchDispatchMode):
    """Of the tensors that attention is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_scaled_dot_product_" in str(func):
            self.seen.append((str(func), [a.stride() for a in args if isinstance(a, torch.Tensor)]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Heads, Grouped])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_frameworks_attention_reads_heads_where_eager_does(kind, bf16, gpu, monkeypatch):
    """It is handed views, and heads of its results are put side by side again where they lie: nothing is moved for it."""
    monkeypatch.setattr(wire, "is_the_frameworks", lambda node: "_scaled_dot_product_" in str(node.target))
    torch.manual_seed(0)
    model, x = kind(), torch.randn(3, 11, 24)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16), Strides() as eager:
        wanted = model(x)
        wanted.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        compiled = trainc.compile(model)
        found = compiled(x)
        found.backward()
        model.zero_grad()
        with Strides() as ours:  # of the second step: the first one is traced
            found = compiled(x)
            found.backward()
    assert len(eager.seen) == 2 and ours.seen[0] == eager.seen[0]
    near = {"rtol": 2e-2, "atol": 1e-3} if bf16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, wanted, **near)
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients, **near)
    (made,) = trainc.explain(model).compilations
    assert [name.split(".")[1].removesuffix("_for_cpu") for name, _ in made.externs()] == [
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu_backward"
    ]  # fmt: skip
    if kind is Heads:
        assert ours.seen == eager.seen
        moved = [step["name"] for plan in made.reports() for step in plan["steps"] if step["kind"] == "kernel"]
        # two results go to the arena, as they lie; three gradients become one operand
        moved = [name for name in moved if name.startswith(("map_slice", "map_permute", "concat"))]
        assert moved == ["map_slice"] * 2 + ["concat"] * 3


class Two(nn.Module):
    """Under autocast its weights are multiplied in bf16, by the library."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 24), nn.Linear(24, 8)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).float().square().mean()


def _swap(model: nn.Module, average: nn.Module) -> None:
    for mine, other in zip(model.parameters(), average.parameters(), strict=True):
        mine.data, other.data = other.data, mine.data


def _in_place(model: nn.Module, _average: nn.Module) -> None:
    with torch.no_grad():
        model.first.weight.copy_(model.first.weight * 2)


# ways to write a parameter between steps; the last ones move no version counter
WRITES = {
    "copy_": _in_place,
    "load_state_dict": lambda model, average: model.load_state_dict(average.state_dict()),
    "an average's tensors": _swap,
    "data, replaced": lambda model, _: setattr(model.first.weight, "data", model.first.weight.data * 2),
    "data": lambda model, _: model.first.weight.data.mul_(2),
    "numpy": lambda model, _: model.first.weight.detach().numpy().__imul__(2),
}


@pytest.mark.parametrize("door", ["compile", "train_step"])
@pytest.mark.parametrize("write", WRITES)
def test_no_step_computes_with_an_old_cast_of_a_weight(write, door, gpu):
    gpu.vendor_product_flops = 1

    def trained(through_trainc: bool) -> list[float]:
        torch.manual_seed(0)
        model, average = Two(), Two()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        call, made = trainc.compile(model, optimizer) if through_trainc and door == "compile" else (model, optimizer)

        def step(x):
            with torch.autocast("cpu", torch.bfloat16):
                loss = call(x)
            loss.backward()
            made.step()
            made.zero_grad()
            return loss.detach()

        run = trainc.train_step(step) if through_trainc and door == "train_step" else step
        losses = []
        for i in range(4):
            losses.append(run(torch.randn(6, 12, generator=torch.Generator().manual_seed(i))).item())
            if i == 1:
                WRITES[write](model, average)
        return losses

    wanted, found = trained(False), trained(True)
    assert found == pytest.approx(wanted, rel=4e-3), (found, wanted)
    assert abs(wanted[2] - wanted[1]) > 0.02 * wanted[1]  # it does matter which weights a step has


def test_a_whole_step_reads_gradients_as_products_give_them(gpu):
    """No kernel widens them, and a weight's cast is kept from the forward to the backward."""
    gpu.vendor_product_flops = 1
    model = Two()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled = trainc.train_step(step)
    for _ in range(3):
        compiled(torch.randn(6, 12))
    (report,) = (report for record in records.of(compiled) for report in record.reports())
    kinds = [step["kind"] for step in report["steps"]]
    names = [step["name"] for step in report["steps"]]
    assert kinds.count("product") == 5, names  # two forward, the gradients of two weights and of one input
    updates = [name for name in names if "update" in name.lower()]
    assert len(updates) == 4, names
    assert not any("CUDA graphs" in note for note in report["notes"]), report["notes"]
    narrow = sum(step["bytes"] for step in report["steps"] if "update" in step["name"].lower())
    numbers = sum(p.numel() for p in model.parameters())
    assert narrow < numbers * (4 * 6 + 2) + 512, "gradients are read as bf16"


# ---- what a GPU was found to do (docs/cuda.md, "On an H200") -----------------------------------------------------------------


@pytest.mark.parametrize("dropped", [0.1, 0.0])
def test_the_state_of_attentions_masks_is_read_on_the_host(dropped):
    """Eager's forward leaves seed and offset on the CPU, and its backward reads them there: a pointer to the GPU's memory ended
    the process. Without dropout nobody reads them, and nothing is waited for."""
    class State:
        def cpu(self):
            return "on the host"

    op = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    args = [None] * 7 + [State(), State(), dropped, [True, True, True, False]]
    given = executable._with_state_on_the_host(op, args)
    assert (given[7] == given[8] == "on the host") == bool(dropped)
    assert given[:7] + given[9:] == args[:7] + args[9:]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    assert executable._with_state_on_the_host(flash, args) is args  # whose state lies on the GPU


def test_masks_that_eager_does_not_write_out_are_not_written_out(monkeypatch):
    """Where a GPU is in use, and no padding is given: attention is then called as eager calls it."""
    library = types.ModuleType("transformers.masking_utils")
    library.is_tracing = asked = lambda tensor=None: True
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", library)
    with trace.tracing():
        assert library.is_tracing()  # on a CPU all is as it was
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with trace.tracing():
        assert not library.is_tracing() and not library.is_tracing(None)
        assert library.is_tracing(torch.ones(1))  # padding: its values decide, which a trace does not know
    assert library.is_tracing is asked


def test_a_lost_gpu_is_told_of_where_pytorch_hears_of_it_first(monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lost)
    with pytest.raises(trainc.UserError, match=r"illegal memory access was encountered\): .* Restart the process"):
        device.Cuda(0).stream()
