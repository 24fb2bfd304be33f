"""What is measured: one function a case, each giving a model in training mode with random initial weights, and its batches.

Dropout is each model's default. Language models read real text (Python's own source through a byte-pair tokenizer made from it);
images are made. `tiny` is for the tests.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import finetune_gpt2 as gpt2_example  # noqa: E402

SEED = 0


@dataclasses.dataclass
class Workload:
    """`model(**batch(step)).loss` is the loss; the same step gives the same batch in every process."""

    model: object
    batch: Callable[[int], dict]
    hidden_flops: Callable[[dict], int] = lambda batch: 0  # of a batch's step: what cannot matter


@dataclasses.dataclass(frozen=True)
class Case:
    build: Callable[[], Workload]
    title: str
    vocabulary: int | None = None  # of the text that it reads
    small: bool = False  # stands apart: its time is overheads, not arithmetic
    quick_inductor: bool = False  # Inductor compiles it in half a minute, so that --quick has it too
    in_jax: bool = False  # a GPT-2: xla.py has it, too


# --- data -------------------------------------------------------------------------------------------------------------


def tokens_of(vocabulary: int) -> np.ndarray:
    """Python's source as one row of token numbers below `vocabulary`; made once, or brought along (kit/make.py)."""
    ready = ROOT / "tokens" / f"{vocabulary}.i32"
    if ready.exists():
        return np.fromfile(ready, dtype="<i4").astype(np.int64)
    path = ROOT / "build" / "bench" / f"tokens-{'.'.join(map(str, sys.version_info[:3]))}-{vocabulary}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, gpt2_example.token_stream(None, None, vocabulary))
    return np.load(path, mmap_mode="r")


def _text(vocabulary: int, batch: int, length: int) -> Callable[[int], dict]:
    tokens = tokens_of(vocabulary)

    def next_words(step: int) -> dict:
        ids = gpt2_example.batch_of(tokens, step, batch, length, SEED)
        return {"input_ids": ids, "labels": ids}

    return next_words


def _images(batch: int, size: int, labels: int, each_pixel: bool = False) -> Callable[[int], dict]:
    import torch

    labelled = (batch, size, size) if each_pixel else (batch,)

    def batch_of(step: int) -> dict:
        generator = torch.Generator().manual_seed(1000 + step)
        pixels = torch.randn(batch, 3, size, size, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(0, labels, labelled, generator=generator)}

    return batch_of


# --- models -----------------------------------------------------------------------------------------------------------


def _gpt2(batch: int, length: int, **sizes: int) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**sizes)
    return Workload(GPT2LMHeadModel(config), _text(config.vocab_size, batch, length))


def gpt2() -> Workload:
    return _gpt2(4, 256)


def _labelled(workload: Workload, batch: Callable[[int], dict], share: float, head: tuple[int, int], shifted: bool) -> Workload:
    """The same with labels at so many of the tokens; `head`: rows and columns of the weight that makes logits."""
    import torch

    def batch_of(step: int) -> dict:
        inputs = batch(step)
        chosen = torch.rand(inputs["input_ids"].shape, generator=torch.Generator().manual_seed(step)) < share
        return {**inputs, "labels": torch.where(chosen, inputs["labels"], -100)}

    def hidden_flops(inputs: dict) -> int:
        labels = inputs["labels"]
        shown = (labels[:, 1:] if shifted else labels) != -100  # a label belongs to the row before it
        return 3 * 2 * head[0] * head[1] * (labels.numel() - int(shown.sum()))

    return Workload(workload.model, batch_of, hidden_flops)


def gpt2_tuned() -> Workload:
    """Instruction tuning: answers have labels, what they answer has none."""
    whole = gpt2()
    config = whole.model.config
    return _labelled(whole, whole.batch, 0.4, (config.vocab_size, config.n_embd), shifted=True)


def roberta_masked() -> Workload:
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    words = _text(50257, 8, 128)

    def batch_of(step: int) -> dict:
        ids = words(step)["input_ids"] + 4  # 0 to 3 are special: begin, pad, end, unknown
        return {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape), "labels": ids}

    model = Workload(RobertaForMaskedLM(config), batch_of)
    return _labelled(model, batch_of, 0.15, (config.vocab_size, config.hidden_size), shifted=False)


def _padded(workload: Workload, fill: float, layers: int, width: int, inner: int) -> Workload:
    """The same, of which so many of the tokens are no padding; each batch has a sample of full length."""
    import torch

    def batch_of(step: int) -> dict:
        inputs = workload.batch(step)
        samples, tokens = inputs["input_ids"].shape
        lengths = torch.rand(samples, generator=torch.Generator().manual_seed(step))
        lengths = lengths * ((fill * samples - 1) / (samples - 1) / lengths[1:].mean())
        lengths = (lengths.clamp(1 / tokens, 1) * tokens).round()
        lengths[0] = tokens
        mask = torch.arange(tokens) < lengths[:, None]
        return {**inputs, "input_ids": inputs["input_ids"].where(mask, 1), "attention_mask": mask.long()}

    def hidden_flops(inputs: dict) -> int:
        mask = inputs["attention_mask"]
        samples, tokens = mask.shape
        linear = 2 * width * (4 * width + 2 * inner)
        hidden = int((mask == 0).sum())
        pairs = samples * tokens * tokens - int(mask.sum(1).square().sum())
        return 3 * layers * (hidden * linear + pairs * 4 * width)

    return Workload(workload.model, batch_of, hidden_flops)


def roberta_padded() -> Workload:
    whole = roberta()
    config = whole.model.config
    return _padded(whole, 0.6, config.num_hidden_layers, config.hidden_size, config.intermediate_size)


def gpt2_small() -> Workload:
    return _gpt2(1, 64)


def gpt_2x256() -> Workload:
    return _gpt2(4, 64, n_layer=2, n_embd=256, n_head=4)


def tiny() -> Workload:
    return _gpt2(2, 16, vocab_size=600, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)


def roberta() -> Workload:
    """Classification of whole rows: 128 tokens each, with the attention mask that a tokenizer gives."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification

    # roberta-base: vocabulary and positions as released, where RobertaConfig's own defaults are BERT's
    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, num_labels=2)
    words = _text(50257, 8, 128)

    def batch_of(step: int) -> dict:
        ids = words(step)["input_ids"] + 4  # 0 to 3 are special: begin, pad, end, unknown
        labels = torch.randint(0, 2, (8,), generator=torch.Generator().manual_seed(step))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return Workload(RobertaForSequenceClassification(config), batch_of)


def resnet50() -> Workload:
    from transformers import ResNetConfig, ResNetForImageClassification

    return Workload(ResNetForImageClassification(ResNetConfig(num_labels=1000)), _images(8, 160, 1000))


def vit() -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    return Workload(ViTForImageClassification(ViTConfig(num_labels=1000)), _images(4, 224, 1000))


def llama() -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return Workload(LlamaForCausalLM(config), _text(32000, 4, 256))


def convnext() -> Workload:
    """ConvNeXt-tiny, as released."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return Workload(ConvNextForImageClassification(ConvNextConfig(num_labels=1000)), _images(8, 160, 1000))


def unet() -> Workload:
    from own_networks import UNet

    return Workload(UNet(), _images(4, 128, 2, each_pixel=True))


def lstm(**sizes: int) -> Workload:
    """Its labels are the next words, which the text has beyond each row."""
    from own_networks import LSTMLanguageModel

    words = _text(10000, 20, 36)

    def batch_of(step: int) -> dict:
        ids = words(step)["input_ids"]
        return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    return Workload(LSTMLanguageModel(**sizes), batch_of)


def lstm_256() -> Workload:
    return lstm(width=256)


def mlp() -> Workload:
    import torch
    from own_networks import Perceptron

    def batch_of(step: int) -> dict:
        generator = torch.Generator().manual_seed(step)
        return {"x": torch.randn(32, 256, generator=generator), "labels": torch.randint(0, 256, (32,), generator=generator)}

    return Workload(Perceptron(), batch_of)


CASES: dict[str, Case] = {
    "gpt2": Case(gpt2, "GPT-2 124M, 4 x 256", vocabulary=50257, in_jax=True),
    "roberta": Case(roberta, "RoBERTa-base classification, 8 x 128", vocabulary=50257),
    "gpt2-tuned": Case(gpt2_tuned, "GPT-2 124M, instruction tuning (40% labelled), 4 x 256", vocabulary=50257),
    "roberta-masked": Case(roberta_masked, "RoBERTa-base, masked LM (15% labels), 8 x 128", vocabulary=50257),
    "roberta-padded": Case(roberta_padded, "RoBERTa-base classification, 8 x 128, 60% of it no padding", vocabulary=50257),
    "resnet50": Case(resnet50, "ResNet-50, 8 x 160 x 160"),
    "vit": Case(vit, "ViT-base, 4 x 224 x 224"),
    "llama": Case(llama, "Llama-style, 8 layers, 512 wide, 4 x 256", vocabulary=32000),
    "convnext": Case(convnext, "ConvNeXt-tiny, 8 x 160 x 160"),
    "unet": Case(unet, "U-Net, 64 wide, 4 x 128 x 128"),
    "lstm": Case(lstm, "LSTM language model, 2 x 650, 20 x 35", vocabulary=10000),
    "gpt2-1x64": Case(gpt2_small, "GPT-2 124M, 1 x 64", vocabulary=50257, small=True, in_jax=True),
    "gpt-2x256": Case(
        gpt_2x256, "GPT, 2 layers, 256 wide, 4 x 64", vocabulary=50257, small=True, quick_inductor=True, in_jax=True
    ),
    "lstm-256": Case(lstm_256, "LSTM language model, 2 x 256, 20 x 35", vocabulary=10000, small=True),
    "mlp": Case(mlp, "MLP, 3 layers of 256, batch 32", small=True, quick_inductor=True),
}
TESTS: dict[str, Case] = {"tiny": Case(tiny, "for the tests", vocabulary=600, small=True, in_jax=True)}


def build(name: str) -> Workload:
    """The named case with the same initial weights in every process, in training mode."""
    import torch

    torch.manual_seed(SEED)
    workload = {**CASES, **TESTS}[name].build()
    workload.model.train()
    return workload
