"""Data for the public scripts, made here: nothing is downloaded. Digits and pictures are drawn, text is Python's own source.

    python tests/scripts/data.py FOLDER
"""

from __future__ import annotations

import ast
import inspect
import json
import random
import struct
import sys
from pathlib import Path

import numpy
from PIL import Image, ImageDraw, ImageFont

MODULES = ("argparse", "ast", "asyncio.base_events", "datetime", "decimal", "inspect", "pydoc", "subprocess", "typing")


def text() -> str:
    """About half a megabyte."""
    return "".join(inspect.getsource(__import__(name, fromlist=["*"])) for name in MODULES)


def mnist(folder: Path) -> None:
    """MNIST/raw, as torchvision reads it: drawn digits, shifted and rotated."""
    raw, dice = folder / "MNIST" / "raw", random.Random(0)
    raw.mkdir(parents=True, exist_ok=True)
    font = ImageFont.load_default(size=20)
    for name, count in (("train", 2560), ("t10k", 1000)):
        images, labels = numpy.zeros((count, 28, 28), numpy.uint8), numpy.zeros(count, numpy.uint8)
        for i in range(count):
            labels[i] = dice.randrange(10)
            image = Image.new("L", (28, 28))
            ImageDraw.Draw(image).text((dice.randint(6, 10), dice.randint(0, 4)), str(labels[i]), 255, font)
            images[i] = numpy.asarray(image.rotate(dice.uniform(-15, 15)))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, *images.shape) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def picture(dice: random.Random, kind: int, size: tuple[int, int]) -> Image.Image:
    """Shapes on a gradient; `kind` of shape."""
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y = dice.randrange(size[0]), dice.randrange(size[1])
        box = (x, y, x + dice.randint(4, size[0] // 2), y + dice.randint(4, size[1] // 2))
        colour = tuple(dice.randrange(256) for _ in range(3))
        (draw.ellipse, draw.rectangle, draw.line)[kind % 3](box, fill=colour)
    return image


def pictures(folder: Path, kinds: int, each: int, size: tuple[int, int], flat: bool = False) -> None:
    """One folder a kind, or all in one."""
    dice = random.Random(0)
    for i in range(kinds * each):
        path = folder / ("" if flat else f"kind{i % kinds}") / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(dice, i % kinds, size).save(path)


def words(folder: Path) -> None:
    """A corpus of words, as word_language_model reads it, and its characters in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = text().splitlines()
    for name, part in (("train", lines[:6000]), ("valid", lines[6000:6600]), ("test", lines[6600:7200])):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
    (folder / "input.txt").write_text(text())


def citations(folder: Path) -> None:
    """A graph in Cora's format: cora.content (paper, words, class), cora.cites (pairs)."""
    folder.mkdir(parents=True, exist_ok=True)
    dice, papers = random.Random(0), range(2000)
    classes = [f"Class{i % 7}" for i in papers]

    def content(i: int) -> str:
        about = {dice.randrange(i % 7 * 40, i % 7 * 40 + 80) for _ in range(20)}
        return "\t".join([str(i), *("1" if word in about else "0" for word in range(320)), classes[i]])

    def cited(i: int) -> int:
        return dice.randrange(i % 7, 2000, 7) if dice.random() < 0.8 else dice.randrange(2000)

    pairs = {tuple(sorted((i, cited(i)))) for i in papers for _ in range(2)}
    (folder / "cora.content").write_text("\n".join(map(content, papers)) + "\n")
    (folder / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in sorted(pairs) if a != b) + "\n")


def language_model(folder: Path) -> None:
    """A small Llama with weights at random, its tokenizer, and rows of text, as Hugging Face's libraries read them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.train_from_iterator([text()], trainers.BpeTrainer(vocab_size=1000, special_tokens=["<s>", "</s>", "<pad>"]))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(fast), **sizes)).save_pretrained(folder / "model")
    rows = [ast.get_docstring(node) for node in ast.walk(ast.parse(text())) if isinstance(node, ast.FunctionDef)]
    (folder / "rows").mkdir(exist_ok=True)
    (folder / "rows" / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows if row))


def make(folder: Path) -> None:
    mnist(folder / "mnist")
    pictures(folder / "dataset" / "BSDS300" / "images" / "train", 3, 80, (321, 300), flat=True)
    pictures(folder / "dataset" / "BSDS300" / "images" / "test", 3, 10, (321, 300), flat=True)
    pictures(folder / "pictures" / "train", 3, 80, (80, 80))
    pictures(folder / "pictures" / "validation", 3, 10, (80, 80))
    words(folder / "text")
    citations(folder / "cora")
    language_model(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
