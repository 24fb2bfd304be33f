"""A GPU made of the host's memory, for tests: capture, plans, launches, masks and the generator go the way that they go on a
GPU, and kernels are interpreted. Only the calls of torch.cuda themselves are replaced (`StandIn`), and eager's dropout, also
that of attention (`EagerDropout`)."""

from __future__ import annotations

import math
import struct

import torch
from torch.overrides import TorchFunctionMode

from trainc import _core
from trainc.torch import device

STREAM = 0x7E57  # of the stand-in


class StandIn(device.Cuda):
    """Tensors of the CPU lie on it."""

    def __init__(self, seed: int = 0, threads: int = 1024):
        super().__init__(0)
        self.torch = torch.device("cpu")
        self.seed, self.offset, self.held_threads = seed, 0, threads
        self.reads = self.writes = 0
        self.allocated: list[int] = []  # bytes, in order
        self.vendor_product_flops = 0

    def stream(self) -> int:
        return STREAM

    def generator(self) -> StandIn:
        return self

    def get_state(self) -> torch.Tensor:
        self.reads += 1
        return torch.frombuffer(bytearray(struct.pack("<QQ", self.seed, self.offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        self.writes += 1
        self.seed, self.offset = struct.unpack("<QQ", state.numpy().tobytes())

    def _threads(self) -> int:
        return self.held_threads

    def _name(self) -> str:
        return "stand-in"

    def _find_vector(self, dtype: torch.dtype) -> int:
        return 16 // dtype.itemsize  # as torch 2.13; nothing here can be asked

    def target(self) -> dict:
        return {"device": "interpret:cuda", "tf32": device.tf32_allowed(), "vendor_product_flops": self.vendor_product_flops}

    def empty(self, shape, stride, dtype) -> torch.Tensor:
        made = super().empty(shape, stride, dtype)
        self.allocated.append(made.untyped_storage().nbytes())
        return made

    def temporaries(self, size: int) -> torch.Tensor | None:
        if size:
            self.allocated.append(size)
        return super().temporaries(size)


class EagerDropout(TorchFunctionMode):
    """Eager's dropout as torch's kernel for GPUs draws it, on the CPU: the oracle's masks, in the order of the calls."""

    def __init__(self, on: StandIn):
        super().__init__()
        self.device, self.offset = on, on.offset

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.dropout:
            return self.dropout(*args, **(kwargs or {}))
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self.attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        """As _scaled_dot_product_attention_math computes it, which a trace on the CPU writes out where there is dropout; the
        CPU's own call would draw the mask from the CPU's generator."""
        attend = torch.nn.functional.scaled_dot_product_attention
        if not dropout_p:
            return attend(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
        result = query.dtype
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        with torch.autocast("cpu", enabled=False):
            if result in (torch.bfloat16, torch.float16):
                query, key, value = query.float(), key.float(), value.float()
            root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
            scores = (query * root) @ (key.transpose(-2, -1) * root)
            if attn_mask is not None and attn_mask.dtype is torch.bool:
                scores = scores.masked_fill(~attn_mask, float("-inf"))
            elif attn_mask is not None:
                scores = scores + attn_mask
            return (self.dropout(torch.softmax(scores, -1), dropout_p) @ value).to(result)

    def dropout(self, input, p=0.5, training=True, inplace=False):
        if not training or p == 0 or input.numel() == 0:
            return input
        if p == 1:
            return input * 0.0
        threads, vector = self.device.deal(input)
        keep = struct.unpack("f", struct.pack("f", 1 - p))[0] if input.dtype is not torch.float64 else 1 - p
        drawn = _core.dropout_mask(self.device.seed, self.offset, input.numel(), threads, vector, keep)
        self.offset += ((input.numel() - 1) // (threads * 4) + 1) * 4
        flat = torch.frombuffer(bytearray(drawn), dtype=torch.uint8)
        dense = torch.empty_like(input, dtype=torch.uint8)
        if vector == 1:
            mask = flat.view(input.shape)
        else:
            mask = dense.as_strided((input.numel(),), (1,)).copy_(flat).as_strided(dense.shape, dense.stride())
        return input * mask * (1 / keep)
