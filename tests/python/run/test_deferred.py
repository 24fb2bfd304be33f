"""Outputs beside the loss that are computed when they are read: never a difference to be seen but the time."""

import copy
import io

import pytest
import torch
from conftest import assert_same, gradients
from modules import Attention
from torch import nn

import trainc
from trainc.base import records
from trainc.torch.run.deferred import DeferredTensor


@pytest.fixture
def pair(strict):
    plain = Attention()
    return plain, trainc.compile(copy.deepcopy(plain))


def x(rows=256):
    return torch.randn(2, rows, 64)


def record(model):
    return records.of(model)[0]


def test_what_is_not_read_is_not_computed(pair):
    plain, ours = pair
    for _ in range(3):
        data = x()
        for model in pair:
            loss, key, value = model(data)
            loss.backward()
        assert type(key) is DeferredTensor and type(value) is DeferredTensor
    assert_same(gradients(ours), gradients(plain))
    assert record(ours).deferred is None
    assert record(ours).deferred_bytes == 2 * 2 * 256 * 64 * 4
    assert "deferred outputs: 262 kB, computed when first read" in str(trainc.explain(ours))


def test_it_looks_like_eagers_tensor(pair):
    plain, ours = pair
    data = x()
    _, wanted, _ = plain(data)
    _, key, _ = ours(data)
    assert (key.shape, key.stride(), key.dtype, key.requires_grad, key.is_leaf, len(key), key.storage_offset()) == (
        (2, 4, 256, 16), (16384, 4096, 16, 1), torch.float32, True, False, 2, 0)  # fmt: skip
    assert record(ours).deferred is None  # none of this read it
    assert_same(key, wanted)
    assert record(ours).deferred is not None
    for derived in (key[0], key.detach(), key.data, key.clone(), key.transpose(0, 1), key * 2, key.double()):
        assert type(derived) is torch.Tensor


@pytest.mark.parametrize("changed", ["weight.data", "weight", "input", "next calls"])
def test_late_reading_gives_the_value_of_the_call(pair, changed):
    plain, ours = pair
    data = x()
    _, wanted, _ = plain(data)
    loss, key, _ = ours(data)
    loss.backward()
    match changed:
        case "weight.data":
            ours.project.weight.data.zero_()
        case "weight":
            torch.optim.SGD(ours.parameters(), lr=10.0).step()
        case "input":
            data.zero_()
        case _:
            for _ in range(3):
                ours(x())[0].backward()
    assert_same(key.detach(), wanted.detach())


def test_gradients_through_it(pair):
    plain, ours = pair
    data = x()
    for model in pair:
        loss, key, value = model(data)
        (loss + key.sin().mean() + (value[1:] * key[:1]).mean()).backward()
    assert_same(gradients(ours), gradients(plain))


def test_arenas_are_used_again_while_an_output_is_held(pair):
    _, ours = pair
    held = [ours(x())[1] for _ in range(6)]
    arenas = {tensor.outputs for tensor in held if tensor.outputs._compute is not None}
    assert len(arenas) == 1  # the latest call alone; earlier ones were computed when their arena was wanted
    values = [tensor.detach().clone() for tensor in held]
    assert not any(torch.equal(values[0], later) for later in values[1:])


def test_written_in_place(pair):
    plain, ours = pair
    data = x()
    results = []
    for model in pair:
        _, key, _ = model(data)
        with torch.no_grad():
            same = key.mul_(2)
            same += 1
        assert same is key
        results.append(key.detach().clone())
    assert_same(results[1], results[0])


def test_memory_is_read_past_operations(pair):
    plain, ours = pair
    data = x()
    _, wanted, _ = plain(data)

    def fresh():
        return ours(data)[1]

    assert_same(torch.from_numpy(fresh().detach().numpy()), wanted.detach())
    assert_same(torch.tensor(fresh().tolist()), wanted.detach())
    assert_same(torch.from_dlpack(fresh().detach()), wanted.detach())
    assert fresh().data_ptr() != 0 and fresh().untyped_storage().nbytes() == wanted.untyped_storage().nbytes()
    with pytest.raises(RuntimeError, match="requires grad"):
        fresh().numpy()
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(fresh())
    file = io.BytesIO()
    torch.save(fresh(), file)
    file.seek(0)
    assert_same(torch.load(file), wanted.detach().requires_grad_())
    assert repr(fresh()).startswith("tensor([[[[") and "grad_fn" in repr(fresh())
    with torch.no_grad():
        assert_same(torch.stack([fresh(), fresh()])[0], wanted.detach())


def test_it_may_be_an_argument_of_the_next_call(pair):
    plain, ours = pair
    data = x()
    losses = []
    for model in pair:
        _, key, _ = model(data)
        loss, *_ = model(data, key.detach() if model is plain else key)
        loss.backward()
        losses.append(loss.detach())
    assert_same(losses[1], losses[0])
    assert_same(ours.out.weight.grad, plain.out.weight.grad)


def test_small_outputs_are_not_worth_it(pair):
    _, ours = pair
    _, key, _ = ours(x(8))
    assert type(key) is torch.Tensor


def test_gpt2_hands_out_its_cache_for_nothing(strict):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=256, vocab_size=200)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0
    plain = GPT2LMHeadModel(config)
    ours = trainc.compile(copy.deepcopy(plain))
    ids = torch.randint(0, 200, (2, 256))
    for _ in range(3):
        wanted, out = plain(input_ids=ids, labels=ids), ours(input_ids=ids, labels=ids)
        out.loss.backward()
        wanted.loss.backward()
    layers = [(a, b) for a, b in zip(out.past_key_values.layers, wanted.past_key_values.layers, strict=True)]
    assert all(type(got.keys) is DeferredTensor and type(got.values) is DeferredTensor for got, _ in layers)
    for got, want in layers:
        assert_same(got.keys, want.keys)
        assert_same(got.values, want.values)
    assert_same(out.logits, want_logits := wanted.logits, 1e-4)
    assert want_logits.shape == out.logits.shape


class WithLogits(nn.Module):
    """Hands out what the backward wants, beside the loss."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 600)

    def forward(self, x, target):
        logits = self.head(x)
        return nn.functional.cross_entropy(logits, target), logits


@pytest.mark.parametrize("when", ["never", "before", "after", "later", "held"])
def test_logits_beside_the_loss(strict, when):
    """The backward writes their gradient over them where nobody will look; wherever somebody does, they are eager's."""
    plain = WithLogits()
    ours = trainc.compile(copy.deepcopy(plain))
    x, target = torch.randn(64, 32), torch.randint(0, 600, (64,))
    _, wanted = plain(x, target)
    for _ in range(3):
        plain.zero_grad(), ours.zero_grad()
        plain(x, target)[0].backward()
        if when == "never":
            ours(x, target)[0].backward()
            continue
        loss, logits = ours(x, target)
        if when == "before":
            assert_same(logits, wanted)
        loss.backward()
        if when == "after":
            assert_same(logits, wanted)
        del loss
        if when == "later":
            ours(x, target)[0].backward()
            ours.zero_grad()
            ours(x, target)[0].backward()
            assert_same(logits, wanted)
    assert_same(gradients(ours), gradients(plain))
    compiled = record(ours)
    assert bool(compiled.backward) == (when in ("never", "before", "later"))  # the one that overwrites
    assert bool(compiled.retaining) == (when in ("after", "later", "held"))
    assert (compiled.deferred is None) == (when == "never")


def test_logits_survive_a_backward_with_retain_graph(strict):
    plain = WithLogits()
    ours = trainc.compile(copy.deepcopy(plain))
    x, target = torch.randn(64, 32), torch.randint(0, 600, (64,))
    for model in (plain, ours):
        loss = model(x, target)[0]
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same(gradients(ours), gradients(plain))
    assert record(ours).retaining and record(ours).backward
