"""Settings of PyTorch's that change between the calls of one program: what eager does under each."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from conftest import DOORS, Calls, assert_same
from torch.backends import cuda


def attention(x):
    q = x.view(2, 4, 2, 6).transpose(1, 2)
    result = F.scaled_dot_product_attention(q, q, q)  # how it lies decides which masks are drawn
    return result, F.dropout(result, 0.5)


def uninitialised(x):
    like = torch.empty_like(x)
    like[:2] = 1
    return like, torch.empty(3, dtype=torch.int32), x.new_empty(2, dtype=torch.bool), torch.empty(2, dtype=torch.complex64) * 1j


@contextlib.contextmanager
def flash(on):
    cuda.enable_flash_sdp(not on)
    try:
        yield
    finally:
        cuda.enable_flash_sdp(True)


@contextlib.contextmanager
def filled(on):
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS = {"flash": (attention, flash), "filled": (uninitialised, filled)}


@pytest.mark.filterwarnings("ignore::trainc.RecompileWarning")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("door", DOORS)
def test_a_setting_that_changes(door, name):
    run, setting = SETTINGS[name]
    call = DOORS[door](Calls(run))
    x = torch.randn(96)
    for i, on in enumerate((False, True, False, True)):
        with setting(on):
            found = []
            for each in (call, run):
                torch.manual_seed(i)
                found.append(each(x.clone().requires_grad_()))
            if name != "filled" or on:
                for got, wanted in zip(*found, strict=True):
                    assert_same(got.detach().nan_to_num(7), wanted.detach().nan_to_num(7))
                    assert got.stride() == wanted.stride()
