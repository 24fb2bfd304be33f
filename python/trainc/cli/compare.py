"""`trainc compare train.py ...`: the user's own program, eager, through Inductor where asked, compiled, and eager once more, each
in a process of its own from one seed, for some optimizer steps. (The second eager run tells what the machine's drift, and the
program's own chance, are worth.)"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from trainc.base.errors import UserError
from trainc.base.memory import readable
from trainc.cli import loss_rule
from trainc.cli.script import Program

APART = 3  # first steps, which compile and warm up: they are told as the start
TELLING = 1e-3  # where eager's own losses part by more, they say little of a compiler
GAIN = 0.05  # less than that of a step is not worth a change
AGAIN = "eager again"
SHOWN = 6  # rows of losses in the table


@dataclasses.dataclass
class Run:
    """What one process has written down (observe.py)."""

    way: str
    losses: list[list[float]]  # of each step
    ends: list[float]  # seconds since the program began
    peak: int
    others: float  # CPUs that other processes kept busy
    compiled: list[str] | None  # what became of each model and optimizer, a line each
    reason: str | None  # why nothing was
    said: list[str]  # by trainc

    @property
    def steps(self) -> list[float]:
        """Seconds of each step but the first ones."""
        apart = min(APART, len(self.ends) // 2)
        return [b - a for a, b in zip(self.ends[apart - 1 :], self.ends[apart:], strict=False)] if apart else []

    @property
    def quartiles(self) -> tuple[float, float, float]:
        steps = self.steps
        low, median, high = statistics.quantiles(steps, n=4, method="inclusive") if len(steps) > 1 else steps * 3
        return low, median, high

    @property
    def median(self) -> float:
        return self.quartiles[1]

    @property
    def start(self) -> float:
        """What the program needs beyond steady steps, until the first of these."""
        apart = len(self.ends) - len(self.steps)
        return max(self.ends[apart - 1] - apart * self.median, 0.0)

    def total(self, steps: int) -> float:
        return self.start + steps * self.median

    def flat(self) -> list[float]:
        return [loss for step in self.losses for loss in step]


@dataclasses.dataclass
class Price:
    """Of an hour, as it was written: "2.5/h", "$2.5", "2.5 EUR/h"."""

    before: str
    amount: float
    after: str

    @classmethod
    def of(cls, text: str) -> Price:
        match = re.fullmatch(r"\s*([^\d.\s+-]*)\s*(\d+\.?\d*|\.\d+)\s*([^/\d]*?)\s*(?:/\s*h(?:our)?)?\s*", text)
        if match is None:
            raise UserError(f'--price {text!r}: write the price of an hour, "2.5/h"')
        return cls(match[1], float(match[2]), f" {match[3]}" if match[3] else "")

    def text(self, hours: float) -> str:
        return f"{self.before}{hours * self.amount:,.2f}{self.after}"


@dataclasses.dataclass
class Comparison:
    program: str
    seed: int
    runs: dict[str, Run]
    disturbed: list[list[list[float]]] = dataclasses.field(default_factory=list)  # eager's losses, of each step

    @property
    def eager(self) -> float:
        """The median of a step, of both runs."""
        return statistics.median([*self.runs["eager"].steps, *self.runs[AGAIN].steps])

    @property
    def drift(self) -> float:
        return abs(self.runs["eager"].median - self.runs[AGAIN].median) / self.eager

    @property
    def repeats(self) -> bool:
        """Whether eager gives the same losses from the same seed."""
        again, eager = self.runs[AGAIN], self.runs["eager"]
        same = _counts(again.losses) == _counts(eager.losses)
        return same and max(loss_rule.relative(again.flat(), eager.flat())) <= loss_rule.FLOOR

    def differs(self, way: str) -> list[str] | None:
        """The losses that break the rule; None where there is nothing that could be compared."""
        run, eager = self.runs[way], self.runs["eager"]
        if not eager.flat() or not self.repeats:
            return None
        if _counts(run.losses) != _counts(eager.losses) and not self._counts_vary:
            return [f"{len(run.flat())} losses, where eager has {len(eager.flat())}"]
        losses, wanted, *disturbed = self._common(run.losses, eager.losses, *self.disturbed)
        return loss_rule.violations(losses, wanted, disturbed or [wanted])

    @property
    def _counts_vary(self) -> bool:
        """Whether the last bit of the weights decides how many losses a step of eager has (a line search may end earlier)."""
        wanted = _counts(self.runs["eager"].losses)
        return any(_counts(losses) != wanted for losses in self.disturbed)

    @staticmethod
    def _common(*runs: list[list[float]]) -> list[list[float]]:
        """Each run's losses, of each step as many as all runs have."""
        counts = [min(map(len, step)) for step in zip(*runs, strict=False)]
        return [[loss for step, count in zip(run, counts, strict=False) for loss in step[:count]] for run in runs]

    def largest(self, way: str) -> float:
        """Difference of a loss from eager's."""
        losses, wanted = self._common(self.runs[way].losses, self.runs["eager"].losses)
        return max(map(loss_rule.difference, losses, wanted), default=0.0)

    def parts(self) -> float:
        """By how much eager's losses part from its own when the last bit of its weights is disturbed."""
        wanted, *disturbed = self._common(self.runs["eager"].losses, *self.disturbed)
        return max((max(loss_rule.relative(losses, wanted), default=0.0) for losses in disturbed), default=0.0)

    def gain(self, way: str) -> float:
        """Of a step, as a share of eager's; 0 where the machine's drift is as much."""
        gain = 1 - self.runs[way].median / self.eager
        return gain if abs(gain) > max(GAIN, self.drift) else 0.0

    def is_told(self, way: str) -> bool:
        """Whether `gain` tells: eager's runs differ little, or less than this run differs from both."""
        return self.drift <= GAIN or self.gain(way) != 0.0


def compare(
    program: Program, steps: int, seed: int, ways: list[str], tune: str = "fast", tell: Any = lambda text: None
) -> Comparison:  # fmt: skip
    """`ways`: beside "eager"."""
    if program.kind == "file" and not os.path.exists(program.name):
        raise UserError(f"can't open file {os.path.abspath(program.name)!r}: no such file")
    if program.kind == "stdin":
        raise UserError("trainc compare runs a program several times, and stdin can be read once: give it a file")
    if steps < 4:
        raise UserError(f"--steps {steps}: with fewer than 4 there is nothing to measure")

    def observed(way: str, *options: str) -> Run:
        tell(f"{way if not options else 'eager, disturbed'} ...")
        return _observe(program, way, steps, seed, [*options, "--tune", tune])

    runs = {way: observed(way) for way in ["eager", *ways]}
    runs[AGAIN] = observed("eager")
    found = Comparison(str(program), seed, runs)
    if any(found.differs(way) for way in ways):
        for disturbance in loss_rule.SEEDS:
            found.disturbed.append(observed("eager", "--disturb", str(disturbance)).losses)
    return found


def _observe(program: Program, way: str, steps: int, seed: int, options: list[str]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        words = ["--way", way, "--steps", str(steps), "--seed", str(seed), "--file", str(Path(folder) / "record.json"), *options]
        record, said = recorded(f"the {way} run", words, program, steps, dict(os.environ))
    if len(record["ends"]) < 4:
        steps = len(record["ends"])
        raise UserError(
            f"the {way} run took {steps} optimizer steps, too few to compare: does {program} train anything? (Processes that it "
            "starts are not looked at.)"
        )
    return Run(way, **record, said=said)


def recorded(
    name: str, words: list[str], program: Program, steps: int, environment: dict[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """What `trainc observe` with these words wrote down of the program, in a process of its own; and what trainc said there."""
    file = Path(words[words.index("--file") + 1])
    log = file.with_name("log.txt")
    with log.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "trainc", "observe", *words, *program.line()],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={"PYTHONHASHSEED": "0", **environment},
        )  # fmt: skip
    said = log.read_text(errors="replace").splitlines()
    if not file.exists():
        last = "\n".join(f"  {line}" for line in said[-15:])
        raise UserError(f"{name} ended with {done.returncode} before {steps} steps; the last that it wrote:\n{last}")
    return json.loads(file.read_text()), by_trainc(said)


def by_trainc(lines: list[str]) -> list[str]:
    """What trainc has said among what a program wrote, each once."""
    found = (re.search(r"(?:\w+Warning: trainc: |^trainc run: )(.*)", line) for line in lines)
    return list(dict.fromkeys(match[1] for match in found if match))


# ---- what is said of it -------------------------------------------------------------------------------------------------


def report(found: Comparison, total: int | None, price: Price | None) -> str:
    ways = list(found.runs)
    number = len(found.runs["eager"].ends)
    lines = [f"{found.program}: {number} optimizer steps each, one run after the other, from seed {found.seed}", ""]

    def row(name: str, cells: list[str]) -> None:
        lines.append(f"{name:<22}" + "".join(f"{cell:>20}" for cell in cells))

    runs = list(found.runs.values())
    row("", ways)
    row("step, median", [seconds(run.median) for run in runs])
    row("  middle half", [f"{seconds(run.quartiles[0])}, {seconds(run.quartiles[2])}" for run in runs])
    row("  eager / this", [f"{found.eager / run.median:.2f}x" for run in runs])
    row("start", [seconds(run.start) for run in runs])
    row("peak memory", [readable(run.peak) for run in runs])
    losses = [run.losses for run in runs]
    count = min(map(len, losses))
    for i in sorted({*range(min(3, count)), *range(max(count - SHOWN + 3, 0), count)}):
        row(f"loss, step {i + 1}", [_some(run[i]) for run in losses])
    lines += ["", *(line for way in ways if way not in ("eager", AGAIN) for line in verdict(found, way, total, price))]
    busy = max(run.others for run in runs)
    if busy > 0.3:
        lines.append(f"Other processes kept {busy:.1f} of {os.cpu_count()} CPUs busy meanwhile: times are less certain.")
    if found.drift > GAIN:
        lines.append(f"Eager's two runs differ by {found.drift:.0%}: gains below that are not told from the machine's drift.")
    return "\n".join(lines)


def verdict(found: Comparison, way: str, total: int | None, price: Price | None) -> list[str]:
    run, eager = found.runs[way], found.runs["eager"]
    lines = [f"trainc: {line}" for line in run.said] if way == "trainc" else []
    if way == "trainc" and not run.compiled:
        return [*lines, *([f"trainc compiled nothing: {run.reason}."] if not lines else [])]
    lines += [f"trainc {one}." for one in run.compiled or ()]
    differs = found.differs(way)
    if differs is None and not eager.flat():
        lines.append("No loss was seen: the program calls no backward().")
    elif differs is None:
        lines.append("Losses cannot be compared: eager's differ from run to run by themselves (a seed from the clock?).")
    elif differs:
        lines.append(f"{way}: LOSSES DIFFER by more than eager's own spread allows (docs/numerics.md): {differs[0]}.")
        if way == "trainc":
            lines.append("That is a fault of trainc's: trainc.compile(..., verify=True) names the operation; please report it.")
    elif not found.disturbed:
        lines.append(f"{way}: losses are eager's: they differ by at most {found.largest(way):.1e}, within {loss_rule.FLOOR:g}.")
    else:
        own = f"eager's own by {found.parts():.1e} when the last bit of its weights is disturbed"
        lines.append(f"{way}: losses part from eager's by at most {found.largest(way):.1e}, {own}: within the rule.")
        if found.parts() > TELLING:
            lines.append("This training multiplies every rounding, so losses tell little: verify=True looks at each tensor.")
    gain, saving = found.gain(way), found.eager - run.median
    both = ", ".join(seconds(one.median) for one in (eager, found.runs[AGAIN]))
    if not found.is_told(way):
        lines.append(f"{way}: whether a step is faster is not told: {seconds(run.median)}, and eager's two runs {both}.")
    elif gain <= 0:
        how = "slower than" if gain < 0 else "as fast as"
        lines.append(f"{way}: not worth it here: a step is {how} eager's ({seconds(run.median)}, {seconds(found.eager)}).")
    else:
        extra = max(run.start - eager.start, 0.0)
        after = f"; its start, {seconds(extra)} longer, is paid back after {extra / saving:,.0f} steps" if extra > saving else ""
        lines.append(f"{way}: a step takes {seconds(run.median)} instead of {seconds(found.eager)}, {gain:.0%} less{after}.")
    if total is not None:
        before, now = eager.total(total) / 3600, run.total(total) / 3600
        text = f"{way}: {total:,} steps take {hours(now)} instead of {hours(before)}"
        if price is not None:
            text += f", and cost {price.text(now)} instead of {price.text(before)}"
        if now >= before:
            text += ": eager is the better choice"
        elif gain <= 0:
            text += ", which is no more than the machine's drift"
        lines.append(f"{text}.")
    return lines


def _counts(losses: list[list[float]]) -> list[int]:
    return [len(step) for step in losses]


def _some(losses: list[float]) -> str:
    """Of a step with several backwards: the first two."""
    digits = 7 if len(losses) < 2 else 5
    return ", ".join(f"{loss:.{digits}g}" for loss in losses[:2]) + (" ..." if len(losses) > 2 else "")


def seconds(value: float) -> str:
    if value < 0.1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def hours(value: float) -> str:
    if value < 1 / 60:
        return seconds(value * 3600)
    return f"{value:.3g} h" if value >= 0.1 else f"{value * 60:.2g} min"


def as_json(found: Comparison, total: int | None, price: Price | None) -> str:
    runs = {}
    for way, run in found.runs.items():
        low, median, high = run.quartiles
        runs[way] = {
            "step_seconds": {"median": median, "quartiles": [low, high], "all": run.steps}, "start_seconds": run.start,
            "peak_bytes": run.peak, "losses": run.losses, "cpus_of_others": run.others, "said": run.said,
            "compiled": run.compiled,
        }  # fmt: skip
        if way not in ("eager", AGAIN):
            differs = found.differs(way)
            runs[way] |= {
                "losses_agree": None if differs is None else not differs, "largest_loss_difference": found.largest(way),
                "faster_by": found.gain(way), "verdict": verdict(found, way, total, price),
            }  # fmt: skip
        if total is not None:
            runs[way]["total_hours"] = run.total(total) / 3600
            runs[way]["total_price"] = None if price is None else run.total(total) / 3600 * price.amount
    told = {"program": found.program, "seed": found.seed, "drift": found.drift, "runs": runs}
    return json.dumps(_finite(told), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    """`value` with null for what is no number in JSON (NaN, infinities)."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


__all__ = ["Comparison", "Price", "Run", "as_json", "by_trainc", "compare", "recorded", "report", "seconds"]
