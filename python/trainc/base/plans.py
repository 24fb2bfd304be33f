"""`compile_step`: the plans of a captured step, found in the cache, or compiled and put there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trainc.base import cache, messages, records
from trainc.base.device import Device
from trainc.base.errors import InternalError
from trainc.base.memory import Limit
from trainc.base.options import CompileOptions
from trainc.base.report import count, totals
from trainc.base.shared_kernels import SharedKernels
from trainc.base.step_graph import GraphText, NotChunked, StepGraph, Updates


class FrontEnd(Protocol):
    """What a framework adds to a plan."""

    device: Device  # that plans are to run on

    def executable(self, plan: Any, from_cache: bool, types: Sequence[str | None]) -> Any:
        """A plan as it is called with the framework's tensors; its `graph` becomes the GraphText of its step. `types`: of its
        results, those that a plan has no type for; empty where there are none."""

    def tuner(self, options: CompileOptions) -> Any:
        """What the compiler asks which way to make a kernel; None where nothing is measured."""


def compile_step(
    step: StepGraph, options: CompileOptions, front: FrontEnd, shared: SharedKernels | None = None, limit: Limit | None = None,
    defer_small: bool = False,
) -> InferencePlan | JointPlans | StepPlan:  # fmt: skip
    """The plans of `step`; those of a backward are made when they are asked for. `shared`: the kernels that they have in common
    with plans for other sizes. `limit`: what they may need of memory: UserError where it is not enough. `defer_small`: small
    outputs that the arena alone makes are left out of the forward, too."""
    step = step.as_text()
    if step.kind == "inference":
        return InferencePlan(step, options, front, shared)
    if step.kind == "step":
        return StepPlan(step, options, front, shared, limit)
    return JointPlans(step, options, front, shared, limit, defer_small)


class _Plans:
    """What a captured step, options and a device make, by kinds of plans."""

    def __init__(self, step: StepGraph, options: CompileOptions, front: FrontEnd, shared: SharedKernels | None):
        self.step, self.name = step, step.name
        self._options, self._front, self._shared = options, front, shared

    def _key(self, kind: str, *parts: Any) -> str | None:
        step, kind = self.step, kind if self._shared is None else f"{kind}, shared kernels"
        return cache.key(kind, self._options, step.graph.canonical, step.inputs, step.outputs, step.name, *parts)

    def _stored(
        self, key: str | None, compile: Callable[[Any], Any], types: Sequence[str | None], what: str = "",
        about: Callable[[], dict] = dict,
    ) -> tuple[Any, dict, str]:  # fmt: skip
        """The executable of the plan that `compile(progress)` gives or of the stored one, with what `about()` says of it and the
        hash of its bytes. A stored plan names the lines of the program that stored it; they become those of this one."""
        from trainc import _core

        origins = self.step.graph.origins

        def load(entry: dict, plan: bytes) -> tuple[Any, dict]:
            moved = dict(zip(entry["origins"], origins, strict=True))
            loaded = _core.load_plan(plan, moved, entry["compile"], self._runs_on)
            return self._front.executable(loaded, True, types), entry

        def packed(made: tuple[Any, dict]) -> tuple[dict, bytes]:
            plan = made[0].plan
            return {**made[1], "origins": origins, "compile": plan.compile_record}, plan.save()

        title, start = f"{self.name}, {what}" if what else self.name, time.perf_counter()
        with messages.progress(title) as progress:
            compiled = lambda: (self._front.executable(compile(progress), False, types), about())  # noqa: E731
            (executable, entry), digest = cache.through(key, load, compiled, packed)
        executable.graph = self.step.graph
        if messages.logs():
            messages.info(f"{title}: {_made(records.report_of(executable))} in {time.perf_counter() - start:.2f} s")
        return executable, entry, digest

    @property
    def _runs_on(self) -> str:
        return self._front.device.target()["device"]

    def _joint_graph(self, graph: GraphText, *defer_from: int, step: StepGraph | None = None) -> Any:
        """The compiler's own object, for the graph of `step`, or one that differs from it in sizes."""
        from trainc import _core

        step = step or self.step
        return _core.JointGraph(
            graph.text(), step.inputs, step.outputs, self.name, self._options.for_compiler(), *defer_from,
            device=self._runs_on, tuner=self._front.tuner(self._options), undefined=list(step.undefined),
        )  # fmt: skip


class InferencePlan(_Plans):
    """Of a graph without a backward."""

    def __init__(self, step: StepGraph, options: CompileOptions, front: FrontEnd, shared: SharedKernels | None):
        super().__init__(step, options, front, shared)
        given_away = [step.given_away] if step.given_away else []
        self.forward, _, _ = self._stored(self._key("inference", *given_away), self._compile, step.types)

    def _compile(self, progress: Any) -> Any:
        from trainc import _core

        options = self._options.for_compiler()

        def learn(text: str, shared: Any) -> None:
            _core.learn(text, self.name, options, shared)

        shared = self._shared and self._shared.learned("inference", lambda graph: graph.text(), learn)
        runs_on = {"device": self._runs_on, "tuner": self._front.tuner(self._options)}
        return _core.compile(
            self.step.graph.text(), self.name, options, progress, shared, **runs_on, given_away=self.step.given_away
        )


class JointPlans(_Plans):
    """Forward and backward, which the graph's cut decides on together: what the one keeps and the other makes again."""

    fuses = True  # whether there is a `backward_step`

    def __init__(
        self, step: StepGraph, options: CompileOptions, front: FrontEnd, shared: SharedKernels | None, limit: Limit | None,
        defer_small: bool,
    ):  # fmt: skip
        super().__init__(step, options, front, shared)
        self._limit, self._defer_from = limit, [0] if defer_small else []
        self._joint: Any = None  # made when a part must be compiled
        self._footprint: dict[str, int] | None = None
        self._update_arguments = step.update_arguments()
        key = self._key(
            "forward", *self._defer_from, *undefined_of(step), *key_of(limit), *(self._update_arguments if limit else [])
        )
        self.forward, self._facts, self._digest = self._stored(
            key, lambda progress: self._compile("forward", (), progress), step.types[: step.outputs],
            about=lambda: {**facts_of(self._joint), **self._facts_of_whole()},
        )  # fmt: skip
        self.saved_inputs: list[int] = self._facts["saved_inputs"]
        self.saved_bytes: int = self._facts["saved_bytes"]
        self.deferred_outputs: list[int] = self._facts["deferred_outputs"]
        self.saved_inputs_of_whole: list[int] = self._facts.get("saved_inputs_of_whole", [])

    def _facts_of_whole(self) -> dict:
        """What the plans of the whole step, which may follow these, keep of its inputs."""
        if (whole := self.step.whole) is None:
            return {}
        return {"saved_inputs_of_whole": list(self._joint_graph(whole.graph, *self._defer_from, step=whole).saved_inputs)}

    def footprint(self) -> dict[str, int]:
        """Bytes {saved, temporary, results}, and {again_flops}."""
        if self._footprint is None:
            self._footprint = self._cut().footprint(*self._update_arguments)
        return self._footprint

    def serves(self, step: StepGraph, limit: Limit | None, defer_small: bool) -> bool:
        """Whether these are the plans of that step, too, lines included."""
        mine, its = self.step, step
        return (
            (mine.inputs, mine.outputs, mine.name) == (its.inputs, its.outputs, its.name)
            and mine.graph == its.graph
            and (mine.undefined, mine.whole is None) == (its.undefined, its.whole is None)
            and key_of(self._limit) == key_of(limit)
            and bool(self._defer_from) == defer_small
            and self._update_arguments == its.update_arguments()
        )

    def deferred(self) -> Any:
        """What makes the outputs that the forward leaves out."""
        types = self.step.types
        return self._part("deferred", "deferred outputs", [types[i] for i in self.deferred_outputs] if types else ())

    def backward(self, defined: tuple[bool, ...], overwrites: bool, unmade: list[int]) -> Any:
        """For the tangents that are `defined`. `overwrites`: it may write over what the forward saved; gradients `unmade` are
        given as None."""
        return self._part("backward", "backward", self.step.types[self.step.outputs :], defined, overwrites, unmade)

    def backward_step(self, defined: tuple[bool, ...], overwrites: bool, unmade: list[int], updates: Updates) -> Any:
        """The backward and these updates of its gradients."""
        types = self.step.types[self.step.outputs :]
        return self._part(
            "backward_step", "backward and optimizer", types, defined, overwrites, unmade, *updates.arguments(self.name)
        )

    def _part(self, kind: str, what: str, types: Sequence[str | None], *arguments: Any) -> Any:
        """A plan that reads the forward's arena. Its key holds the forward plan's hash: they always agree on what lies where."""
        parts = *self._defer_from, *undefined_of(self.step), self._digest, *arguments
        key = self._key(kind, *parts) if self._digest else None
        return self._stored(key, lambda progress: self._compile(kind, arguments, progress), types, what)[0]

    def _compile(self, kind: str, arguments: tuple, progress: Any) -> Any:
        if self.step.whole is not None and not self._cut().chunked:
            raise NotChunked

        def learn(joint: Any, shared: Any) -> None:
            getattr(joint, f"learn_{kind}")(*arguments, shared)

        shared = self._shared and self._shared.learned((kind, repr(arguments)), self._graph_of, learn)
        return getattr(self._cut(), kind)(*arguments, progress, shared)

    def _graph_of(self, graph: GraphText) -> Any:
        return self._joint_graph(graph, *self._defer_from)

    def _cut(self) -> Any:
        if self._joint is None:
            joint = self._graph_of(self.step.graph)
            if hasattr(self, "_facts"):
                joint.cut(self._facts["price"])
            elif self._limit is not None:
                room = self._limit.room(lambda: sum_of(joint.footprint(*self._update_arguments)))
                self._limit.check(joint.fit(room, *self._update_arguments), room)
            if hasattr(self, "_facts") and any(self._facts[fact] != value for fact, value in facts_of(joint).items()):
                raise InternalError(f"{self.name}: the stored forward keeps other values than the cut of its graph")
            self._joint = joint
        return self._joint


class StepPlan(_Plans):
    """A whole step as one plan."""

    def __init__(
        self, step: StepGraph, options: CompileOptions, front: FrontEnd, shared: SharedKernels | None, limit: Limit | None
    ):
        super().__init__(step, options, front, shared)
        self._limit, self._updates, self._again_flops = limit, step.update_arguments(), 0
        self.whole, facts, _ = self._stored(
            self._key("step", *self._updates, *key_of(limit)), self._compile, step.types,
            about=lambda: {"again_flops": self._again_flops},
        )  # fmt: skip
        self._again_flops = facts["again_flops"]

    def footprint(self) -> dict[str, int]:
        """Bytes {saved, temporary, results}, and {again_flops}."""
        return {"saved": 0, **self.whole.footprint(), "again_flops": self._again_flops}

    def _compile(self, progress: Any) -> Any:
        def learn(joint: Any, shared: Any) -> None:
            joint.learn_step([True], [], [], shared)  # the updates' kernels know no size

        joint, updates = self._graph_of(self.step.graph), self._updates
        if self._limit is not None:
            room = self._limit.room(lambda: sum_of(joint.fit_step(1 << 62, [True], *updates)))
            self._limit.check(joint.fit_step(room, [True], *updates), room)
        plan = joint.step([True], *updates, progress, self._shared and self._shared.learned("step", self._graph_of, learn))
        self._again_flops = joint.again_flops
        return plan

    def _graph_of(self, graph: GraphText) -> Any:
        return self._joint_graph(graph, -1)


def _made(report: dict) -> str:
    """What came of it, in a few words."""
    work = totals([report])
    calls = f" and {count(work.externs, 'call')} of the framework" if work.externs else ""
    return f"{count(work.kernels, 'kernel')}{calls} {'found in the cache' if report.get('from_cache') else 'compiled'}"


def facts_of(joint: Any) -> dict:
    """What Python must know of a cut, stored with its forward plan."""
    return {
        "saved_inputs": list(joint.saved_inputs), "saved_bytes": joint.saved_bytes,
        "deferred_outputs": list(joint.deferred_outputs), "price": joint.price,
    }  # fmt: skip


def undefined_of(step: StepGraph) -> list:
    """What no backward will have, where a result was left out, as a part of a plan's key."""
    return [] if step.whole is None else [{"undefined": list(step.undefined)}]


def key_of(limit: Limit | None) -> list:
    """A limit as a part of a plan's key."""
    return [] if limit is None else [limit.key]


def sum_of(footprint: dict[str, int]) -> int:
    return footprint["saved"] + footprint["temporary"] + footprint["results"]


__all__ = ["FrontEnd", "InferencePlan", "JointPlans", "StepPlan", "compile_step"]
