"""Peers that join, leave and are killed: each is a process of its own, started plainly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "peer.py"
STEPS = 30
LIMIT = 300.0


class Peers:
    """The processes of one run."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, front_end: str, *killed_at: int) -> None:
        """Start a peer in a process group of its own: hivemind starts further processes."""
        command = [sys.executable, str(SCRIPT), str(self.out), name, front_end, str(STEPS), *map(str, killed_at)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        env.pop("PYTHONWARNINGS", None)
        with (self.out / f"log-{name}").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True
            )

    def wait_until(self, what: str, happened: Callable[[], bool], but: tuple[str, ...] = ()) -> None:
        """Wait; fail if a peer fails meanwhile."""
        deadline = time.monotonic() + LIMIT
        while not happened():
            for name, process in self.running.items():
                if name not in but and process.poll() not in (None, 0):
                    pytest.fail(f"peer {name} ended with {process.returncode}:\n{self.log(name)}")
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not happen:\n" + "\n".join(map(self.log, self.running)))
            time.sleep(0.1)

    def step_of(self, name: str) -> int:
        """The step that a peer is at; -1 before the first."""
        path = self.out / f"at-{name}"
        return int(path.read_text()) if path.exists() else -1

    def log(self, name: str) -> str:
        """What a peer has written."""
        return f"--- {name}\n" + (self.out / f"log-{name}").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """End what still runs."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the peers said that were not killed."""
    peers = Peers(tmp_path_factory.mktemp("peers"))
    try:
        peers.start("a", "trainer")
        peers.wait_until("a's address", (peers.out / "address").exists)
        peers.start("b", "runtime")
        peers.start("c", "trainer", 8)
        peers.wait_until("b and c", lambda: all((peers.out / f"ready-{one}").exists() for one in "bc"))
        (peers.out / "go").touch()
        peers.wait_until("c's death", lambda: peers.running["c"].poll() is not None, but=("c",))
        assert peers.running["c"].returncode == -signal.SIGKILL, peers.log("c")
        os.killpg(peers.running["c"].pid, signal.SIGKILL)
        peers.start("d", "trainer")
        peers.wait_until("the end", lambda: all(peers.running[one].poll() == 0 for one in "abd"), but=("c",))
        found = {one: json.loads((peers.out / f"said-{one}").read_text()) for one in "abd"}
        found["saved"] = sorted(path.name for path in (peers.out / "saved-a").iterdir())
    finally:
        peers.end()
    return found


def test_progress_survives_a_kill(said: dict[str, Any]) -> None:
    """One of three peers was killed, another one has joined: the loss of all has fallen."""
    for one in "abd":
        assert said[one]["after"] < 0.05 * said[one]["before"]


def test_all_agree(said: dict[str, Any]) -> None:
    """The peers end with the same weights, up to the last steps that a faster one has taken."""
    for one in "bd":
        assert said[one]["weights"] == pytest.approx(said["a"]["weights"], abs=0.05)


def test_a_call_is_not_a_step(said: dict[str, Any]) -> None:
    """max_steps counts the steps of all peers: each takes several calls of 8 samples, of the 48 of a step."""
    for one in "abd":
        assert STEPS <= said[one]["steps"] <= STEPS + 3
    assert said["a"]["calls"] > STEPS


def test_schedulers_follow_the_steps(said: dict[str, Any]) -> None:
    """The learning rate is the same function of the step in all peers, also in one that came late."""
    for one in "abd":
        for step, rate in said[one]["rates"].items():
            assert rate == pytest.approx(0.2 * 0.98 ** int(step), rel=1e-6), (one, step)


def test_the_number_of_peers_changes(said: dict[str, Any]) -> None:
    """The strategy says how many there are."""
    assert max(said[one]["peers"] for one in "abd") >= 2


def test_late_peer_begins_where_the_others_are(said: dict[str, Any]) -> None:
    """The peer that joined has loaded the others' state, and has not taken their steps again."""
    assert 0 < min(step for step in map(int, said["d"]["rates"]) if step) >= 8


def test_checkpoints_are_of_steps(said: dict[str, Any]) -> None:
    """Every fifth step, and each of them once."""
    steps = [int(name.partition("step=")[2].partition(".")[0].partition("-")[0]) for name in said["saved"]]
    assert steps
    assert len(set(steps)) == len(steps)
    assert all(step % 5 == 0 for step in steps)
