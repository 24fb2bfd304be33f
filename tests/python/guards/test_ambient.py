"""What of the interpreter's, the standard library's, NumPy's and PyTorch's own state forward may read: settings, contexts, tables of
modules, objects that C code made. Each case is an expression that scales forward's result, and what changes it; eager's numbers are
wanted before and after, compiled, traced anew or in PyTorch.

The cases run in a process each, forked from one: what they change is not to be seen by other tests.
"""

# ruff: noqa: E501
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import types
import warnings

import pytest

HEAD = """
import abc, array, ast, builtins, calendar, codecs, collections, configparser, contextvars, copy, ctypes, dataclasses, datetime, decimal, enum
import faulthandler, fractions, functools, gc, heapq, inspect, io, itertools, json, locale, logging, math, mmap, numbers, operator, os
import pathlib, pickle, queue, random, resource, signal, socket, statistics, string, struct, sys, tempfile, threading, time, types, warnings, weakref
import numpy as np
from xml.etree import ElementTree
import torch
from torch import nn
import torch.nn.functional as F
"""

# name -> (a number that forward reads, what changes it: an expression over `m`, the module of the program, what is there before)
CASES = {
    "sys.path": ("float(len(sys.path))", "sys.path.append('/nowhere')"),
    "sys.path in": ("3.0 if '/nowhere2' in sys.path else 2.0", "sys.path.append('/nowhere2')"),
    "sys.argv": ("float(len(sys.argv))", "sys.argv.append('a')"),
    "sys.modules in": ("3.0 if 'zzz_mod' in sys.modules else 2.0", "sys.modules['zzz_mod']=types"),
    "sys attr": ("float(getattr(sys,'my_attr',2.0))", "sys.my_attr=3.0"),
    "switchinterval": ("float(sys.getswitchinterval())", "sys.setswitchinterval(0.1)"),
    "builtins name": ("float(my_b2)", "builtins.my_b2=3.0", "builtins.my_b2=2.0"),
    "decimal prec": ("float(decimal.Decimal(1)/3)", "decimal.getcontext().prec=3"),
    "decimal getcontext": ("float(decimal.getcontext().prec)", "decimal.getcontext().prec=4"),
    "logger level": ("3.0 if L.isEnabledFor(logging.DEBUG) else 2.0", "m.L.setLevel(logging.DEBUG)", "L=logging.getLogger('hidx')"),
    "logger handlers": ("float(len(L.handlers))+1", "m.L.addHandler(logging.NullHandler())", "L=logging.getLogger('hidy')"),
    "logger hasHandlers": ("3.0 if logging.getLogger('hidz').hasHandlers() else 2.0", "logging.getLogger('hidz').addHandler(logging.NullHandler())"),
    "root level": ("float(logging.getLogger().level)", "logging.getLogger().setLevel(5)"),
    "getLevelName": ("3.0 if logging.getLevelName(33)=='HI' else 2.0", "logging.addLevelName(33,'HI')"),
    "warnings.filters": ("float(len(warnings.filters))", "warnings.simplefilter('error', FutureWarning)"),
    "signal": ("3.0 if signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN else 2.0", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"),
    "locale": ("float(len(locale.localeconv()['decimal_point']))+float(len(locale.setlocale(locale.LC_ALL)))", "locale.setlocale(locale.LC_ALL,'C.UTF-8')"),
    "getcwd": ("float(len(os.getcwd()))", "os.chdir('/tmp')"),
    "environ": ("float(os.environ.get('HIDE','2'))", "os.environ['HIDE']='3'"),
    "allow_tf32": ("3.0 if torch.backends.cuda.matmul.allow_tf32 else 2.0", "torch.backends.cuda.matmul.allow_tf32=True"),
    "deterministic": ("3.0 if torch.are_deterministic_algorithms_enabled() else 2.0", "torch.use_deterministic_algorithms(True)"),
    "fill uninit": ("3.0 if torch.utils.deterministic.fill_uninitialized_memory else 2.0", "torch.utils.deterministic.fill_uninitialized_memory=False"),
    "anomaly": ("3.0 if torch.is_anomaly_enabled() else 2.0", "torch.autograd.set_detect_anomaly(True)"),
    "initial_seed": ("float(torch.initial_seed()%1000)", "torch.manual_seed(345)"),
    "warn always": ("3.0 if torch.is_warn_always_enabled() else 2.0", "torch.set_warn_always(True)"),
    "printopts": ("float(torch._tensor_str.PRINT_OPTS.precision)", "torch.set_printoptions(precision=7)"),
    "dist": ("3.0 if torch.distributed.is_available() and torch.distributed.is_initialized() else 2.0", "torch.distributed.init_process_group('gloo',store=torch.distributed.HashStore(),rank=0,world_size=1)"),
    "np random state": ("float(np.random.get_state()[1][0]%1000)", "np.random.seed(5)"),
    "gc threshold": ("float(gc.get_threshold()[0])", "gc.set_threshold(1234)"),
    "cache_info": ("float(g.cache_info().currsize)", "m.g(5)", "@functools.lru_cache\ndef g(x): return x\n"),
    "weakrefcount": ("float(weakref.getweakrefcount(S))", "setattr(m, 'w',weakref.ref(m.S))", "S={1,2}"),
    "ctypes from_address": ("ctypes.c_double.from_address(A).value", "setattr(m.V,'value',3.0)", "V=ctypes.c_double(2.0)\nA=ctypes.addressof(V)"),
    "Lock": ("3.0 if E.locked() else 2.0", "m.E.acquire()", "E=threading.Lock()"),
    "RLock": ("3.0 if E._is_owned() else 2.0", "m.E.acquire()", "E=threading.RLock()"),
    "Semaphore": ("float(E._value)", "m.E.release()", "E=threading.Semaphore(2)"),
    "Thread alive": ("3.0 if T.is_alive() else 2.0", "m.EV.set() or m.T.join()", "EV=threading.Event()\nT=threading.Thread(target=EV.wait)\nT.start()"),
    "scheduler": ("SC.get_last_lr()[0]", "(m.OP.step(),m.SC.step())", "P=nn.Parameter(torch.ones(1))\nOP=torch.optim.SGD([P],lr=2.0)\nSC=torch.optim.lr_scheduler.StepLR(OP,1)"),
    "opt lr": ("OP.param_groups[0]['lr']", "m.OP.param_groups[0].update(lr=3.0)", "P=nn.Parameter(torch.ones(1))\nOP=torch.optim.SGD([P],lr=2.0)"),
    "opt state": ("float(len(OP.state))+1", "(setattr(m.P,'grad',torch.ones(1)),m.OP.step())", "P=nn.Parameter(torch.ones(1))\nOP=torch.optim.Adam([P],lr=2.0)"),
    "opt state step": ("float(OP.state[P]['step']) if P in OP.state else 0.5", "(setattr(m.P,'grad',torch.ones(1)),m.OP.step())", "P=nn.Parameter(torch.ones(1))\nOP=torch.optim.Adam([P],lr=2.0)"),
    "Generator seed": ("float(G.initial_seed())", "m.G.manual_seed(3)", "G=torch.Generator().manual_seed(2)"),
    "issubclass abc": ("3.0 if issubclass(K,numbers.Number) else 2.0", "numbers.Number.register(m.K)", "class K: pass"),
    "isinstance abc": ("3.0 if isinstance(K(),AB) else 2.0", "m.AB.register(m.K)", "class K: pass\nclass AB(abc.ABC): pass"),
    "singledispatch": ("D(1)", "m.D.register(int,lambda x: 3.0)", "@functools.singledispatch\ndef D(x): return 2.0\n"),
    "umask": ("float(os.getpriority(os.PRIO_PROCESS,0))+1", "os.nice(1)"),
    "attrgetter pre": ("AG(O)", "setattr(m.O,'x',3.0)", "O=types.SimpleNamespace(x=2.0)\nAG=operator.attrgetter('x')"),
    "exception args": ("EX.args[0]", "setattr(m.EX,'args',(3.0,))", "EX=ValueError(2.0)"),
    "getswitch": ("float(len(gc.callbacks))+1", "gc.callbacks.append(lambda *a: None)"),
    "socket timeout": ("float(socket.getdefaulttimeout() or 2.0)", "socket.setdefaulttimeout(3.0)"),
    "faulthandler": ("3.0 if faulthandler.is_enabled() else 2.0", "faulthandler.enable()"),
    "tempdir": ("float(len(tempfile.gettempdir()))", "setattr(tempfile, 'tempdir', '/')"),
    "nn.Module attr default": ("float(nn.Module.dump_patches)+1", "setattr(nn.Module,'dump_patches',True)"),
    "torch.overrides": ("3.0 if torch.overrides.has_torch_function((O,)) else 2.0", "setattr(m.OK,'__torch_function__',classmethod(lambda *a: 1))", "class OK: pass\nO=OK()"),
    "partial c": ("PA()", "sys.setswitchinterval(0.1)", "PA=functools.partial(sys.getswitchinterval)"),
    "map c2": ("float(next(iter(GS,0)))", "gc.set_threshold(555)", "GS=gc.get_count and sys.getrecursionlimit"),
    "default arg c": ("D()", "sys.setswitchinterval(0.1)", "def D(f=sys.getswitchinterval): return f()"),
    "stored c": ("O.f()", "sys.setswitchinterval(0.1)", "O=types.SimpleNamespace(f=sys.getswitchinterval)"),
    "dict c": ("O['f']()", "sys.setswitchinterval(0.1)", "O={'f':sys.getswitchinterval}"),
    "from import": ("float(path.__len__())", "sys.path.append('y')", "from sys import path"),
    "local import": ("(lambda s: float(len(s.path)))(__import__('sys'))", "sys.path.append('y')"),
    "alias module": ("float(len(S.path))", "sys.path.append('y')", "import sys as S"),
    "alias obj": ("float(len(S))", "sys.path.append('y')", "S=sys.path"),
    "autocast cuda": ("3.0 if torch.is_autocast_enabled('cuda') else 2.0", "torch.set_autocast_enabled('cuda',True)"),
    "autocast cuda dtype": ("3.0 if torch.get_autocast_dtype('cuda')==torch.float16 else 2.0", "torch.set_autocast_dtype('cuda',torch.bfloat16)"),
    "autocast cpu dtype": ("3.0 if torch.get_autocast_dtype('cpu')==torch.float16 else 2.0", "torch.set_autocast_dtype('cpu',torch.float16)"),
    "decimal self": ("float(O/3)", "decimal.getcontext().prec=3", "O=decimal.Decimal(1)"),
    "decimal sqrt": ("float(O.sqrt())", "decimal.getcontext().prec=2", "O=decimal.Decimal(2)"),
    "decimal made": ("float(decimal.Decimal(2).sqrt())", "decimal.getcontext().prec=2"),
    "decimal local": ("float((lambda D: D(2).sqrt())(decimal.Decimal))", "decimal.getcontext().prec=2"),
    "dist rank": ("float(torch.distributed.get_rank()) if torch.distributed.is_initialized() else 2.0", "torch.distributed.init_process_group('gloo',store=torch.distributed.HashStore(),rank=0,world_size=1)"),
    "two questions of one name": ("2.0 + (torch.cuda.is_initialized() or torch.distributed.is_initialized())", "torch.distributed.init_process_group('gloo',store=torch.distributed.HashStore(),rank=0,world_size=1)"),
    "thread attr": ("float(len(T.name))", "setattr(m.T,'name','abc')", "T=threading.Thread(target=print,name='ab')"),
    "nn class attr": ("float(nn.Linear.my)", "setattr(nn.Linear,'my',3.0)", "nn.Linear.my=2.0"),
    "nn inherited attr": ("float(self.my)", "setattr(nn.Linear,'my',3.0)", "nn.Linear.my=2.0"),
    "nn module attr base": ("float(self.my3)", "setattr(nn.Module,'my3',3.0)", "nn.Module.my3=2.0"),
    "tensor class attr": ("float(x.my)", "setattr(torch.Tensor,'my',3.0)", "torch.Tensor.my=2.0"),
    "dict class attr": ("float(O.my)", "setattr(collections.UserDict,'my',3.0)", "collections.UserDict.my=2.0\nO=collections.UserDict()"),
    "stdlib class attr": ("float(threading.Thread.my)", "setattr(threading.Thread,'my',3.0)", "threading.Thread.my=2.0"),
    "stdlib obj attr": ("float(logging.root.my)", "setattr(logging.root,'my',3.0)", "logging.root.my=2.0"),
    "np err state ctx": ("float(np.geterrcall() is None)+1", "np.seterrcall(print)"),
    "np bufsize": ("float(np.getbufsize())", "np.setbufsize(1024)"),
    "np.load": ("float(np.load(D + '/a.npy')[0])", "np.save(m.D + '/a.npy', np.array([3.0]))", "D = tempfile.mkdtemp()\nnp.save(D + '/a.npy', np.array([2.0]))"),
    "np.loadtxt": ("float(np.loadtxt(D + '/a'))", "pathlib.Path(m.D + '/a').write_text('3')", "D = tempfile.mkdtemp()\npathlib.Path(D + '/a').write_text('2')"),
    "np.fromfile": ("float(np.fromfile(D + '/a')[0])", "np.array([3.0]).tofile(m.D + '/a')", "D = tempfile.mkdtemp()\nnp.array([2.0]).tofile(D + '/a')"),
    "np.memmap": ("float(np.memmap(D + '/a', dtype='f8')[0])", "np.array([3.0]).tofile(m.D + '/a')", "D = tempfile.mkdtemp()\nnp.array([2.0]).tofile(D + '/a')"),
    "torch.load": ("float(torch.load(D + '/a'))", "torch.save(3.0, m.D + '/a')", "D = tempfile.mkdtemp()\ntorch.save(2.0, D + '/a')"),
    "codecs.open": ("float(codecs.open(D + '/a').read())", "pathlib.Path(m.D + '/a').write_text('3')", "D = tempfile.mkdtemp()\npathlib.Path(D + '/a').write_text('2')"),
    "configparser.read": ("(lambda p: p.read(D + '/a') and float(p['a']['b']))(configparser.ConfigParser())", "pathlib.Path(m.D + '/a').write_text('[a]\\nb=3')", "D = tempfile.mkdtemp()\npathlib.Path(D + '/a').write_text('[a]\\nb=2')"),
    "ElementTree.parse": ("float(ElementTree.parse(D + '/a').getroot().text)", "pathlib.Path(m.D + '/a').write_text('<a>3</a>')", "D = tempfile.mkdtemp()\npathlib.Path(D + '/a').write_text('<a>2</a>')"),
    "lexists": ("3.0 if os.path.lexists(D + '/a') else 2.0", "pathlib.Path(m.D + '/a').touch()", 'D = tempfile.mkdtemp()'),
    "Path.is_symlink": ("3.0 if pathlib.Path(D + '/a').is_symlink() else 2.0", "os.symlink('/', m.D + '/a')", 'D = tempfile.mkdtemp()'),
    "mpmath's precision": ('float(mpmath.mpf(1) / 3 * 1e5 % 1)', "setattr(m.mpmath.mp, 'dps', 3)", 'import mpmath'),
}  # fmt: skip

# The state may change unseen (docs/capture.md).
NOT_SEEN = {
    "inside of a fraction": ("float(FR)", "setattr(m.FR, '_numerator', 3)", "FR = fractions.Fraction(2)"),
}  # fmt: skip


def program(name: str) -> types.ModuleType:
    expression, _, *setup = {**CASES, **NOT_SEEN, **DRAWS}[name]
    module = sys.modules["user_program"] = types.ModuleType("user_program")
    body = f"class Net(nn.Linear):\n  def forward(self, x):\n    v = {expression}\n    return super().forward(x) * (v % 1000.0)"
    exec(compile("\n".join([HEAD, *setup, body]), "user_program.py", "exec"), module.__dict__)
    return module


def results(name: str, compiled: bool) -> list:
    """Two calls before the change and two after it."""
    import torch

    import trainc

    module = program(name)
    torch.manual_seed(0)
    net, x = module.Net(4, 4), torch.arange(12.0).reshape(3, 4) / 7
    net = trainc.compile(net) if compiled else net
    found = []
    for change in (False, True):
        if change:
            exec({**CASES, **NOT_SEEN, **DRAWS}[name][1], {**module.__dict__, "m": module})
        found += [net(x).double().tolist() for _ in range(2)]
    return found


def answer(pipe, name: str, compiled: bool) -> None:
    warnings.simplefilter("ignore")
    try:
        pipe.send(results(name, compiled))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def forked(name: str, compiled: bool) -> list | str:
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=answer, args=(its, name, compiled), daemon=True)
    process.start()
    its.close()
    try:
        return ours.recv() if ours.poll(120) else "no answer"
    except EOFError:
        return "died"
    finally:
        process.kill()
        process.join()


@functools.cache
def every() -> dict[str, list]:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_what_forward_reads_of_a_state_that_is_not_its_own(name):
    eager, ours = every()[name]
    assert isinstance(eager, list), eager
    assert isinstance(ours, list), ours
    for a, b in zip(ours, eager, strict=True):
        assert [pytest.approx(row, rel=1e-4, abs=1e-4, nan_ok=True) for row in b] == a


# Another number at each call.
DRAWS = {
    "Random": ("random.Random().random()", "None"), "Random.seed": ("(R.seed(), R.random())[1]", "None", "R = random.Random(3)"),
    "SystemRandom": ("random.SystemRandom().random()", "None"), "of SystemRandom": ("R.randint(0, 10**6)", "None", "R = random.SystemRandom()"),
    "default_rng": ("float(np.random.default_rng().random())", "None"), "foreign function": ("float(C.rand() % 1000)", "None", "C = ctypes.CDLL(None)"),
    "time": ("time.perf_counter()", "None"), "benchmark": ("torch.utils.benchmark.Timer('1+1').timeit(9).median * 1e9", "None", "import torch.utils.benchmark"),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_another_number_at_each_call(name):
    _, ours = every()[name]
    assert isinstance(ours, list), ours
    assert all(a != b for a, b in zip(ours[:-1], ours[1:], strict=True))


# What depends on its arguments alone, and has a name that reads a state elsewhere (`inspect.stack`), or waits.
HARMLESS = {
    "stack": "np.stack([A, A]).sum()", "trace": "np.trace(np.stack([A, A]))", "resolve": "np.broadcast_shapes((1,), (2,))[0]",
    "sleep": "time.sleep(0.0) or 2.0", "normpath": "len(os.path.normpath('a/../b'))", "splitext": "len(os.path.splitext('a.b')[0])",
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_function_that_depends_on_its_arguments_is_called(name, strict):
    import torch

    import trainc

    variables = {}
    body = f"class Net(nn.Linear):\n  def forward(self, x):\n    return super().forward(x) * float({HARMLESS[name]})"
    exec(compile(f"{HEAD}A = np.arange(2.0)\n{body}", "user_program.py", "exec"), variables)
    net, x = variables["Net"](4, 4), torch.ones(3, 4)
    torch.testing.assert_close(trainc.compile(net)(x), net(x))


@pytest.mark.xfail(strict=True, reason="not seen: docs/capture.md says so")
@pytest.mark.parametrize("name", NOT_SEEN)
def test_what_is_not_seen(name):
    test_what_forward_reads_of_a_state_that_is_not_its_own(name)


if __name__ == "__main__":
    os.environ["TRAINC_CACHE"] = "0"
    warnings.simplefilter("ignore")
    import torch

    import trainc

    torch.set_num_threads(1)  # threads do not live through a fork
    # What every case imports; without a backward, whose threads do not live through a fork either.
    trainc.compile(torch.nn.Linear(2, 2).requires_grad_(False))(torch.ones(1, 2))
    print(json.dumps({name: [forked(name, False), forked(name, True)] for name in (*CASES, *NOT_SEEN, *DRAWS)}))
