"""ddp2 on two simulated machines of two simulated devices each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import needs_compiler
from .problem import BATCH, EPOCHS, data, make_net

pytestmark = needs_compiler

_SCRIPT = Path(__file__).parent / "scripts" / "ddp2.py"


def _run(tmp_path: Path, environs: list[dict[str, str]], **arguments: Any) -> list[dict[str, Any]]:
    """What each process printed."""
    started = [
        subprocess.Popen(
            [sys.executable, str(_SCRIPT), json.dumps(arguments)],
            env={**os.environ, **environ},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environ in environs
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * len(started), outputs
    assert all("strategy='ddp2' is discouraged" in errors for _, errors in outputs)
    return [json.loads(output) for output, _ in outputs]


def _by_hand(shares: int, accumulate: int = 1) -> torch.Tensor:
    """The parameters after a plain loop over the joined batches of all machines."""
    inputs, labels = data().tensors
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for number, begin in enumerate(range(0, len(inputs), shares * BATCH), start=1):
            chosen = slice(begin, begin + shares * BATCH)
            loss = torch.nn.functional.cross_entropy(net(inputs[chosen]), labels[chosen])
            (loss / accumulate).backward()  # type: ignore[no-untyped-call]
            if number % accumulate == 0 or begin + shares * BATCH >= len(inputs):
                optimizer.step()
                optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


_TORCHRUN = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("arguments", "by_rank"),
    [
        ({"num_nodes": 2}, [{"NODE_RANK": str(rank)} for rank in range(2)]),
        (
            {"accumulate_grad_batches": 2},
            [{**_TORCHRUN, "RANK": str(rank), "GROUP_RANK": str(rank)} for rank in range(2)],
        ),
    ],
    ids=["by hand", "as by torchrun"],
)
def test_two_machines_equal_the_plain_loop(
    tmp_path: Path, arguments: dict[str, Any], by_rank: list[dict[str, str]]
) -> None:
    """Each machine splits its share over its devices; all end with the parameters of a loop over joined batches."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    results = _run(tmp_path, [{**place, **environ} for environ in by_rank], **arguments)
    expected = _by_hand(2, arguments.get("accumulate_grad_batches", 1))
    for result in results:
        assert result["world_size"] == 2
        assert result["backend"] == "accl"
        assert result["seen"] == [f"acme:{number} acme:{number} 4 float32" for number in (0, 1)]
        assert (torch.tensor(result["parameters"]) - expected).abs().max() <= 1e-6
    assert results[0]["parameters"] == results[1]["parameters"]


def test_one_machine(tmp_path: Path) -> None:
    """On one machine, one process drives all devices, and nothing is launched next to it."""
    (result,) = _run(tmp_path, [{}])
    assert result["world_size"] == 1
    assert (torch.tensor(result["parameters"]) - _by_hand(1)).abs().max() <= 1e-6
