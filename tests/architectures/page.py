"""docs/architectures.md, of the verdicts: what became of each architecture, through which door, and why."""

from __future__ import annotations

import collections
import datetime
import re
from collections.abc import Iterable
from pathlib import Path

import make
import torch
import transformers
from judge import CLASSES, COMPILED

FAMILIES = {
    "CAUSAL_LM": "text, left to right", "SEQ_TO_SEQ_CAUSAL_LM": "text to text", "MASKED_LM": "text, masked",
    "IMAGE_TEXT_TO_TEXT": "images and text", "SPEECH_SEQ_2_SEQ": "speech to text", "IMAGE_CLASSIFICATION": "images",
    "AUDIO_CLASSIFICATION": "sound", "VIDEO_CLASSIFICATION": "video", "SEMANTIC_SEGMENTATION": "segmentation",
    "DEPTH_ESTIMATION": "depth", "ZERO_SHOT_IMAGE_CLASSIFICATION": "images beside text", "OBJECT_DETECTION": "detection",
    "SEQUENCE_CLASSIFICATION": "text, encoded", "IMAGE_TO_IMAGE": "images to images", "BACKBONE": "backbones", "": "others",
}  # fmt: skip
DOORS = {"compile": "`trainc.compile`", "backend": '`torch.compile(backend="trainc")`'}


def write(verdicts: list[dict], path: Path) -> None:
    by_door = {door: {v["case"]: v for v in verdicts if v["door"] == door} for door in DOORS}
    shown = [door for door, found in by_door.items() if found]
    names = sorted({v["case"] for v in verdicts})
    lines = [
        "# Architectures of transformers, trained",
        "",
        f"Written by `python tests/architectures --report --page {path}` on {datetime.date.today():%Y-%m-%d}; transformers "
        f"{transformers.__version__}, PyTorch {torch.__version__}. Judged: {len(names)} of {len(make.architectures())} types of",
        f"models ({len({v['case'] for v in verdicts if 'as' in v})} of them by another's verdict, whose code is the same),",
        "each small, four steps of AdamW, fallback off, against eager ([conformance.md](conformance.md#architectures)).",
        "",
        *(f"- {kind}: {text}" for kind, text in CLASSES.items()),
        "",
        *_table(["door", *CLASSES, "compiled, of what eager trains"], (_counts(DOORS[d], by_door[d].values()) for d in shown)),
    ]
    for door in shown:
        families = collections.defaultdict(list)
        for verdict in by_door[door].values():
            families[make.task(verdict["case"])].append(verdict)
        lines += ["", f"## Through {DOORS[door]}, by family", ""]
        rows = (_counts(text, families[task]) for task, text in FAMILIES.items() if families[task])
        lines += _table(["family", *CLASSES, "compiled"], rows)
        for kind in ("wrong", "crash", "hang", "refused", "tracer", "split", "skipped"):
            lines += _reasons(kind, [v for v in by_door[door].values() if v["class"] == kind])
        lines += _externs(by_door[door].values())
    lines += ["", "## Each", ""]
    rows = ([name, _model(name, by_door), *(_told(by_door[door].get(name)) for door in shown)] for name in names)
    path.write_text("\n".join([*lines, *_table(["architecture", "class", *(DOORS[d] for d in shown)], rows)]) + "\n")


def _table(head: list[str], rows: Iterable[list]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def _counts(title: str, verdicts: Iterable[dict]) -> list:
    counts = collections.Counter(v["class"] for v in verdicts)
    trained = sum(counts.values()) - counts["skipped"]
    share = f"{sum(counts[c] for c in COMPILED) / trained:.1%}" if trained else ""
    return [title, *(counts[c] for c in CLASSES), share]


def _reasons(kind: str, found: list[dict]) -> list[str]:
    """The most frequent first, each with its architectures."""
    groups = collections.defaultdict(list)
    for verdict in found:
        groups[_short(verdict["reason"])].append(verdict["case"])
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    lines = [f"- {len(cases)}: {reason} ({', '.join(cases)})" for reason, cases in ordered]
    return ["", f"{kind}:", "", *lines] if lines else []


def _short(reason: str) -> str:
    """The first attempt's words, without what differs from one model to the next."""
    text = reason.partition(";")[0].replace("BackendCompilerFailed: backend='backend' raised:", "")
    text = re.sub(r"^\w+ \([^)]*\): ", "", " ".join(text.split()))  # the class and the variant
    return text.replace("|", "\\|")[:160]


def _externs(verdicts: Iterable[dict]) -> list[str]:
    counts = collections.Counter(name for v in verdicts if v["class"] == "extern" for name in set(_operations(v["reason"])))
    if not counts:
        return []
    told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])))
    return ["", f"Operations that PyTorch runs inside the plans, and in how many architectures: {told}."]


def _operations(reason: str) -> list[str]:
    return [name.removesuffix(".default") for name in reason.rpartition("; ")[2].split(", ") if name]


def _model(name: str, by_door: dict[str, dict[str, dict]]) -> str:
    return next((v["model"] for found in by_door.values() if (v := found.get(name)) and "model" in v), "")


def _told(verdict: dict | None) -> str:
    return "" if verdict is None else verdict["class"] + (f", as {verdict['as']}" if "as" in verdict else "")


def read(path: Path) -> list[dict]:
    """The verdicts that a page was written of, as far as it tells them: reasons shortened, no fingerprints, and which operations
    PyTorch ran in how many architectures, but not in which: the first so many are given them, so that `write` counts the same."""
    before, _, each = path.read_text().partition("\n## Each\n")
    rows = [line.strip("| ").split(" | ") for line in each.splitlines() if line.startswith("| ")]
    by_title = {title: door for door, title in DOORS.items()}
    verdicts, sections = [], re.split(r"\n## Through (.*), by family\n", before)[1:]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        door, column = by_title[title], rows[0].index(title)
        reasons = {
            case: reason for reason, cases in re.findall(r"^- \d+: (.*) \(([^()]*)\)$", text, re.M) for case in cases.split(", ")
        }
        mine = [_verdict(row[0], door, row[1], row[column], reasons) for row in rows[2:] if len(row) > column and row[column]]
        externs = [v for v in mine if v["class"] == "extern"]
        for name, count in re.findall(r"([\w.]+\.\w+) (\d+)", text.partition("in how many architectures: ")[2]):
            for v in externs[: int(count)]:
                v["reason"] += f"{', ' if v['reason'] else ''}{name}"
        verdicts += mine
    return verdicts


def _verdict(case: str, door: str, model: str, told: str, reasons: dict[str, str]) -> dict:
    kind, _, same = told.partition(", as ")
    verdict = {"case": case, "door": door, "class": kind, "reason": reasons.get(case, "")}
    return verdict | ({"model": model} if model.strip() else {}) | ({"as": same} if same else {})
