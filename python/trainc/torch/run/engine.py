"""The two engines behind capture, with one interface.

`core` compiles (trainc._core); `interpreter` runs the graphs operation by operation in PyTorch: for tests of capture alone,
and in the place of `core` where it raises InternalError. Both give

    compile(gm, name, family=None)           -> Executable
    joint(gm, primals, forward_outputs, name, family=None, limit=None, defer_small=False, updates=None, kept=None)
                                             -> Joint: .forward, .saved_inputs, .saved_bytes;
        .footprint(): bytes {saved, temporary, results} and {again_flops}, or None where it is not known;
        .backward(defined, consumes, unmade): `consumes` allows a run to overwrite `saved`; gradients `unmade` are given as None;
        .backward_step(defined, consumes, unmade, updates) (core alone): with `updates` (updates.py) of the parameters in it;
        .deferred_outputs: those that .forward leaves out, .deferred() -> Executable([], saved) that makes them
    Executable(inputs, saved=None)           -> list of fresh tensors (or None, or an input itself: .aliases); .report() -> dict;
        .share_memory(other): the two are of one graph with two sizes of its inputs, and their results use the same memory

`kept` (interpreter alone): the primals that the backward can be given beside the arena; None: any.
`family`: what the plans of one graph for different sizes have in common. `updates`: .backward_step with these is what is expected
to be run, and the footprint is of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from trainc.base import cache, memory, messages
from trainc.base.errors import InternalError
from trainc.base.options import CompileOptions
from trainc.torch.device import HOST, Host
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import Symbols, Template
from trainc.torch.run import tuning
from trainc.torch.run.executable import CoreExecutable
from trainc.torch.run.interpreter import Interpreter
from trainc.torch.run.stored import stored_plan


class StepUpdates(Protocol):
    """The optimizer's updates within a plan (optimizers/updates.py has them)."""

    def told(self, name: str) -> list[Any]:
        """What the compiler wants to know, for the graph `name`."""


class Family:
    """What the plans of one graph for different sizes have in common: kernels that are given the numbers in which they differ.
    `samples()` gives the graph for a few other sizes, which show what these numbers are."""

    @staticmethod
    def of(symbols: Symbols | None, template: Callable[[], Template], device: Host) -> Family | None:
        """Of the graph that `template()` gives for values of `symbols`. None without any, and on a GPU: kernels are shared on the
        CPU alone."""
        if symbols is None or device.target()["device"] != "cpu":
            return None
        return Family(lambda: [template().at(bound) for bound in symbols.others()])

    def __init__(self, samples: Callable[[], list[torch.fx.GraphModule]]):
        self._samples = samples
        self._made: list[Any] | None = None
        self._learned: set[Any] = set()
        self._shared: Any = None

    def learned(self, part: Any, make: Callable[[torch.fx.GraphModule], Any], learn: Callable[[Any, Any], Any]) -> Any:
        """The shared kernels, once they know what of `part` of a plan depends on sizes: `make` a sample, then `learn` of it."""
        from trainc import _core

        if self._shared is None:
            self._shared = _core.SharedKernels()
        if part not in self._learned:
            self._learned.add(part)
            if self._made is None:
                self._made = [make(gm) for gm in self._samples()]
            for made in self._made:
                learn(made, self._shared)
        return self._shared


# Of a joint graph: primals, forward outputs, name; and the bytes from which on outputs are deferred, if not the usual ones.
Shape = tuple


class CoreJoint:
    def __init__(
        self,
        graph: wire.GraphText,
        shape: Shape,
        device: Host,
        tune: str,
        family: Family | None = None,
        limit: memory.Limit | None = None,
        updates: StepUpdates | None = None,
    ):
        self._graph, self._shape, self.name, self.device = graph, shape, shape[2], device
        self._options = CompileOptions.of(device, tune, limit is not None)  # both halves by the same
        self._family, self._limit = family, limit
        self._joint: Any = None  # made when a part must be compiled
        self._footprint: dict[str, int] | None = None
        self._told = updates.told(self.name) if updates else []
        key = self._key("forward", *key_of(limit), *(self._told if limit else []))
        with messages.progress(self.name) as progress:
            self.forward, self._facts, self._digest = stored_plan(
                key, self._graph, device, lambda: self._compile("forward", (), progress), lambda: facts_of(self._joint)
            )
        self.saved_inputs: list[int] = self._facts["saved_inputs"]
        self.saved_bytes: int = self._facts["saved_bytes"]
        self.deferred_outputs: list[int] = self._facts["deferred_outputs"]

    def footprint(self) -> dict[str, int]:
        if self._footprint is None:
            self._footprint = self._cut().footprint(*self._told)
        return self._footprint

    def is_of(self, graph: wire.GraphText, shape: Shape, limit: memory.Limit | None, updates: StepUpdates | None) -> bool:
        same = self._shape == shape and self._graph.canonical == graph.canonical and self._graph.origins == graph.origins
        told = updates.told(self.name) if updates else []
        return same and key_of(self._limit) == key_of(limit) and self._told == told

    def deferred(self) -> CoreExecutable:
        return self._part("deferred", "deferred outputs")

    def backward(self, defined: tuple[bool, ...], consumes: bool, unmade: list[int]) -> CoreExecutable:
        return self._part("backward", "backward", defined, consumes, unmade)

    def backward_step(self, defined: tuple[bool, ...], consumes: bool, unmade: list[int], updates: StepUpdates) -> CoreExecutable:
        return self._part("backward_step", "backward and optimizer", defined, consumes, unmade, *updates.told(self.name))

    def _part(self, kind: str, what: str, *arguments: Any) -> CoreExecutable:
        """A plan that reads the forward's arena. Its key holds the forward plan's hash: they always agree on what lies where."""
        key = self._key(kind, self._digest, *arguments) if self._digest else None
        with messages.progress(f"{self.name}, {what}") as progress:
            return stored_plan(key, self._graph, self.device, lambda: self._compile(kind, arguments, progress))[0]

    def _key(self, kind: str, *parts: Any) -> str | None:
        return cache.key(kind_of(kind, self._family), self._options, self._graph.canonical, *self._shape, *parts)

    def _compile(self, kind: str, arguments: tuple, progress: Any) -> Any:
        def sample(gm: torch.fx.GraphModule) -> Any:
            return self._core_joint(wire.GraphText(gm.graph, self.name, self.device))

        def learn(joint: Any, shared: Any) -> None:
            getattr(joint, f"learn_{kind}")(*arguments, shared)

        shared = self._family and self._family.learned((kind, repr(arguments)), sample, learn)
        return getattr(self._cut(), kind)(*arguments, progress, shared)

    def _cut(self) -> Any:
        if self._joint is None:
            joint = self._core_joint(self._graph)
            if hasattr(self, "_facts"):
                joint.cut(self._facts["price"])
            elif self._limit is not None:
                room = self._limit.room(lambda: sum_of(joint.footprint(*self._told)))
                self._limit.check(joint.fit(room, *self._told), room)
            if hasattr(self, "_facts") and any(self._facts[fact] != value for fact, value in facts_of(joint).items()):
                raise InternalError(f"{self.name}: the stored forward keeps other values than the cut of its graph")
            self._joint = joint
        return self._joint

    def _core_joint(self, graph: wire.GraphText) -> Any:
        return joint_graph(graph, self._shape, self._options, self.device)


def facts_of(joint: Any) -> dict:
    """What Python must know of a cut, stored with its forward plan."""
    return {
        "saved_inputs": list(joint.saved_inputs), "saved_bytes": joint.saved_bytes,
        "deferred_outputs": list(joint.deferred_outputs), "price": joint.price,
    }  # fmt: skip


def joint_graph(graph: wire.GraphText, shape: Shape, options: CompileOptions, device: Host) -> Any:
    """The compiler's joint graph, whose plans are to run on `device`."""
    from trainc import _core

    primals, forward_outputs, name, *defer_from = shape
    runs_on = {"device": device.target()["device"], "tuner": tuning.tuner_of(options)}
    return _core.JointGraph(graph.text(), primals, forward_outputs, name, options.for_compiler(), *defer_from, **runs_on)


def kind_of(kind: str, family: Family | None) -> str:
    """The first part of a plan's key."""
    return kind if family is None else f"{kind}, shared kernels"


def key_of(limit: memory.Limit | None) -> list:
    """A limit as a part of a plan's key."""
    return [] if limit is None else [limit.key]


def sum_of(footprint: dict[str, int]) -> int:
    return footprint["saved"] + footprint["temporary"] + footprint["results"]


class Core:
    """One for each first call of a signature."""

    name = "core"

    def __init__(self, device: Host = HOST, tune: str = "fast"):
        self.device, self._tune = device, tune
        self._latest: weakref.ref[CoreJoint] | None = None

    def compile(self, gm: torch.fx.GraphModule, name: str, family: Family | None = None) -> CoreExecutable:
        from trainc import _core

        graph = wire.GraphText(gm.graph, name, self.device)
        options = CompileOptions.of(self.device, self._tune)
        key = cache.key(kind_of("inference", family), options, graph.canonical, name)

        def compile() -> Any:
            def learn(text: str, shared: Any) -> None:
                _core.learn(text, name, options.for_compiler(), shared)

            shared = family and family.learned("inference", lambda gm: wire.graph_json(gm.graph, name, self.device), learn)
            runs_on = {"device": self.device.target()["device"], "tuner": tuning.tuner_of(options)}
            return _core.compile(graph.text(), name, options.for_compiler(), progress, shared, **runs_on)

        with messages.progress(name) as progress:
            return stored_plan(key, graph, self.device, compile)[0]

    def joint(
        self,
        gm: torch.fx.GraphModule,
        primals: int,
        forward_outputs: int,
        name: str,
        family: Family | None = None,
        limit: memory.Limit | None = None,
        defer_small: bool = False,
        updates: StepUpdates | None = None,
        _kept: list[int] | None = None,
    ) -> CoreJoint:
        graph = wire.GraphText(gm.graph, name, self.device)
        shape = (primals, forward_outputs, name, *([0] if defer_small else []))
        latest = self._latest and self._latest()
        # A model that sets defaults in its first call is traced twice in it: mostly the same graph (CompiledCall._settle).
        if latest is None or not latest.is_of(graph, shape, limit, updates):
            latest = CoreJoint(graph, shape, self.device, self._tune, family, limit, updates)
            self._latest = weakref.ref(latest)
        return latest


ENGINES = {"core": Core, "interpreter": Interpreter}
