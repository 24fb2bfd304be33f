"""What of Python's, NumPy's and PyTorch's own functions a program may call while it is traced: those that depend on their
arguments and on what a signature has. All others read a state that nothing watches (`locale`, `gc`, a setting of PyTorch's), so a
program that calls one runs in PyTorch; some that programs ask often are asked again before each call instead."""

from __future__ import annotations

import codecs
import configparser
import ctypes
import decimal
import functools
import glob
import inspect
import os
import pathlib
import random
import re
import types
import zipfile
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy
import torch
import torch.distributed

from trainc.torch.trust import C_TRUSTED, STDLIB, STDLIB_FOLDERS, is_stdlib, top_package_of

# ---- C functions ----------------------------------------------------------------------------------------------------

# Modules of the standard library whose C functions and types depend on their arguments alone.
_PURE_C = frozenset(
    {"", "_abc", "_asyncio", "_ast", "_bisect", "_codecs", "_collections", "_collections_abc", "_contextvars", "_csv",
     "_ctypes", "_datetime", "_elementtree", "_functools", "_hashlib", "_heapq", "_io", "_json", "_md5", "_opcode",
     "_operator", "_pickle", "_random", "_sha1", "_sha2", "_sha256", "_sha3", "_sha512", "_sre", "_stat", "_statistics",
     "_string", "_struct", "_typing", "_queue", "_warnings", "_weakref", "abc", "array", "binascii", "builtins", "cmath",
     "codecs", "collections", "contextvars", "ctypes", "datetime", "enum", "functools", "io", "itertools", "json", "math",
     "mmap", "operator", "pickle", "random", "re", "string", "struct", "types", "typing", "unicodedata", "weakref", "zlib"}
)  # fmt: skip
# Functions of these that do not.
_IMPURE_C = {
    "builtins": {"id", "open", "input", "breakpoint"},
    "_functools": {"cache_info", "cache_parameters"}, "functools": {"cache_info", "cache_parameters"},
    "_weakref": {"getweakrefcount", "getweakrefs"},
    "_ctypes": {"from_address", "get_errno", "string_at", "addressof"},
    "ctypes": {"from_address", "get_errno", "string_at", "addressof"},
    "_codecs": {"lookup", "lookup_error"},
    "_contextvars": {"copy_context"}, "contextvars": {"copy_context"},
    "_warnings": {"_filters_mutated"},
    "_operator": {"methodcaller"},
}  # fmt: skip
# Functions of other modules that do.
_PURE_OF = {
    "sys": {"intern", "exc_info", "getsizeof", "audit", "call_tracing", "is_finalizing"},
    "time": {"sleep"},
    "posix": {"fspath", "fsencode", "fsdecode", "get_terminal_size", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"},
    "_thread": {"allocate_lock", "RLock", "__enter__", "__exit__", "acquire", "release", "acquire_lock", "release_lock"},
    "threading": {"__enter__", "__exit__"},
}

# C functions of PyTorch's with such a name read a setting, but for these.
_ASKING = re.compile(r"_?(is|are|get|has|current|initial|num|query)_")
_TORCH_ANSWERS = frozenset(
    {"is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled",
     "is_autocast_cache_enabled", "get_autocast_dtype", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype",
     "get_default_dtype", "_get_tracing_state", "is_floating_point", "is_complex", "is_nonzero", "is_same_size", "is_conj",
     "is_neg", "is_signed", "is_distributed", "_is_view", "get_device", "is_tensor", "has_names",
     "is_vulkan_available"}
)  # fmt: skip


def c_function_reads(module: str, name: str, owner: Any) -> bool:
    """Whether a C function of a trusted package (`trust.top_package_of`) reads what no signature has. `owner`: its `__self__`."""
    if module.startswith("torch"):
        if isinstance(owner, torch.Generator):
            return True
        return name == "from_file" or _ASKING.match(name) is not None and name not in _TORCH_ANSWERS
    if module == "numpy":
        return name in ("get_state", "geterrobj", "_get_promotion_state", "getbufsize", "fromfile")
    if module in _PURE_C:
        return name in _IMPURE_C.get(module, ())
    return module in STDLIB and name not in _PURE_OF.get(module, ())


def is_c_function_that_reads(function: Any) -> bool:
    if not isinstance(function, types.BuiltinFunctionType):
        return False
    module, owner = top_package_of(function), function.__self__
    return module in C_TRUSTED and c_function_reads(module, function.__name__, owner)


# Functions that call others from C, which no profile event tells of.
CALLS_BACK = frozenset(
    {"map", "filter", "sorted", "sort", "min", "max", "iter", "reduce", "starmap", "takewhile", "dropwhile", "accumulate",
     "groupby", "filterfalse", "call", "defaultdict", "sub", "partialmethod", "cached_property", "property"}
)  # fmt: skip


class Unseen:
    """Stands for what an object has and nothing can watch: to name it ends a trace."""


def decimal_context() -> tuple:
    """What decides how numbers of the module `decimal` are rounded."""
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, repr(context.traps)


# ---- Python functions -----------------------------------------------------------------------------------------------

# Modules of the standard library whose functions depend on their arguments alone, or on what is watched, or refused elsewhere.
_PURE = frozenset(
    {"_collections_abc", "_weakrefset", "abc", "argparse", "ast", "base64", "bisect", "cmath", "codecs", "collections",
     "colorsys", "configparser", "contextlib", "copy", "copyreg", "csv", "ctypes", "dataclasses", "datetime", "difflib",
     "dis", "enum", "filecmp", "fnmatch", "fractions", "functools", "genericpath", "graphlib", "hashlib", "heapq", "hmac",
     "html", "importlib", "inspect", "io", "itertools", "json", "keyword", "math", "numbers", "opcode", "operator", "os",
     "pathlib", "pickle", "posixpath", "pprint", "queue", "random", "re", "reprlib", "shlex", "sre_compile", "sre_constants",
     "sre_parse", "statistics", "string", "struct", "textwrap", "token", "tokenize", "types", "typing", "uuid", "warnings",
     "weakref", "xml", "zipfile", "zoneinfo", "_pydecimal"}
)  # fmt: skip
_IMPURE = frozenset(
    {"stack", "currentframe", "trace", "getouterframes", "getmodule", "getsource", "getsourcelines", "findsource", "getcwd",
     "getcwdb", "getenvb", "cpu_count", "get_exec_path", "expanduser", "expandvars", "realpath", "abspath", "absolute",
     "resolve", "samefile", "home", "uuid1", "uuid4", "getnode"}
)  # fmt: skip
# Of modules that have a state, the functions that may be called: their reads are watched (a logger's level).
_WATCHED = {
    "logging": {"isEnabledFor", "debug", "info", "warning", "warn", "error", "exception", "critical", "log", "getEffectiveLevel",
                "_log", "disabled", "filter"},
    "threading": {"__init__", "__enter__", "__exit__", "is_set", "local"},
}  # fmt: skip

_TORCH = os.path.dirname(torch.__file__) + os.sep


def _of_torch(*paths: str) -> tuple[str, ...]:
    return tuple(_TORCH + path.replace("/", os.sep) for path in paths)


# Files of PyTorch's whose functions read, or are about, a state that no signature has.
_STATES = _of_torch(
    "random.py", "_tensor_str.py", "autograd/anomaly_mode.py", "backends/", "utils/deterministic.py", "utils/benchmark/",
    "cuda/__init__.py", "cuda/memory.py", "cuda/random.py", "xpu/__init__.py", "mps/__init__.py", "mtia/__init__.py",
    "accelerator/", "jit/_state.py",
)  # fmt: skip
# Those of which some do, by their names.
_QUESTIONS = _of_torch("__init__.py", "functional.py", "distributed/", "cuda/", "multiprocessing/")
_NUMPY = os.path.join(os.path.dirname(numpy.__file__), "_core", "")
_STATES_OF_NUMPY = (_NUMPY + "_ufunc_config.py", _NUMPY + "arrayprint.py", _NUMPY + "printoptions.py")
_QUESTION = re.compile(r"(is|are|get|initial|seed)(_|$)")
_SETTLED = frozenset(
    {"is_tensor", "is_storage", "get_default_device", "is_compiling", "is_dynamo_compiling", "is_scripting", "is_tracing",
     "is_exporting", "is_parametrized", "sdp_kernel", "flags"}
)  # fmt: skip


@functools.cache
def _home(path: str) -> str:
    """Of a file of the standard library its top module; of PyTorch's or NumPy's that are about a state "state", of those that
    have questions "torch"; else ""."""
    if path.startswith((*_STATES, *_STATES_OF_NUMPY)) or f"{os.sep}mpmath{os.sep}" in path:
        return "state"
    if path.startswith(_QUESTIONS):
        return "torch"
    if path.startswith("<frozen "):
        return path[len("<frozen ") : -1].split(".", 1)[0]
    if not is_stdlib(path):
        return ""
    folder = next(folder for folder in STDLIB_FOLDERS if path.startswith(folder))
    return path[len(folder) :].split(os.sep, 1)[0].removesuffix(".py")


@functools.cache
def reads(code: types.CodeType) -> bool:
    """Whether a function of a trusted package, called by the program itself, reads what no signature has."""
    home, name = _home(code.co_filename), code.co_name
    if code in _SEEDS or code in _READERS:
        return True
    if home == "state":
        return name not in _SETTLED
    if home == "torch":
        return _QUESTION.match(name) is not None and name not in _SETTLED
    if home in _PURE:
        return name in _IMPURE
    return home in STDLIB and name not in _WATCHED.get(home, ()) and not name.startswith("<")


_OF_PATHS = (
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "stat", "lstat", "is_file", "is_dir",
    "is_symlink", "is_mount", "is_socket", "is_fifo", "is_block_device", "is_char_device", "iterdir", "glob", "rglob", "walk",
    "unlink", "mkdir", "rmdir", "touch", "rename", "replace", "chmod", "owner", "group", "readlink",
    "samefile", "symlink_to", "hardlink_to", "cwd",
)  # fmt: skip
# Functions of modules named above that read a file, or a setting.
_READERS: set[types.CodeType] = set()
for _function in (
    os.path.exists, os.path.isfile, os.path.isdir, os.path.getsize, os.path.getmtime, os.path.getctime, os.path.getatime,
    os.path.lexists, os.path.islink, os.path.ismount, os.walk, glob.glob, glob.iglob, codecs.open,
    configparser.RawConfigParser.read, ElementTree.parse, zipfile.ZipFile.__init__, torch.load, torch.save,
    numpy.load, numpy.loadtxt, numpy.genfromtxt, numpy.memmap.__new__,
    *(getattr(pathlib.Path, _name) for _name in _OF_PATHS if hasattr(pathlib.Path, _name)),
):  # fmt: skip
    if (_code := getattr(inspect.unwrap(_function), "__code__", None)) is not None:
        _READERS.add(_code)

# Functions that make a generator's state of what the system gives where they are not given a seed, and the argument's name.
_SEEDS = {random.Random.__init__.__code__: "x", random.Random.seed.__code__: "a"}


def gives_the_same(frame: types.FrameType) -> bool:
    """Of a call of a function that `reads`: whether it does not with these arguments."""
    seed = _SEEDS.get(frame.f_code)
    return seed is not None and frame.f_locals.get(seed) is not None


def is_unseen(value: Any) -> bool:
    """Whether what an object does cannot be known: a foreign function, or what draws from the system."""
    return isinstance(value, (Unseen, ctypes._CFuncPtr, ctypes.CDLL, random.SystemRandom)) or value is random.SystemRandom


# ---- functions that are asked again ---------------------------------------------------------------------------------

# Without arguments, their answer is part of what a trace depends on.
ANSWERED: dict[types.CodeType, Callable[[], Any]] = {
    inspect.unwrap(function).__code__: function
    for module, names in (
        (torch.distributed, ("is_available", "is_initialized", "get_rank", "get_world_size", "is_torchelastic_launched")),
        (torch.cuda, ("is_available", "is_initialized", "device_count", "current_device")),
        (torch.backends.mps, ("is_available", "is_built")),
        (torch, ("is_deterministic_algorithms_warn_only_enabled", "is_warn_always_enabled")),
    )
    for name in names
    if isinstance(inspect.unwrap(function := getattr(module, name, None)), types.FunctionType)
}


def answer_of(function: Callable[[], Any]) -> Any:
    """What it says now; an error's type and text where it raises."""
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


__all__ = [
    "ANSWERED", "CALLS_BACK", "Unseen", "answer_of", "c_function_reads", "decimal_context", "gives_the_same",
    "is_c_function_that_reads", "is_unseen", "reads",
]  # fmt: skip
