"""What a program's Python may read beside its arguments and its modules' tensors, and what it may change: found while it is
traced, watched at every later call.

The rule (docs/capture.md, "What is watched"): a function can reach only what it names: its globals, the variables of functions
around it, its defaults, and the attributes that it or another function names, of objects reached in this way. So the walk starts
from the functions that ran (`watch.Watched`), goes as deep as the objects do, and takes an attribute in where some function names
it. What it cannot look into (an iterator, an object of a C library) is refused with a reason.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import decimal
import functools
import gc
import inspect
import logging
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import numpy
import torch

from trainc.base.errors import NotCompiled
from trainc.base.patches import MISSING, programs
from trainc.torch import compat
from trainc.torch.compat import FakeTensor, FunctionalTensor, disable_current_modes
from trainc.torch.guards import known_functions
from trainc.torch.guards.code import about, names_of
from trainc.torch.guards.kinds import (
    IMMUTABLE,
    contents_of,
    functions_of,
    holds_tensors,
    is_callable,
    is_function,
    is_number,
    is_plain,
    is_replaced,
    is_special,
    is_torchs,
    is_transparent,
    kept_by,
    methods_of,
    module_of,
    names_in,
    names_of_bases,
    order,
    reads_itself,
    set_later,
    slot_names,
    token,
)
from trainc.torch.guards.places import (
    CLASS_CACHES,
    IGNORED,
    STEPPING,
    AllAttributes,
    Answer,
    Attributes,
    Buffer,
    Cache,
    Class,
    Generator,
    Kept,
    Length,
    Order,
    Place,
    Registry,
    Setting,
    Size,
    Table,
    Version,
    Written,
    default_of,
    generator_of,
    held,
    type_version,
)  # fmt: skip
from trainc.torch.numbers import Group, original
from trainc.torch.trust import is_pythons, is_trusted_file, is_trusted_module

MAX_ITEMS = 50_000  # of what is watched for one model
MAX_COPIED = 1 << 28  # of tensors that are none of the module's, to put back what a trace writes
MAX_BYTES = 1 << 20  # of an array that is compared at every call

# Objects that are themselves for as long as they are, whatever happens inside of them.
_PLACES = (
    logging.Logger, logging.Handler, type(threading.Lock()), type(threading.RLock()), threading.Thread, threading.Event,
    threading.Condition, threading.Semaphore, types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.CodeType, types.FrameType, types.GenericAlias, types.UnionType, compat.OpOverload, compat.OpOverloadPacket,
    compat.OpNamespace, compat.Ops, torch.Generator, numpy.ufunc,
)  # fmt: skip
# Of these, what their own code reads is watched in another way; and of what each has itself, the attributes that are left out
# where code computes names, for nobody comes to them so: a DataLoader's dataset may be of any size, what a handle removes is seen
# where it is.
_BY_NAME: dict[type, frozenset[str]] = {
    torch.utils.data.DataLoader: frozenset(
        {"dataset", "sampler", "batch_sampler", "generator", "_iterator", "_IterableDataset_len_called"}
    ),
    torch.utils.hooks.RemovableHandle: frozenset({"hooks_dict_ref", "extra_dict_ref", "id"}),
    torch.autograd.grad_mode.no_grad: frozenset({"prev"}),
}
# An optimizer's and a scheduler's methods that are watched elsewhere (capture/step_guards.py): calls of them are the trace's.
_STEPS = frozenset({"step", "zero_grad"})
# Of these, what is plain and named by the program is watched all the same.
_WITH_STATE = (logging.Handler, threading.Thread, threading.Condition, threading.Semaphore)
_OF_LOGGERS = {"name", "level", "parent", "disabled", "manager", "_cache", "root", "filters", "propagate"}
# methods in whose place trainc puts its own while it traces
_REPLACED = frozenset({compat.MODULE_CALL.name, compat.TENSOR_BACKWARD.name})
_OF_GENERATORS = ("getstate", "get_state", "bit_generator", "_bit_generator")  # by which code comes to a state
_BACKWARD = frozenset(
    {"register_hook", "register_prehook", "register_post_accumulate_grad_hook", "saved_tensors_hooks", "apply", "vmap", "grad"}
)


# ---- the walk -------------------------------------------------------------------------------------------------------


class Reads:
    """What the code that ran can reach. `own`: the traced module's state (`state.ModuleState`), which watches its tensors."""

    def __init__(
        self, own: Any, subject: str = "forward", kept: dict[int, tuple[Any, list]] | None = None, stepped: Sequence[Any] = (),
        forgiving: bool = False,
    ):  # fmt: skip
        # `subject`: what the program is called in messages; `kept`: of caches, by id, the keys whose results are of interest;
        # `stepped`: optimizers whose steps are the program's own, so that their state is another at each call; `forgiving`: what
        # cannot be watched is left out, and the walk goes on
        self._own, self._subject, self._stepped, self._forgiving = own, subject, stepped, forgiving
        self.places: list[Place] = []
        self.in_place = False  # whether numbers of a trace (numbers/) are where the program's own were
        self.in_pytorch = False  # whether it did what torch.compile's tracer would not do; known once restored
        self.drawn: str | None = None  # that it draws from a generator of Python's or NumPy's; known once restored
        self.own_backward = False  # whether the program has a backward, or hooks, written in Python
        self.tensors: list[torch.Tensor] = []
        # of the module's tensors, by index: those that the program used, reached in another way than through the module
        self.elsewhere: dict[int, torch.Tensor] = {}
        # (path, which of those that have it) -> what cannot change there, or what kind of thing it is: to compare two walks
        self.outline: dict[tuple[str, int], Any] = {}
        self._told: dict[str, int] = {}  # path -> how many have it
        self._names: set[str] = set()
        self.roots: list[tuple[str, Any]] = []
        self._all = False  # whether some code reads attributes that it does not name
        self._seen: dict[int, Any] = {}
        self._waiting: dict[str, list[tuple[str, Any, Any]]] = {}  # attributes that no code named yet: (path, value, place)
        self._settings: dict[str, list[tuple[str, Any, Any]]] = {}
        self._todo: collections.deque[tuple[str, Any]] = collections.deque()
        self._codes: dict[int, tuple[types.CodeType, dict]] = {}
        self._functions: dict[int, list[tuple[str, types.FunctionType]]] = {}  # that were reached, by their code
        self._impure = ""  # a C function that reads a state
        self._calls_back = False  # whether some code uses a function that calls others from C
        self._numbers: list[torch.Tensor] = []  # whose values Python reads
        self._questions: dict[str, Callable[[], Any]] = {}  # functions whose answers are watched
        self._strays: list[tuple[str, types.FunctionType]] = []  # that ran and were reached in a way that was not walked
        self._opened: list[tuple[str, types.ModuleType]] = []
        self._generators: dict[int, Any] = {}  # of random numbers, which are reached by their methods alone
        self._items = self._copied = 0
        self.classes: dict[int, tuple[Any, type]] = {}  # objects whose class the program could change, and the class
        self._slots: set[tuple[int, str | None]] = set()
        self._owned = {id(tensor) for tensor in own.tensors()}
        self._again, self._identity = False, ""  # whether one of these is reached in another way; code that compares by `is`
        self._methods: list[types.CodeType] = []  # of PyTorch's optimizers and schedulers, that ran
        self._trains: list[tuple[Any, list[tuple[str, Any, Any]]]] = []  # optimizers and schedulers, and their attributes
        self._groups: dict[int, torch.optim.Optimizer] = {}  # by the addresses of their `param_groups`
        self._modules: set[int] = set()
        self._kept: dict[int, tuple[Any, list]] = kept or {}
        self._version(torch.Tensor)
        for path, module in own.root.named_modules():
            self._modules.add(id(module))
            self._of_class(path or type(module).__name__, module)
        for path, table, flags in own.hooks:
            if table:
                self._hooks(path, table, flags)
        self._own_numbers: list[tuple[str, Any, Any]] = []
        tables = {id(module.__dict__): path for path, module in own.root.named_modules()}
        for table, key in own._values:
            if id(table) in tables and key != compat.COMPILED_CALL:
                value = table.get(key)
                if not holds_tensors(value):
                    path = f"{tables[id(table)]}.{key}" if tables[id(table)] else str(key)
                    if type(value) is float:
                        self._own_numbers.append((path, table, key))
                    self._attribute(path, key, value, None)
        self._drain()

    def named(self) -> set[str] | None:
        """The attributes that code which ran may read; None: any."""
        return None if self._all else self._names

    # -- code that runs -----------------------------------------------------------------------------------------------

    def enter(self, frame: Any) -> None:
        """A piece of the user's code is about to run for the first time."""
        code = frame.f_code
        self._code(code, frame.f_globals)
        if code.co_varnames and isinstance(frame.f_locals.get(code.co_varnames[0]), torch.autograd.function.FunctionCtx):
            self.own_backward = True
        if id(code) not in self._functions and code.co_flags & inspect.CO_OPTIMIZED and not self._made_here(code):
            self._strays += [(code.co_name, function) for function in functions_of(frame)]
            self._todo += self._strays
        self._drain()

    def runs(self, code: types.CodeType, variables: dict) -> None:
        """A piece of the user's code runs, of which nothing more is known than its globals."""
        self._code(code, variables)
        self._drain()

    def method(self, code: types.CodeType) -> None:
        """A method of PyTorch's runs, of an optimizer or a scheduler: what it names is read."""
        if code in self._methods:
            return
        self._methods.append(code)
        self._name(about(code).names)
        if about(code).any_attribute:  # state_dict()
            for value, attributes in self._trains:
                if code in methods_of(type(value)):
                    for path, item, place in attributes:
                        self._named(path, item, place)
        self._drain()

    def read(self, tensor: torch.Tensor) -> None:
        """Python reads the memory of a tensor that is none of the trace's."""
        if tensor.numel() * tensor.element_size() > MAX_BYTES or not tensor.is_cpu or not tensor.is_contiguous():
            raise NotCompiled(f"reads the values of a tensor of shape {list(tensor.shape)} that is not among its inputs")
        if not any(tensor is known for known in self._numbers):
            self._numbers.append(tensor)
            with disable_current_modes():
                data = tensor.detach().reshape(-1).view(torch.uint8).numpy()
            self._add(Buffer("a tensor's values", data, held(data)), tensor.numel())
            self._tell("a tensor's values", held(data)[0])

    def ask(self, path: str, function: Callable[[], Any]) -> None:
        """The program asks a function of PyTorch's for a state."""
        if path not in self._questions:
            self._questions[path] = function
            place = Answer(path, function)
            self._add(place, 1)
            self._tell(path, ("answer", place.held[0]))

    def is_users(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of a trace is one that the program holds beside its modules', and whose values are an input therefore.
        NotCompiled where that is not enough: it wants a gradient, or is one of the modules' own, reached in another way."""
        storage = compat.storage_id(tensor)
        found = next((each for each in self.tensors if compat.storage_id(each) == storage), None)
        if found is not None and (found.requires_grad or id(found) in self._owned):
            what = f"a tensor of shape {list(found.shape)} that learns"
            raise NotCompiled(f"{self._subject} reaches {what}, in another way than as a parameter")
        return found is not None

    def _made_here(self, code: types.CodeType) -> bool:
        """Whether a function that ran makes functions of this code: what they hold is its variables."""
        return any(code in ran.co_consts for ran, _ in self._codes.values())

    def _code(self, code: types.CodeType, variables: dict) -> None:
        if id(code) in self._codes:
            return
        self._codes[id(code)] = code, variables
        for path, function in self._functions.get(id(code), ()):
            self._runs(path, function)
        facts = about(code)
        if facts.any_global:
            self._refuse(f"{code.co_name}: uses globals(), eval() or exec(), or imports by a name that it computes")
        if facts.sets_data:
            what = f"{code.co_name}: gives a tensor another's memory (`x.data = y`), which no trace sees"
            self._refuse(what, in_pytorch=True)
        # A step's trace knows the gradients of its tensors.
        found = [name for name in facts.tensor_attributes if self._subject == "forward" or name in ("_base", "_version")]
        if found:
            self._refuse(f"{code.co_name}: reads or sets {found[0]} of a tensor", in_pytorch=True)
        for name in facts.names & sys.modules.keys() if facts.imports else ():
            if not is_trusted_module(name):
                self._slot(f"sys.modules.{name}", sys.modules, name)
        if facts.identity:
            self._identity = self._identity or code.co_name
            self._check_identity()
        for name in variables.keys() & set(facts.globals) if facts.of_a_global else ():
            if _is_users_module(variables[name]):
                what = f"{code.co_name}: reads attributes that it does not name, and `{name}` is a module"
                self._refuse(what, in_pytorch=variables[name] is sys)
        module = variables.get("__name__", "")
        self._size(module, variables)  # a new global may hide a builtin
        for name in facts.globals:
            if name in variables:
                self._slot(f"{module}.{name}", variables, name)
            elif name in vars(builtins):
                self._number(f"builtins.{name}", vars(builtins), name)
        self._calls_back |= not known_functions.CALLS_BACK.isdisjoint(facts.names)
        self._called_by_c(self._impure, None)
        if {"sys", "modules"} <= facts.names:
            self._refuse(f"{code.co_name}: reads `sys.modules`", in_pytorch=True)
        if "getenv" in facts.names:
            self._todo.append(("os.environ", os.environ))
        self.own_backward |= not _BACKWARD.isdisjoint(facts.names)
        self._name(facts.names)
        # Forgiving, such a name is left to torch.compile's guards: without them, Keras's layers would have the state of a whole
        # training (the optimizer, epochs) compared at each call, for their model holds it.
        if facts.any_attribute and not self._all and not self._forgiving:
            self._all = True
            for name in [name for name in self._waiting if not name.startswith("__")]:
                for path, value, owner in self._waiting.pop(name):
                    self._named(path, value, owner)

    def _name(self, names: set[str]) -> None:
        """Attributes and variables of these names are read."""
        new = names - self._names
        self._names |= new
        for name in new:
            for path, value, owner in (*self._waiting.pop(name, ()), *self._settings.pop(name, ())):
                self._named(path, value, owner)
        for path, opened in self._opened:
            self._members(path, opened, new)

    def _hooks(self, path: str, table: dict, flags: dict) -> None:
        """A module's hooks, which PyTorch calls. They are told by their turn: each that is registered has a key of its own, also
        where a program registers the same one anew at each call."""
        items = list(table.items())
        self._add(Place(path, table, [each for item in items for each in item]), 2 * len(items))
        self._tell(path, ("hooks", tuple(key in flags for key, _ in items)))
        self._todo += [(f"{path}[{i}]", hook) for i, (_, hook) in enumerate(items)]

    # -- objects ------------------------------------------------------------------------------------------------------

    def _attribute(self, path: str, name: Any, value: Any, owner: Any) -> None:
        if not isinstance(name, str) or name in self._names or self._all and not name.startswith("__"):
            self._named(path, value, owner)
        else:
            self._waiting.setdefault(name, []).append((path, value, owner))

    def _named(self, path: str, value: Any, owner: Any) -> None:
        """An attribute that some code names. `owner`: the place that holds it, or (module's dictionary, name)."""
        if isinstance(owner, Attributes):
            key = path.rsplit(".", 1)[1]
            for i in range(0, len(owner.held), 2):
                if owner.held[i] == key:
                    if owner.held[i + 1] is not IGNORED:  # a method of PyTorch's has named it before
                        return
                    owner.held[i + 1] = original(value)
                    break
        elif owner is not None:
            if (id(owner[0]), owner[1]) in self._slots:
                return
            self._slots.add((id(owner[0]), owner[1]))
            self._add(Place(path, owner, [value]), 1)
        self._todo.append((path, value))

    def _slot(self, path: str, table: dict, name: str) -> None:
        if (id(table), name) not in self._slots:
            self._slots.add((id(table), name))
            value = programs(table, name, table[name])
            self._add(Place(path, (table, name), [value]), 1)
            self._todo.append((path, value))

    def _size(self, path: str, table: dict) -> None:
        if (id(table), None) not in self._slots:
            self._slots.add((id(table), None))
            place = Size(path, (table,), [len(table)])
            self._add(place, 1)
            self._tell(path, ("globals", frozenset(table.keys() & vars(builtins).keys() - CLASS_CACHES)))

    def _add(self, place: Place, items: int) -> None:
        if self.in_place:
            place.held[:] = map(original, place.held)
        self.places.append(place)
        self._items += items + 1
        if self._items > MAX_ITEMS:
            raise NotCompiled(f"forward may read more than {MAX_ITEMS} Python objects, the last through `{place.path}`")

    def _tell(self, path: str, what: Any) -> None:
        """For `outline`. A path is made for messages, and several things may have the same: keys that are no text, classes of one
        name."""
        turn = self._told[path] = self._told.get(path, 0) + 1
        self.outline[path, turn] = what

    def _drain(self) -> None:
        while self._todo:
            path, value = self._todo.popleft()
            try:
                self._visit(path, value)
            except NotCompiled:
                if not self._forgiving:
                    raise

    def _refuse(self, reason: str, in_pytorch: bool = False) -> None:
        if not self._forgiving:
            raise NotCompiled(reason, in_pytorch=in_pytorch)

    def _visit(self, path: str, value: Any) -> None:
        if value is type or value is id:  # by their own names they are answered as without a trace (capture/disguise.py)
            raise NotCompiled(f"forward may ask for {value.__name__}() through `{path}`", in_pytorch=True)
        value = original(value)
        if known_functions.is_unseen(value):
            raise NotCompiled(f"{self._subject} may read `{path}`, which nothing watches", in_pytorch=True)
        if isinstance(value, decimal.Decimal) or value is decimal.Decimal:
            self.ask("decimal.getcontext()", known_functions.decimal_context)
        if isinstance(value, IMMUTABLE):
            self._tell(path, token(value))
            if not is_plain(value) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._marked(path, value)
            return
        known = id(value) in self._seen
        self._tell(path, self._kind(value))
        if known or id(value) in self._modules:
            return
        self._seen[id(value)] = value
        if len(self._seen) > MAX_ITEMS:
            raise NotCompiled(f"forward may read more than {MAX_ITEMS} Python objects, the last through `{path}`")
        if isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, types.ModuleType):
            self._module(path, value)
        elif isinstance(value, types.MethodType):
            self._todo.append((path, value.__func__))
            self._bound_to(path, value.__self__)
        elif isinstance(value, functools.partial):
            self._called_by_c(path, value.func)
            self._todo += [(f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords)]
            if getattr(value, "__dict__", None):
                self._object(path, value)
        elif isinstance(value, (staticmethod, classmethod)):
            self._todo.append((path, value.__func__))
        elif isinstance(value, (property, functools.cached_property)):
            found = (value.fget, value.fset) if isinstance(value, property) else (value.func,)
            self._todo += [(path, function) for function in found if function is not None]
        elif isinstance(value, functools._lru_cache_wrapper):
            self._todo.append((path, value.__wrapped__))
            if not is_trusted_module(value.__module__):
                self._cached(path, value)
        elif isinstance(value, (types.CellType, contextvars.ContextVar)):
            self._cell(path, value)
        elif isinstance(value, weakref.ref):
            self._weak(path, value)
        elif isinstance(value, types.MappingProxyType):
            self._todo += [(path, table) for table in gc.get_referents(value)]
        elif isinstance(value, threading.Event):
            self._number(f"{path}._flag", value.__dict__, "_flag")
        elif isinstance(value, logging.Logger):
            self._level(path, value)
        elif isinstance(value, STEPPING):
            self._stepping(path, value)
        elif (optimizer := self._groups.get(id(value))) is not None:
            self._settings_of(path, optimizer, value)
        elif (kind := next((kind for kind in _BY_NAME if isinstance(value, kind)), None)) is not None:
            self._by_name(path, value, kind)
        elif (generator := generator_of(path, value)) is not None:
            self._add(generator, 1)
            for name in _OF_GENERATORS:
                self._attribute(f"{path}.{name}", name, known_functions.Unseen(), None)
        elif isinstance(value, (numpy.ndarray, array.array, bytearray)):
            if isinstance(value, numpy.ndarray) and value.dtype.hasobject:
                raise NotCompiled(f"forward reads `{path}`, an array of objects")
            if memoryview(value).nbytes > MAX_BYTES:
                raise NotCompiled(f"forward reads `{path}`, an array of more than {MAX_BYTES} bytes: make it a buffer")
            data = held(value)[0]
            self._tell(path, data if not isinstance(value, numpy.ndarray) else (value.dtype.str, value.shape, data))
            self._add(Buffer(path, value, [data]), len(data) // 64)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._impure = self._impure or (path if known_functions.is_c_function_that_reads(value) else "")
            self._called_by_c(self._impure, None)
            if not isinstance(value.__self__, (types.ModuleType, type, type(None))):
                self._bound_to(path, value.__self__)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self._name(names_in(value))
        elif isinstance(value, _PLACES) or is_torchs(value) or is_function(value):
            for key, item in vars(value).items() if isinstance(value, _WITH_STATE) else ():
                if isinstance(item, IMMUTABLE):
                    self._attribute(f"{path}.{key}", key, item, (vars(value), key))
        else:
            self._container(path, value)
            self._object(path, value)

    def _bound_to(self, path: str, owner: Any) -> None:
        """What a method is bound to. A generator behind a function (`np.random.rand`) has no other name: code that computes the
        names of attributes does not come to its state."""
        generator = generator_of(path, owner) if id(owner) not in self._seen else None
        if generator is None:
            self._todo.append((f"{path}.__self__", owner))
        elif id(owner) not in self._generators:
            self._generators[id(owner)] = owner
            self._add(generator, 1)
            for name in _OF_GENERATORS:
                self._setting(name, f"{path}.{name}", known_functions.Unseen(), None)

    def _called_by_c(self, path: str, function: Any) -> None:
        """A function that reads a state, and that C code calls (`functools.partial`, `map`): no event tells."""
        if known_functions.is_c_function_that_reads(function) or self._calls_back and self._impure:
            self._refuse(f"{self._subject} may call `{path}`, which reads what no signature has", in_pytorch=True)

    def _kind(self, value: Any) -> Any:
        """What an object is to a program that looks at no more of it than its type and its code."""
        if isinstance(value, types.FunctionType):
            return types.FunctionType, value.__code__
        if isinstance(value, dict):
            return type(value), order(value)
        if isinstance(value, (list, set, frozenset, tuple, collections.deque)):
            return type(value), len(value)
        if isinstance(value, (torch.Tensor, type, types.ModuleType, torch.nn.Module, *STEPPING, *_PLACES)) or is_torchs(value):
            return type(value), id(value)
        return type(value), None

    def _tensor(self, path: str, value: torch.Tensor) -> None:
        if isinstance(value, (FakeTensor, FunctionalTensor)):  # of this trace
            return
        self.tensors.append(value)
        self._add(AllAttributes(path, value), len(value.__dict__))
        self._attributes(path, value.__dict__, lambda key: False)
        self._again |= id(value) in self._owned
        self._check_identity()
        if self._forgiving:  # beside Dynamo, who sees what a program writes itself
            return
        if value.is_cpu and value.layout is torch.strided and id(value) not in self._owned:
            self._copied += value.numel() * value.element_size()
            with disable_current_modes():
                self._add(Written(path, value, self._copied <= MAX_COPIED), 1)

    def _weak(self, path: str, value: weakref.ref) -> None:
        """What a weak reference gives. The guards hold what they watch: only what lives as long without them may be watched.
        (Nor may the frames of an exception hold it.)"""
        if not isinstance(value(), (type, types.FunctionType, types.ModuleType, type(None))):
            if id(value()) not in self._modules and id(value()) not in self._owned:
                raise NotCompiled(f"forward may read `{path}`, an object that only a weak reference holds", in_pytorch=True)
        if value() is not None:
            self._todo.append((path, value()))

    def _check_identity(self) -> None:
        """A trace puts its own tensors where the modules' are, and only there: by `is` they are not what is found elsewhere."""
        if self._again and self._identity:
            what = f"{self._identity}: compares by `is`, and one of the model's own tensors is reached in another way, too"
            self._refuse(what, in_pytorch=True)

    def _marked(self, path: str, value: Any) -> None:
        """The attributes of a value that cannot change, but is of a class of the user's: what an enumeration's member holds."""
        self._class(path, type(value))
        self._add(AllAttributes(path, value), len(value.__dict__))
        self._attributes(path, value.__dict__, lambda key: key == "_value_")

    def _cached(self, path: str, value: Any) -> None:
        """What functools.cache has kept: it is given again without a run of the function. Results that come later are those of
        other arguments, and change nothing; that one goes is seen, for the function would run again."""
        table, results = kept_by(path, value)
        _, keys = self._kept.setdefault(id(value), (value, list(table)))
        self._add(Cache(path, value, lambda: kept_by(path, value)), 1)
        now = {key: key for key in table}  # the very keys: one that went and came again is another object
        for i, key in enumerate(keys):
            if key in table:
                where = f"{path}({key!r})" if type(key) in (int, str) else f"{path}(...), result {i}"
                self._add(Kept(where, (table, key), [table[key]]), 1)
                self._todo += [(f"{where}.key", now[key]), (where, results[id(now[key])])]

    def _level(self, path: str, value: logging.Logger) -> None:
        """What decides whether a logger writes a record: its level and those above it."""
        logger: Any = value
        while logger is not None:
            for key in ("level", "disabled", "parent"):
                self._number(f"{path}.{key}", logger.__dict__, key)
            for key in logger.__dict__.keys() - _OF_LOGGERS:
                self._attribute(f"{path}.{key}", key, logger.__dict__[key], (logger.__dict__, key))
            logger, path = logger.parent, f"{path}.parent"
        self._number("logging.disable", value.manager.__dict__, "_disable")

    def _number(self, path: str, table: dict, key: str) -> None:
        """A plain value of an object that is otherwise not looked into."""
        if (id(table), key) not in self._slots and key in table:
            self._slots.add((id(table), key))
            found = programs(table, key, table[key])
            self._add(Place(path, (table, key), [found]), 1)
            value = original(found)
            self._tell(path, token(value) if isinstance(value, IMMUTABLE) else (type(value), id(value)))

    def _container(self, path: str, value: Any) -> None:
        if isinstance(value, dict):
            items = [(key, programs(value, key, item)) for key, item in dict.items(value)]
            self._add(Place(path, value, [each for item in items for each in item]), 2 * len(items))
            if isinstance(value, collections.OrderedDict) and len(value) > 1:
                self._add(Order(path, value), len(value))
                self._tell(f"the order of {path}", order(value))
            for key, item in items:
                if not is_plain(key):
                    self._todo.append((f"{path}.key", key))
                self._todo.append((f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[...]", item))
            return
        if isinstance(value, BaseException):  # Python keeps them beside its attributes
            self._add(Place(f"{path}.args", (value, "args"), [value.args]), 1)
            self._todo.append((f"{path}.args", value.args))
        if isinstance(value, (list, set, frozenset, tuple, collections.deque)):
            items = contents_of(value)
            if isinstance(value, (list, set, collections.deque)):
                self._add(Place(path, value, items), len(items))
            if isinstance(value, (set, frozenset)) and all(map(is_plain, items)):
                self._tell(path, (type(value), frozenset(map(token, items))))
                return
            self._todo += [(f"{path}[{i}]", item) for i, item in enumerate(items)]

    def _object(self, path: str, value: Any) -> None:
        kind = type(value)
        attributes = getattr(value, "__dict__", None)
        if not is_transparent(kind):
            name = f"{module_of(kind)}.{kind.__qualname__}"
            raise NotCompiled(f"forward may read `{path}`, a {name}, and trainc cannot see into it")
        self._of_class(path, value)
        whole = reads_itself(kind)
        if isinstance(attributes, dict):
            named = names_of_bases(kind)
            self._add(AllAttributes(path, value), len(attributes))
            self._attributes(path, attributes, lambda key: whole or key in named)
        self._in_slots(path, value)

    def _in_slots(self, path: str, value: Any) -> None:
        for name in slot_names(type(value)):
            try:
                item = object.__getattribute__(value, name)
            except AttributeError:
                item = MISSING
            self._add(Place(f"{path}.{name}", (value, name), [item]), 1)
            if item is not MISSING:
                self._todo.append((f"{path}.{name}", item))

    def _attributes(self, path: str, table: dict, named: Callable[[str], bool]) -> None:
        """The attributes of an object or a function; `named`: those that code which is not watched reads."""
        place = Attributes(path, table, [each for key in table for each in (key, IGNORED)])
        self._add(place, len(table))
        for key, item in list(table.items()):
            if named(key):
                self._named(f"{path}.{key}", item, place)
            else:
                self._attribute(f"{path}.{key}", key, item, place)

    def _function(self, path: str, value: types.FunctionType) -> None:
        """A function is looked into where it runs: another one changes nothing."""
        if is_trusted_file(value.__code__.co_filename):
            if isinstance(value.__dict__.get("registry"), types.MappingProxyType):  # functools.singledispatch
                self._todo.append((f"{path}.registry", value.__dict__["registry"]))
            return
        self._functions.setdefault(id(value.__code__), []).append((path, value))
        self._add(AllAttributes(path, value), 1)
        if value.__dict__:
            self._attributes(path, value.__dict__, lambda key: False)
        if id(value.__code__) in self._codes:
            self._runs(path, value)

    def _runs(self, path: str, value: types.FunctionType) -> None:
        self._add(Place(path, value, held(value)), 3)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self._todo.append((f"{path}.{name}" if path else name, cell))
        for what in (value.__defaults__, value.__kwdefaults__):
            if what:
                self._todo.append((f"{path}.__defaults__", what))
        if not value.__dict__:
            self._attributes(path, value.__dict__, lambda key: False)

    def _cell(self, path: str, value: types.CellType | contextvars.ContextVar) -> None:
        found = held(value)
        self._add(Place(path, value, found), 1)
        if isinstance(value, contextvars.ContextVar) and found[0] is MISSING:
            found = [default_of(value)]
        if found[0] is not MISSING:
            self._todo.append((path, found[0]))

    def _of_class(self, path: str, value: Any) -> None:
        """An object's class, of which the program could make it another: `layer.__class__ = Quantized`."""
        self._tell(f"the class of {path}", (type(value), id(type(value))))
        self.classes[id(value)] = value, type(value)
        self._class(path, type(value))

    def _class(self, path: str, value: type) -> None:
        for each in value.__mro__:
            if id(each) in self._seen and each is not value or each is object:
                continue
            if not is_pythons(each):
                continue
            self._seen[id(each)] = each
            if "_abc_impl" in each.__dict__:
                self._registry(each)
            if is_trusted_module(module_of(each)):  # watched, but whatever changes there is not the program's doing
                self._version(each)
                continue
            if is_pythons(type(each)):
                self._class(type(each).__qualname__, type(each))
            self._add(Class(each.__qualname__, each), 1)
            called = names_of_bases(each)
            for key, item in list(each.__dict__.items()):
                if key not in CLASS_CACHES and not isinstance(item, types.MemberDescriptorType):
                    # Python itself calls `__call__` and the like, and a base class of PyTorch's calls `forward`
                    implicit = key in called or is_special(key) and is_callable(item)
                    where = f"{each.__qualname__}.{key}"
                    self._named(where, item, None) if implicit else self._attribute(where, key, item, None)

    def _registry(self, value: type) -> None:
        place = Registry(f"{module_of(value)}.{value.__qualname__}.register", value)
        self._add(place, 1)
        self._tell(place.path, ("registered", place.held[0]))

    def _version(self, value: type) -> None:
        """A class of a package's: its methods, which somebody may replace, its plain attributes, and the functions of PyTorch's
        that its methods find by name."""
        if type_version(value):
            self._add(Version(value.__qualname__, value, held(value)), 1)
        items = [(key, item) for key, item in value.__dict__.items() if key not in _REPLACED]
        methods = tuple((key, item) for key, item in items if isinstance(item, types.FunctionType))
        self._tell(f"{module_of(value)}.{value.__qualname__}", ("methods", methods))
        for key, item in items:
            if isinstance(item, IMMUTABLE) and not is_special(key):
                self._attribute(f"{value.__qualname__}.{key}", key, item, None)
        functions = torch.nn.functional.__dict__
        for _, method in methods if issubclass(value, torch.nn.Module) else ():
            for name in names_of(method.__code__) & functions.keys():
                if callable(functions[name]) and not isinstance(functions[name], type):
                    self._number(f"torch.nn.functional.{name}", functions, name)

    def _module(self, path: str, value: types.ModuleType) -> None:
        self._opened.append((path, value))
        self._members(path, value, self._names)

    def _members(self, path: str, module: types.ModuleType, names: set[str]) -> None:
        """A module's variables that are named."""
        trusted = is_trusted_module(module.__name__)
        table = module.__dict__
        for name in sorted(names & table.keys()):
            if trusted and isinstance(table[name], types.BuiltinFunctionType):  # the name may be anything's: its calls tell
                self._number(f"{path}.{name}", table, name)
            elif not trusted or not name.startswith("__") and table is not vars(torch.ops):
                self._slot(f"{path}.{name}", table, name)

    def _stepping(self, path: str, value: Any) -> None:
        """An optimizer or a scheduler. Its steps are the optimizer's own plans, or run as Python after each step; what a program
        reads of it is what its code names, or a method of PyTorch's that it calls. What is another after each step is watched
        where it is named, and not where code computes names."""
        kind = type(value)
        alone = {"state", "param_groups", "_opt_called"} | set_later(kind)
        alone |= {name for name in names_of_bases(kind) if name.startswith("_")}
        left_out = _STEPS | {"state"} if any(value is each for each in self._stepped) else _STEPS
        if isinstance(groups := value.__dict__.get("param_groups"), list):
            self._groups[id(groups)] = value
        # A state that is held here would stay when `load_state_dict` replaces it.
        attributes = self._named_alone(path, value, alone, left_out, ignored=left_out - _STEPS)
        if "_last_lr" in value.__dict__:
            self._setting("get_last_lr", f"{path}._last_lr", *_of(value.__dict__, "_last_lr"))
        self._trains.append((value, attributes))
        if any(about(code).any_attribute and code in methods_of(kind) for code in self._methods):
            for each in attributes:
                self._named(*each)

    def _settings_of(self, path: str, optimizer: torch.optim.Optimizer, groups: list[Any]) -> None:
        """The groups of an optimizer. `load_state_dict` puts others there, and their numbers are the same numbers."""
        self._add(Place(path, groups, list(groups)), len(groups))
        for i, group in enumerate(groups):
            where = f"{path}[{i}]"
            if not isinstance(group, dict):
                self._todo.append((where, group))
                continue
            items = _items(group)
            self._tell(where, (type(group), order(dict(items))))
            self._add(Attributes(where, group, [each for key, _ in items for each in (key, IGNORED)]), len(items))
            for key, item in items:
                if key == "params":  # by identity they are not those of the trace
                    self._setting("params", f"{where}.params", item, (group, key))
                else:
                    self._add(Setting(f"{where}.{key}", (group, key), [item], Group(optimizer, i)), 1)
                    self._todo.append((f"{where}.{key}", item))
            self._add(Table(where, group, [each for pair in items for each in pair]), len(items))

    def _by_name(self, path: str, value: Any, kind: type) -> None:
        if kind is torch.utils.data.DataLoader:
            place = Length(f"len({path})", value)
            self._add(place, 1)
            self._tell(place.path, ("length", place.held[0]))
        self._named_alone(path, value, _BY_NAME[kind], ignored=_BY_NAME[kind] - {"dataset", "sampler", "batch_sampler"})

    def _named_alone(
        self, path: str, value: Any, alone: Set[str], left_out: Set[str] = frozenset(), ignored: Set[str] = frozenset()
    ) -> list[tuple[str, Any, Any]]:
        """An object of PyTorch's, whose own code is no reason to watch an attribute. `alone`: not where code computes names;
        `left_out`: not at all; `ignored`: nor whether the program changes it. Gives the others, as `_named` takes them."""
        kind, table = type(value), value.__dict__
        if kind is not torch.utils.hooks.RemovableHandle:  # it counts handles, so that it is another class after each
            self._of_class(path, value)
        items = _items(table)
        self._add(Table(path, table, [each for key, item in items for each in (key, IGNORED if key in ignored else item)]), 1)
        place = Attributes(path, table, [each for key, _ in items for each in (key, IGNORED)])
        self._add(place, len(items))
        whole, attributes = not is_trusted_module(module_of(kind)) and reads_itself(kind), []
        for key, item in items:
            where = f"{path}.{key}"
            if key in left_out:
                continue
            if key in alone:
                self._setting(key, where, item, (table, key))
                attributes.append((where, item, (table, key)))
                continue
            attributes.append((where, item, place))
            if whole:
                self._named(where, item, place)
            else:
                self._attribute(where, key, item, place)
        self._in_slots(path, value)
        return attributes

    def _setting(self, name: str, path: str, value: Any, place: tuple) -> None:
        """What is read where some code has `name`, and not where one computes names: it changes at every step."""
        if name in self._names:
            self._named(path, value, place)
        else:
            self._settings.setdefault(name, []).append((path, value, place))

    # -- what became of it --------------------------------------------------------------------------------------------

    def codes(self) -> list[tuple[types.CodeType, dict]]:
        """The functions that ran, and their globals."""
        return list(self._codes.values())

    def reached(self) -> list[Any]:
        """The objects that these can reach."""
        return list(self._seen.values())

    def knows(self, value: Any) -> bool:
        """Whether an object was there before the program ran, and can be reached by it."""
        return id(value) in self._seen or id(value) in self._modules

    def numbers(self) -> dict[tuple[str, int], tuple[Any, Any]]:
        """The floats that were found: key of `outline` -> what holds each, as a Slot's container and key. Those of whose path
        there are several are left out: a path does not say which is which."""
        told: dict[str, list[tuple[str, int]]] = {}
        for place, what in self.outline.items():
            if is_number(what):
                told.setdefault(place[0], []).append(place)
        held: dict[str, dict[tuple, tuple[Any, Any]]] = {}
        for path, container, key in self._floats():
            held.setdefault(path, {})[id(container), key] = container, key
        return {told[path][0]: next(iter(at.values())) for path, at in held.items() if len(at) == len(told.get(path, ())) == 1}

    def own_attributes(self) -> Iterator[str]:
        """The paths of all attributes of the modules."""
        for path, module in self._own.root.named_modules():
            yield from (f"{path}.{key}" if path else str(key) for key in module.__dict__)

    def own_places(self) -> list[Place]:
        """The plain attributes of the modules, whose values a signature has where a call has one."""
        tables = {id(module.__dict__): path for path, module in self._own.root.named_modules()}
        return [
            Place(f"{tables[id(table)]}.{key}" if tables[id(table)] else str(key), (table, key), [table[key]])
            for table, key in self._own._values if id(table) in tables and key in table
        ]  # fmt: skip

    def _floats(self) -> Iterator[tuple[str, Any, Any]]:
        yield from self._own_numbers
        for place in self.places:
            thing, path = place.thing, place.path
            if not place.guards:
                continue
            if isinstance(thing, dict):
                for key, value in zip(place.held[::2], place.held[1::2], strict=True):
                    if type(value) is float and isinstance(key, (str, int)):
                        yield f"{path}.{key}" if type(place) is Attributes else f"{path}[{key!r}]", thing, key
            elif isinstance(thing, list):
                yield from ((f"{path}[{i}]", thing, i) for i, value in enumerate(place.held) if type(value) is float)
            elif isinstance(thing, (tuple, types.CellType)) and type(place.held[0]) is float:
                container, key = thing if isinstance(thing, tuple) else (thing, None)
                yield path, place.group if type(place) is Setting else container, key

    def restore(self) -> str | None:
        """Puts everything back; returns what had changed, or None. What was drawn from a generator is told by `drawn` alone."""
        changed = None
        for place in self.places:
            if type(place) is not Attributes and not is_replaced(place.thing) and place.changed():
                place.restore()
                if isinstance(place, Generator):
                    self.drawn = self.drawn or f"{self._subject} draws random numbers from `{place.path}`"
                    continue
                self.in_pytorch |= not place.by_dynamo or self._has_two_names(place)
                changed = changed or f"{self._subject} changes `{place.path}`"
        return changed

    def _has_two_names(self, place: Place) -> bool:
        """Whether a variable may be read as an attribute of its module, too: Dynamo takes these for two."""
        return isinstance(place.thing, tuple) and any(place.thing[0] is vars(module) for _, module in self._opened)

    def again(self, kept: bool = False) -> Reads:
        """The same walk over what is there now; `kept`: of what caches keep, over what this one knows."""
        walk = Reads(self._own, self._subject, dict(self._kept) if kept else None, self._stepped)
        for path, value in self.roots:
            walk.root(path, value)
        for code, variables in self._codes.values():
            walk.runs(code, variables)
        for tensor in self._numbers:
            walk.read(tensor)
        for method in self._methods:
            walk.method(method)
        for question in self._questions.items():
            walk.ask(*question)
        walk._strays = self._strays
        walk._todo += self._strays
        walk._drain()
        return walk

    def root(self, path: str, value: Any) -> None:
        """What the program starts from beside its modules: the function that is a step."""
        self.roots.append((path, value))
        self._todo.append((path, value))
        self._drain()


def _of(table: dict, key: str) -> tuple[Any, tuple[dict, str]]:
    return programs(table, key, table[key]), (table, key)


def _items(table: dict) -> list[tuple[Any, Any]]:
    """What the program has in a dictionary, where a trace puts other things."""
    items = [(key, programs(table, key, item)) for key, item in dict.items(table)]
    return [(key, item) for key, item in items if item is not MISSING]


def _is_users_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and (value is sys or not is_trusted_module(value.__name__))


__all__ = ["Reads"]
