"""The files that start examples/distributed/train_ddp.py elsewhere: what they name is there. Ray Train's program runs behind
`make test-distributed`, where Ray is installed. (torchrun's: test_torchrun.py.)"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "distributed"
SCRIPT = "examples/distributed/train_ddp.py"


def test_the_sbatch_file():
    file = FOLDER / "train_ddp.sbatch"
    text = file.read_text()
    subprocess.run(["bash", "-n", file], check=True)
    assert SCRIPT in text and (FOLDER.parents[1] / SCRIPT).exists()
    # torchrun starts the processes of a node: Slurm starts one torchrun on each.
    assert "#SBATCH --ntasks-per-node=1" in text and "srun torchrun" in text
    options = set(re.findall(r"--[a-z-]+(?==)", text[text.index("srun torchrun") :]))
    told = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--help"], capture_output=True, text=True).stdout
    assert len(options) == 5 and all(option in told for option in options), options


def test_the_job_of_kubernetes():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((FOLDER / "train_ddp.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch" and container["command"] == ["torchrun", SCRIPT]  # the operator looks for that name
    assert worker["replicas"] == job["spec"]["elasticPolicy"]["maxReplicas"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.skipif(
    not os.environ.get("TRAINC_MORE_RANKS") or importlib.util.find_spec("ray") is None, reason="make test-distributed, with Ray"
)
def test_ray_train(tmp_path):
    environment = {
        **os.environ, "TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200",
    }  # fmt: skip
    found = []
    for option in ("--eager", "--batch=4"):
        done = subprocess.run(
            [sys.executable, FOLDER / "train_ray.py", "--steps", "4", option], capture_output=True, text=True, timeout=600,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert "weights are the same on all ranks" in done.stdout + done.stderr
        losses = dict(re.findall(r"step (\d+)  loss (\S+)", done.stdout + done.stderr))  # Ray prints a line twice
        found.append([float(losses[str(step)]) for step in range(4)])
    assert found[1] == pytest.approx(found[0], abs=2e-5)
