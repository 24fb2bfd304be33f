"""`make jax-suite`: over tests of our own, each of its verdicts for what it is meant for; and a sample of JAX's cases."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import jax
import jax.numpy as jnp
import jax._src.test_util as jtu
import numpy as np

jax.config.parse_flags_with_absl()


class SmallTest(jtu.JaxTestCase):
    def test_checks(self):
        self._CompileAndCheck(lambda x: jnp.sin(x) + 1, lambda: [np.arange(3, dtype="float32")])

    def test_jits(self):
        self.assertEqual(jax.jit(lambda x: x.sum())(jnp.ones(4)), 4)

    def test_transforms(self):
        self.assertEqual(jax.jit(lambda x: jnp.abs(jnp.fft.fft(x)))(jnp.ones(4))[0], 4)

    def test_plain(self):
        self.assertEqual(jnp.ones(4).sum(), 4)

    def test_through_a_helper(self):
        self._helper()

    def _helper(self):
        self.assertEqual(jax.jit(lambda x: x * 2)(3), 6)

    def test_reads(self):
        self.assertIn("stablehlo.sine", jax.jit(jnp.sin).lower(1.0).as_text())

    def test_differs(self):
        self.assertIn("jaxlib", type(jax.jit(jnp.sin)).__module__)

    def test_fails(self):
        self.assertEqual(jax.jit(lambda x: x)(1), 2)

    def test_skips(self):
        jax.jit
        self.skipTest("today")
"""
BECOMES = {
    "checks": "compiled", "jits": "compiled", "transforms": "fell back", "plain": "no jit", "through_a_helper": "compiled",
    "reads": "looks inside", "differs": "wrong", "fails": "fails plainly", "skips": "skipped",
}  # fmt: skip


JAX_SUITE = Path(__file__).parents[2] / "jax_suite"


def _verdicts(arguments, out):
    """Of a run, without those of whole parts; and the run."""
    run = [sys.executable, JAX_SUITE, *arguments, "--out", out]
    done = subprocess.run(run, capture_output=True, text=True, timeout=900)
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    return [v for v in verdicts if v["class"] != "group"], done


@pytest.mark.thorough
def test_a_sample_of_jax_s_own_cases(tmp_path):
    pytest.importorskip("jax")
    verdicts, done = _verdicts(["--sample", "--jobs", "1"], tmp_path / "results.jsonl")
    told = done.stdout[-3000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    ours = sum(v["class"] in ("compiled", "in parts") for v in verdicts)
    fell_back = sum(v["class"] == "fell back" for v in verdicts)
    assert ours > 200 and ours > 0.9 * (ours + fell_back), told


def test_each_verdict(tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "small_test.py").write_text(TESTS)
    verdicts, done = _verdicts([tmp_path, "--files", "small_test"], tmp_path / "results.jsonl")
    found = {v["case"].partition(".test_")[2]: v["class"] for v in verdicts}
    assert found == BECOMES, done.stdout[-3000:] + done.stderr[-2000:]
    assert done.returncode == 1 and "wrong small_test/SmallTest.test_differs" in done.stdout
    assert "fft" in done.stdout
