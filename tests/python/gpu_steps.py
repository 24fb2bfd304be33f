"""Training steps of the five models that are measured on a GPU, small and in odd sizes: `recorded` runs one on the stand-in
(standin.py), whose kernels are interpreted, and keeps what it read and gave; `as_text` runs the same plan once more with its
kernels as CUDA C++, compiled for the host; `meant` says what src/reference makes of it."""

from __future__ import annotations

import functools
import json
import pathlib
import re
import struct
import subprocess
from dataclasses import dataclass, field

import models
import numpy as np
import pytest
import torch
from standin import StandIn

import trainc
from trainc import _core
from trainc.base import config
from trainc.torch import device
from trainc.torch.graph import wire
from trainc.torch.run import core
from trainc.torch.strided import span

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHUNK = 1024  # elements of a tensor in the formula of an update


# --- the models: two layers, widths and lengths that no tile divides --------------------------------------------------


def gpt2() -> models.Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 101, "n_positions": 24, "n_embd": 36, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
    ids = torch.randint(4, 101, (2, 19))
    return models.Case(GPT2LMHeadModel(GPT2Config(**sizes)), [{"input_ids": ids, "labels": ids}])


def roberta() -> models.Case:
    from transformers import RobertaConfig, RobertaForMaskedLM

    # rows of 64: a thread reads neighbours at once, which it does not of the other models' rows
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 90, "vocab_size": 103}
    ids, mask = torch.randint(4, 103, (2, 21)), torch.ones(2, 21, dtype=torch.long)
    mask[1, 13:] = 0
    labels = torch.where(ids % 3 == 0, ids, -100)
    batch = {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask, "labels": labels}
    return models.Case(RobertaForMaskedLM(RobertaConfig(**sizes, max_position_embeddings=24, pad_token_id=1)), [batch])


def llama() -> models.Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 85, "num_hidden_layers": 2, "num_attention_heads": 6}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, max_position_embeddings=24))
    ids = torch.randint(4, 97, (2, 17))
    return models.Case(model, [{"input_ids": ids, "labels": ids, "use_cache": False}])


def vit() -> models.Case:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 70, "num_labels": 7}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    # Hugging Face's forward writes the type of the problem into the configuration where it is missing
    config = ViTConfig(**sizes, **dropout, image_size=(24, 32), patch_size=8, problem_type="single_label_classification")
    batch = {"pixel_values": torch.randn(3, 3, 24, 32), "labels": torch.randint(0, 7, (3,))}
    return models.Case(ViTForImageClassification(config), [batch])


def resnet50() -> models.Case:
    """Blocks of each kind that ResNet-50 has: bottlenecks with and without a stride, with and without a projection."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 10, "hidden_sizes": [20, 28, 36], "depths": [2, 1, 2], "num_labels": 7}
    config = ResNetConfig(**sizes, problem_type="single_label_classification")
    batch = {"pixel_values": torch.randn(2, 3, 35, 45), "labels": torch.randint(0, 7, (2,))}
    return models.Case(ResNetForImageClassification(config), [batch])


MODELS = {"gpt2": gpt2, "roberta": roberta, "llama": llama, "vit": vit, "resnet50": resnet50}


# --- a step, as it ran -----------------------------------------------------------------------------------------------


@dataclass
class Step:
    """`before`, `after`: the plan's inputs; `results`: its outputs, None where there is none."""

    core: core.CoreStep
    outputs: int  # of the forward; gradients follow in the graph's results
    seed: int
    offset: int  # of the generator, before it
    before: list[torch.Tensor | None]
    after: list[torch.Tensor | None] = field(default_factory=list)
    results: list[torch.Tensor | None] = field(default_factory=list)

    @functools.cached_property
    def updates(self) -> list:
        return self.core._updates.arguments("step")

    @property
    def written(self) -> list[int]:
        """Inputs that it overwrites."""
        return [inputs[place] for formula, _, inputs in self.updates[1] for place in self.updates[0][formula][1]]


def recorded(name: str, bf16: bool, products: bool, monkeypatch: pytest.MonkeyPatch) -> Step:
    """The second step of training a model with AdamW on the stand-in, in `train_step`. `products`: by the vendor's library."""
    gpu, steps = StandIn(seed=0x1234_5678_9ABC_DEF0), []
    gpu.vendor_product_flops = int(products)

    class Recording(core.CoreStep):
        def __init__(self, plan, updates):
            super().__init__(plan, updates)
            self.outputs = plan.step.outputs

        def __call__(self, inputs, states, scalars):
            step = Step(self, self.outputs, gpu.seed, gpu.offset, kept([*inputs, *self._updates.inputs(states, scalars)]))
            step.results = kept(super().__call__(inputs, states, scalars))
            step.after = kept([*inputs, *self._updates.inputs(states, scalars)])
            steps.append(step)
            return step.results

    torch.manual_seed(0)
    case = MODELS[name]()
    optimizer = torch.optim.AdamW(case.model.train().parameters(), lr=1e-3)

    def body(bf16=False, **batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = case.model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    body(**case.batches[0])  # in PyTorch: of states that are zero, an update would be a gradient's sign
    monkeypatch.setattr(config, "fallback", False)
    monkeypatch.setattr(device, "gpu_in_use", lambda: True)
    monkeypatch.setitem(device._devices, torch.device("cpu"), gpu)
    monkeypatch.setattr(core, "CoreStep", Recording)
    trainc.train_step(body)(bf16, **case.batches[0])
    (step,) = steps
    return step


def kept(tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if t is None else t.detach().clone() for t in tensors]


# --- the same, as text on the host -----------------------------------------------------------------------------------


def as_text(step: Step, folder: pathlib.Path) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None], dict]:
    """(results, inputs afterwards, what text_runner says of its calls)."""
    runner = next(iter(sorted(ROOT.glob("build/*/text_runner"))), None)
    if runner is None:
        pytest.skip("text_runner is not built: make build")
    plan = step.core.plan
    (folder / "plan").write_bytes(plan.save())
    (folder / "generator").write_bytes(struct.pack("<QQ", step.seed, step.offset))
    for i, info in enumerate(plan.input_info):
        if info is not None:
            (folder / f"in{i}").write_bytes(memory(step.before[i], tuple(info[2])))
    done = subprocess.run([runner, folder], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    results = [info and tensor_of(folder / f"out{i}", *info[:3]) for i, info in enumerate(plan.output_info)]
    inputs = [info and tensor_of(folder / f"in{i}", *info) for i, info in enumerate(plan.input_info)]
    return results, inputs, json.loads((folder / "calls.json").read_text())


def memory(tensor: torch.Tensor, stride: tuple[int, ...]) -> bytes:
    dense = torch.empty(span(tensor.shape, stride), dtype=tensor.dtype)
    dense.as_strided(tensor.shape, stride).copy_(tensor)
    return dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def tensor_of(file: pathlib.Path, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    raw = torch.frombuffer(bytearray(file.read_bytes() or bytes(8)), dtype=wire.DTYPES[dtype])
    return raw.as_strided(shape, stride)


# --- what it means ---------------------------------------------------------------------------------------------------


def meant(step: Step, precision: str) -> tuple[list[np.ndarray | None], dict[int, np.ndarray]]:
    """(results of the forward, what is written by its number among the inputs) by src/reference: "truth", in fp64, or "rounded"
    after each operation."""
    text = step.core.graph.text()
    count = sum(node["op"] == "placeholder" for node in json.loads(text)["nodes"])
    given = [numbers(t) for t in step.before[:count]]
    found = _core.evaluate(text, given, precision, masks(text, step))
    written: dict[int, np.ndarray] = {}
    for formula, gradient, inputs in step.updates[1]:
        graph, in_place = step.updates[0][formula]
        columns = [found[step.outputs + gradient] if i < 0 else numbers(step.before[i]) for i in inputs]
        for place, result in zip(in_place, updated(graph, columns, precision), strict=True):
            written[inputs[place]] = result.reshape(step.before[inputs[place]].shape)
    return found[: step.outputs], written


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def updated(graph: str, columns: list[np.ndarray], precision: str) -> list[np.ndarray]:
    """The results of an update's formula, which is of `CHUNK` elements and of scalars."""
    size = columns[0].size
    flat = [c if c.ndim == 0 else np.pad(c.reshape(-1), (0, -size % CHUNK)) for c in columns]
    parts = [
        _core.evaluate(graph, [c if c.ndim == 0 else c[at : at + CHUNK] for c in flat], precision) for at in range(0, size, CHUNK)
    ]
    return [np.concatenate(part)[:size] for part in zip(*parts, strict=True)]


def masks(text: str, step: Step) -> list[np.ndarray]:
    """Of each draw of a captured graph, in their order."""
    drawn, offset = [], step.offset
    for line in re.findall(r"= (random .*)", _core.import_text(text)):
        p, threads, vector = (float(re.search(rf"{word}=(\S+)", line)[1]) for word in ("p", "threads", "vector"))
        shape = [int(n) for n in re.search(r": bool\[([\d,]*)\]", line)[1].split(",")]
        size = int(np.prod(shape))
        flat = _core.dropout_mask(step.seed, offset, size, int(threads), int(vector), p)
        drawn.append(np.frombuffer(flat, dtype=np.uint8).reshape(shape))
        offset += ((size - 1) // (int(threads) * 4) + 1) * 4
    return drawn


@dataclass(frozen=True)
class Error:
    """Of a result, or of what an input became: the norm of its distance from the truth, as a part of the truth's (of what is
    overwritten: of its change's). `ideal`: that of a machine that rounds after each operation, and never within a sum."""

    name: str
    got: float
    ideal: float

    def bound(self, bf16: bool) -> float:
        """Sums in f32 round what they add up, which the ideal machine does not: 2e-5 allows for BatchNorm's over few images.
        Under bf16 its roundings are most of it."""
        if not self.tells:
            return 100 * self.ideal
        return (2 if bf16 else 8) * self.ideal + 2e-5

    @property
    def tells(self) -> bool:
        """Whether roundings leave digits of it: of the gradient of a bias before a softmax, which is 0, they do not."""
        return self.ideal < 0.1


def errors(step: Step, results: list, after: list, truth: tuple, rounded: tuple) -> list[Error]:
    def error(name: str, got: torch.Tensor, true: np.ndarray, ideal: np.ndarray, old: np.ndarray | float = 0.0) -> Error:
        size = float(np.linalg.norm(true - old)) or 1.0
        return Error(name, *(float(np.linalg.norm(x - true)) / size for x in (numbers(got), ideal)))

    forward = zip(results[: step.outputs], truth[0], rounded[0], strict=True)
    told = [error(f"result {i}", *row) for i, row in enumerate(forward) if row[0] is not None]
    for i in step.written:
        told.append(error(f"input {i}", after[i], truth[1][i], rounded[1][i], numbers(step.before[i])))
    return told
