"""Switches of the package: `trainc.config.fallback = False`. Read when something is compiled, not when trainc is imported."""

import os
import re
import sys

engine: str | None = os.environ.get("TRAINC_ENGINE") or None
"""Who runs what was captured: "core", compiled by trainc._core; "interpreter", PyTorch, operation by operation (tests, fallback).
Also TRAINC_ENGINE."""

fallback: bool = True
"""False: a fault of ours and a model that cannot be captured are errors, raised before the model runs. What PyTorch runs because
of a call's own circumstances (tensors that share memory and are written, anomaly detection, an optimizer that is not compiled,
a graph of torch.compile's that has no plan) it runs still, with its warning."""

log: str | None = os.environ.get("TRAINC_LOG") or None
"""With "info", or TRAINC_LOG=info: a line on stderr for each thing that is captured, compiled or found in the cache, and how
long that took. Warnings come in any case."""

progress: bool | None = None
"""A progress bar on stderr while compiling. None: where stderr is a terminal."""

vendor_product_flops: int = 2**32
"""On a GPU: matrix products of so many operations go to cuBLASLt where it can be loaded. What such a product is computed
from is written to memory first, and what is done with it is mostly done afterwards: smaller ones are not worth it. 0: none do."""

float32_in_parts: bool = os.environ.get("TRAINC_FLOAT32_IN_PARTS", "1") != "0"
"""On CPUs with AMX: a float32 matrix product may be made of six bfloat16 ones, whatever torch.get_float32_matmul_precision()
says: it is as accurate as float32's own (docs/contraction.md), though not bit for bit what other CPUs give.
False, or TRAINC_FLOAT32_IN_PARTS=0: float32 multiply-adds alone."""

framework_calls: bool = os.environ.get("TRAINC_FRAMEWORK_CALLS", "1") != "0"
"""tune="max" on a CPU: PyTorch's own operators may take the place of contractions where they are faster (docs/contraction.md).
Their sums have another order: False, or TRAINC_FRAMEWORK_CALLS=0, keeps the bits of tune="fast"."""

framework_error: float = 1.1
"""An operator whose error, against float64, is more than so many times that of trainc's kernel is not taken. Eager's convolutions
(oneDNN) have up to 5 times that error: a larger number allows what eager itself does."""

loss_chunk_rows: int = 512
"""On a CPU: the logits of a loss are made, and turned into their gradient, in chunks of at most so many rows (docs/schedule.md),
where that saves at least `loss_chunk_bytes` of memory."""

loss_chunk_bytes: int | None = 64 * 2**20
"""How many bytes chunks of a loss must save. None: there are no chunks."""

skip_hidden: bool = True
"""On a CPU: rows of a loss whose label is to be ignored are found when a step runs, and neither their logits nor their gradients
are computed (docs/schedule.md), where all rows would take at least `skip_hidden_flops`."""

skip_padding: bool = True
"""On a CPU, with `skip_hidden`: an encoder's rows that attention's mask hides (padding) are found when a step runs, and its
linear layers, norms and activations pass over them (docs/schedule.md), where all rows would take at least `skip_hidden_flops`.
False spares batches that are never padded, and come with a mask all the same, 1% (float32) to 3% (bfloat16) of a step."""

skip_hidden_flops: int = 2**32
"""How many operations all rows of a loss, or of an encoder, must take for hidden ones to be looked for."""

max_signatures: int = 32
"""Traces per model or step (new sizes of one that has symbols are none). Calls that need another run in PyTorch; a train_step
refuses them."""

max_operations: int = 100_000
"""Operations in the trace of one call: a loop is traced step by step, and takes minutes where it has thousands of them. Longer
programs run in PyTorch."""

max_operations_without_gradients: int = 10_000
"""The same where no gradients are wanted: there is less to gain, and a shorter program is not worth its compilation."""

trace_in_full: bool = False
"""True: every operation is traced in full, also one like an earlier one (docs/capture.md, "Operations that repeat")."""

cache: bool = os.environ.get("TRAINC_CACHE", "1") != "0"
"""Compiled plans are kept on disk and found again by the next process. TRAINC_CACHE=0 turns that off."""

cache_dir: str | None = None
"""Where plans are kept. None: TRAINC_CACHE_DIR, or the user's directory for caches."""

cache_size: str | int | None = None
"""At most how much of them, in bytes or as "500MB". None: TRAINC_CACHE_SIZE, or 1 GB."""

reports_dir: str | None = None
"""Where verify= writes a report of a difference. None: TRAINC_REPORTS_DIR, or the working directory."""


def engine_name() -> str:
    if engine is not None:
        return engine
    try:
        from trainc import _core
    except ImportError:
        return "interpreter"
    return "core" if hasattr(_core, "JointGraph") else "interpreter"


def name_nvrtc() -> None:
    """Sets TRAINC_NVRTC, unless the user has, to the file that pip installed (nvidia-cuda-nvrtc): the loader does not find it."""
    if "TRAINC_NVRTC" in os.environ:
        return
    import glob  # here, for `import trainc` is to take no time

    for folder in sys.path:
        for file in sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libnvrtc.so.*"))):
            os.environ["TRAINC_NVRTC"] = file
            return


def show_progress() -> bool:
    if progress is not None:
        return progress and sys.stderr is not None
    try:
        return in_notebook() or sys.stderr.isatty()
    except (AttributeError, ValueError):  # none, one of the program's own that does not know, a closed one
        return False


def in_notebook() -> bool:
    """Whether the program is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def cache_bytes() -> int:
    """`cache_size` as a number of bytes. Raises trainc.UserError where it is none."""
    given = cache_size or os.environ.get("TRAINC_CACHE_SIZE") or "1GB"
    if (size := size_of(str(given))) is None:
        from trainc.base.errors import UserError

        raise UserError(f'TRAINC_CACHE_SIZE={given!r} is no size: write "500MB" or "2GB"')
    return size


def size_of(text: str) -> int | None:
    """Bytes, of "500MB", "2 gb" or "1000"; None where it is no size."""
    words = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    return int(float(words[1]) * 1000 ** " KMGT".index(words[2].upper() or " ")) if words else None
