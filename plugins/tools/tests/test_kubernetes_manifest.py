"""``torch-hal manifest``: a JobSet whose fields are those of its API, and whose command ``torch-hal run`` takes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch_hal_tools.kubernetes_manifest import main

from torch_hal.__main__ import main as torch_hal

PROGRAM = "torch-hal manifest"
TEXTS = {"*": str}
CONTAINER = {
    "name!": str,
    "image": str,
    "command": [str],
    "volumeMounts": [{"name!": str, "mountPath!": str}],
    "resources": {"limits": TEXTS},
}
POD = {
    "restartPolicy": str,
    "containers!": [CONTAINER],
    "volumes": [{"name!": str, "emptyDir": {"medium": str}}],
}
JOB = {
    "completionMode": str,
    "parallelism": int,
    "completions": int,
    "backoffLimit": int,
    "template!": {"spec": POD},
}
JOBSET = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "network": {"enableDNSHostnames": bool},
        "failurePolicy": {"maxRestarts": int},
        "replicatedJobs": [{"name!": str, "replicas": int, "template!": {"spec": JOB}}],
    },
}
"""Those fields of ``jobset.x-k8s.io/v1alpha2`` and of the Job in it that a manifest here may have, with their types.

The whole schema, in the JobSet project, has the same; ``!`` stands after what it requires.
"""


def check(schema: Any, value: Any) -> None:
    """See that ``value`` is what the schema says: no other field, each of its type, none missing that is required."""
    if isinstance(schema, type):
        assert type(value) is schema
    elif isinstance(schema, list):
        for each in value:
            check(schema[0], each)
    else:
        fields = {name.removesuffix("!"): each for name, each in schema.items()}
        assert {name.removesuffix("!") for name in schema if name.endswith("!")} <= value.keys()
        for name, each in value.items():
            check(fields.get(name, fields.get("*")), each)


def manifest(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What the command prints."""
    assert main(["--name", "net", "--image", "me/net:1", *arguments], PROGRAM) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def command_of(found: dict[str, Any]) -> list[str]:
    """The command of a manifest's pods."""
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    command: list[str] = container["command"]
    return command


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py"],
        ["--resource", "nvidia.com/gpu=8", "--resource", "memory=64Gi", "--max-restarts", "3", "train.py"],
        ["--num-nodes", "4", "--devices", "8", "train.py", "--lr", "0.1"],
    ],
)
def test_it_has_the_fields_of_a_jobset(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No other ones, of the types that the schema has, and what it requires."""
    found = manifest(capsys, *arguments)
    check(JOBSET, found)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    nodes = 4 if "--num-nodes" in arguments else 1
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (nodes, nodes, "Indexed")
    (container,) = job["template"]["spec"]["containers"]
    if "--resource" in arguments:
        assert container["resources"] == {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi"}}
        assert found["spec"]["failurePolicy"] == {"maxRestarts": 3}


def test_torch_hal_run_takes_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings of a file; options overrule it, and what follows the script is the script's."""
    (tmp_path / "run.toml").write_text("strategy = 'ddp'\ndevices = [0, 1]\nnum_nodes = 2\nprecision = 64\n")
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)\n")
    monkeypatch.chdir(tmp_path)
    given = ["--config", str(tmp_path / "run.toml"), "--precision", "bf16-mixed", "train.py", "--devices", "1"]
    shell, option, _, first, *run = command_of(manifest(capsys, *given))
    assert [shell, option, first] == ["sh", "-c", "net-node-0-0.net"]
    assert run[:2] == ["torch-hal", "run"]
    assert "--rdzv-endpoint=net-node-0-0.net:29400" in run
    assert torch_hal(["run", "--dry-run", *run[2:]]) == 0
    out = capsys.readouterr().out
    assert "2 process(es) on each of 2 machines run: " in out
    assert out.count("train.py --devices 1\n") == 1
    assert "bf16-mixed" in out
    alone = command_of(manifest(capsys, "--devices", "1,", "train.py"))
    assert alone == ["torch-hal", "run", "--devices=1,", "train.py"]


def test_a_list_of_one_device_stays_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``devices=3`` would be three devices."""
    (tmp_path / "run.toml").write_text("devices = [3]\n")
    command = command_of(manifest(capsys, "--config", str(tmp_path / "run.toml"), "train.py"))
    assert command == ["torch-hal", "run", "--devices=3,", "train.py"]


def test_a_pod_waits_for_the_name_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The shell starts the command as it stands once the name is known."""
    command = command_of(manifest(capsys, "--num-nodes", "2", "train.py"))
    done = subprocess.run(
        [*command[:3], "localhost", "echo", "a  b", "$HOME"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "a  b $HOME\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--name", "Net"], "--name 'Net': must have at most 40 small letters"),
        (["--name", "a" * 41], "at most 40"),
        (["--num-nodes", "0"], "num_nodes (number of machines) must be 'auto' or an integer ≥ 1"),
        (["--resource", "gpu"], "--resource 'gpu': must be a name and a quantity"),
        (["--max-restarts", "-1"], "--max-restarts -1 must be an integer ≥ 0"),
        (["--config", "no.toml"], "config file 'no.toml'"),
    ],
)
def test_invalid_arguments(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option and what was given; nothing is printed."""
    given = ["--name", "net", "--image", "i", *arguments, "train.py"]
    assert main(given, PROGRAM) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert not out
