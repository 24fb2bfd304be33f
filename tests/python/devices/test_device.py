"""Small models train on a device without a GPU: every kernel of their plans is a device nest, run block by block and thread
by thread by the interpreter, which refuses races, missing barriers, accesses out of bounds and reads of what was never
written. The same kernels compile for three architectures, without spills."""

from __future__ import annotations

import functools

import loss_rule
import models
import nvrtc_table
import pytest
import torch

import trainc
from trainc import _core
from trainc.base import config, records, report
from trainc.torch import device

STEPS = 3
SMALL = {"vocab_size": 256}
# Hugging Face's forward writes it into the configuration where it is missing: the first step would run in PyTorch
CLASSES = {"problem_type": "single_label_classification"}


def _tokens(count: int = 3) -> list[torch.Tensor]:
    return [torch.randint(4, 256, (2, 32)) for _ in range(count)]


def gpt2() -> models.Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**SMALL, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    return models.Case(model, [{"input_ids": ids, "labels": ids} for ids in _tokens()])


def roberta() -> models.Case:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    config = RobertaConfig(**SMALL, **shape, **CLASSES, max_position_embeddings=34, num_labels=3, pad_token_id=1)
    model = RobertaForSequenceClassification(config)
    mask = torch.ones(2, 32, dtype=torch.long)
    mask[1, 20:] = 0
    inputs = [torch.where(mask.bool(), ids, 1) for ids in _tokens()]
    return models.Case(model, [{"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (2,))} for ids in inputs])


def llama() -> models.Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 172}
    model = LlamaForCausalLM(LlamaConfig(**SMALL, **shape, num_key_value_heads=2, max_position_embeddings=32))
    return models.Case(model, [{"input_ids": ids, "labels": ids, "use_cache": False} for ids in _tokens()])


def vit() -> models.Case:
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    # 31 patches and the class token: 32 tokens
    model = ViTForImageClassification(ViTConfig(**shape, **dropout, **CLASSES, image_size=(8, 248), patch_size=8, num_labels=10))
    batches = [{"pixel_values": torch.randn(2, 3, 8, 248), "labels": torch.randint(0, 10, (2,))} for _ in range(STEPS)]
    return models.Case(model, batches)


BUILDERS = {"gpt2": gpt2, "roberta": roberta, "llama": llama, "vit": vit}


def build(name: str) -> models.Case:
    torch.manual_seed(0)
    case = BUILDERS[name]()
    case.model.train()
    return case


train = functools.partial(models.train, steps=STEPS)


def adamw(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def eager(name: str, disturbance: int = 0) -> list[float]:
    case = build(name)
    if disturbance:
        loss_rule.disturb(case.model, disturbance)
    return train(case, case.model, adamw(case.model))


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch):
    monkeypatch.setattr(config, "fallback", False)


@pytest.fixture(scope="module")
def kernels() -> dict[str, str]:
    """Text of each distinct kernel -> a name; filled by the models, compiled by the last test."""
    return {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BUILDERS)
def test_model_trains_on_the_interpreted_device(name, monkeypatch, tmp_path, kernels):
    monkeypatch.setenv("TRAINC_DEVICE", "interpret")
    monkeypatch.setenv("TRAINC_DUMP", "loop")
    monkeypatch.setenv("TRAINC_DUMP_DIR", str(tmp_path))
    before = _core.interpreted_launches()
    case = build(name)
    model, optimizer = trainc.compile(case.model, adamw(case.model))
    found = train(case, model, optimizer)
    launches, blocks = (now - then for now, then in zip(_core.interpreted_launches(), before, strict=True))

    explanation = report.Explanation(name, [*trainc.explain(model).compilations, *records.of(optimizer)])
    plans = [plan for reports in explanation.reports for plan in reports]
    kinds = [step["kind"] for plan in plans for step in plan["steps"]]
    print(f"\n{name}: losses {found}; {kinds.count('kernel')} kernels, {kinds.count('extern')} extern calls a step")
    print(f"{launches} launches of {blocks} blocks; no finding")
    assert [plan["cpu"] for plan in plans[:2]] == ["interpret", "interpret"]  # forward, backward
    assert launches >= STEPS * kinds.count("kernel") > 0
    assert explanation.totals.flops_share >= 0.95, str(explanation)
    broken = loss_rule.violations(found, eager(name), [eager(name, seed) for seed in loss_rule.SEEDS])
    assert not broken, "\n".join(broken)
    nvrtc_table.collect(tmp_path, kernels)


def test_kernels_compile_for_every_architecture(kernels):
    if not kernels:
        pytest.fail("run this test with the models: pytest tests/python/devices/test_device.py")
    assert not nvrtc_table.spilled(kernels)


def test_device_names_are_checked(monkeypatch):
    monkeypatch.setenv("TRAINC_DEVICE", "abacus")
    with pytest.raises(trainc.UserError, match="TRAINC_DEVICE=abacus: no such device; there are cpu, cuda and interpret"):
        device.asked()
    for name in ("abacus", "cuda:", "cuda:x", "null:sm_1"):
        with pytest.raises(trainc.UserError):
            _core.device(name)
    assert _core.device("interpret") == "the interpreter of device nests"
