"""What forward reads beside its arguments is watched, and what it changes beside its result is not lost: for every kind of Python
object, and every way to it. Each case is a model, a change, and eager's numbers after it.

A case that trainc sends to PyTorch or to Dynamo passes, too: right numbers are what counts here; `compiled` says which must be compiled.
"""

# ruff: noqa: E501
import array
import collections
import contextlib
import copy
import functools
import gc
import itertools
import logging
import os
import random
import subprocess
import sys
import textwrap
import types
import warnings
import weakref

import numpy
import pytest
import torch
from torch import nn

import trainc
from trainc.base import records

# Each model is written in a module of its own, as a user's would be: its functions have their own globals.
HEAD = """
import array, collections, contextlib, contextvars, dataclasses, enum, functools, itertools, logging, math, os, random, time, types
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
"""


def module_of(source: str) -> types.ModuleType:
    module_of.count += 1
    name = f"user_program_{module_of.count}"
    module = types.ModuleType(name)
    sys.modules[name] = module
    path = f"/tmp/{name}.py"
    exec(compile(HEAD + textwrap.dedent(source), path, "exec"), module.__dict__)
    return module


module_of.count = 0

# name -> (the program: a class Net with forward(x), and whatever it reads; what changes it: statements over `m`, the module of the
# program, and `net`). The program's forward gives a tensor of x's shape.
READS = {
    "global number": ("SCALE = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * SCALE", "m.SCALE = 3.0"),
    "global appears": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (globals_scale() if 'S' in os.environ else 1.0)\ndef globals_scale(): return 3.0", "os.environ['S'] = '1'"),
    "global shadows a builtin": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * abs(-2.0)", "m.abs = lambda v: 5.0"),
    "global list": ("SCALES = [2.0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * SCALES[0]", "m.SCALES[0] = 3.0"),
    "global nested": ("CFG = {'a': {'b': [1, {'c': 2.0}]}}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG['a']['b'][1]['c']", "m.CFG['a']['b'][1]['c'] = 3.0"),
    "global namespace": ("CFG = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG.a.b", "m.CFG.a.b = 3.0"),
    "keys that are tuples": ("CFG = {('a', 1): 2.0, ('b', 1): 5.0}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG['a', 1] + CFG['b', 1]", "m.CFG['a', 1] = 3.0"),
    "keys that are enumerations": ("class K(enum.Enum):\n  A = 1\n  B = 2\nCFG = {K.A: 2.0, K.B: 5.0}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG[K.A] + CFG[K.B]", "m.CFG[m.K.A] = 3.0"),
    "keys that are objects": ("class K: pass\nA, B = K(), K()\nA.k, B.k = 2.0, 5.0\nCFG = {A: 1, B: 1}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * list(CFG)[0].k + list(CFG)[1].k", "m.A.k = 3.0"),
    "classes of one name": ("def make(v):\n  class C: k = v\n  return C\nA, B = make(2.0), make(5.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * A.k + B.k", "m.A.k = 3.0"),
    "both kinds of defaults": ("def f(a=[2.0], *, b=[5.0]): return a[0], b[0]\nclass Net(nn.Linear):\n  def forward(self, x):\n    a, b = f()\n    return super().forward(x) * a + b", "m.f.__defaults__[0][0] = 3.0"),
    "global dataclass": ("@dataclasses.dataclass\nclass C:\n  a: float = 2.0\nCFG = C()\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG.a", "m.CFG.a = 3.0"),
    "dataclass by asdict": ("@dataclasses.dataclass\nclass C:\n  a: float = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * sum(dataclasses.asdict(self.c).values())", "net.c.a = 3.0", "c = m.C()"),
    "dataclass with slots": ("@dataclasses.dataclass(slots=True)\nclass C:\n  a: float = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.c.a", "net.c.a = 3.0", "c = m.C()"),
    "named tuple": ("C = collections.namedtuple('C', 'a b')\nCFG = C(2.0, [1.0])\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG.b[0]", "m.CFG.b[0] = 3.0"),
    "class attribute": ("class Net(nn.Linear):\n  scale = 2.0\n  def forward(self, x): return super().forward(x) * self.scale", "m.Net.scale = 3.0"),
    "class attribute of a base": ("class Base(nn.Linear):\n  scale = 2.0\nclass Net(Base):\n  def forward(self, x): return super().forward(x) * self.scale", "m.Base.scale = 3.0"),
    "class attribute shadowed": ("class Base(nn.Linear):\n  scale = 2.0\nclass Net(Base):\n  def forward(self, x): return super().forward(x) * self.scale", "m.Net.scale = 3.0"),
    "class attribute, a list": ("class Net(nn.Linear):\n  scales = [2.0]\n  def forward(self, x): return super().forward(x) * self.scales[0]", "m.Net.scales[0] = 3.0"),
    "class of another object": ("class C:\n  a = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * C.a", "m.C.a = 3.0"),
    "class attribute through an instance": ("class C:\n  a = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.c.a", "m.C.a = 3.0", "c = m.C()"),
    "method replaced": ("class Net(nn.Linear):\n  def scale(self): return 2.0\n  def forward(self, x): return super().forward(x) * self.scale()", "m.Net.scale = lambda self: 3.0"),
    "forward replaced on the class": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * 2.0", "m.Net.forward = lambda self, x: nn.Linear.forward(self, x) * 3.0"),
    "method replaced on the instance": ("class Net(nn.Linear):\n  def scale(self): return 2.0\n  def forward(self, x): return super().forward(x) * self.scale()", "net.scale = lambda: 3.0"),
    "property": ("class Net(nn.Linear):\n  @property\n  def scale(self): return self.numbers['x'][0]\n  def forward(self, x): return super().forward(x) * self.scale", "net.numbers['x'][0] = 3.0", "numbers = {'x': [2.0]}"),
    "nested dictionary of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg['a']['b']", "net.cfg['a']['b'] = 3.0", "cfg = {'a': {'b': 2.0}}"),
    "list in a list of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg[0][0]", "net.cfg[0][0] = 3.0", "cfg = [[2.0]]"),
    "tuple of lists of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg[0][0]", "net.cfg[0][0] = 3.0", "cfg = ([2.0],)"),
    "nested object of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg.a.b", "net.cfg.a.b = 3.0", "cfg = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))"),
    "list of a configuration": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg.a[0]", "net.cfg.a[0] = 3.0", "cfg = types.SimpleNamespace(a=[2.0])"),
    "long list": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg[90]", "net.cfg[90] = 3.0", "cfg = [2.0] * 100"),
    "long dictionary": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.cfg[90]", "net.cfg[90] = 3.0", "cfg = dict.fromkeys(range(100), 2.0)"),
    "callable schedule": ("class Schedule:\n  def __init__(self): self.step = 2\n  def __call__(self): return float(self.step)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.schedule()", "net.schedule.step = 3", "schedule = m.Schedule()"),
    "closure": ("def make(v):\n  def scale(): return v\n  def to(w):\n    nonlocal v\n    v = w\n  return scale, to\nscale, to = make(2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.to(3.0)"),
    "closure of self": ("def make(v):\n  def scale(): return v[0]\n  return scale\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.f()", "net.v[0] = 3.0", "v = [2.0]; net.f = m.make(net.v)"),
    "default argument": ("def scale(v=[2.0]): return v[0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.scale.__defaults__[0][0] = 3.0"),
    "defaults replaced": ("def scale(v=2.0): return v\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.scale.__defaults__ = (3.0,)"),
    "keyword default": ("def scale(*, v=2.0): return v\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.scale.__kwdefaults__['v'] = 3.0"),
    "function's code": ("def scale(): return 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.scale.__code__ = (lambda: 3.0).__code__"),
    "function's attribute": ("def scale(): return scale.v\nscale.v = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.scale.v = 3.0"),
    "global function replaced": ("def scale(): return 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale()", "m.scale = lambda: 3.0"),
    "partial": ("def times(v, x): return v[0] * x\nV = [2.0]\nclass Net(nn.Linear):\n  def forward(self, x): return self.f(super().forward(x))", "m.V[0] = 3.0", "f = functools.partial(m.times, m.V)"),
    "bound method": ("class C:\n  def __init__(self): self.v = 2.0\n  def times(self, x): return self.v * x\nclass Net(nn.Linear):\n  def forward(self, x): return self.f(super().forward(x))", "net.c.v = 3.0", "c = m.C(); net.f = net.c.times"),
    "method of a list": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.f(0)", "net.v[0] = 3.0", "v = [2.0]; net.f = net.v.__getitem__"),
    "decorated": ("V = [2.0]\ndef scaled(f):\n  @functools.wraps(f)\n  def run(*a): return f(*a) * V[0]\n  return run\nclass Net(nn.Linear):\n  @scaled\n  def forward(self, x): return nn.Linear.forward(self, x)", "m.V[0] = 3.0"),
    "generator expression": ("V = [2.0, 1.0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * sum(v for v in V)", "m.V[0] = 3.0"),
    "lambda in a dictionary": ("V = [2.0]\nclass Net(nn.Linear):\n  def forward(self, x): return self.fs['a'](super().forward(x))", "m.V[0] = 3.0", "fs = {'a': lambda x: x * m.V[0]}"),
    "numpy array": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * float(self.v[1])", "net.v[1] = 3.0", "v = numpy.full(3, 2.0)"),
    "numpy array made a tensor": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * torch.tensor(self.v, dtype=x.dtype)", "net.v[1] = 3.0", "v = numpy.full(4, 2.0)"),
    "numpy array as a tensor": ("V = np.full(4, 2.0, dtype=np.float32)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * torch.from_numpy(V)", "m.V[1] = 3.0"),
    "global numpy array": ("V = np.full(3, 2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * float(V.sum())", "m.V[1] = 3.0"),
    "array": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v[1]", "net.v[1] = 3.0", "v = array.array('d', [2.0, 2.0])"),
    "bytearray": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v[1]", "net.v[1] = 3", "v = bytearray(b'ab')"),
    "deque": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v[0]", "net.v.appendleft(3.0)", "v = collections.deque([2.0])"),
    "set": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * len(self.v['a'])", "net.v['a'].add(3)", "v = {'a': {1, 2}}"),
    "counter": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v['a']", "net.v['a'] += 1", "v = collections.Counter('aab')"),
    "user dict": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v['a']", "net.v['a'] = 3.0", "v = collections.UserDict(a=2.0)"),
    "chain map": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v['a']", "net.v['a'] = 3.0", "v = collections.ChainMap({}, {'a': 2.0})"),
    "subclass of dict": ("class D(dict):\n  __getattr__ = dict.__getitem__\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v.a.b", "net.v['a']['b'] = 3.0", "v = m.D(a=m.D(b=2.0))"),
    "subclass of list": ("class L(list): pass\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.v[0][0]", "net.v[0][0] = 3.0", "v = m.L([m.L([2.0])])"),
    "own getattr": ("class C:\n  def __init__(self): self.__dict__['data'] = {'a': 2.0}\n  def __getattr__(self, k): return self.data[k]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.c.a", "net.c.data['a'] = 3.0", "c = m.C()"),
    "computed name": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * getattr(self.c, 'a' + str(1))", "net.c.a1 = 3.0", "c = types.SimpleNamespace(a1=2.0)"),
    "computed name of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * getattr(self, 'a' + str(1))[0][0]", "net.a1[0][0] = 3.0", "a1 = [[2.0]]"),
    "vars": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * sum(vars(self.c).values())", "net.c.a1 = 3.0", "c = types.SimpleNamespace(a1=2.0)"),
    "hasattr": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (3.0 if hasattr(self.c, 'flag') else 2.0)", "net.c.flag = 1", "c = types.SimpleNamespace(a=1)"),
    "attribute deleted, another made": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * getattr(self.c, 'flag', 2.0)", "del net.c.other; net.c.flag = 3.0", "c = types.SimpleNamespace(other=1)"),
    "weak reference": ("class C: pass\nC0 = C()\nC0.a = 2.0\nimport weakref\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.r().a", "m.C0.a = 3.0", "r = __import__('weakref').ref(m.C0)"),
    "environment": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * float(os.environ.get('TEST_SCALE', '2'))", "os.environ['TEST_SCALE'] = '3'"),
    "environment by getenv": ("from os import getenv\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * float(getenv('TEST_SCALE2', '2'))", "os.environ['TEST_SCALE2'] = '3'"),
    "module's variable": ("import types as t\ncfg = t.ModuleType('user_cfg')\ncfg.scale = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * cfg.scale", "m.cfg.scale = 3.0"),
    "module's nested variable": ("import types as t\ncfg = t.ModuleType('user_cfg')\ncfg.scales = {'a': [2.0]}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * cfg.scales['a'][0]", "m.cfg.scales['a'][0] = 3.0"),
    "enumeration chosen by state": ("class Mode(enum.Enum):\n  A = 2.0\n  B = 3.0\nCFG = {'m': Mode.A}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG['m'].value", "m.CFG['m'] = m.Mode.B"),
    "static method": ("class C:\n  v = [2.0]\n  @staticmethod\n  def scale(): return C.v[0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * C.scale()", "m.C.v[0] = 3.0"),
    "class method": ("class C:\n  v = [2.0]\n  @classmethod\n  def scale(cls): return cls.v[0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * C.scale()", "m.C.v[0] = 3.0"),
    "singleton": ("class C:\n  instance = None\n  @classmethod\n  def get(cls):\n    return cls.instance\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * C.get().v", "m.C.instance.v = 3.0", "q = setattr(m.C, 'instance', types.SimpleNamespace(v=2.0))"),
    "global tensor replaced": ("T = torch.full((4,), 2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T", "m.T = torch.full((4,), 3.0)"),
    "global tensor written": ("T = torch.full((4,), 2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T", "m.T.fill_(3.0)"),
    "global number in a tensor": ("T = torch.tensor(2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T", "m.T.fill_(3.0)"),
    "global tensor read as a number": ("T = torch.full((4,), 2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T.tolist()[0]", "m.T.fill_(3.0)"),
    "global tensor's item": ("T = torch.full((4,), 2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T[0].item()", "m.T.fill_(3.0)"),
    "global tensor as a condition": ("T = torch.tensor(True)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if T else 3.0)", "m.T.fill_(False)"),
    "tensor in a nested dictionary": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.d['a']['t']", "net.d['a']['t'] = torch.full((4,), 3.0)", "d = {'a': {'t': torch.full((4,), 2.0)}}"),
    "custom backward": ("V = [2.0]\nclass Double(torch.autograd.Function):\n  @staticmethod\n  def forward(ctx, x): return x * 1.0\n  @staticmethod\n  def backward(ctx, g): return g * V[0]\nclass Net(nn.Linear):\n  def forward(self, x): return Double.apply(super().forward(x))", "m.V[0] = 3.0"),
    "minus zero": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * math.copysign(1.0, self.cfg[0])", "net.cfg[0] = -0.0", "cfg = [0.0]"),
    "minus zero of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * math.copysign(1.0, self.z)", "net.z = -0.0", "z = 0.0"),
    "one and True": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if self.z is True else 1.0)", "net.z = True", "z = 1"),
    "torch function replaced": ("def double(x): return x * 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return act.f(super().forward(x))\nact = types.SimpleNamespace(f=F.relu)", "m.act.f = torch.tanh"),
    "contextvar": ("import contextvars\nV = contextvars.ContextVar('V', default=2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * V.get()", "m.V.set(3.0)"),
    "thread local": ("import threading\nV = threading.local()\nV.a = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * V.a", "m.V.a = 3.0"),
    "iterator": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * next(self.v)", "None", "v = itertools.cycle([2.0, 3.0])"),
    "random.Random, not drawn from": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.scales[0][0]", "net.scales[0][0] = 3.0", "rng = random.Random(3); net.scales = [[2.0]]"),
    "deep chain": ("class Node:\n  def __init__(self, n): self.next, self.v = n, 1.0\nN = None\nfor _ in range(3000): N = Node(N)\nclass Net(nn.Linear):\n  def forward(self, x):\n    n, s = N, 0.0\n    while n is not None: n, s = n.next, s + n.v\n    return super().forward(x) * s", "m.N.next.next.v = 5.0"),
    "recursive function": ("V = {'a': 2.0}\ndef scale(n): return V['a'] if n == 0 else scale(n - 1)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale(5)", "m.V['a'] = 3.0"),
    "nested function": ("V = {'a': 2.0}\nclass Net(nn.Linear):\n  def forward(self, x):\n    def inner():\n      def innermost(): return V['a']\n      return innermost()\n    return super().forward(x) * inner()", "m.V['a'] = 3.0"),
    "imported in forward": ("class Net(nn.Linear):\n  def forward(self, x):\n    import user_cfg_module\n    return super().forward(x) * user_cfg_module.scale[0]", "__import__('user_cfg_module').scale[0] = 3.0", "q = sys.modules.__setitem__('user_cfg_module', types.SimpleNamespace(scale=[2.0]))"),
    "operator.attrgetter": ("import operator\nGET = operator.attrgetter('a.b')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * GET(self.c)", "net.c.a.b = 3.0", "c = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))"),
    "map over a list": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * sum(map(float, self.c['v']))", "net.c['v'][0] = 3.0", "c = {'v': [2.0, 1.0]}"),
    "training flag of a hidden module": ("class Net(nn.Linear):\n  def forward(self, x): return self.hidden[0](super().forward(x))", "net.hidden[0].p = 1.0", "hidden = [nn.Dropout(0.0)]"),
    "type of a tensor: requires_grad": ("T = torch.ones(4)\nCFG = [1.0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (3.0 if T.requires_grad else 2.0) * CFG[0]", "m.CFG = [1.0]; m.T.requires_grad_()"),
    "type of a tensor: shape": ("T = torch.ones(4)\nCFG = [1.0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T.shape[0] * CFG[0]", "m.CFG = [1.0]; m.T.resize_(5)"),
    "type of a tensor: dtype": ("T = torch.ones(4)\nCFG = [1.0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * T.element_size() * CFG[0]", "m.CFG = [1.0]; m.T.data = m.T.data.double()"),
    "type of a closure's tensor": ("def make():\n  t = torch.ones(4)\n  return t, lambda: 3.0 if t.requires_grad else 2.0\nT, f = make()\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * f()", "m.T.requires_grad_()"),
    "cached result": ("@functools.cache\ndef cfg(): return types.SimpleNamespace(k=2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * cfg().k", "m.cfg().k = 3.0"),
    "cached result, by argument": ("@functools.lru_cache(maxsize=4)\ndef cfg(a): return [a]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * cfg(2.0)[0]", "m.cfg(2.0)[0] = 3.0"),
    "cached result, cleared": ("K = [2.0]\n@functools.lru_cache(maxsize=4)\ndef cfg(): return K[0]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * cfg()", "m.K[0] = 3.0; m.cfg.cache_clear()"),
    "cached method": ("class C:\n  @functools.cache\n  def get(self): return {'k': 2.0}\nc = C()\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * c.get()['k']", "m.c.get()['k'] = 3.0"),
    "mapping proxy": ("RAW = {'a': 2.0}\nVIEW = types.MappingProxyType(RAW)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * VIEW['a']", "m.RAW['a'] = 3.0"),
    "event": ("import threading\nE = threading.Event()\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (3.0 if E.is_set() else 2.0)", "m.E.set()"),
    "logger's level": ("LOG = logging.getLogger('user_level')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (3.0 if LOG.isEnabledFor(logging.DEBUG) else 2.0)", "m.LOG.setLevel(10)"),
    "logger's level, of its parent": ("LOG = logging.getLogger('user_parent.child')\nUP = logging.getLogger('user_parent')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * LOG.getEffectiveLevel()", "m.UP.setLevel(7)"),
    "logging disabled": ("LOG = logging.getLogger('user_disabled')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (3.0 if LOG.isEnabledFor(logging.ERROR) else 2.0)", "m.LOG.disabled = True"),
    "logging disabled for all": ("LOG = logging.getLogger('user_disabled_2')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (3.0 if LOG.isEnabledFor(logging.ERROR) else 2.0)", "m.logging.disable(50)"),
    "singledispatch": ("@functools.singledispatch\ndef scale(v): return 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * scale(1)", "m.scale.register(int, lambda v: 3.0)"),
    "enumeration's attribute": ("class Mode(enum.Enum):\n  A = 1\nMode.A.k = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * Mode.A.k", "m.Mode.A.k = 3.0"),
    "enumeration's value": ("class Mode(enum.Enum):\n  A = [2.0]\nCFG = {'m': Mode.A}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG['m'].value[0]", "m.Mode.A.value[0] = 3.0"),
    "number with attributes": ("class V(float): pass\nCFG = V(1.0)\nCFG.k = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * CFG.k", "m.CFG.k = 3.0"),
    "gradient there": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if self.hidden[0].grad is None else 3.0)", "net.hidden[0].grad = torch.ones(4)", "hidden = [torch.ones(4)]"),
    "gradient of a parameter there": ("class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.p = nn.Parameter(torch.ones(4))\n  def forward(self, x): return super().forward(x) * (2.0 if self.p.grad is None else 3.0) + 0 * self.p.sum()", "net.zero_grad = lambda: None"),
    "PyTorch's class patched": ("class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.l = nn.Identity()\n  def forward(self, x): return self.l(super().forward(x))", "patch(nn.Identity, 'forward', lambda self, x: x * 3.0)"),
    "PyTorch's function patched": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x)", "patch(torch.nn.functional, 'linear', lambda x, w, b: x @ w + b)"),
    "PyTorch's function named by the program patched": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * F.relu(torch.ones(()))", "patch(torch.nn.functional, 'relu', lambda x: x * 3.0)"),
    "PyTorch's method patched": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x).relu()", "patch(torch.Tensor, 'relu', lambda x: x * 3.0)"),
    "order of an OrderedDict": ("D = collections.OrderedDict(a=2.0, b=3.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * next(iter(D.values()))", "m.D.move_to_end('a')"),
    "order of an OrderedDict of self": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * list(self.d)[0]", "net.d.move_to_end(2.0)", "d = collections.OrderedDict({2.0: 1, 3.0: 1})"),
    "order of a dictionary": ("D = dict(a=2.0, b=3.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * list(D.values())[0]", "m.D['a'] = m.D.pop('a')"),
    "default dtype": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * torch.tensor(2.0).element_size()", "torch.set_default_dtype(torch.float64)"),
    "class of an object": ("class A:\n  v = 2.0\nclass B:\n  v = 3.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.o.v", "net.o.__class__ = m.B", "o = m.A()"),
    "class of the module": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * 2.0\nclass Other(Net):\n  def forward(self, x): return super().forward(x) * 3.0", "net.__class__ = m.Other"),
    "class of a submodule": ("class Net(nn.Sequential):\n  def __init__(self, *a): super().__init__(nn.Linear(*a), nn.Tanh())", "net[1].__class__ = nn.Sigmoid"),
    "forward put on a class": ("class Layer(nn.Linear): pass\nclass Net(nn.Sequential):\n  def __init__(self, *a): super().__init__(Layer(*a), nn.Tanh())", "m.Layer.forward = lambda self, x: x * self.weight.sum() + self.bias.sum()"),
    "method of PyTorch's put on a class": ("class Layer(nn.Conv1d): pass\nclass Net(nn.Module):\n  def __init__(self, *a):\n    super().__init__()\n    self.c = Layer(3, 3, 1)\n  def forward(self, x): return self.c(x)", "m.Layer._conv_forward = lambda self, x, w, b: x * w.sum() + b.sum()"),
    "special method replaced": ("class C:\n  def __call__(self): return 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.c()", "m.C.__call__ = lambda self: 3.0", "c = m.C()"),
    "special method, by syntax": ("class C:\n  def __len__(self): return 2\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if self.c else 3.0)", "m.C.__len__ = lambda self: 0", "c = m.C()"),
    "class without a module": ("class C:\n  v = 2.0\nTABLE = {'c': C}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * TABLE['c'].v", "m.TABLE['c'] = eval(\"type('D', (), {'v': 3.0})\", {})"),
    "list that iterates otherwise": ("K = [1.0]\nclass L(list):\n  def __iter__(self): return iter([K[0], *list.__iter__(self)])\nD = L([2.0])\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * sum(D)", "m.K[0] = 4.0"),
    "what only a weak set holds": ("import weakref\nclass C: pass\nA = C()\nW = weakref.WeakSet([A])\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (1 + len(W))", "m.A = None"),
    "what only a weak reference holds": ("import weakref\nclass C: v = 2.0\nA = C()\nW = weakref.ref(A)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (W().v if W() is not None else 3.0)", "m.A = None"),
    "contextvar's default": ("V = contextvars.ContextVar('v', default=[2.0])\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * V.get()[0]", "m.V.get()[0] = 3.0"),
    "order of a ModuleDict": ("class Net(nn.Module):\n  def __init__(self, *a):\n    super().__init__()\n    self.d = nn.ModuleDict({'a': nn.Linear(*a), 'b': nn.Tanh()})\n  def forward(self, x):\n    for layer in self.d.values(): x = layer(x)\n    return x", "net.d['a'] = net.d.pop('a')"),
    "cache that is full": ("K = [2.0]\n@functools.lru_cache(maxsize=2)\ndef f(v): return K[0] * v\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * f(1.0)", "m.K[0] = 3.0; m.f(4.0); m.f(3.0)"),
    "a function's globals": ("S = 2.0\ndef f(): pass\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * f.__globals__['S']", "m.S = 3.0"),
    "a module's computed name": ("S, N = 2.0, 'S'\nME = __import__('sys').modules[__name__]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * getattr(ME, N)", "m.S = 3.0"),
    "a module's variables": ("S = [2.0]\nME = __import__('sys').modules[__name__]\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * vars(ME)['S'][0]", "m.S[0] = 3.0"),
    "import by a function": ("S = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * __import__(__name__).S", "m.S = 3.0"),
    "import by importlib": ("import importlib\nS = 2.0\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * importlib.import_module(__name__).S", "m.S = 3.0"),
    "file's existence": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if os.path.exists(self.p) else 3.0)", "os.rmdir(net.p)", "p = __import__('tempfile').mkdtemp()"),
    "PyTorch's setting": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if torch.backends.cudnn.benchmark else 3.0)", "torch._C._set_cudnn_benchmark(True)"),
    "lock": ("import threading\nK = threading.Lock()\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if K.locked() else 3.0)", "m.K.acquire()"),
}  # fmt: skip

# Programs whose forward changes something beside its result: after three calls, `seen` is compared, too.
EFFECTS = {
    "global counter": ("STEP = 0\nclass Net(nn.Linear):\n  def forward(self, x):\n    global STEP\n    STEP += 1\n    return super().forward(x) * STEP", "m.STEP"),
    "counter not read": ("STEP = 0\nclass Net(nn.Linear):\n  def forward(self, x):\n    global STEP\n    STEP += 1\n    return super().forward(x)", "m.STEP"),
    "class counter": ("class Net(nn.Linear):\n  calls = 0\n  def forward(self, x):\n    Net.calls += 1\n    return super().forward(x)", "m.Net.calls"),
    "class counter, read of self": ("class Net(nn.Linear):\n  calls = 0\n  def forward(self, x):\n    type(self).calls += 1\n    return super().forward(x) * self.calls", "m.Net.calls"),
    "class counter, read of a child": ("class Base(nn.Linear):\n  calls = 0\nclass Net(Base):\n  def forward(self, x):\n    Base.calls += 1\n    return super().forward(x) * self.calls", "m.Base.calls"),
    "attribute of a dictionary": ("class D(dict): pass\nO = D()\nO.n = 0\nclass Net(nn.Linear):\n  def forward(self, x):\n    O.n += 1\n    return super().forward(x) * O.n", "m.O.n"),
    "table of a function": ("def f(): pass\nf.n = 0\nclass Net(nn.Linear):\n  def forward(self, x):\n    f.__dict__['n'] += 1\n    return super().forward(x) * f.n", "m.f.n"),
    "counter of self": ("class Net(nn.Linear):\n  n = 0\n  def forward(self, x):\n    self.n += 1\n    return super().forward(x) * self.n", "net.n"),
    "global list": ("LOG = []\nclass Net(nn.Linear):\n  def forward(self, x):\n    LOG.append(x.shape[0])\n    return super().forward(x)", "m.LOG"),
    "nested list of self": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.log['a'].append(1)\n    return super().forward(x)", "net.log", "log = {'a': []}"),
    "global dictionary": ("LOG = {}\nclass Net(nn.Linear):\n  def forward(self, x):\n    LOG['n'] = LOG.get('n', 0) + 1\n    return super().forward(x)", "m.LOG"),
    "object": ("class C: n = 0\nclass Net(nn.Linear):\n  def forward(self, x):\n    self.c.n += 1\n    return super().forward(x)", "net.c.n", "c = m.C()"),
    "object with slots": ("class C:\n  __slots__ = ('n',)\n  def __init__(self): self.n = 0\nclass Net(nn.Linear):\n  def forward(self, x):\n    self.c.n += 1\n    return super().forward(x)", "net.c.n", "c = m.C()"),
    "closure": ("def make():\n  n = 0\n  def count():\n    nonlocal n\n    n += 1\n    return n\n  return count\ncount = make()\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * count()", "m.count()"),
    "function's attribute": ("def f(): f.n = getattr(f, 'n', 0) + 1\nclass Net(nn.Linear):\n  def forward(self, x):\n    f()\n    return super().forward(x)", "m.f.n"),
    "numpy array": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.v[0] += 1\n    return super().forward(x)", "net.v.tolist()", "v = numpy.zeros(2)"),
    "deque": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.v.append(1)\n    return super().forward(x)", "list(net.v)", "v = collections.deque(maxlen=5)"),
    "set": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.v['a'].add(len(self.v['a']))\n    return super().forward(x)", "net.v", "v = {'a': set()}"),
    "counter object": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.v['a'] += 1\n    return super().forward(x)", "net.v", "v = collections.Counter()"),
    "own random.Random": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * self.rng.random()", "net.rng.random()", "rng = random.Random(3)"),
    "layer drop": ("RNG = random.Random(3)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if RNG.random() < 0.5 else 1.0)", "m.RNG.random()"),
    "bound method of a generator": ("draw = random.Random(3).random\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * draw()", "m.draw()"),
    "numpy generator": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * float(self.rng.random())", "net.rng.random()", "rng = numpy.random.default_rng(3)"),
    "numpy random state": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * float(self.rng.rand())", "net.rng.rand()", "rng = numpy.random.RandomState(3)"),
    "global random": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * random.random()", "random.random()"),
    "global numpy.random": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * np.random.rand()", "numpy.random.rand()"),
    "torch.manual_seed": ("class Net(nn.Linear):\n  def forward(self, x):\n    torch.manual_seed(7)\n    return F.dropout(super().forward(x), 0.5)", "torch.rand(1).item()"),
    "torch generator": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * torch.rand(4, generator=self.g)", "torch.rand(1, generator=net.g).item()", "g = torch.Generator().manual_seed(3)"),
    "seeded generator": ("class Net(nn.Linear):\n  def forward(self, x):\n    g = torch.Generator()\n    g.manual_seed(7)\n    return super().forward(x) * torch.rand(4, generator=g)", "torch.rand(1).item()"),
    "print": ("class Net(nn.Linear):\n  def forward(self, x):\n    print('here')\n    return super().forward(x)", "OUT()"),
    "file": ("class Net(nn.Linear):\n  def forward(self, x):\n    with open(self.path, 'a') as f: f.write('x')\n    return super().forward(x)", "open(net.path).read()", "path = TMP()"),
    "iterator": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * next(self.v)", "next(net.v)", "v = itertools.count(1)"),
    "generator": ("def numbers():\n  for i in range(100): yield float(i)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * next(self.v)", "next(net.v)", "v = m.numbers()"),
    "list iterator": ("V = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * next(V)", "next(m.V)"),
    "global tensor written": ("T = torch.zeros(4)\nclass Net(nn.Linear):\n  def forward(self, x):\n    T.add_(1)\n    return super().forward(x) * T", "m.T.tolist()"),
    "tensor list": ("class Net(nn.Linear):\n  def forward(self, x):\n    h = super().forward(x)\n    self.log['a'].append(h.detach())\n    return h", "len(net.log['a'])", "log = {'a': []}"),
    "exception caught": ("N = [0]\nclass Net(nn.Linear):\n  def forward(self, x):\n    try:\n      N[0] += 1\n      print('here')\n    except Exception: pass\n    return super().forward(x)", "(m.N, OUT())"),
    "logging": ("L = logging.getLogger('user_program')\nH = []\nclass Keep(logging.Handler):\n  def emit(self, record): H.append(record.msg)\nL.addHandler(Keep())\nclass Net(nn.Linear):\n  def forward(self, x):\n    L.warning('here')\n    return super().forward(x)", "len(m.H)"),
    "OrderedDict's order": ("D = collections.OrderedDict(a=1, b=2, c=3)\nclass Net(nn.Linear):\n  def forward(self, x):\n    D.move_to_end(next(iter(D)))\n    return super().forward(x)", "list(m.D)"),
    "saved tensors' hooks": ("N = []\ndef pack(t):\n  return t * 2.0\nclass Net(nn.Linear):\n  def forward(self, x):\n    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): return super().forward(x).tanh()", "0"),
    "gradient set": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.h[0].grad = torch.full((4,), 2.0)\n    return super().forward(x)", "net.h[0].grad.tolist()", "h = [torch.ones(4)]"),
    "gradient of a parameter set": ("class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.p = nn.Parameter(torch.ones(4))\n  def forward(self, x):\n    self.p.grad = torch.full((4,), 2.0)\n    return super().forward(x) + self.p", "net.p.grad.tolist()"),
    "metaclass counts": ("class Meta(type):\n  def __call__(cls, *a):\n    cls.n = getattr(cls, 'n', 0) + 1\n    return super().__call__(*a)\nclass C(metaclass=Meta): pass\nclass Net(nn.Linear):\n  def forward(self, x):\n    C()\n    return super().forward(x)", "m.C.n"),
    "metaclass counts on itself": ("class Meta(type):\n  n = 0\n  def __call__(cls, *a):\n    type(cls).n += 1\n    return super().__call__(*a)\nclass C(metaclass=Meta): pass\nclass Net(nn.Linear):\n  def forward(self, x):\n    C()\n    return super().forward(x)", "m.Meta.n"),
    "environment": ("class Net(nn.Linear):\n  def forward(self, x):\n    os.environ['TEST_N'] = str(int(os.environ.get('TEST_N', '0')) + 1)\n    return super().forward(x)", "os.environ.pop('TEST_N')"),
    "contextvar with a default": ("V = contextvars.ContextVar('v', default=1.0)\nclass Net(nn.Linear):\n  def forward(self, x):\n    V.set(V.get() + 1)\n    return super().forward(x) * V.get()", "0"),
    "cache that is full": ("@functools.lru_cache(maxsize=2)\ndef f(v): return v\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * f(1.0)", "[m.f(v) for v in (3.0, 4.0, 1.0, 2.0, 3.0)]"),
}  # fmt: skip

PLACES = {"numpy": numpy, "array": array, "collections": collections, "functools": functools, "itertools": itertools, "os": os,
          "random": random, "types": types, "torch": torch, "nn": nn, "sys": sys,
          "patch": lambda *args: patch(*args)}  # fmt: skip


# What forward does to attributes of tensors: `x` is the argument, `W` a tensor of the module's file.
TAGS = {
    "argument": "x.n = getattr(x, 'n', 0) + 1\n    y = self.lin(x) * x.n", "argument, unread": "x.n = 3\n    y = self.lin(x)",
    "parameter": "p = self.lin.weight\n    p.n = getattr(p, 'n', 0) + 1\n    y = self.lin(x) * p.n",
    "buffer": "self.k.n = 5\n    y = self.lin(x) * self.k", "result": "y = self.lin(x)\n    y.n = 3",
    "tensor of the module": "W.n = getattr(W, 'n', 0) + 1\n    y = self.lin(x) * W * W.n",
    "by setattr": "setattr(x, 'n', getattr(x, 'n', 0) + 1)\n    y = self.lin(x) * x.n",
    "by its dictionary": "vars(x)['n'] = vars(x).get('n', 0) + 1\n    y = self.lin(x) * vars(x)['n']",
    "taken away": "if hasattr(x, 'n'): del x.n\n    else: x.n = 2\n    y = self.lin(x)",
    "only on the way": "h = self.lin(x)\n    h.n = 2\n    y = h * h.n",
}  # fmt: skip


@pytest.mark.parametrize("name", TAGS)
def test_attributes_of_tensors(name):
    source = f"""
W = torch.ones(4)
class Net(nn.Module):
  def __init__(self, *a):
    super().__init__()
    self.lin = nn.Linear(4, 4)
    self.register_buffer("k", torch.ones(4))
  def forward(self, x):
    {TAGS[name]}
    return y
"""
    found = []
    for compiled in (False, True):
        module, net, _ = build(source)
        x, model, results = torch.ones(3, 4), trainc.compile(net) if compiled else net, []
        for _ in range(4):
            y = model(x)
            tags = [getattr(each, "n", None) for each in (x, y, net.lin.weight, net.k, module.W)]
            results.append((y.tolist(), tags))
        found.append(results)
    for plain, ours in zip(*found, strict=True):
        assert ours[1] == plain[1]
        assert ours[0] == [pytest.approx(row, rel=1e-5) for row in plain[0]]


def build(source, setup="", **more):
    """A program of its own, with the same weights each time."""
    module = module_of(source)
    torch.manual_seed(1)
    net = module.Net(4, 4)
    scope = {**PLACES, **more, "m": module, "net": net}
    if setup:
        exec(f"net.{setup}", scope)
    return module, net, scope


def train(net, x):
    """The result of a call and the gradients that come of it."""
    net.zero_grad()
    out = net(x)
    out.square().sum().backward()
    return [out.detach().clone(), *[p.grad.clone() for p in net.parameters()]]


def same(ours, plain):
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in zip(ours, plain, strict=True))


_patches = []


def patch(owner, name, value):
    """Replaces an attribute of PyTorch's for the rest of a program (`restored`)."""
    _patches.append((owner, name, owner.__dict__.get(name)))
    setattr(owner, name, value)


@contextlib.contextmanager
def restored():
    environment, dtype = dict(os.environ), torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        while _patches:
            owner, name, value = _patches.pop()
            setattr(owner, name, value) if value is not None else delattr(owner, name)
    logging.disable(logging.NOTSET)
    for name in ("user_level", "user_parent", "user_disabled"):
        logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger(name).disabled = False
    os.environ.clear()
    os.environ.update(environment)
    torch.set_default_dtype(dtype)
    torch._C._set_cudnn_benchmark(False)
    torch._dynamo.reset()


def around_a_change(source, change, *setup, door=trainc.compile):
    """(results in PyTorch, compiled ones, the compiled model) of two steps, the change, and two more."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    found = []
    for compiled in (False, True):
        with restored():
            _, net, scope = build(source, *setup)
            model = door(net) if compiled else net
            results = [train(model, x), train(model, x)]
            exec(change, {**scope, "net": net, "train": train, "X": x})
            found.append([*results, train(model, x), train(model, x)])
    return *found, model


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", READS)
def test_what_forward_reads_is_watched(name):
    plain, ours, model = around_a_change(*READS[name])
    assert all(same(a, b) for a, b in zip(ours, plain, strict=True)), [r.route for r in records.of(model)]
    assert name in ("iterator", "default dtype") or not same(plain[0], plain[2]) or "not" in name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EFFECTS)
def test_what_forward_changes_is_not_lost(name, capsys, tmp_path):
    source, seen, *setup = EFFECTS[name]
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    found = []
    for compiled in (False, True):
        path = tmp_path / f"{compiled}.txt"
        with restored():
            for each in (random.seed, numpy.random.seed, torch.manual_seed):
                each(5)
            more = {"OUT": lambda: capsys.readouterr().out, "TMP": functools.partial(str, path)}
            _, net, scope = build(source, *setup, **more)
            model = trainc.compile(net) if compiled else net
            torch.manual_seed(5)
            results = [train(model, x) for _ in range(5)]
            found.append((results, eval(seen, scope)))
    plain, ours = found
    assert ours[1] == plain[1], [r.route for r in records.of(model)]
    assert all(same(a, b) for a, b in zip(ours[0], plain[0], strict=True)), [r.route for r in records.of(model)]


# What a program may read of optimizers, schedulers, loaders and handles: (what there is beside HELD, what is read, a change).
HELD = """
O = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
S = torch.optim.lr_scheduler.ExponentialLR(O, 0.5)
"""
OWN_SCHEDULER = "class Own(torch.optim.lr_scheduler.LRScheduler):\n  warm, n = 2.0, [2.0]\n  def __init__(self, o):\n    self.scale = 4.0\n    super().__init__(o)\n  def get_lr(self):\n    self.scale *= 0.5\n    return [1.0]\n  def factor(self): return self.warm * self.n[0]\nS = Own(O)"
OWN_OPTIMIZER = "class Own(torch.optim.SGD):\n  warm = 2.0\n  def factor(self): return self.warm * self.param_groups[0]['lr'] * self.cfg['a']\nO = Own([nn.Parameter(torch.ones(1))], lr=2.0)\nO.cfg = {'a': 1.0}"
LOADER = "from torch.utils.data import DataLoader\nclass Data(list): w = 2.0\nD = Data(range(20))\nL = DataLoader(D, batch_size=5)"
TENSOR_RATE = "O = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=torch.tensor(2.0))"
PLATEAU = "P = torch.optim.lr_scheduler.ReduceLROnPlateau(O)\nP.best = 2.0"
HELD_BY_TRAINING = {
    "rate": ("", "O.param_groups[0]['lr']", "m.O.param_groups[0]['lr'] = 3.0"),
    "rate of loaded groups": ("", "O.param_groups[0]['lr']", "m.O.load_state_dict(m.O.state_dict()); train(net, X); m.O.param_groups[0]['lr'] = 3.0"),
    "rate, by its scheduler": ("", "S.optimizer.param_groups[0]['lr']", "m.S.step()"),
    "rate of a scheduler's loaded groups": ("", "S.optimizer.param_groups[0]['lr']", "m.O.load_state_dict(m.O.state_dict()); train(net, X); m.S.step()"),
    "scheduler's optimizer": ("", "S.optimizer.param_groups[0]['lr']", "m.S.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=3.0)"),
    "rate, by state_dict()": ("", "O.state_dict()['param_groups'][0]['lr']", "m.O.param_groups[0]['lr'] = 3.0"),
    "rates of all groups": ("", "sum(g['lr'] for g in O.param_groups)", "m.O.add_param_group({'params': [nn.Parameter(torch.ones(1))], 'lr': 3.0})"),
    "number of groups": ("", "float(len(O.param_groups))", "m.O.add_param_group({'params': [nn.Parameter(torch.ones(1))]})"),
    "groups": ("", "O.param_groups[0]['lr']", "m.O.param_groups = [dict(m.O.param_groups[0], lr=3.0)]"),
    "group": ("", "O.param_groups[0]['lr']", "m.O.param_groups[0] = dict(m.O.param_groups[0], lr=3.0)"),
    "setting that comes": ("", "O.param_groups[0].get('mine', 2.0)", "m.O.param_groups[0]['mine'] = 3.0"),
    "list in a group": ("O.param_groups[0]['mine'] = [2.0]", "O.param_groups[0]['mine'][0]", "m.O.param_groups[0]['mine'][0] = 3.0"),
    "tensor in a group, written": ("O.param_groups[0]['mine'] = torch.tensor(2.0)", "O.param_groups[0]['mine']", "m.O.param_groups[0]['mine'].fill_(3.0)"),
    "tensor in a group, replaced": ("O.param_groups[0]['mine'] = torch.tensor(2.0)", "O.param_groups[0]['mine']", "m.O.param_groups[0]['mine'] = torch.tensor(3.0)"),
    "tensor as a rate, written": (TENSOR_RATE, "O.param_groups[0]['lr']", "m.O.param_groups[0]['lr'].mul_(1.5)"),
    "tensor as a rate, replaced": (TENSOR_RATE, "O.param_groups[0]['lr']", "m.O.param_groups[0]['lr'] = torch.tensor(3.0)"),
    "tensor as a rate, in a sum, written": (TENSOR_RATE, "(1 + O.param_groups[0]['lr'])", "m.O.param_groups[0]['lr'].mul_(1.5)"),
    "tensor as a rate, in a sum, replaced": (TENSOR_RATE, "(1 + O.param_groups[0]['lr'])", "m.O.param_groups[0]['lr'] = torch.tensor(3.0)"),
    "tensor in a group, in a sum, written": ("O.param_groups[0]['mine'] = torch.tensor(2.0)", "(1 + O.param_groups[0]['mine'])", "m.O.param_groups[0]['mine'].fill_(3.0)"),
    "tensor in a group, in a sum, replaced": ("O.param_groups[0]['mine'] = torch.tensor(2.0)", "(1 + O.param_groups[0]['mine'])", "m.O.param_groups[0]['mine'] = torch.tensor(3.0)"),
    "tensor in a rate's place": ("", "O.param_groups[0]['lr']", "m.O.param_groups[0]['lr'] = torch.tensor(3.0)"),
    "defaults": ("", "O.defaults['lr']", "m.O.defaults['lr'] = 3.0"),
    "optimizer's own attribute": ("O.mine = 2.0", "O.mine", "m.O.mine = 3.0"),
    "optimizer's own attribute that comes": ("", "getattr(O, 'mine', 2.0)", "m.O.mine = 3.0"),
    "own optimizer's class": (OWN_OPTIMIZER, "O.warm", "m.Own.warm = 3.0"),
    "own optimizer's attribute": (OWN_OPTIMIZER, "O.factor()", "m.O.warm = 3.0"),
    "own optimizer's rate": (OWN_OPTIMIZER, "O.factor()", "m.O.param_groups[0]['lr'] = 3.0"),
    "own optimizer's dictionary": (OWN_OPTIMIZER, "O.factor()", "m.O.cfg['a'] = 3.0"),
    "scheduler's factor": ("", "S.gamma", "m.S.gamma = 0.25"),
    "scheduler's factor, by getattr": ("", "getattr(S, 'gamma', 1.0)", "m.S.gamma = 0.25"),
    "scheduler's factor, by a computed name": ("N = ['gamma']", "getattr(S, N[0])", "m.S.gamma = 0.25"),
    "scheduler's factor, by state_dict()": ("", "S.state_dict()['gamma']", "m.S.gamma = 0.25"),
    "scheduler's count, by state_dict()": ("", "1.0 + S.state_dict()['last_epoch']", "m.S.step()"),
    "scheduler in a list": ("SS = [S]", "SS[0].gamma", "m.S.gamma = 0.25"),
    "first rates": ("", "S.base_lrs[0]", "m.S.base_lrs = [3.0]"),
    "first rates, written": ("", "S.base_lrs[0]", "m.S.base_lrs[0] = 3.0"),
    "last rate": ("", "S.get_last_lr()[0]", "m.S.step()"),
    "last rate, set": ("", "S.get_last_lr()[0]", "m.S._last_lr = [3.0]"),
    "next rate": ("", "S.get_lr()[0]", "m.S.step()"),
    "steps of a scheduler": ("", "1.0 + S.last_epoch", "m.S.step()"),
    "length of a schedule": ("C = torch.optim.lr_scheduler.CosineAnnealingLR(O, 10)", "1.0 * C.T_max", "m.C.T_max = 3"),
    "plateau's best": (PLATEAU, "P.best", "m.P.best = 3.0"),
    "plateau's factor": (PLATEAU, "P.factor", "m.P.factor = 0.5"),
    "plateau's count": (PLATEAU, "1.0 + P.num_bad_epochs", "m.P.step(9.0)"),
    "schedule that is a function": ("A = torch.optim.lr_scheduler.LambdaLR(O, lambda n: n * 2.0)", "A.lr_lambdas[0](2)", "m.A.lr_lambdas[0] = lambda n: 3.0"),
    "what such a function reads": ("K = [2.0]\nA = torch.optim.lr_scheduler.LambdaLR(O, lambda n: 1.0 + n * K[0])", "A.lr_lambdas[0](2)", "m.K[0] = 3.0"),
    "own scheduler's class": (OWN_SCHEDULER, "S.warm", "m.Own.warm = 3.0"),
    "own scheduler's attribute": (OWN_SCHEDULER, "S.factor()", "m.S.warm = 3.0"),
    "own scheduler's list": (OWN_SCHEDULER, "S.factor()", "m.S.n[0] = 3.0"),
    "what an own scheduler's step sets": (OWN_SCHEDULER, "S.scale", "m.S.step()"),
    "loader's length": (LOADER, "float(len(L))", "m.D.extend(range(20))"),
    "loader's truth": (LOADER, "2.0 if L else 1.0", "m.D.clear()"),
    "loader's batch size": (LOADER, "1.0 * L.batch_size", "vars(m.L)['batch_size'] = 7"),
    "loader's own attribute": (LOADER + "\nL.scale = 2.0", "L.scale", "m.L.scale = 3.0"),
    "loader's data": (LOADER, "L.dataset.w", "m.L.dataset.w = 3.0"),
    "length of a loader's data": (LOADER, "float(len(L.dataset))", "m.D.extend(range(20))"),
    "another loader": (LOADER, "float(len(L))", "m.L = m.DataLoader(list(range(20)), batch_size=2)"),
    "handle's attribute": ("H = nn.Linear(1, 1).register_forward_hook(print)\nH.k = 2.0", "H.k", "m.H.k = 3.0"),
    "no_grad's attribute": ("N = torch.no_grad()\nN.k = 2.0", "N.k", "m.N.k = 3.0"),
}  # fmt: skip


def stepped(net):
    """`train` as one compiled step: its loss and the model's parameters afterwards."""
    return trainc.train_step(plain_step(net))


def plain_step(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HELD_BY_TRAINING)
def test_what_forward_reads_of_what_trains_is_watched(name):
    there, read, change = HELD_BY_TRAINING[name]
    source = f"{HELD}{there}\ndef look(): return {read}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * look()"
    plain, ours, model = around_a_change(source, change)
    assert all(same(a, b) for a, b in zip(ours, plain, strict=True)), [r.route for r in records.of(model)]
    assert not same(plain[0], plain[2])
    assert "tensor" in name or records.of(model)[0].route == "compiled"  # a tensor that no module holds goes to torch.compile's tracer


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HELD_BY_TRAINING)
def test_what_a_step_reads_of_what_trains_is_watched(name):
    there, read, change = HELD_BY_TRAINING[name]
    source = f"{HELD}{there}\ndef look(): return {read}\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * look()"
    x, found = torch.randn(3, 4, generator=torch.Generator().manual_seed(3)), []
    for wrap in (plain_step, stepped):
        with restored():
            _, net, scope = build(source)
            step = wrap(net)
            try:
                results = [step(x), step(x)]
                exec(change, {**scope, "net": step, "train": lambda net, x: net(x), "X": x})
                found.append([*results, step(x), step(x), *(p.detach().clone() for p in net.parameters())])
            except trainc.UserError as reason:
                assert "tensor" in name and "as a buffer of the module it is an input" in str(reason)
                return
    assert same(*found)


# What a program sets, of what trains, to the value that is there, while the loop sets it to another: (a write, the loop's).
WRITES_OF_TRAINING = {
    "scheduler's factor": ("S.gamma = 0.5", "m.S.gamma = 0.25", "m.S.gamma"),
    "first rates": ("S.base_lrs[0] = 2.0", "m.S.base_lrs[0] = 3.0", "m.S.base_lrs"),
    "defaults": ("O.defaults['lr'] = 2.0", "m.O.defaults['lr'] = 3.0", "m.O.defaults['lr']"),
    "own attribute": ("O.mine = 2.0", "m.O.mine = 3.0", "m.O.mine"),
    "own attribute, by vars": ("vars(O)['mine'] = 2.0", "m.O.mine = 3.0", "m.O.mine"),
    "setting": ("O.param_groups[0]['lr'] = 2.0", "m.O.param_groups[0]['lr'] = 3.0", "m.O.param_groups[0]['lr']"),
    "own setting": ("O.param_groups[0]['mine'] = 2.0", "m.O.param_groups[0]['mine'] = 3.0", "m.O.param_groups[0]['mine']"),
    "own setting that goes": ("O.param_groups[0].pop('more', None)", "m.O.param_groups[0]['more'] = 3.0", "'more' in m.O.param_groups[0]"),
    "groups": ("O.param_groups = O.param_groups[:1]", "m.O.add_param_group({'params': [nn.Parameter(torch.ones(1))]})", "len(m.O.param_groups)"),
    "loader's attribute": ("L.scale = 2.0", "m.L.scale = 3.0", "m.L.scale"),
}  # fmt: skip


@pytest.mark.parametrize("door", ["compile", "step"])
@pytest.mark.parametrize("name", WRITES_OF_TRAINING)
def test_what_a_program_sets_of_what_trains_is_not_lost(name, door):
    write, other, seen = WRITES_OF_TRAINING[name]
    there = f"{HELD}{LOADER}\nL.scale = O.mine = O.param_groups[0]['mine'] = 2.0\n"
    source = f"{there}class Net(nn.Linear):\n  def forward(self, x):\n    {write}\n    return super().forward(x)"
    x, found = torch.ones(3, 4), []
    for compiled in (False, True):
        with restored():
            _, net, scope = build(source)
            net = trainc.compile(net) if compiled and door == "compile" else net
            step = plain_step(net) if not compiled or door == "compile" else stepped(net)
            results = []
            for _ in range(4):
                before = eval(seen, scope)
                try:
                    results.append((step(x).item(), eval(seen, scope)))
                except trainc.UserError:  # refused, before anything has happened
                    assert eval(seen, scope) == before
                    results.append(None)
                exec(other, scope)
            found.append(results)
    for i, (plain, ours) in enumerate(zip(*found, strict=True)):
        if ours is None:
            assert door == "step"
        else:
            assert ours[1] == plain[1]
            assert None in found[1][:i] or ours[0] == pytest.approx(plain[0], rel=1e-5)  # what was refused has updated nothing


# What torch.compile's tracer does not watch, or takes from elsewhere; and what it does, so that it goes on with it.
BESIDE_DYNAMO = [
    "global shadows a builtin", "class attribute shadowed", "method replaced", "tuple of lists of self", "chain map", "environment by getenv",
    "minus zero of self", "cached result, by argument", "cached method", "PyTorch's method patched", "order of an OrderedDict", "special method, by syntax",
]
BY_DYNAMO = ["global number", "nested dictionary of self", "long list", "dataclass with slots", "closure"]


def split(source):
    """The program with a look at a value: torch.compile's tracer splits it there."""
    look = "def look(h):\n  if h.detach().sum().item() > 1e9: h = h + 1\n  return h\n"
    return look + source.replace("super().forward(x)", "look(super().forward(x))")


@pytest.mark.parametrize("name", BESIDE_DYNAMO + BY_DYNAMO)
def test_what_dynamo_does_not_watch_is_watched(name):
    source, *more = READS[name]
    plain, ours, model = around_a_change(split(source), *more)
    routes = [record.route for record in records.of(model)]
    assert all(same(a, b) for a, b in zip(ours, plain, strict=True)), routes
    assert routes[0] == "split" and (("eager" in routes) == (name in BESIDE_DYNAMO))


def by_dynamo(net):
    return torch.compile(net, backend="trainc")


@pytest.mark.parametrize("name", [*BESIDE_DYNAMO, "forward put on a class"])
def test_what_dynamo_does_not_watch_is_a_guard_of_its_graphs(name):
    plain, ours, _ = around_a_change(*READS[name], door=by_dynamo)
    assert all(same(a, b) for a, b in zip(ours, plain, strict=True))


def test_the_guard_beside_dynamos_traces_nothing_more():
    """What a program changes itself, an optimizer's state, training and evaluation: as many graphs as without it."""
    source = "LOG = {'n': 0}\nclass Net(nn.Linear):\n  def forward(self, x):\n    self.n += 1\n    LOG['n'] += 1\n    return super().forward(x)"

    def graphs(backend):
        with restored():
            _, net, _ = build(source, "n = 0")
            optimizer, model = torch.optim.SGD(net.parameters(), lr=0.1), torch.compile(net, backend=backend)

            @torch.compile(backend=backend)
            def step(x):
                loss = net(x).sum()
                loss.backward()
                optimizer.step()
                return loss

            torch._dynamo.utils.counters.clear()
            for _ in range(4):
                step(torch.ones(2, 4)), model.train()(torch.ones(2, 4)), model.eval()(torch.ones(2, 4))
            return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert graphs("trainc") == graphs("eager")


def test_the_guard_beside_dynamos_keeps_no_model():
    with restored():
        _, net, scope = build(*READS["nested dictionary of self"][::2])
        model = by_dynamo(net)
        train(model, torch.ones(3, 4))
        alive = [weakref.ref(net), weakref.ref(net.weight)]
        del net, model, scope, _
        gc.collect()
        assert [each() for each in alive] == [None, None]


def test_what_a_split_program_changes_itself_leaves_it_compiled():
    source = "LOG = []\nclass Net(nn.Linear):\n  def forward(self, x):\n    self.n += 1\n    self.seen = self.seen + [self.n]\n    LOG.append(1)\n    return super().forward(x) * self.n * self.weight_of"
    x, found = torch.ones(3, 4), []
    for compiled in (False, True):
        with restored():
            module, net, _ = build(split(source), "n, net.seen, net.weight_of = 0, [], 1.0")
            model, results = trainc.compile(net) if compiled else net, []
            for step in range(6):
                net.weight_of = 1.0 + step
                results += train(model, x)
                if compiled and step == 3:
                    other = trainc.compile(nn.Linear(4, 4))
                    other(x).sum().backward()  # a trace, for whose time a class of PyTorch's is changed
            found.append((results, net.n, net.seen, module.LOG))
    assert same(found[1][0], found[0][0]) and found[1][1:] == found[0][1:]
    assert "eager" not in [record.route for record in records.of(model)]


def test_the_order_of_keyword_arguments_is_the_programs():
    source = "class Net(nn.Linear):\n  def forward(self, **given):\n    y = 0.0\n    for i, x in enumerate(given.values()): y = y + super().forward(x) * i\n    return look(y)"
    x, found = torch.ones(3, 4), []
    for compiled in (False, True):
        with restored():
            _, net, _ = build(split(source))
            model = trainc.compile(net) if compiled else net
            found.append([model(**given) for given in ({"a": x, "b": 2 * x}, {"a": x, "b": 2 * x}, {"b": 2 * x, "a": x})])
    assert same(found[1], found[0])


def test_what_the_tracer_does_to_the_environment_is_no_change_by_the_program():
    """In a new process: PyTorch's tracer imports modules at the first operation, one of which sets a variable."""
    code = (
        "import os, torch, trainc\nfrom trainc.base import records\nbefore = dict(os.environ)\n"
        "class Net(torch.nn.Linear):\n  def forward(self, x):\n    return super().forward(x) * float(os.environ.get('SCALE', '2'))\n"
        "ours = trainc.compile(Net(4, 4))\nours(torch.ones(3, 4)).sum().backward()\n"
        "assert [r.route for r in records.of(ours)] == ['compiled'], records.of(ours)\nassert before == dict(os.environ)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_program_that_sets_the_environment():
    source = "class Net(nn.Linear):\n  def forward(self, x):\n    os.environ['TEST_N'] = str(int(os.environ.get('TEST_N', '0')) + 1)\n    return super().forward(x)"
    with restored():
        _, net, _ = build(split(source))
        model = trainc.compile(net)
        for _ in range(4):
            train(model, torch.ones(3, 4))
        assert os.environ["TEST_N"] == "4"


HIDDEN = {
    "global parameter": "W = nn.Parameter(torch.full((4,), 2.0))\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * W\n  def hidden(self): return W",
    "nested dictionary": "class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.d = {'a': {'w': self.weight}}\n  def forward(self, x): return x @ self.d['a']['w']\n  def hidden(self): return self.weight",
    "module in a list": "class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.d = [nn.Linear(4, 4)]\n  def forward(self, x): return self.d[0](super().forward(x))\n  def hidden(self): return self.d[0].weight",
    "number": "W = nn.Parameter(torch.tensor(2.0))\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * W\n  def hidden(self): return W",
    "closure": "def make():\n  w = nn.Parameter(torch.full((4,), 2.0))\n  return (lambda x: x * w), w\nf, W = make()\nclass Net(nn.Linear):\n  def forward(self, x): return f(super().forward(x))\n  def hidden(self): return W",
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_what_learns_beside_the_parameters_has_its_gradient(name):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    found = []
    for compiled in (False, True):
        with restored():
            _, net, _ = build(HIDDEN[name])
            model = trainc.compile(net) if compiled else net
            for _ in range(2):
                net.hidden().grad = None
                model(x).square().sum().backward()
            found.append([net.hidden().grad])
    assert same(found[1], found[0])


# What forward sees of its arguments beside what is in their signature: the program, and the arguments of its calls.
ARGUMENTS = {
    "offset": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (1 + x.storage_offset())", "[torch.ones(9, 4)[i:i + 3] for i in (0, 0, 2, 4)]"),
    "memory before it": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) + x.as_strided((3, 4), (4, 1), 0)", "[torch.arange(36.0).reshape(9, 4)[i:i + 3] for i in (0, 0, 2, 4)]"),
    "memory before it, by function": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) + torch.as_strided(x, (3, 4), (4, 1), 0)", "[torch.arange(36.0).reshape(9, 4)[i:i + 3] for i in (0, 0, 2, 4)]"),
    "a view": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x._is_view() else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.ones(9, 4)[:3]]"),
    "its base": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x._base is None else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.ones(9, 4)[:3]]"),
    "its version": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x._version == 0 else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.ones(3, 4).add_(0)]"),
    "whether it is an inference tensor": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x.clone()) * (2.0 if x.is_inference() else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.inference_mode()(torch.ones)(3, 4)]"),
    "whether it is an inference tensor, by function": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x.clone()) * (2.0 if torch.is_inference(x) else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.inference_mode()(torch.ones)(3, 4)]"),
    "whether it keeps its gradient": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x.retains_grad else 3.0)", "[torch.ones(3, 4, requires_grad=True) * 1, torch.ones(3, 4, requires_grad=True) * 1, (lambda t: t.retain_grad() or t)(torch.ones(3, 4, requires_grad=True) * 1)]"),
    "its hooks": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x._backward_hooks else 3.0)", "[torch.ones(3, 4, requires_grad=True) * 1, torch.ones(3, 4, requires_grad=True) * 1, (lambda t: t.register_hook(lambda g: g) and t)(torch.ones(3, 4, requires_grad=True) * 1)]"),
    "its hooks after the gradient": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x._post_accumulate_grad_hooks else 3.0)", "[torch.ones(3, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True), (lambda t: t.register_post_accumulate_grad_hook(lambda p: None) and t)(torch.ones(3, 4, requires_grad=True))]"),
    "whether other processes see it": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x.is_shared() else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.ones(3, 4).share_memory_()]"),
    "which result it is": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x.output_nr else 3.0)", "[(torch.ones(6, 4, requires_grad=True) * 1).split(3)[0], (torch.ones(6, 4, requires_grad=True) * 1).split(3)[0], (torch.ones(6, 4, requires_grad=True) * 1).split(3)[1]]"),
    "the length of its memory": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x._typed_storage()._size() == 12 else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), torch.ones(9, 4)[:3]]"),
    "the module's buffer": ("class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.register_buffer('b', torch.ones(3, 4))\n  def forward(self, x): return super().forward(x) * (2.0 if x is self.b else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), net.b, net.b]"),
    "the module's buffer first": ("class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.register_buffer('b', torch.ones(3, 4))\n  def forward(self, x): return super().forward(x) * (2.0 if x is self.b else 3.0)", "[net.b, net.b, torch.ones(3, 4)]"),
    "a global tensor": ("T = torch.ones(3, 4)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x is T else 3.0)", "[torch.ones(3, 4), torch.ones(3, 4), m.T, m.T]"),
    "a global tensor first": ("T = torch.ones(3, 4)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * (2.0 if x is T else 3.0)", "[m.T, m.T, torch.ones(3, 4)]"),
    "one tensor twice": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x[0]) * (2.0 if x[0] is x[1] else 3.0)", "[(torch.ones(3, 4), torch.ones(3, 4)), (torch.ones(3, 4),) * 2, (torch.zeros(3, 4),) * 2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_no_signature_says_of_an_argument(name):
    source, arguments = ARGUMENTS[name]
    found = []
    for compiled in (False, True):
        with restored():
            _, net, scope = build(source)
            model = trainc.compile(net) if compiled else net
            found.append([train(model, x) for x in eval(arguments, scope)])
    plain, ours = found
    assert all(same(a, b) for a, b in zip(ours, plain, strict=True)), [r.route for r in records.of(model)]
    assert not all(same(a, plain[0]) for a in plain)


def test_a_version_is_read_at_each_call_through_torch_compile():
    @functools.partial(torch.compile, backend="trainc")
    def run(x):
        return x * (1 + x._version)

    x = torch.ones(3)
    for version in range(3):
        assert torch.equal(run(x), torch.full((3,), 1.0 + version))
        x.add_(0)


CHANGED_ARGUMENTS = {
    "wants a gradient": ("class Net(nn.Linear):\n  def forward(self, x):\n    x.requires_grad_()\n    return super().forward(x)", "x.grad"),
    "wants a gradient, set": ("class Net(nn.Linear):\n  def forward(self, x):\n    x.requires_grad = True\n    return super().forward(x)", "x.grad"),
    "is detached": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.h[0].detach_()\n    return super().forward(x) * self.h[0]", "net.h[0].requires_grad", "h = [torch.ones(4, requires_grad=True) * 1]"),
    "no longer wants one": ("class Net(nn.Linear):\n  def forward(self, x):\n    self.bias.requires_grad_(False)\n    return super().forward(x)", "net.bias.requires_grad"),
    "its gradient is set": ("class Net(nn.Linear):\n  def forward(self, x):\n    x.grad = x * 2\n    return super().forward(x)", "x.grad"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED_ARGUMENTS)
def test_what_forward_changes_of_tensors_is_not_lost(name):
    source, seen, *setup = CHANGED_ARGUMENTS[name]
    found = []
    for compiled in (False, True):
        with restored():
            _, net, scope = build(source, *setup)
            model, results = trainc.compile(net) if compiled else net, []
            for _ in range(4):
                x = torch.ones(3, 4)
                model(x).square().sum().backward()
                results.append(eval(seen, {**scope, "x": x}))
            found.append(results)
    plain, ours = found
    assert [str(a) for a in plain] == [str(b) for b in ours], [r.route for r in records.of(model)]


@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore"])
def test_a_warning_is_shown_as_often_as_in_eager(action):
    source = "import warnings\nclass Net(nn.Linear):\n  def forward(self, x):\n    warnings.warn('from forward')\n    return super().forward(x)"
    found = []
    for compiled in (False, True):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(action)
            _, net, _ = build(source)
            model = trainc.compile(net) if compiled else net
            counts = []
            for _ in range(5):
                train(model, torch.ones(3, 4))
                counts.append(sum(str(each.message) == "from forward" for each in shown))
            found.append(counts)
    assert found[0] == found[1]
    assert action == "always" or [r.route for r in records.of(model)] == ["compiled"]


SETTINGS = {"scale": 2.0, "options": {"a": [1.0]}}


def test_equal_objects_do_not_compile_again(engine, strict, monkeypatch):
    """A configuration that is made anew, with equal contents, is the same configuration."""

    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x) * SETTINGS["scale"] * SETTINGS["options"]["a"][0]

    model = trainc.compile(Net(4, 4))
    for _ in range(5):
        monkeypatch.setitem(globals(), "SETTINGS", copy.deepcopy(SETTINGS))  # put back at the end
        train(model, torch.randn(3, 4))
    assert len(records.of(model)) == 1
    SETTINGS["options"]["a"][0] = 3.0
    train(model, torch.randn(3, 4))
    assert "SETTINGS['options']['a'][0]` changed from 1.0 to 3.0" in records.of(model)[1].recompiled


counted = 0  # a global of the name of an attribute that forward reads


def test_an_attribute_is_no_global_of_its_name(strict):
    global counted
    settings = types.SimpleNamespace(counted=2.0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x) * settings.counted

    model = trainc.compile(Net())
    for counted in range(4):  # noqa: B007
        model(torch.ones(2, 3)).sum().backward()
    assert len(records.of(model)) == 1
    settings.counted = 5.0
    x = torch.ones(2, 3)
    assert torch.equal(model(x), model.linear(x) * 5.0)


def test_a_step_that_is_itself_a_global_is_no_state_of_the_program(strict):
    """`optimizer.step()` names `step`, and so the walk comes to the global of that name: the compiled step."""
    source = (
        "import trainc\n"
        "net = nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "@trainc.train_step\n"
        "def step(x):\n"
        "  loss = net(x).square().mean()\n"
        "  loss.backward()\n"
        "  optimizer.step()\n"
        "  optimizer.zero_grad()\n"
        "  return loss\n"
    )
    scope = {"torch": torch, "nn": nn, "__name__": "script"}
    exec(compile(source, "script.py", "exec"), scope)
    losses = [scope["step"](torch.ones(2, 4)).item() for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]


def test_lazy_modules_draw_what_eager_draws():
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
        model = trainc.compile(net) if compiled else net
        results = [model(torch.ones(3, 5)) for _ in range(2)]
        found.append([*results, torch.rand(3)])
    assert same(found[1], found[0])


BACKWARDS = """
import torch
from torch import nn
V, STEP = [2.0], [0]
class Double(torch.autograd.Function):
  @staticmethod
  def forward(ctx, x): return x * 1.0
  @staticmethod
  def backward(ctx, g): return g * V[0]
class Function(nn.Linear):
  def forward(self, x): return Double.apply(super().forward(x)) * (1 + STEP[0])
class Hook(nn.Linear):
  def forward(self, x):
    h = super().forward(x) * (1 + STEP[0])
    h.register_hook(lambda gradient: gradient * V[0])
    return h
"""


@pytest.mark.parametrize("kind", ["Function", "Hook"])
def test_what_a_backward_reads_changes_before_it(tmp_path, monkeypatch, kind):
    """What forward alone reads may change meanwhile; what the program's own backward reads must not, and it is told."""
    file = tmp_path / "two_times.py"
    file.write_text(BACKWARDS)
    module = types.ModuleType("two_times")
    monkeypatch.setitem(sys.modules, "two_times", module)
    exec(compile(BACKWARDS, str(file), "exec"), module.__dict__)
    torch.manual_seed(0)
    eager, x = getattr(module, kind)(3, 3), torch.randn(2, 3)
    model = trainc.compile(copy.deepcopy(eager))

    def gradient(net, between=lambda: None):
        net.zero_grad()
        loss = net(x).sum()
        between()
        loss.backward()
        return net.weight.grad.clone()

    def change(where, value):
        return lambda: where.__setitem__(0, value)

    for step in (0, 0, 1):
        module.STEP[0] = step
        wanted = gradient(eager, change(module.STEP, 7))
        module.STEP[0] = step
        torch.testing.assert_close(gradient(model, change(module.STEP, 7)), wanted, rtol=1e-5, atol=1e-6)
    module.STEP[0] = 0
    with pytest.raises(trainc.UserError, match=r"V\[0\]` changed from 2.0 to 5.0 between forward and backward"):
        gradient(model, change(module.V, 5.0))
    for value in (5.0, 2.0):
        module.V[0] = value
        torch.testing.assert_close(gradient(model), gradient(eager), rtol=1e-5, atol=1e-6)
    assert all(record.route == "compiled" for record in trainc.explain(model).compilations)


# (the program, what is done with it). Eager's result, or its exception, is wanted.
RAISES = {
    "number out of float's range": ("class Net(nn.Linear):\n  def forward(self, x): return torch.lerp(super().forward(x), x, 1e300)", "net(X)"),
    "number out of half's range": ("class Net(nn.Linear):\n  def forward(self, x): return super().forward(x).half().masked_fill(x > 1, -1e9).float()", "net(X)"),
    "number out of half's range that eager takes": ("class Net(nn.Linear):\n  def forward(self, x): return (super().forward(x).half() * 1e9).float()", "net(X)"),
    "truth value as a factor": ("class Net(nn.Linear):\n  def forward(self, x): return torch.add(super().forward(x), x, alpha=True)", "net(X)"),
    "method by a computed name": ("class C:\n  def g(self): return 2.0\nC1 = C()\nG = __import__('operator').methodcaller('g')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * G(C1)", "(net(X), net(X), setattr(m.C, 'g', lambda self: 3.0), net(X))[-1]"),
    "method by a computed name, with keywords": ("class C:\n  s = 2.0\n  def g(self, a): return self.s * a\nC1 = C()\nG = __import__('operator').methodcaller('g', a=2.0)\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * G(C1)", "(net(X), net(X), setattr(m.C1, 's', 3.0), net(X))[-1]"),
    "attribute by a computed name": ("C1 = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))\nG = __import__('operator').attrgetter('a.b')\nclass Net(nn.Linear):\n  def forward(self, x): return super().forward(x) * G(C1)", "(net(X), net(X), setattr(m.C1.a, 'b', 3.0), net(X))[-1]"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISES)
def test_what_eager_gives_or_raises(name):
    source, call = RAISES[name]
    found = []
    for compiled in (False, True):
        with restored():
            _, net, scope = build(source)
            net = trainc.compile(net) if compiled else net
            try:
                found.append(eval(call, {**scope, "net": net, "X": torch.arange(12.0).reshape(3, 4) / 7}))
            except RuntimeError as error:
                found.append(str(error))
    plain, ours = found
    assert type(plain) is type(ours)
    assert isinstance(plain, str) or same([ours], [plain])
