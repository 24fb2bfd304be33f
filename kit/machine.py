"""Parts a2 and a3: what the machine is, and how its driver behaves where nothing without a GPU can tell."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import subprocess
import sys
import threading
import time

import common
from common import REHEARSE, Answer, Place, require


def facts(answer: Answer) -> None:
    import torch
    import transformers

    from trainc import _core
    from trainc.base import config

    tools = {tool: shutil.which(tool) or "" for tool in ("nvcc", "compute-sanitizer", "cuobjdump", "ncu", "cmake", "ninja")}
    answer.add(python=sys.version.split()[0], torch=torch.__version__, transformers=transformers.__version__,
               glibc=platform.libc_ver()[1], cores=os.cpu_count(), tools=tools)  # fmt: skip
    place = Place()
    name = place.where.target()["device"]
    answer.add(device=_core.device(name), target=_core.target(name), cublaslt=_core.multiplies(name))
    config.name_nvrtc()
    answer.add(nvrtc_file=os.environ.get("TRAINC_NVRTC", ""), nvrtc=_core.code_generator_version("sm_90a"))
    require(bool(answer.facts["nvrtc"]), "NVRTC cannot be loaded")
    line = f"{answer.facts['device']}; torch {torch.__version__}, NVRTC {answer.facts['nvrtc']}"
    if not REHEARSE:
        properties = torch.cuda.get_device_properties(0)
        smi = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"],
                             capture_output=True, text=True) if shutil.which("nvidia-smi") else None  # fmt: skip
        answer.add(smi=smi.stdout.strip() if smi else "", properties=str(properties), cuda=torch.version.cuda)
        answer.add(vectors={size: place.where._vector(size) for size in (8, 4, 2)}, threads=place.where._threads())
        require(answer.facts["cublaslt"], "cuBLASLt cannot be loaded")
    answer.add(line=line)


# --- behaviour ---------------------------------------------------------------------------------------------------------


def plan_of(place: Place, function, *inputs, name: str = "checked"):
    """`function` of tensors as a plan there."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from trainc import _core
    from trainc.base.options import CompileOptions
    from trainc.torch.graph import wire
    from trainc.torch.run.executable import CoreExecutable

    traced = make_fx(lambda *x: [function(*x)], tracing_mode="fake")(*[x.cpu() for x in inputs])
    text = wire.graph_json(place.taken(traced.graph), name, place.where)
    on = place.where.target()["device"]
    compiled = _core.compile(text, name, CompileOptions.of(place.where).for_compiler(), None, None, on)
    return CoreExecutable(compiled, device=place.where)


def current_context() -> int:
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    require(driver.cuCtxGetCurrent(ctypes.byref(context)) == 0, "cuCtxGetCurrent")
    return context.value or 0


def late_error(answer: Answer, place: Place) -> None:
    import torch

    x, index = place.to(torch.arange(6.0)), place.to(torch.tensor([1, 9]))
    plan = plan_of(place, lambda x, i: torch.ops.aten.index.Tensor(x, [i]), x, place.to(torch.tensor([1, 2])), name="gather")
    heard = "nothing"
    for _ in range(2):  # told of by the run after it, at the latest
        try:
            plan([x, index])
            place.wait()
        except IndexError as error:
            heard = str(error)
            break
    require("out of" in heard or "index" in heard, f"an index out of bounds was not told of: {heard}")
    good = plan([x, place.to(torch.tensor([1, 2]))])[0]
    require(good.tolist() == [1.0, 2.0], f"after it: {good.tolist()}")
    answer.add(late_error=heard[:200])


def streams(answer: Answer, place: Place) -> None:
    """On the default stream and on others, in turn: what was queued before is read, and what follows reads what it wrote."""
    import torch

    x = place.to(torch.ones(64, 256) if REHEARSE else torch.ones(1024, 256))
    plan = plan_of(place, lambda x: torch.cumsum(torch.tanh(x), 1).flip(0) + 1, x, name="streams")
    big = torch.randn(2048, 2048, device=place.kind) if not REHEARSE else None
    queues = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)] if not REHEARSE else [None]
    for i in range(30 if not REHEARSE else 2):
        queue = queues[i % len(queues)]
        with torch.cuda.stream(queue) if queue else torch.no_grad():
            if queue:
                queue.wait_stream(queues[(i - 1) % len(queues)])
                for _ in range(4):  # the device is busy for some milliseconds
                    big = big @ big.sign() / 2048
            x.fill_(i / 30 + 0.01)
            found = plan([x])[0]
            wanted = torch.cumsum(torch.tanh(x), 1).flip(0) + 1
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    place.wait()
    answer.add(streams=len(queues))


def contexts(answer: Answer, place: Place) -> None:
    import torch

    x = place.to(torch.ones(64, 64))
    before = (torch.cuda.current_device(), current_context())
    plan = plan_of(place, lambda x: torch.softmax(x, 1), x, name="contexts")
    plan([x])
    after = (torch.cuda.current_device(), current_context())
    require(before == after, f"the current device and context were {before}, are {after}")
    left: list[int] = []

    def work() -> None:
        torch.ones(1, device="cuda")  # PyTorch makes its own the thread's, when it is first asked for something there
        context = current_context()
        plan([x])
        left.append(current_context() == context)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    require(left == [True], "a thread's own context was not put back")
    answer.add(context_is_torchs=after[1] != 0)


def host_time(answer: Answer, place: Place) -> None:
    """Microseconds of the host for a plan of twenty kernels, and whether a graph runs them: launches that a profiler sees."""
    import torch

    x = place.to(torch.randn(64, 512))

    def chain(x):
        for _ in range(10):
            x = torch.softmax(x, 1) + torch.cumsum(x, 1)
        return x

    plan = plan_of(place, chain, x, name="chain")
    plan([x])
    place.wait()
    count = 200 if not REHEARSE else 1
    start = time.perf_counter()
    for _ in range(count):
        plan([x])
    queued = time.perf_counter() - start
    place.wait()
    whole = time.perf_counter() - start
    answer.add(host_us=round(queued / count * 1e6, 1), device_us=round(whole / count * 1e6, 1))


def full_memory(answer: Answer, place: Place) -> None:
    """A plan is loaded while torch holds all but a little of the memory."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - (96 << 20), dtype=torch.uint8, device="cuda")
    try:
        x = place.to(torch.ones(128, 128))
        plan = plan_of(place, lambda x: torch.softmax(x, 0), x, name="full")
        plan([x])
        place.wait()
    finally:  # whoever comes next needs memory, whatever became of this
        del held
        gc.collect()
        torch.cuda.empty_cache()
    answer.add(full_memory="loaded with 96 MiB left")


def released(answer: Answer, place: Place) -> None:
    """Plans are dropped while the device is at work on them."""
    import torch

    x = place.to(torch.randn(256, 512))
    for i in range(8 if not REHEARSE else 1):
        plan = plan_of(place, lambda x, i=i: torch.softmax(x * (i + 1), 1), x, name=f"dropped{i}")
        for _ in range(20 if not REHEARSE else 1):
            found = plan([x])[0]
        del plan
        gc.collect()
        torch.testing.assert_close(found, torch.softmax(x * (i + 1), 1), rtol=1e-5, atol=1e-6)
    answer.add(released="while they ran")


def lost(answer: Answer) -> None:
    """In a process of its own: a kernel reads where no memory is. One clear message, and no crash at the end."""
    import torch

    from trainc import UserError

    place = Place()
    x = place.to(torch.ones(64, 64))
    plan = plan_of(place, lambda x: torch.softmax(x, 1), x, name="lost")
    good = plan([x])
    place.wait()
    said = []
    for _ in range(3):
        try:
            plan.plan.run([0x10], [good[0].data_ptr()], 0, place.where.generator(), None, 0, place.where.stream())
            time.sleep(0.2)
        except UserError as error:
            said.append(str(error))
    require(len(said) == 2 or len(said) == 3, f"a lost device was not told of: {said}")
    require(all("estart the process" in words for words in said), "; ".join(said))
    answer.add(lost=said[0])


def behaviour(answer: Answer) -> None:
    place = Place()
    common.dump_kernels()
    checks = [late_error, streams, host_time, released]
    if not REHEARSE:
        checks = [contexts, *checks, full_memory]
    failed = []
    for check in checks:
        try:
            check(answer, place)
        except Exception as error:
            failed.append((check.__name__, common.told(error)))
            answer.add(**{check.__name__: f"FAILED: {error}"[:500]})
    if not REHEARSE:
        done = subprocess.run([sys.executable, __file__, "lost"], capture_output=True, text=True)
        answer.add(lost=done.stdout.strip()[-400:])
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()[-30:]
            failed.append(("lost", {"what": f"exit status {done.returncode}", "lines": lines}))
    answer.add(line=f"{len(checks) - len(failed)} of {len(checks)} checks; host {answer.facts.get('host_us')} us a plan")
    if failed:
        name, error = failed[0]
        answer.add(error={"what": f"{name}: {error['what']}", "lines": error["lines"]}, failed=[name for name, _ in failed])
        sys.exit(1)


if __name__ == "__main__":
    common.main({"facts": facts, "behaviour": behaviour, "lost": lost})
