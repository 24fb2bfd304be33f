"""How much of a step's contractions the vendor's library would compute on a GPU. No GPU is needed: plans are made for one and
held by a driver that runs nothing.

    python bench/gpu_share.py [--cases gpt2 llama] [--precisions bf16] [--layers 2]

Models and batches are `make bench-cuda`'s, with fewer layers. They are traced on the CPU, without dropout within attention, which
a CPU would write out; attention is the framework's call, as on a GPU. Told of each: FLOPs of all contractions, the share in
products of the library, kernels and products of a step; of the rest why the library does not compute it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "tests" / "python")]
import torch  # noqa: E402
from standin import StandIn  # noqa: E402

import trainc  # noqa: E402
from trainc import _core  # noqa: E402
from trainc.base import config, records  # noqa: E402
from trainc.torch import device  # noqa: E402
from trainc.torch.graph import wire  # noqa: E402


def workload(name: str, layers: int) -> tuple[torch.nn.Module, dict]:
    import transformers as tf

    def words(batch: int, length: int, vocabulary: int) -> dict:
        ids = torch.randint(5, vocabulary, (batch, length))
        return {"input_ids": ids, "labels": ids}

    if name == "gpt2":
        return tf.GPT2LMHeadModel(tf.GPT2Config(n_layer=layers, attn_pdrop=0.0)), words(16, 1024, 50257)
    if name == "roberta":
        sizes = {"vocab_size": 50265, "max_position_embeddings": 514, "attention_probs_dropout_prob": 0.0}
        return tf.RobertaForMaskedLM(tf.RobertaConfig(num_hidden_layers=layers, **sizes)), words(64, 512, 50265)
    if name == "llama":
        sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4}
        return tf.LlamaForCausalLM(tf.LlamaConfig(num_hidden_layers=layers, vocab_size=32000, **sizes)), words(4, 2048, 32000)
    images = 128 if name == "resnet50" else 64
    pixels = {"pixel_values": torch.randn(images, 3, 224, 224), "labels": torch.zeros(images, dtype=torch.long)}
    if name == "resnet50":
        return tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=1000)), pixels
    return tf.ViTForImageClassification(tf.ViTConfig(num_hidden_layers=layers)), pixels


CASES = ("gpt2", "roberta", "llama", "vit")


def steps_for_a_gpu(name: str, bf16: bool, layers: int) -> tuple[list[dict], Counter]:
    """The steps of a training step's plans for an H100 or H200, and why contractions are kernels of ours."""
    gpu = StandIn()
    gpu.target = lambda: {"device": "null:sm_90a", "tf32": False, "vendor_product_flops": config.vendor_product_flops}
    device.gpu_in_use = lambda: True
    wire.is_the_frameworks = lambda node: "_scaled_dot_product_" in str(node.target)
    device._devices[torch.device("cpu")] = gpu
    _core.interpreted_streams()
    config.name_nvrtc()
    config.fallback = False
    model, batch = workload(name, layers)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)
    trainc.compile(model, optimizer)
    plans: list[dict] = []
    while not plans:  # a first call that sets defaults in the model runs in PyTorch
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        plans = [report for record in records.of(model) for report in record.reports()]
    refused = Counter()
    for plan in plans:
        for remark in plan.get("remarks", []):
            if remark["what"] == "vendor product":
                refused[remark["reason"]] += remark["count"]
    return [step for plan in plans for step in plan["steps"]], refused


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=("bf16", "fp32"))
    parser.add_argument("--layers", type=int, default=2)
    asked = parser.parse_args(arguments)
    print(f"{'':8}  {'':4}  {'GFLOP':>8}  {'library':>7}  {'products':>8}  {'kernels':>7}")
    for name in asked.cases:
        for precision in asked.precisions:
            steps, refused = steps_for_a_gpu(name, precision == "bf16", asked.layers)
            flops = {kind: sum(s.get("flops") or 0 for s in steps if s["kind"] == kind) for kind in ("product", "kernel")}
            total = sum(flops.values())
            count = Counter(step["kind"] for step in steps)
            print(
                f"{name:8}  {precision:4}  {total / 1e9:8.0f}  {flops['product'] / total:7.1%}  {count['product']:8}  "
                f"{count['kernel']:7}  {'; '.join(f'{why} ({n})' for why, n in refused.items())}",
                flush=True,
            )


if __name__ == "__main__":
    main()
