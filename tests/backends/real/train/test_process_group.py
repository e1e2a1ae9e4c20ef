"""The process group: what travels over what, and how long ranks wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.real

# On a "GPU" whose tensors travel over gloo, too: there is no NCCL here.
RANK = """\
import os, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from isolaw.backends.real import environment
from isolaw.backends.real.train import process_group
asked = []
start = dist.init_process_group
def init(backend, **more):
    asked.append(backend)
    start(backend.replace("nccl", "gloo"), **more)
dist.init_process_group = init
environment.gpus = lambda: 1
process_group.start(2.5)
process_group.start(1.0)  # of the next run in this process
assert asked == ["cpu:gloo,cuda:nccl"]
rank, world = dist.get_rank(), dist.get_world_size()
found = process_group.exchange_tensors({"rows": torch.arange(rank + 2)})
assert [one["rows"].tolist() for one in found] == [list(range(k + 2)) for k in range(world)]
sent = []
gather = dist.all_gather
def watched(outputs, value, **more):
    sent.append(value.device.type)
    gather(outputs, value, **more)
dist.distributed_c10d.all_gather = watched
objects = [None] * dist.get_world_size()
dist.all_gather_object(objects, {"rank": dist.get_rank()})
assert objects == [{"rank": rank} for rank in range(dist.get_world_size())]
assert set(sent) == {"cpu"}
for group in (dist.group.WORLD, dist.new_group(), dist.new_group(backend="gloo")):  # DeepSpeed's, vLLM's
    assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(hours=2.5)
assert dist.distributed_c10d._get_default_timeout(dist.Backend.NCCL) == timedelta(hours=2.5)
here = Path(__file__)  # a rank that leaves closes connections that the others may still be making
here.with_name(f"done-{dist.get_rank()}").touch()
while len(list(here.parent.glob("done-*"))) < dist.get_world_size():
    time.sleep(0.05)
os._exit(0)
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_objects_travel_over_gloo_and_every_group_waits_for_hours(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    words = [sys.executable, str(tmp_path / "rank.py")]
    if ranks > 1:
        words[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    done = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
