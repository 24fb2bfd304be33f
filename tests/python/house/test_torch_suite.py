"""`make torch-suite` over tests of our own: each of its verdicts, for what it is meant for."""

import json
import subprocess
import sys
from pathlib import Path

TESTS = """
import torch
import torch._dynamo.testing
from torch._dynamo.testing import CompileCounter, Unheard
from torch._functorch.aot_autograd import aot_function
from torch._inductor.compile_fx import compile_fx
from torch._inductor.test_case import TestCase


class SmallTest(TestCase):
    def test_compiles(self):
        double = torch.compile(lambda x: x * 2)
        self.assertEqual(double(torch.ones(3)), torch.full((3,), 2.0))

    def test_counts(self):
        counter = CompileCounter()
        torch.compile(lambda x: x + 1, backend=counter)(torch.ones(3))
        self.assertEqual(counter.frame_count, 1)

    def test_by_name(self):
        torch.compile(lambda x: x + 1, backend=lambda gm, inputs: compile_fx(gm, inputs))(torch.ones(3))

    def test_ahead(self):
        f = aot_function(lambda x: (x * x).sum(), fw_compiler=None)
        x = torch.ones(3, requires_grad=True)
        f(x).backward()
        self.assertEqual(x.grad, torch.full((3,), 2.0))

    def test_falls_back(self):
        @torch.compile
        def count(x):
            return x.nonzero().shape[0] + x
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            self.assertEqual(count(torch.ones(3)), torch.full((3,), 4.0))

    def test_plain(self):
        self.assertEqual(torch.ones(4).sum(), 4)

    def test_reads(self):
        torch.compile(lambda x: x + 1)(torch.ones(3))
        self.assertGreater(torch._inductor.metrics.generated_kernel_count, 0)

    def test_differs(self):
        from trainc.torch.doors import backend
        before = len(backend.compilations)
        torch.compile(lambda x: x + 1)(torch.ones(3))
        self.assertEqual(len(backend.compilations), before)

    @Unheard
    def test_of_another_version(self):
        pass

    def test_uses_another_version(self):
        Unheard.something


class CommonTemplate:
    def test_template(self):
        self.common(lambda x: x.sin(), (torch.ones(3),))

    def test_integers(self):
        self.common(lambda x: x + 1, (torch.arange(3),))


def check_model(self, model, inputs, check_gradient=False):
    found, wanted = torch.compile(model)(*inputs), model(*inputs)
    self.assertEqual(found, wanted)
    self.assertEqual(found.requires_grad, check_gradient)
"""
BECOMES = {
    "SmallTest": {
        "compiles": "compiled", "counts": "compiled", "by_name": "compiled", "ahead": "compiled", "falls_back": "fell back",
        "plain": "no graph", "reads": "fails plainly", "differs": "wrong", "of_another_version": "skipped",
        "uses_another_version": "skipped",
    },
    "OnCpu": {"template": "compiled", "integers": "compiled"},
    "WithGradients": {"template": "compiled", "integers": "skipped"},
}  # fmt: skip


def test_each_verdict(tmp_path):
    (tmp_path / "test" / "inductor").mkdir(parents=True)
    (tmp_path / "test" / "inductor" / "test_small.py").write_text(TESTS)
    out = tmp_path / "results.jsonl"
    run = [sys.executable, Path(__file__).parents[2] / "torch_suite", tmp_path, "--files", "inductor/test_small", "--out", out]
    done = subprocess.run(run, capture_output=True, text=True, timeout=900)
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    found: dict = {}
    for v in verdicts:
        if v["class"] != "group":
            name, _, test = v["case"].partition("/")[2].partition(".test_")
            found.setdefault(name, {})[test] = v["class"]
    assert found == BECOMES, done.stdout[-3000:] + done.stderr[-2000:]
    assert done.returncode == 1 and "wrong test_small/SmallTest.test_differs" in done.stdout
