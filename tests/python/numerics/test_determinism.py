"""What is compiled is bit for bit the same from run to run: in a process of one thread, and in another of two."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys

import pytest

NAMES = ["mlp", "gpt2", "roberta", "llama", "vit", "lstm", "resnet"]
STEPS = 3


def trained(name: str) -> dict:
    """A hash of all weights after some steps, and the calls that PyTorch ran (whose order of sums is not ours)."""
    import models
    import torch

    import trainc
    from trainc.base import records

    case = models.build(name)
    if name == "roberta":  # Hugging Face would set it in the first forward, which then runs in PyTorch, in its order of sums
        case.model.config.problem_type = "single_label_classification"
    model, optimizer = trainc.compile(case.model, torch.optim.AdamW(case.model.parameters(), lr=1e-3))
    torch.manual_seed(3)
    digest = hashlib.sha256()
    for step in range(STEPS):
        loss = case.step_loss(step, model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        digest.update(loss.detach().numpy().tobytes())
    for parameter in case.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    compilations = [*records.of(model), *records.of(optimizer)]
    externs = [operation for compilation in compilations for operation, _ in compilation.externs()]
    return {"digest": digest.hexdigest(), "externs": externs, "engines": sorted({c.engine for c in compilations})}


@functools.cache
def in_a_process(threads: int, names: tuple[str, ...]) -> dict[str, dict]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, __file__, *names], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_one_and_two_threads_are_equal(name, request):
    here = [item for item in request.session.items if item.function is request.function]
    names = tuple(item.callspec.params["name"] for item in here)  # one process trains all that are asked for
    one, two = in_a_process(1, names)[name], in_a_process(2, names)[name]
    assert one["engines"] == ["core"]
    if one["externs"]:
        pytest.fail(f"{name} was to have no extern call: {one['externs']}")
    assert one == two


if __name__ == "__main__":
    import trainc

    trainc.config.fallback = False
    print(json.dumps({name: trained(name) for name in sys.argv[1:]}))
