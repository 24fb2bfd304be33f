"""Entries, and the plans in them, that somebody has changed: a miss, never something else and never a crash."""

import json
import os
import subprocess
import sys

from client import cache, cache_files, ended, name_of, plan_of, started, use, want


def mutated(content: bytes, random) -> bytes:
    content = bytearray(content)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(content) + 1)
        length = random.randrange(1, 50)
        how = random.randrange(6)
        if how == 0 and at < len(content):
            content[at] ^= 1 << random.randrange(8)
        elif how == 1:
            del content[at : at + length]
        elif how == 2:
            content[at:at] = random.randbytes(length)
        elif how == 3:
            content[at : at + length] = (
                bytes([random.choice([0, 0x5F, 0x7F, 0x9F, 0x81, 0xBF, 0xFB, 0xFF, 0x1B, 0x5B])]) * length
            )
        elif how == 4:
            del content[at:]
        else:
            content[at:at] = content[at : at + length]
    return bytes(content)


def entries(count, random, where) -> str:
    ended(started(_entries, count, random, where))
    return f"{count} changed entries, and {count} with checksums made to fit: each a miss, and its plan compiled"


def _entries(count, random, where) -> None:
    import signal

    use(where)
    path = where / f"{name_of(1)}.plan"
    cache_files.write(str(path), cache._packed(name_of(1), {"number": 1}, plan_of(1)))
    good = path.read_bytes()
    for _ in range(count):
        signal.alarm(60)
        for fitted in (False, True):
            content = (
                cache_files.packed(mutated(good[cache_files.HEADER :], random)) if fitted else mutated(good, random)
            )
            path.write_bytes(content)
            assert want(1) == (content == good)
            if content.startswith(cache_files.MAGIC):
                assert want(1), "written anew"
            else:
                os.unlink(path)  # it was no entry any more, and stayed


REAL = """
import torch, trainc
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 6), nn.Dropout(0.2), nn.LayerNorm(6), nn.Linear(6, 2))
optimizer = torch.optim.AdamW(model.parameters())
trainc.compile(model, optimizer)
model(torch.arange(5)).logsumexp(1).sum().backward()
optimizer.step()
"""


def plans(count, random, where) -> str:
    """Bytes of real plans behind checksums that fit, in a process that would die of a crash."""
    environment = {**os.environ, "TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(where), "TRAINC_ENGINE": "core"}
    subprocess.run([sys.executable, "-c", REAL], env=environment, check=True)
    real = []
    for path in sorted(where.glob("*.plan")):
        about, blob = cache._unpacked(path.stem, cache_files.read(str(path)))
        real.append((about, blob))
    assert len(real) >= 3
    told = where / "told"
    ended(started(_plans, count, random, real, told))
    loaded, refused = json.loads(told.read_text())
    return f"{count} changed plans behind checksums that fit: {refused} refused, {loaded} loaded as plans, no crash"


def _fitted(blob: bytes, body: bytes) -> bytes:
    checksum = 14695981039346656037
    for byte in body:
        checksum = ((checksum ^ byte) * 1099511628211) & (2**64 - 1)
    return blob[:16] + len(body).to_bytes(8, "little") + checksum.to_bytes(8, "little") + body


def _plans(count, random, real, told) -> None:
    import signal

    from trainc import _core

    loaded = 0
    for i in range(count):
        signal.alarm(60)
        about, blob = real[i % len(real)]
        body = mutated(blob[32:], random)
        changed = _fitted(blob, body if random.random() < 0.9 else b"\x81" * 200_000)
        try:
            if "compile" in about:
                _core.load_plan(changed, {}, "null", "cpu").save()
            else:
                _core.load_foreach(changed, "cpu").save()
            loaded += 1
        except ValueError:
            pass
    told.write_text(json.dumps([loaded, count - loaded]))
