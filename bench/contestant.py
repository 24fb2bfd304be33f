"""One contestant: a process that trains a case through one door, a step whenever it is told to.

`training_step` is the loop of everybody. `Contestant` is the handle in the parent process; a child that dies answers with why.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402

COMPILED = {"trainc": {}, "trainc-max": {"tune": "max"}, "trainc-fused": {"fuse_step": True}}  # trainc.compile, told so
OTHER = "trainc-other"  # trainc.compile of another tree, whose folder is in the environment
OTHER_TREE = "TRAINC_BENCH_OTHER"
IN_JAX = {"xla": False, "trainc-jit": True}  # whether trainc compiles it
DOORS = ["eager", "inductor", *IN_JAX, *COMPILED, "trainc-step", "trainc-backend"]


def through(door: str, model, optimizer, memory=None):
    """`model, optimizer` as the door hands them back; `memory`: the limit, where the door is `trainc.compile`."""
    import torch

    if door.startswith("trainc"):
        import trainc

        trainc.config.fallback = False  # what PyTorch would run instead is not to be measured as trainc
    if door in COMPILED or door == OTHER:
        return trainc.compile(model, optimizer, memory=memory, **COMPILED.get(door, {}))
    if door == "trainc-backend":
        return torch.compile(model, backend="trainc"), optimizer
    if door == "inductor":
        return torch.compile(model), optimizer
    return model, optimizer


def stepping(door: str, model, optimizer, bf16: bool = False, memory=None):
    """`batch -> loss`, a step of training through the door."""
    if door in IN_JAX:
        import xla

        return xla.stepping(model, optimizer, bf16, cases.SEED, compiled=IN_JAX[door])
    model, optimizer = through(door, model, optimizer, memory)

    def step(batch: dict):
        return training_step(model, optimizer, batch, bf16)

    if door == "trainc-step":
        import trainc

        return trainc.train_step(step, memory=memory)
    return step


def training_step(model, optimizer, batch: dict, bf16: bool = False):
    """Forward, loss, backward, the optimizer and zero_grad; the loss."""
    import torch

    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _of_convolution_backward(gradient: tuple, x: tuple, weight: tuple, *settings: Any, **_: Any) -> int:
    """Two products of the forward's FLOPs at most. PyTorch's own formula takes the groups of a weight's gradient for one."""
    *_, transposed, _padding, _groups, wanted = settings
    places = math.prod((x if transposed else gradient)[2:])
    return sum(wanted[:2]) * 2 * x[0] * places * math.prod(weight)


def flops_of(model, batch: dict, bf16: bool = False) -> int:
    """What PyTorch's counter sees in the contractions and convolutions of forward and backward, no causal half left out."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # Attention as plain products, recurrent layers too: the counter does not know the CPU's fused operations.
    backward = {torch.ops.aten.convolution_backward: _of_convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=backward) as counter, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of oneDNN's settings for other devices
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**batch).loss
            loss.backward()
    model.zero_grad()
    return counter.get_total_flops()


def externs_of(model) -> int:
    """Calls of PyTorch inside the compiled plans of a model."""
    from trainc.base import records

    return sum(len(compilation.externs()) for compilation in records.of(model))


def import_from_the_other_tree() -> None:
    sys.path.insert(0, str(Path(os.environ[OTHER_TREE], "python")))
    sys.meta_path.insert(0, PathFinder)  # before the finder of what is installed in place, which gives this tree's
    if folder := os.environ.get("TRAINC_CACHE_DIR"):
        os.environ["TRAINC_CACHE_DIR"] = folder + "-other"


def serve(name: str, door: str, bf16: bool, pipe) -> None:
    """Answers "step" with (seconds, loss), "about" with numbers of the whole run, "flops" with their count, until "end"."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # every process would give the same advice
    if door == OTHER:
        import_from_the_other_tree()
    import torch

    try:
        case = cases.build(name)
        plain = case.model
        # fused: PyTorch's own fastest, and the default of Hugging Face's Trainer
        take_step = stepping(door, plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True), bf16)
        torch.manual_seed(cases.SEED)  # everyone draws the same dropout masks
        step = 0
        pipe.send(("ready", torch.get_num_threads()))
        while (message := pipe.recv()) != "end":
            if message == "step":
                batch = case.batch(step)
                start = time.perf_counter()
                loss = take_step(batch)
                seconds = time.perf_counter() - start
                pipe.send(("step", (seconds, loss.item())))
                step += 1
            elif message == "flops":
                pipe.send(("flops", flops_of(plain, case.batch(0), bf16) - case.hidden_flops(case.batch(0))))
            else:
                about = {
                    "peak_bytes": cases.gpt2_example.peak_resident_bytes(),
                    "parameters": sum(p.numel() for p in plain.parameters() if p.requires_grad),
                }
                if door in COMPILED:
                    about["externs"] = externs_of(plain)
                pipe.send(("about", about))
    except EOFError:  # the parent is gone: nobody listens
        return
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        pipe.send(("died", f"{type(error).__name__}: {lines[0][:200]}"))


class Died(Exception):
    """A contestant is gone; the text says why."""


class Contestant:
    """A process that trains the case `name` through `door`; usable as a context, at the end of which the process is gone."""

    def __init__(self, name: str, door: str, bf16: bool, patience: float):
        context = multiprocessing.get_context("spawn")
        self.door, self.patience = door, patience
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(name, door, bf16, other), daemon=True)
        self.process.start()
        other.close()

    def answer(self) -> Any:
        """Waits for what the child has to say; Died where it is gone or says nothing for `patience` seconds."""
        try:
            if not self.pipe.poll(self.patience):
                self.process.kill()
                raise Died(f"no answer in {self.patience:.0f} s")
            kind, value = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            raise Died(_ending(self.process.exitcode)) from None
        if kind == "died":
            raise Died(value)
        return value

    def ask(self, message: str) -> Any:
        with contextlib.suppress(ConnectionError):  # gone: answer says so
            self.pipe.send(message)
        return self.answer()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(ConnectionError):
            self.pipe.send("end")
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
