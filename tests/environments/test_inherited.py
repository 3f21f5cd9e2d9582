"""Programs that a process of a run starts: a run of their own, not another rank of the one that started them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from python_processes import run_python

from core.environments.local import OWNER, claim_ranks, own_environ

RANKS = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}

CHILD = """
import os, sys
from core import Runtime
runtime = Runtime(accelerator="cpu", devices=int(sys.argv[1]))
runtime.launch()
runtime.wait_for_everyone()
if runtime.is_main_process:
    os.write(1, f"child {runtime.process_index} {runtime.num_processes}\\n".encode())
runtime.teardown()
"""

PARENT = """
import os, subprocess, sys
if BEFORE:
    from core import Request, resolve
    resolve(Request.read())
    subprocess.run([sys.executable, "child.py", "1"], check=True, timeout=60)
from core import Runtime
runtime = Runtime(accelerator="cpu", devices=DEVICES)
runtime.launch()
for devices in ("1", "2"):
    subprocess.run([sys.executable, "child.py", devices], check=True, timeout=60)
runtime.wait_for_everyone()
again = Runtime(accelerator="cpu", devices=DEVICES)
again.launch()
os.write(1, f"parent {again.process_index} {again.num_processes}\\n".encode())
"""


def test_ranks_are_used_by_the_first_process_that_asks() -> None:
    """It may ask again; a process with another number may not, unless it was given other ranks."""
    environ = dict(RANKS)
    names = [*RANKS, "MY_RANK"]
    claim_ranks(["RANK", "MY_RANK"], names, environ)
    assert environ[OWNER].startswith(f"{os.getpid()}/")
    assert own_environ(environ)["RANK"] == "1"
    child = {**environ, OWNER: environ[OWNER].replace(str(os.getpid()), "1", 1), "OTHER": "x"}
    assert own_environ(dict(child)) == {"OTHER": "x"}
    assert own_environ({**child, "RANK": "0"})["RANK"] == "0"
    assert own_environ({**child, OWNER: "rubbish"})["RANK"] == "1"
    assert own_environ({**child, "MY_RANK": "0"})["RANK"] == "1"  # another launcher has started it
    assert own_environ({"OTHER": "x"}) == {"OTHER": "x"}
    for environ, is_claimed in ((child, False), ({**child, "RANK": "0"}, True), ({"OTHER": "x"}, False)):
        claimed = dict(environ)
        claim_ranks(["RANK"], names, claimed)
        assert claimed.get(OWNER, "").startswith(f"{os.getpid()}/") == is_claimed


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["own", pytest.param("torchrun", marks=pytest.mark.exhaustive)])
def test_a_script_that_a_rank_starts_is_a_run_of_its_own(launcher: str, tmp_path: Path) -> None:
    """Of one process, or of as many as it asks for; from any rank, while the run goes on."""
    own = launcher == "own"
    parent = PARENT.replace("DEVICES", "2" if own else "'auto'").replace("BEFORE", str(not own))
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "parent.py").write_text(parent)
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d"]
    command = [] if own else [*torchrun, "--rdzv_endpoint", "127.0.0.1:0"]
    lines = run_python(*command, "parent.py", cwd=tmp_path, warnings="ignore", timeout=150).stdout.splitlines()
    assert sorted(lines) == sorted([*["child 0 1"] * (2 if own else 4), *["child 0 2"] * 2, "parent 0 2", "parent 1 2"])
