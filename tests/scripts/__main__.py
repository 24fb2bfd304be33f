"""Training scripts of others, eager and compiled: docs/scripts.md.

    python tests/scripts FOLDER --prepare      # data and links; FOLDER holds a checkout of each repository
    python tests/scripts FOLDER --only mnist   # `trainc compare` of each; FOLDER/results.json has what came out
    python tests/scripts FOLDER --table        # of what has been run, as docs/scripts.md has it
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

NO_DOWNLOAD = re.compile(r"requests\.get|tarfile\.open\(|extractall")


@dataclasses.dataclass
class Script:
    folder: str  # in FOLDER; the script runs there
    words: str
    steps: int = 20
    path: str = ""  # PYTHONPATH, in FOLDER


SCRIPTS = {
    "mnist": Script("examples/mnist", "main.py --epochs 1 --no-accel"),
    "mnist_rnn": Script("examples/mnist_rnn", "main.py --epochs 1"),
    "mnist_forward_forward": Script(
        "examples/mnist_forward_forward", "main.py --epochs 8 --train_size 500 --test_size 200 --no_accel"
    ),
    "vae": Script("examples/vae", "main.py --epochs 1 --no-accel"),
    "siamese_network": Script("examples/siamese_network", "main.py --epochs 1 --no-accel --batch-size 16"),
    "dcgan": Script(
        "examples/dcgan", "main.py --dataset fake --imageSize 64 --batchSize 8 --ngf 16 --ndf 16 --workers 0"
    ),
    "super_resolution": Script("examples/super_resolution", "main.py --upscale_factor 3 --batchSize 4 --threads 1"),
    "imagenet": Script("examples/imagenet", "main.py --dummy -a resnet18 -b 4 -j 1 --no-accel"),
    "word_language_model, LSTM": Script("examples/word_language_model", "main.py --data ../../data/text"),
    "word_language_model, Transformer": Script(
        "examples/word_language_model", "main.py --data ../../data/text --model Transformer --lr 1"
    ),
    "gcn": Script("edited/gcn", "main.py --no-accel"),
    "gat": Script("edited/gat", "main.py --no-accel"),
    "reinforce": Script("examples/reinforcement_learning", "reinforce.py"),
    "actor_critic": Script("examples/reinforcement_learning", "actor_critic.py"),
    "regression": Script("examples/regression", "main.py"),
    "nanoGPT": Script(
        "nanoGPT", "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=1 --log_interval=1 "
        "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --dropout=0.0",
    ),
    "minGPT, chargpt": Script(
        "minGPT/projects/chargpt", "chargpt.py --model.model_type=gpt-nano --data.block_size=32 --trainer.batch_size=8 "
        "--trainer.num_workers=0", path="minGPT",
    ),
    "makemore": Script("makemore", "makemore.py --max-steps 100 --num-workers 0"),
    "timm, train.py": Script(
        "pytorch-image-models", "train.py --data-dir ../data/pictures --model resnet10t --num-classes 3 --img-size 64 -b 8 "
        "--device cpu --workers 1 --epochs 2 --no-prefetcher --opt adamw --lr 1e-3 --output out",
    ),
    "transformers, run_clm_no_trainer.py": Script(
        "transformers", "examples/pytorch/language-modeling/run_clm_no_trainer.py --model_name_or_path ../data/model "
        "--train_file ../data/text/train.txt --validation_file ../data/text/valid.txt --output_dir out --block_size 128 "
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --learning_rate 1e-3 --weight_decay 0.1 --seed 0",
        path="older-accelerate",
    ),
    "TRL, scripts/sft.py": Script(
        ".", "-m trl.scripts.sft --model_name_or_path data/model --dataset_name data/rows --output_dir sft-out "
        "--per_device_train_batch_size 4 --max_length 128 --max_steps 25 --use_cpu --report_to none --save_strategy no",
    ),
}  # fmt: skip
LINKS = {
    "examples/data": "data/mnist", "examples/mnist_forward_forward/data": "data/mnist",
    "examples/super_resolution/dataset": "data/dataset", "edited/gcn/cora": "data/cora", "edited/gat/cora": "data/cora",
    "minGPT/projects/chargpt/input.txt": "data/text/input.txt", "nanoGPT/data/shakespeare_char/input.txt": "data/text/input.txt",
}  # fmt: skip


def prepare(folder: Path) -> None:
    import data

    data.make(folder / "data")
    for name in ("gcn", "gat"):  # their data are there: without the lines that download them
        (folder / "edited" / name).mkdir(parents=True, exist_ok=True)
        lines = (folder / "examples" / name / "main.py").read_text().splitlines()
        kept = [line for line in lines if not NO_DOWNLOAD.search(line)]
        (folder / "edited" / name / "main.py").write_text("\n".join(kept) + "\n")
    for link, target in LINKS.items():
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(folder / target)
    subprocess.run([sys.executable, "data/shakespeare_char/prepare.py"], cwd=folder / "nanoGPT", check=True)


def compare(folder: Path, script: Script, steps: int) -> dict:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), script.path and str(folder / script.path)]))
    words = ["-m", "trainc", "compare", "--steps", str(min(steps, script.steps)), "--json", *script.words.split()]
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder / script.folder, env=environment, capture_output=True, text=True
    )  # fmt: skip
    return json.loads(done.stdout) if done.stdout.startswith("{") else {"failed": done.stderr[-2000:]}


def row(name: str, found: dict) -> str:
    if "failed" in found:
        return f"| {name} | failed: {found['failed'].splitlines()[-1]} | | | |"
    eager, again, trainc = (found["runs"][way] for way in ("eager", "eager again", "trainc"))
    told = "; ".join([*trainc["compiled"], *(line.rstrip(".") for line in trainc["said"])])
    agree = {True: "agree", False: "DIFFER", None: "eager's differ by themselves"}[trainc["losses_agree"]]
    losses = f"{eager['losses'][0][0]:.6g} to {eager['losses'][-1][0]:.6g}: {agree} ({trainc['largest_loss_difference']:.0e})"
    times = [f"{run['step_seconds']['median'] * 1e3:.3g}" for run in (eager, again, trainc)]
    memory = [f"{run['peak_bytes'] / 1e6:.0f}" for run in (eager, trainc)]
    return f"| {name} | {told.replace('|', '/')} | {losses} | {times[0]}, {times[1]}; {times[2]} | {'; '.join(memory)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--steps", type=int, default=20, help="at most so many of each")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    folder = args.folder.resolve()
    if args.prepare:
        prepare(folder)
        return 0
    file = folder / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    asked = [name for name in SCRIPTS if any(fnmatch.fnmatchcase(name, pattern) for pattern in args.only)]
    for name in [] if args.table else asked:
        results[name] = compare(folder, SCRIPTS[name], args.steps)
        file.write_text(json.dumps(results, indent=1))
        print(row(name, results[name]), flush=True)
    if args.table:
        print("| script | what became of it | losses, first and last: largest difference | a step, ms: eager twice; compiled "
              "| peak, MB: eager; compiled |\n|---|---|---|---|---|")  # fmt: skip
        print("\n".join(row(name, results[name]) for name in SCRIPTS if name in results))
    bad = [name for name in asked if "failed" in results[name] or results[name]["runs"]["trainc"]["losses_agree"] is False]
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
