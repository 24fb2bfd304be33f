"""Where the tensors of a plan lie, and what the framework is asked for there: memory, the stream, the generator, its flags.

Which device a plan is made for is decided by its tensors (`one`). All that a step asks of `torch.cuda` is asked in `Cuda`, so
that a test can put a class in its place that answers from the memory of the host.

TRAINC_DEVICE=interpret runs what is on the CPU as kernels of a device, in an interpreter (tests); TRAINC_DEVICE=cuda tells the
tests to put their models on the GPU.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from trainc.base import config
from trainc.base.errors import InternalError, NotCompiled, UserError
from trainc.torch.compat import (
    disable_current_modes,
    is_non_overlapping_and_dense_or_false,
    onednn_deterministic,
    onednn_enabled,
)
from trainc.torch.strided import is_freed

WORDS = ("cpu", "cuda", "interpret")
BLOCK = 256  # threads of a block of torch's dropout kernel


def asked() -> str:
    """TRAINC_DEVICE, "cpu" where it is not set. UserError for a word that is none."""
    word = os.environ.get("TRAINC_DEVICE") or "cpu"
    if word not in WORDS:
        raise UserError(f"TRAINC_DEVICE={word}: no such device; there are {', '.join(WORDS[:-1])} and {WORDS[-1]}")
    return word


class Host:
    """The CPU."""

    framework = f"torch {torch.__version__}"
    type = "cpu"
    calls_operators = True
    torch = torch.device("cpu")
    pools = True  # a block that nobody holds any more is used again at once (pool.py)
    deals_masks = False
    narrow_gradients = False  # a whole step's updates read gradients in the dtype that they were computed in

    def target(self) -> dict[str, Any]:
        """What `trainc._core` compiles for."""
        return {"device": "interpret" if asked() == "interpret" else "cpu"}

    def facts(self) -> list[Any]:
        """What else a plan depends on: part of its key in the cache."""
        return []

    def facts_of_measurements(self) -> list[Any]:
        """What else a plan depends on that measures the framework's operators: what decides their time and their error."""
        onednn = torch.backends.mkldnn
        precisions = [each.fp32_precision for each in (torch.backends, onednn, onednn.matmul, onednn.conv, onednn.rnn)]
        # torch.set_float32_matmul_precision sets onednn.matmul's; its own getter raises where a program uses both
        return [*precisions, onednn_enabled(), onednn_deterministic(), torch.are_deterministic_algorithms_enabled()]

    def threads(self) -> int:
        return torch.get_num_threads()

    def stream(self) -> int:
        return 0

    def empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory from the framework's allocator."""
        return torch.empty_strided(shape, stride, dtype=dtype, device=self.torch)

    def temporaries(self, size: int) -> torch.Tensor | None:
        """`size` bytes for one run of a plan; None: the runtime has its own."""
        return None

    def generator(self) -> torch.Generator:
        """The default one of the framework."""
        return torch.default_generator

    @contextlib.contextmanager
    def generator_at(self, state: torch.Tensor) -> Iterator[None]:
        """The generator is in this state; afterwards, in the one it was in before."""
        generator = self.generator()
        before = generator.get_state()
        generator.set_state(state)
        try:
            yield
        finally:
            generator.set_state(before)


class Cuda(Host):
    """One GPU."""

    type = "cuda"
    pools = False  # the framework's allocator is quick, and knows which streams still use a block
    deals_masks = True  # torch's dropout kernel draws by Philox
    narrow_gradients = True  # memory is what a step waits for: widened ones would be written and read once more

    def __init__(self, index: int):
        self.index = index
        self.torch = torch.device("cuda", index)
        self._vectors: dict[int, int] = {}

    # -- what is asked of torch.cuda ----------------------------------------------------------------------------------

    def stream(self) -> int:
        """The framework's current stream, a CUstream. UserError where the GPU was lost: PyTorch hears of it first."""
        try:
            captures = torch.cuda.is_current_stream_capturing()
        except RuntimeError as error:
            words = str(error).splitlines()[0]
            raise UserError(
                f"PyTorch can no longer ask the GPU for anything ({words}): a kernel that was queued before did it, and its "
                "context is lost. Restart the process; CUDA_LAUNCH_BLOCKING=1 names the kernel"
            ) from error
        if captures:
            raise UserError("trainc's plans cannot be recorded in a CUDA graph of yours: they are CUDA graphs already")
        return torch.cuda.current_stream(self.torch).cuda_stream

    def generator(self) -> torch.Generator:
        """Its state is seed and offset, two u64."""
        return torch.cuda.default_generators[self.index]

    def _threads(self) -> int:
        """As many as torch's dropout starts at most: as the device holds at a time."""
        properties = torch.cuda.get_device_properties(self.torch)
        return properties.multi_processor_count * (properties.max_threads_per_multi_processor // BLOCK) * BLOCK

    def _name(self) -> str:
        return torch.cuda.get_device_name(self.torch)

    # -- what follows -------------------------------------------------------------------------------------------------

    def target(self) -> dict[str, Any]:
        return {"device": f"cuda:{self.index}", "tf32": tf32_allowed(), "vendor_product_flops": config.vendor_product_flops}

    def facts(self) -> list[Any]:
        return [self._name(), self._threads()]

    def facts_of_measurements(self) -> list[Any]:
        """Nothing: the library's algorithms are named with its version."""
        return []

    def threads(self) -> int:
        """What is measured does not depend on the host's."""
        return 1

    def temporaries(self, size: int) -> torch.Tensor | None:
        return torch.empty(size, dtype=torch.uint8, device=self.torch) if size else None

    def deal(self, x: torch.Tensor) -> list[int]:
        """How torch's dropout deals out `x`, fake or real: [threads, neighbours one takes at a time] (graph.h, RandomAttr)."""
        numel, size = max(x.numel(), 1), x.dtype.itemsize
        threads = min(math.ceil(numel / BLOCK) * BLOCK, self._threads())
        vector = self._vector(size) if is_non_overlapping_and_dense_or_false(x) else 1
        while vector > 1 and (numel % vector or x.storage_offset() % vector):  # memory begins at a multiple of 512 bytes
            vector //= 2
        return [threads, vector]

    def _vector(self, size: int) -> int:
        """How many elements of `size` bytes a thread takes at a time: 16 bytes or at most 4 elements, by the version of torch.
        Torch is asked once: it draws a mask, which is compared."""
        if size not in self._vectors:
            with disable_current_modes():
                self._vectors[size] = self._find_vector({8: torch.float64, 4: torch.float32, 2: torch.bfloat16}[size])
        return self._vectors[size]

    def _find_vector(self, dtype: torch.dtype) -> int:
        from trainc import _core

        generator = self.generator()
        before = generator.get_state()
        numel, p = 1024, 0.5
        state = before.numpy().tobytes()
        seed, offset = (int.from_bytes(state[i : i + 8], "little") for i in (0, 8))
        try:
            _, mask = torch.native_dropout(torch.ones(numel, dtype=dtype, device=self.torch), p, True)
            wanted = mask.cpu().numpy().tobytes()
        finally:
            generator.set_state(before)
        threads = min(numel, self._threads())
        for vector in (8, 4, 2, 1):
            if _core.dropout_mask(seed, offset, numel, threads, vector, 1 - p) == wanted:
                return vector
        raise InternalError(f"torch draws dropout masks of {dtype} on {self.torch} in a way that trainc does not know")


HOST = Host()
_devices: dict[torch.device, Host] = {torch.device("cpu"): HOST}


def get(where: torch.device) -> Host:
    """The device of a tensor's `device`. NotCompiled for a kind that there is no compiler for."""
    found = _devices.get(where)
    if found is None:
        if where.type != "cuda":
            raise NotCompiled(f"a tensor is on {where}")
        index = torch.cuda.current_device() if where.index is None else where.index
        found = _devices[where] = Cuda(index)
    return found


def devices_of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """Where tensors lie. A single number on the CPU goes with tensors of any device, as in PyTorch."""
    found = {t.device for t in tensors if t.dim() or t.device.type != "cpu"}
    return found or {torch.device("cpu")}


def one(tensors: Iterable[torch.Tensor], what: str) -> Host:
    """The device that all of these lie on; NotCompiled where there are several."""
    found = devices_of(tensors)
    if len(found) > 1:
        raise NotCompiled(f"{what} are on {' and '.join(sorted(map(str, found)))}")
    return get(found.pop())


def refuse_freed(tensors: Iterable[torch.Tensor | None]) -> None:
    """PyTorch's own error where the memory of one of them was freed (`untyped_storage().resize_(0)`)."""
    for tensor in tensors:
        if tensor is not None and is_freed(tensor):
            torch.as_strided(tensor.detach(), tensor.shape, tensor.stride())  # checks; a copy would read what is not there


def gpu_in_use() -> bool:
    return torch.cuda.is_initialized()


def flags() -> tuple:
    """What of the framework's flags a plan on a GPU depends on."""
    autocast = torch.is_autocast_enabled("cuda")
    return autocast and (torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()), tf32_allowed()


def tf32_allowed() -> bool:
    """Whether the user lets f32 products be computed in TF32 (`torch.backends.cuda.matmul.allow_tf32`,
    `torch.set_float32_matmul_precision`); strict fp32 is PyTorch's default and ours."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


__all__ = ["HOST", "Cuda", "Host", "asked", "flags", "get", "gpu_in_use", "one", "devices_of", "refuse_freed", "tf32_allowed"]
