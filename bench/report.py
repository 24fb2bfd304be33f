"""What the measurements say: ratios, distance from the floor, tables and a picture, from what run.py stores as JSON.

    rows: [{case, precision, small, flops, parameters, contestants: {door: {first, seconds, losses, peak_bytes} or {died}}}]

`seconds` are without the first step, which stands in `first`.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

CAP = 3.0  # a ratio counts for at most this in a geomean: one slow peer does not carry the rest
BYTES_A_PARAMETER = 28  # AdamW in fp32 reads the parameter, its gradient and two moments, and writes all but the gradient
NAMES = {
    "eager": "eager", "inductor": "Inductor", "xla": "XLA",
    "trainc": "trainc", "trainc-other": "other trainc", "trainc-max": "trainc, tuned",
    "trainc-fused": "trainc, fuse_step", "trainc-step": "train_step", "trainc-backend": "trainc-backend",
    "trainc-jit": "trainc.jit",
}  # fmt: skip

PEERS = ("eager", "inductor", "xla")  # whom trainc is compared with
COMPARED = (*PEERS, "trainc-other")


def subject_of(doors: list[str]) -> str | None:
    """Whom the ratios are about."""
    ours = ("trainc", "trainc-max", "trainc-fused", "trainc-step", "trainc-backend", "trainc-jit")
    return next((door for door in ours if door in doors), None)


def step_seconds(row: dict, door: str) -> float | None:
    """Median step of a contestant; None where it has none."""
    seconds = row["contestants"].get(door, {}).get("seconds")
    return statistics.median(seconds) if seconds else None


def ratio(row: dict, peer: str, subject: str) -> tuple[float, float, float] | None:
    """How many times faster the subject is: (of the medians, lowest, highest of a single round). None where one is missing."""
    if step_seconds(row, peer) is None or step_seconds(row, subject) is None:
        return None
    rounds = [a / b for a, b in zip(*(row["contestants"][door]["seconds"] for door in (peer, subject)), strict=True)]
    return step_seconds(row, peer) / step_seconds(row, subject), min(rounds), max(rounds)


def floor_seconds(row: dict, peaks: dict, which: str = "flops") -> float | None:
    """FLOPs at the measured peak (`which`: "flops", the best of short rounds, or "sustained", of a second), plus the optimizer's
    bytes at the measured copy bandwidth."""
    if not row.get("flops") or f"fp32_{which}" not in peaks:
        return None
    bf16 = row["precision"] == "bf16" and peaks[f"bf16_{which}"]
    peak = bf16 or peaks[f"fp32_{which}"]
    return row["flops"] / peak + BYTES_A_PARAMETER * row["parameters"] / peaks["copy_bytes"]


def geomean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(min(r, CAP)) for r in ratios))


# --- text -------------------------------------------------------------------------------------------------------------


def _columns(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))] for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def _of(row: dict, door: str, text) -> str:
    contestant = row["contestants"].get(door)
    return "-" if contestant is None else "died" if "died" in contestant else text(contestant)


def _loss_differs(row: dict, subject: str | None) -> str:
    both = [row["contestants"].get(door, {}).get("losses") for door in ("eager", subject)]
    return f"{abs(both[1][0] / both[0][0] - 1):.0e}" if all(both) else "-"


def _ratio_text(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else "{:.2f}x ({:.2f}-{:.2f})".format(*found)


def _times(results: dict, doors: list[str], subject: str | None) -> str:
    peers = [door for door in COMPARED if door in doors and subject]
    over = [f"over {NAMES[p]}" for p in peers]
    table = [["step, median", "", *(NAMES[d] for d in doors), *over, "floor", "of floor", "sustained"]]
    for row in results["rows"]:
        floor, own = floor_seconds(row, results["peaks"]), subject and step_seconds(row, subject)
        cells = [_of(row, door, lambda c: _seconds(statistics.median(c["seconds"]))) for door in doors]
        cells += [_ratio_text(ratio(row, peer, subject)) for peer in peers]
        sustained = floor_seconds(row, results["peaks"], "sustained")
        of_floor = [f"{own / each:.2f}x" if own and each else "-" for each in (floor, sustained)]
        table.append([row["case"], row["precision"], *cells, _seconds(floor), *of_floor])
    return _columns(table)


def _costs(results: dict, doors: list[str], subject: str | None) -> str:
    names = [NAMES[door] for door in doors]
    table = [["first step, cold; peak memory", "", *names, *names, "loss differs", "PyTorch calls"]]
    for row in results["rows"]:
        cells = [_of(row, door, lambda c: _seconds(c["first"])) for door in doors]
        cells += [_of(row, door, lambda c: f"{c['peak_bytes'] / 1e9:.2f} GB") for door in doors]
        calls = row["contestants"].get("trainc", {}).get("externs", "-")
        table.append([row["case"], row["precision"], *cells, _loss_differs(row, subject), str(calls)])
    return _columns(table)


def _summary(results: dict, doors: list[str], subject: str) -> list[str]:
    large = [row for row in results["rows"] if not row["small"]]
    lines = []
    for peer in COMPARED:
        found = [r[0] for row in large if (r := ratio(row, peer, subject))]
        if found:
            note = f"over {NAMES[peer]}: geomean {geomean(found):.2f}x, each capped at {CAP:.0f}, least {min(found):.2f}x"
            lines.append(f"{note} ({len(found)} of {len(large)} rows of large models)")
    both = [(row, [r[0] for peer in PEERS if (r := ratio(row, peer, subject))]) for row in results["rows"]]
    fastest = [(min(ratios), row) for row, ratios in both if ratios]
    if fastest:
        least, row = min(fastest, key=lambda pair: pair[0])
        lines.append(f"over the faster peer, least: {least:.2f}x ({row['case']} {row['precision']})")
    return lines


def text(results: dict) -> str:
    """The tables, what died and why, and the geomeans."""
    doors = results["doors"]
    subject = subject_of(doors)
    peaks = results["peaks"]
    parts = [_times(results, doors, subject), _costs(results, doors, subject)]
    died = [
        f"{row['case']} {row['precision']}: {door} died: {contestant['died']}"
        for row in results["rows"]
        for door, contestant in row["contestants"].items()
        if "died" in contestant
    ]
    notes = [*died, *(f"left out: {what}" for what in results["left_out"])]
    if subject:
        notes += _summary(results, doors, subject)
    if peaks:
        bf16 = f"{peaks['bf16_flops'] / 1e9:.0f} bf16" if peaks["bf16_flops"] else "no quicker bf16: fp32's peak is taken"
        if "fp32_sustained" in peaks:
            bf16 += f"; over a second {peaks['fp32_sustained'] / 1e9:.0f} and {peaks['bf16_sustained'] / 1e9:.0f}"
        notes.append(
            f"machine: {peaks['cpu']} ({peaks['level']}), {peaks['threads']} threads; PyTorch {results['torch']}; "
            f"GFLOP/s: {peaks['fp32_flops'] / 1e9:.0f} fp32, {bf16}; copy {peaks['copy_bytes'] / 1e9:.0f} GB/s"
        )
    return "\n\n".join([*parts, "\n".join(notes)])


# --- picture ----------------------------------------------------------------------------------------------------------

COLOURS = {
    "inductor": "#e69f00",
    "xla": "#999999",
    "trainc": "#0072b2",
    "trainc-other": "#56b4e9",
    "trainc-max": "#009e73",
    "trainc-fused": "#d55e00",
    "trainc-step": "#cc79a7",
    "trainc-backend": "#f0e442",
    "trainc-jit": "#8a5a44",
}


def picture(results: dict, path: Path) -> None:
    """Speed-up over eager of each contestant, with its spread, and the floor as a mark. Needs matplotlib and eager's times."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in results["rows"] if step_seconds(row, "eager")]
    doors = [door for door in results["doors"] if door != "eager"]
    height = 0.8 / max(1, len(doors))
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.5 * len(rows)), layout="constrained")
    for i, door in enumerate(doors):
        places = [(y - 0.4 + (i + 0.5) * height, r) for y, row in enumerate(rows) if (r := ratio(row, "eager", door))]
        axes.barh(
            [y for y, _ in places],
            [r[0] for _, r in places],
            height,
            xerr=[[r[0] - r[1] for _, r in places], [r[2] - r[0] for _, r in places]],
            error_kw={"elinewidth": 0.8},
            color=COLOURS[door],
            label=NAMES[door],
        )
    floors = [(y, floor) for y, row in enumerate(rows) if (floor := floor_seconds(row, results["peaks"]))]
    if floors:
        reach = [step_seconds(rows[y], "eager") / floor for y, floor in floors]
        axes.plot(reach, [y for y, _ in floors], "k|", markersize=14, label="floor")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row['case']}, {row['precision']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as PyTorch eager, a training step (bars: medians; lines: lowest to highest round)")
    figure.legend(loc="outside upper right", ncols=3, fontsize=9)
    if results["peaks"]:
        axes.set_title(f"{results['peaks']['cpu']}, {results['peaks']['threads']} threads", fontsize=10, loc="left")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
