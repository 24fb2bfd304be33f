"""Plans on disk: found again by the next process, never wrong, whoever writes, kills or damages what."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import forked
import pytest
import torch
from standin import StandIn
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import trainc
from trainc import cli
from trainc.base import cache, cache_files, config, messages, options, records
from trainc.base.errors import InternalError
from trainc.base.options import CompileOptions
from trainc.torch import compat
from trainc.torch.device import HOST, Host
from trainc.torch.graph import wire


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "cache", True)
    monkeypatch.setattr(config, "engine", "core")  # the interpreter has no plans to store
    monkeypatch.delenv("TRAINC_DUMP", raising=False)
    monkeypatch.setenv("TRAINC_CACHE_DIR", str(tmp_path / "plans"))
    return tmp_path / "plans"


def entries(directory):
    return sorted(directory.glob("*.plan"))


def contents(entry):
    """What an entry holds: (description, plan)."""
    return cache._unpacked(entry.stem, cache_files.read(str(entry)))


def said(warnings):
    return [w for w in warnings if w.category is messages.TraincWarning]


class Net(nn.Module):
    """A mask, a gather, and a call of PyTorch in the middle."""

    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(7, 6), nn.Dropout(0.3)
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, ids):
        h = self.drop(self.one(self.table(ids)))
        return self.two(torch.special.i0(h)) if self.training else self.two(h)


def train():
    """A fresh model, trained and evaluated: (what came out, as bytes; how many of its plans were stored ones, of how many)."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trainc.compile(model, optimizer)
    ids = torch.arange(7)
    for _ in range(2):
        model(ids).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        outputs = [model(ids) for _ in range(2)]
    made = [plan for owner in (model, optimizer) for record in records.of(owner) for plan in record.executables()]
    tensors = [*model.parameters(), *outputs]
    return [t.detach().numpy().tobytes() for t in tensors], sum(plan.from_cache for plan in made), len(made)


def test_the_second_start_compiles_nothing(directory, strict, monkeypatch):
    first, stored, plans = train()
    assert (stored, plans) == (0, 4) and len(entries(directory)) == 4  # forward, backward, inference, optimizer

    def forbidden(*_):
        raise AssertionError("compiles")

    for name in ("JointGraph", "compile", "compile_foreach"):
        monkeypatch.setattr(trainc._core, name, forbidden)
    again, stored, plans = train()
    assert (stored, plans) == (4, 4)
    assert again == first


def test_each_half_is_found_without_the_other(directory, strict):
    first, _, _ = train()
    for entry in entries(directory):
        content = entry.read_bytes()
        entry.unlink()
        again, stored, _ = train()
        assert (again, stored) == (first, 3), entry
        assert entry.read_bytes()[-1000:] == content[-1000:]  # the plan; what precedes it holds times


def test_compiling_twice_gives_the_same_bytes(directory):
    plans = []
    for _ in range(2):
        train()
        plans.append({entry.name: contents(entry)[1] for entry in entries(directory)})
        cache.clear()
    assert plans[0] == plans[1] and len(plans[0]) == 4


SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        return torch.special.i0(self.layer(x)).sum()
"""


def test_lines_are_those_of_the_program_that_runs(directory, strict, tmp_path):
    """The model moved down in a file of another name: the same plans, its own lines."""
    found = []
    for name, source in (("first.py", SOURCE), ("second.py", "\n" * 30 + SOURCE)):
        scope = {}
        (tmp_path / name).write_text(source)
        exec(compile(source, str(tmp_path / name), "exec"), scope)
        model = trainc.compile(scope["Model"]())
        model(torch.ones(2, 4)).backward()
        (record,) = records.of(model)
        steps = [step for report in record.reports() for step in report["steps"]]
        remarks = [remark for report in record.reports() for remark in report["remarks"]]
        assert any(remark["what"] == "compile" for remark in remarks)
        origins = {origin.split(" (")[0] for told in (*steps, *remarks) for origin in told["origins"]}
        found.append((origins, record.externs()[0], record.forward.from_cache, record.backward[(True,)].from_cache))
    assert found[0] == ({"first.py:8"}, ("aten.i0.default", "first.py:8 (aten.i0)"), False, False)
    assert found[1] == ({"second.py:38"}, ("aten.i0.default", "second.py:38 (aten.i0)"), True, True)


def another(value):
    """Another value of the type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return (*value, "another") if isinstance(value, tuple) else f"{value}, another"


def test_each_field_of_the_options_is_in_the_key(directory):
    these = CompileOptions.of(HOST)
    keys = [cache.key("forward", these, "graph")]
    for field in dataclasses.fields(these):
        other = dataclasses.replace(these, **{field.name: another(getattr(these, field.name))})
        keys.append(cache.key("forward", other, "graph"))
    assert len(set(keys)) == len(keys) == 1 + len(dataclasses.fields(these))


def test_the_compiler_is_told_all_that_it_asks_for():
    """A field that C++ does not know, or lacks, is an error: so neither side has a switch that the other, or the key, has not."""
    text = wire.graph_json(make_fx(lambda x: [x + 1])(torch.ones(2)).graph, "plan")
    told = json.loads(CompileOptions.of(HOST).for_compiler())
    for name in told:
        less = {key: value for key, value in told.items() if key != name}
        with pytest.raises(trainc.InternalError, match=name):
            trainc._core.compile(text, "plan", json.dumps(less))
    with pytest.raises(trainc.InternalError, match="another"):
        trainc._core.compile(text, "plan", json.dumps(told | {"another": 1}))


def test_the_key_holds_all_that_a_plan_depends_on(directory, monkeypatch):
    """Whatever of the configuration, the environment and the machine makes another plan, makes other options."""

    def key(where=HOST, *parts, tune="fast", limited=False):
        return cache.key("forward", CompileOptions.of(where, tune, limited), "graph", *parts)

    name, measured = key(), key(tune="max")
    assert name == key()
    others = [cache.key("backward", CompileOptions.of(HOST), "graph"), cache.key("forward", CompileOptions.of(HOST), "graph ")]
    others += [measured, key(HOST, 1), key(HOST, 2), key(HOST, True), key(limited=True)]
    sizes = trainc._core.cache_sizes()
    changes = [
        (options, "_build", lambda: "another"), (Host, "framework", "torch 2.0"),
        *((trainc._core, "cache_sizes", lambda i=i: [n + (i == at) for at, n in enumerate(sizes)]) for i in range(4)),
        (trainc._core, "mask_generator", lambda: "mkl"), (trainc._core, "code_generator_version", lambda kind: "13.1"),
        (trainc._core, "cpu_level", lambda: "another"), (options, "flushes_denormals", lambda: True),
        (trainc.config, "float32_in_parts", False),
        (trainc.config, "loss_chunk_rows", 100), (trainc.config, "loss_chunk_bytes", None),
        (trainc.config, "skip_hidden", False), (trainc.config, "skip_hidden_flops", 100),
        (trainc.config, "skip_padding", False),
    ]  # fmt: skip
    of_measurements = [
        (trainc.config, "framework_calls", False), (trainc.config, "framework_error", 2.0), (torch, "get_num_threads", lambda: 7),
    ]  # fmt: skip
    for owner, attribute, value in (*changes, *of_measurements):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, value)
            others += [key(tune="max")] + ([key()] if (owner, attribute, value) in changes else [])
    with monkeypatch.context() as patch:
        patch.setattr(trainc._core, "thread_count", lambda: 7)
        others.append(key(limited=True))
        assert key() == name
    with monkeypatch.context() as patch:
        patch.setenv("TRAINC_DISABLE_PASSES", "simplify")
        others.append(key())
    gpus = [StandIn(), StandIn(threads=2048), StandIn()]
    gpus[2].vendor_product_flops = 1
    others += map(key, gpus)
    assert len({name, *others}) == 1 + len(others)

    class Numbered(StandIn):  # another GPU of the kind
        index = 1

    assert key(Numbered()) == key(gpus[0])
    assert len(options._build()) == 40


onednn = torch.backends.mkldnn
allow_flags = getattr(torch.backends, "__allow_nonbracketed_mutation")  # noqa: B009 (inside a class the name would be mangled)
FLAGS_OF_OPERATORS = [
    *((owner, "fp32_precision", "bf16") for owner in (torch.backends, onednn.matmul, onednn.conv, onednn.rnn)),
    (onednn, "enabled", False), (onednn, "deterministic", True),
]  # fmt: skip


@contextlib.contextmanager
def set_flag(owner, name, value):
    """Sets it also where another test imported torch.testing, which forbids that flags be set but through PyTorch's contexts."""
    before = getattr(owner, name)
    with allow_flags():
        setattr(owner, name, value)
    try:
        yield
    finally:
        with allow_flags():
            setattr(owner, name, before)


def test_what_was_measured_depends_on_the_flags_of_pytorchs_operators(directory):
    """They decide how long an operator takes and how far it errs; a plan that measures nothing does not ask for them."""

    def keys():
        measured = CompileOptions.of(HOST, "max")
        verdict = cache.key("framework", measured.of_measurements(), "a contraction")
        with compat.without_onednn():  # as in a trace
            assert CompileOptions.of(HOST, "max") == measured
        return (cache.key("forward", measured, "graph"), verdict), cache.key("forward", CompileOptions.of(HOST), "graph")

    found, plain = zip(keys(), strict=True)
    for flag in FLAGS_OF_OPERATORS:
        with set_flag(*flag):
            found, plain = (*found, keys()[0]), (*plain, keys()[1])
    matmuls = onednn.matmul, torch.backends.cuda.matmul  # which PyTorch's older function sets, too
    with contextlib.ExitStack() as stack:
        for matmul in matmuls:
            stack.enter_context(set_flag(matmul, "fp32_precision", matmul.fp32_precision))
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("medium")
        assert keys()[0] != found[0]
    assert not torch.backends.cuda.matmul.allow_tf32
    assert keys()[0] == found[0] and len(set(plain)) == 1
    for each in zip(*found, strict=True):
        assert len(set(each)) == 1 + len(FLAGS_OF_OPERATORS)


def test_passes_that_are_disabled_are_passes(monkeypatch):
    monkeypatch.setenv("TRAINC_DISABLE_PASSES", " simplify, channels_last,")
    assert CompileOptions.of(HOST).disabled_passes == ("simplify", "channels_last")
    monkeypatch.setenv("TRAINC_DISABLE_PASSES", "simplify,chunk_row")
    passes = (
        "remove_dead, channels_last, simplify, scale_products, turn_products, join_products, chunk_rows, pad_products, "
        "framework_calls"
    )
    told = f"no pass 'chunk_row'; there are {passes}"
    with pytest.raises(trainc.UserError, match=told):
        CompileOptions.of(HOST)
    monkeypatch.setattr(config, "engine", "core")
    with pytest.raises(trainc.UserError, match="chunk_row"):
        trainc.compile(nn.Linear(2, 2))(torch.ones(1, 2))


def test_a_graph_depends_on_its_name_and_its_values(directory, strict):
    """Two models that differ in a constant alone."""

    class Scaled(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self):
            return (self.weight * self.scale).sum()

    for scale in (2.0, 3.0, 2.0):
        model = trainc.compile(Scaled(scale))
        model().backward()
        assert model.weight.grad.tolist() == [scale] * 3
    assert len(entries(directory)) == 4


# ---- damage -----------------------------------------------------------------------------------------------------------


def damaged(entry, how, other):
    content = bytearray(entry.read_bytes())
    place = random.randrange(len(cache_files.MAGIC), len(content))  # without its beginning, it is not the cache's any more
    if how == "flipped":
        content[place] ^= 1 << random.randrange(8)
    elif how == "cut":
        content = content[:place]
    elif how == "longer":
        content += b"x"
    elif how == "empty":
        content = b""
    elif how == "of an older version":
        content = b"trainc cache 1\n" + content[30:]
    else:
        content = other.read_bytes()
    entry.write_bytes(content)


PASSING = [MemoryError(), OSError(24, "Too many open files"), RecursionError("too deep"), InternalError("no memory for code"),
           ValueError("a limit"), KeyboardInterrupt(), SystemExit()]  # fmt: skip


@pytest.mark.filterwarnings("ignore:an entry of the cache")
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: type(fault).__name__)
def test_a_fault_while_an_entry_is_read_or_loaded_removes_nothing(directory, monkeypatch, fault):
    """At each place: the file's bytes, what is in them, the plan. The entry is as it was, and the next start uses it."""

    def fails(*args):
        raise fault

    name = "ab" * 32
    made = lambda: cache.through(name, lambda about, plan: plan, lambda: b"made", lambda plan: ({}, plan))[0]  # noqa: E731
    assert cache.directory() and made() == b"made"
    before = entries(directory)[0].read_bytes()
    for owner, what in ((cache_files, "_opened"), (cache.json, "loads"), (cache.hashlib, "sha256"), (cache, "_unpacked")):
        with monkeypatch.context() as patch, contextlib.suppress(type(fault)):
            patch.setattr(owner, what, fails)
            cache._loaded(name, lambda about, plan: plan)
        assert entries(directory)[0].read_bytes() == before, what
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        cache.through(name, fails, lambda: b"made", lambda plan: ({}, plan))
    assert entries(directory)[0].read_bytes() == before and made() == b"made"


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "empty", "of an older version", "another plan's"])
def test_a_damaged_entry_is_a_miss_with_one_warning(directory, how):
    first, _, _ = train()
    random.seed(5)
    found = entries(directory)
    for round_ in range(6 if how == "flipped" else 1):
        messages._said.clear()
        for entry, other in zip(found, found[1:] + found[:1], strict=True):
            damaged(entry, how, other)
        with pytest.warns(messages.TraincWarning, match="an entry of the cache is not used .* it is removed") as warnings:
            again, stored, _ = train()
        assert len(said(warnings)) == 1
        assert (again, stored) == (first, 0), round_
        assert train()[1] == 4  # written anew


@pytest.mark.parametrize("how", ["link", "foreign", "fifo", "directory", "huge"])
def test_what_lies_in_an_entrys_place_stays(directory, tmp_path, how):
    """It is not the cache's: not read, not removed, not written over; the plan is compiled, and that is said once."""
    first, _, _ = train()
    entry = entries(directory)[0]
    (tmp_path / "elsewhere").write_bytes(entry.read_bytes())
    entry.unlink()
    if how == "link":
        entry.symlink_to(tmp_path / "elsewhere")
    elif how == "foreign":
        entry.write_bytes(b"PK\3\4 something else")
    elif how == "fifo":
        os.mkfifo(entry)
    elif how == "directory":
        entry.mkdir()
    else:
        entry.write_bytes(b"somebody's")
        os.truncate(entry, 1 << 40)
    before = os.lstat(entry)
    with pytest.warns(messages.TraincWarning, match="is not used .* it is left as it is"):
        assert train()[:2] == (first, 3)
    after = os.lstat(entry)
    for field in ("st_ino", "st_mode", "st_size", "st_mtime_ns"):
        assert getattr(before, field) == getattr(after, field), field
    assert (tmp_path / "elsewhere").exists() and cache.clear()[0] == 3 and os.path.lexists(entry)


def test_every_flipped_byte_is_found(directory):
    directory.mkdir()
    entry, name = directory / f"{'ab' * 32}.plan", "ab" * 32
    cache_files.write(str(entry), cache._packed(name, {"origins": []}, os.urandom(100)))
    content = entry.read_bytes()
    assert contents(entry)[0] == {"origins": []}
    for place in range(len(content)):
        for wrong in (content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :], content[:place], content + b"x"):
            entry.write_bytes(wrong)
            with pytest.raises((ValueError, cache_files.ForeignError), match="damaged|no entry"):
                cache_files.read(str(entry))
    with pytest.raises(ValueError, match="of another plan"):
        cache._unpacked("ac" * 32, cache._packed(name, {}, b""))


@pytest.mark.parametrize("moment", ["read", "rename", "link"])
def test_a_damaged_entry_that_another_process_writes_anew_stays(directory, monkeypatch, moment):
    """Between reading it and removing it, at each step of that."""
    directory.mkdir()
    name, written, warned = "ab" * 32, [], []
    entry = directory / f"{name}.plan"
    entry.write_bytes(cache_files.packed(cache._packed(name, {}, b"old"))[:-1])
    monkeypatch.setattr(messages, "warn_once", lambda *what: warned.append(what))
    owner = cache_files if moment == "read" else os
    original = getattr(owner, moment)

    def late(*args, **kwargs):
        """The other process is a moment quicker; of a damaged file that was opened before, the reader knows the damage."""
        error = None
        if moment == "read":
            try:
                return original(*args, **kwargs)
            except cache_files.DamagedError as found:
                error = found
        written.append(len(written))
        cache_files.write(str(entry), cache._packed(name, {"n": len(written)}, b"whole"))
        if error is not None:
            raise error
        return original(*args, **kwargs)

    if moment == "link":  # a second one comes while the first is put back
        rename = os.rename
        monkeypatch.setattr(os, "rename", lambda *args: (cache._store(name, {"n": 0}, b"whole"), rename(*args))[1])
    monkeypatch.setattr(owner, moment, late)
    assert cache._loaded(name, lambda about, blob: blob) is None and written == [0]
    monkeypatch.undo()
    assert contents(entry) == ({"n": 1}, b"whole") and os.listdir(directory) == [entry.name] and not warned


WRITER = """
import itertools, os, sys
from trainc.base import cache
cache.directory()
for i in itertools.count():
    name = "%064x" % (i % 5)
    cache._store(name, {"i": i}, bytes([i % 251]) * (2 << 20))
    if i == 0: print("writes", flush=True)
"""


def test_a_killed_writer_leaves_whole_entries(directory):
    """SIGKILL at random moments of writing: what stands under an entry's name is an entry, the first or the last of its kind."""
    random.seed(6)
    kills = unfinished = 0
    while kills < 12 or (kills < 200 and not (unfinished and len(entries(directory)) == 5)):  # until one fell into the writing
        kills += 1
        writer = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, env=_environment(directory))
        writer.stdout.readline()
        time.sleep(random.random() * 0.1 * (1 + kills // 10))  # on a busy machine writing takes longer
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        for entry in entries(directory):
            about, blob = contents(entry)
            assert blob == bytes([about["i"] % 251]) * (2 << 20)
        unfinished += len(list(directory.glob("*.tmp")))
    assert len(entries(directory)) == 5 and unfinished > 0
    for file in directory.glob("*.tmp"):
        os.utime(file, (0, 0))
    cache._store("ee" * 32, {}, b"x")
    assert not list(directory.glob("*.tmp"))


def _environment(directory, **more):
    return {**os.environ, "TRAINC_ENGINE": "core", "TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(directory), **more}


EIGHT = """
import json, os, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import test_cache, trainc
trainc.config.cache = False
test_cache.train()  # what tracing imports is there before the fork
trainc.config.cache = True
gate, open_gate = os.pipe()
children = []
for i in range(8):
    if (child := os.fork()) == 0:
        os.close(open_gate)
        os.read(gate, 1)  # until all are there
        results, stored, plans = test_cache.train()
        import hashlib
        line = json.dumps([hashlib.sha256(b"".join(results)).hexdigest(), stored, plans]) + "\\n"
        os.write(1, line.encode())
        os._exit(0)
    children.append(child)
os.close(open_gate)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="with CUDA, PyTorch has no autograd in forked processes")
def test_eight_processes_at_once(directory):
    script = EIGHT.format(tests=os.path.dirname(__file__))
    done = forked.run(["-c", script], env=_environment(directory), timeout=900)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 8 and len({line[0] for line in lines}) == 1
    assert sum(plans - stored for _, stored, plans in lines) == 4, "each plan is compiled by one of them"
    assert len(entries(directory)) == 4 and len(list(directory.iterdir())) == 4  # and no lock is left
    assert "cache" not in done.stderr


def test_a_lock_that_nobody_gives_back(directory, monkeypatch):
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.2)
    name = cache.key("forward", CompileOptions.of(HOST), "graph")
    with cache._alone(name):
        value, _ = cache.through(name, lambda *_: pytest.fail("nothing is stored"), lambda: 5, lambda _: ({}, b"five"))
    assert value == 5
    assert cache.through(name, lambda about, blob: blob, lambda: 6, lambda _: ({}, b""))[0] == b"five"


# ---- the directory ----------------------------------------------------------------------------------------------------


def test_the_directory_is_the_users_alone(directory, strict):
    train()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(entry.stat().st_mode & 0o777 == 0o600 for entry in entries(directory))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write(directory, mode):
    directory.mkdir()
    directory.chmod(mode)
    with pytest.warns(messages.TraincWarning, match="others can write to it.*chmod go-w") as warnings:
        train()
        train()
    assert len(said(warnings)) == 1 and not list(directory.iterdir())


def test_a_directory_of_another_user(directory, monkeypatch):
    directory.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(messages.TraincWarning, match="belongs to another user"):
        train()
    assert not list(directory.iterdir())


def test_a_full_disk(directory, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(messages.TraincWarning, match="cannot be stored in .* No space left") as warnings:
        train()
    assert len(said(warnings)) == 1 and not list(directory.iterdir())


def test_an_error_of_the_compiler_stores_nothing(directory, monkeypatch):
    def fails(*_, **__):
        raise InternalError("after sink_casts")

    monkeypatch.setattr(trainc._core, "JointGraph", fails)
    with pytest.warns(messages.TraincWarning, match="after sink_casts"):
        model = trainc.compile(Net())
        model(torch.arange(3)).sum().backward()
    assert not list(directory.iterdir())


def test_it_can_be_turned_off(directory, monkeypatch):
    monkeypatch.setattr(config, "cache", False)
    train()
    assert not directory.exists()
    monkeypatch.setattr(config, "cache", True)
    monkeypatch.setenv("TRAINC_DUMP", "nothing")  # whoever wants to see the compiler at work
    train()
    assert not entries(directory)


# ---- the size -----------------------------------------------------------------------------------------------------------


def names(directory):
    return [int(entry.stem, 16) for entry in entries(directory)]


def test_the_least_recently_used_go(directory, monkeypatch):
    monkeypatch.setattr(config, "cache_size", "10kB")
    directory.mkdir(mode=0o700)
    for i in range(8):
        cache._store(f"{i:064x}", {}, bytes(2000))
        os.utime(directory / f"{i:064x}.plan", (i, i)) if i < 4 else None
        if i == 3:
            assert names(directory) == [0, 1, 2, 3]
            assert cache._loaded(f"{0:064x}", lambda *_: True)  # used: not the oldest any more
    assert names(directory) == [4, 5, 6, 7]
    assert sum(entry.stat().st_size for entry in entries(directory)) <= 10_000
    cache._store(f"{9:064x}", {}, bytes(20_000))
    assert names(directory) == [4, 5, 6, 7], "what never fits throws nothing out"


def test_using_an_entry_keeps_it(directory, monkeypatch):
    monkeypatch.setattr(config, "cache_size", 5000)
    directory.mkdir(mode=0o700)
    for i in range(2):
        cache._store(f"{i:064x}", {}, bytes(2000))
        os.utime(directory / f"{i:064x}.plan", (i + 1, i + 1))
    assert cache._loaded(f"{0:064x}", lambda *_: True)
    cache._store(f"{2:064x}", {}, bytes(2000))
    assert names(directory) == [0, 2]


def test_sizes_are_read_or_refused(monkeypatch):
    for text, size in {"1GB": 10**9, "500 mb": 5 * 10**8, "1.5k": 1500, "77": 77, 10: 10, "0": 0}.items():
        monkeypatch.setattr(config, "cache_size", text)
        assert config.cache_bytes() == (size or 10**9 if text == "" else size)
    monkeypatch.setattr(config, "cache_size", None)
    monkeypatch.setenv("TRAINC_CACHE_SIZE", "much")
    with pytest.raises(trainc.UserError, match="'much' is no size: write"):
        config.cache_bytes()


def test_the_command(directory, capsys):
    train()
    cli.main(["cache", "info"])
    told = capsys.readouterr().out
    assert str(directory) in told and "plans       4\n" in told and "state       on" in told
    cli.main(["cache", "clear"])
    assert capsys.readouterr().out.startswith("removed 4 plans, ")
    assert not list(directory.iterdir())
    cli.main(["cache", "clear"])
    assert capsys.readouterr().out.startswith("removed 0 plans, ")
    with pytest.raises(SystemExit):
        cli.main(["cache", "--help"])
    assert "TRAINC_CACHE_DIR" in capsys.readouterr().out


def test_explain_says_what_was_stored(directory):
    for words in ("compile", "from the cache"):
        torch.manual_seed(0)
        model = trainc.compile(Net())
        model(torch.arange(7)).sum().backward()
        assert words in str(trainc.explain(model))


def step_losses():
    """A train_step's losses, and whether its plans were stored ones."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    @trainc.train_step
    def step(ids):
        loss = model(ids).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step(torch.arange(7)).item() for _ in range(4)]
    return losses, [plan.report()["from_cache"] for record in records.of(step) for plan in record.executables()]


def test_a_train_step_is_stored(directory, strict, monkeypatch):
    first, stored = step_losses()
    assert stored == [False] and len(entries(directory)) == 1

    def forbidden(*_):
        raise AssertionError("compiles")

    monkeypatch.setattr(trainc._core, "JointGraph", forbidden)
    assert step_losses() == (first, [True])


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 40), nn.Linear(40, 3)

    def forward(self, x):
        return (self.two(torch.tanh(self.one(x))) / x.shape[0]).sum(0)


def several_sizes(rows):
    """What comes out for each number of rows, and how many of the plans were stored ones, of how many."""
    torch.manual_seed(0)
    model = trainc.compile(Rows())
    results = {}
    for n in rows:
        model(torch.ones(n, 6)).square().sum().backward()
        results[n] = [p.grad.numpy().tobytes() for p in model.parameters()]
        model.zero_grad()
    plans = [plan for record in records.of(model) for plan in record.executables()]
    return results, sum(plan.from_cache for plan in plans), len(plans)


def test_plans_of_several_sizes_are_stored(directory, strict, monkeypatch):
    first, stored, plans = several_sizes((8, 5, 3, 20))
    assert (stored, plans) == (0, 8) and len(entries(directory)) == 8
    # Some of them are gone, and others come in another order: kernels are shared otherwise, and the results are the same.
    for entry in entries(directory)[::3]:
        entry.unlink()
    again, stored, plans = several_sizes((8, 20, 7, 5, 3))
    assert plans == 10 and 0 < stored < 8
    assert all(again[n] == first[n] for n in first)

    def forbidden(*_):
        raise AssertionError("compiles")

    for name in ("JointGraph", "compile", "SharedKernels"):
        monkeypatch.setattr(trainc._core, name, forbidden)
    assert several_sizes((8, 20, 7, 5, 3)) == (again, 10, 10)
