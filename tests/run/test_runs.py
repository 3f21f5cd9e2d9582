"""``torch-hal run`` on real processes: an unchanged script trains, fails, is restarted and is ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from python_processes import SETTINGS, run_python

from .test_command_line import is_running, wait_for

SCRIPTS = Path(__file__).parent / "scripts"


def torch_hal_run(*arguments: object, out: Path, expect: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "core.run", *arguments]
    env = {"OUT": str(out), **environ}
    return run_python(*command, cwd=out, expect=expect, timeout=120, leaves_nothing=True, env=env)


def states(out: Path) -> dict[int, dict[str, torch.Tensor]]:
    return {int(path.stem[4:]): torch.load(path) for path in sorted(out.glob("rank*.pt"))}


def assert_same(found: Path, expected: Path, ranks: int) -> None:
    one, other = states(found), states(expected)
    assert sorted(one) == sorted(other) == list(range(ranks))
    for rank in one:
        for name, value in one[rank].items():
            assert torch.equal(value, other[rank][name]), (rank, name)


def test_an_unchanged_script_on_three_processes(tmp_path: Path) -> None:
    """Its ranks are those of the run, each line has its rank in front, and a file for each rank has the same."""
    logs = tmp_path / "logs"
    done = torch_hal_run(
        *("--devices", "3", "--strategy", "ddp_sharded", "--prefix", "--log-dir", logs, SCRIPTS / "elastic.py"),
        out=tmp_path,
    )
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} has 3 peers, restart 0" for rank in range(3)]
    assert "rank 2 has 3 peers" in (logs / "rank_2.log").read_text()
    assert sorted(states(tmp_path)) == [0, 1, 2]


CONFIGURED = """
import os
from core import Runtime

os.chdir("/")
runtime = Runtime(devices="auto")
os.write(1, f"{runtime.plan.strategy.name} {runtime.process_index} of {runtime.num_processes}\\n".encode())
"""


def test_a_config_file(tmp_path: Path) -> None:
    """It says how many processes start, and each of them reads the same, whatever its folder is by then."""
    (tmp_path / "run.toml").write_text("accelerator = 'cpu'\ndevices = 2\nstrategy = 'ddp_sharded'\n")
    (tmp_path / "configured.py").write_text(CONFIGURED)
    done = torch_hal_run("--config", "run.toml", "configured.py", out=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["ddp_sharded 0 of 2", "ddp_sharded 1 of 2"]


LISTENING = """
import os
from pathlib import Path
from core import Runtime

Runtime(accelerator="cpu").barrier()
inodes = set()
for process in (os.getpid(), os.getppid()):
    for name in os.listdir(f"/proc/{process}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{process}/fd/{name}"))
        except OSError:
            pass
rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
own = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
print(os.environ["GLOO_SOCKET_IFNAME"], *own)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's sockets as files")
def test_one_machine_alone_listens_on_no_network(tmp_path: Path) -> None:
    """Neither the agent nor the processes; gloo gets the loopback interface, whatever the machine's name stands for."""
    (tmp_path / "listens.py").write_text(LISTENING)
    done = torch_hal_run("--devices", "2", "--prefix", "listens.py", out=tmp_path)
    lines = sorted(line.split() for line in done.stdout.splitlines())
    assert [line[:2] for line in lines] == [["[0]", "lo"], ["[1]", "lo"]]
    assert {address for line in lines for address in line[2:]} == {"0100007F"}


@pytest.mark.slow
def test_it_trains_as_torchrun_does(tmp_path: Path) -> None:
    """The same script under torchrun, with the variables set by hand, ends with the same bits."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    torch_hal_run("--devices", "3", "--strategy", "ddp", SCRIPTS / "elastic.py", out=ours)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "3", SCRIPTS / "elastic.py"]
    env = {"OUT": str(theirs), "CORE_STRATEGY": "ddp"}
    run_python(*command, cwd=theirs, env=env, warnings="ignore", timeout=120)
    assert_same(ours, theirs, 3)


@pytest.mark.slow
def test_a_restarted_run_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """SIGKILL of rank 1 in the second epoch; all start again from the last checkpoint and end with the same bits."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    torch_hal_run("--devices", "3", SCRIPTS / "elastic.py", out=whole)
    done = torch_hal_run("--devices", "3", "--max-restarts", "2", SCRIPTS / "elastic.py", "die", out=broken)
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} has 3 peers, restart 1" for rank in range(3)]
    assert_same(broken, whole, 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two sockets have a port that none listens at")
def test_nobody_takes_the_port_of_the_store(tmp_path: Path) -> None:
    """Before rank 0 opens it, neither at the first start nor after a restart."""
    (tmp_path / "stranger.py").write_text(
        "import os, socket\n"
        "rank, restart = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "try:\n"
        "    socket.socket().bind(('', int(os.environ['MASTER_PORT'])))\n"
        "except OSError:\n"
        "    print(f'refused to {rank} {restart}\\n', end='')\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.destroy_process_group()\n"
        "if restart == '0':\n"
        "    os._exit(1)\n"
    )
    done = torch_hal_run("--devices", "3", "--max-restarts", "1", tmp_path / "stranger.py", out=tmp_path)
    assert sorted(set(done.stdout.split("\n"))) == [
        "",
        *(f"refused to {rank} {time}" for rank in "012" for time in "01"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "says"), [("7", 7, "exited with code 7"), ("killed", 137, "SIGKILL")])
def test_the_exit_code_is_the_failed_ranks(
    how: str, code: int, says: str, tmp_path: Path, started_not_forked: None
) -> None:
    """Its own, or 128 + n for signal n; the message names the rank; nothing is left."""
    done = torch_hal_run("--devices", "3", SCRIPTS / "ends.py", how, out=tmp_path, expect=code)
    assert re.search(rf"core.run: rank 1 \(process \d+\) .*{says}", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_end_of_the_agent_is_the_end_of_its_processes(
    number: signal.Signals, code: int, tmp_path: Path, started_not_forked: None
) -> None:
    """Whether it can handle the signal or not, no process is left that trains to the end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    command = [sys.executable, "-m", "core.run", "--devices", "3", str(SCRIPTS / "ends.py"), "sleep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path) as agent:
        try:
            assert agent.stdout is not None
            ranks = [int(agent.stdout.readline().split()[-1]) for _ in range(3)]
            assert all(map(is_running, ranks))
            agent.send_signal(number)
            assert agent.wait(60) == code
            wait_for(lambda: not any(map(is_running, ranks)))
        finally:
            agent.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_a_second_signal_ends_the_agent_at_once(
    number: signal.Signals, tmp_path: Path, started_not_forked: None
) -> None:
    """Its processes have 30 seconds to end after the first; the second kills them, and says so."""
    script = (
        "import os, signal, time\n"
        f"signal.signal({int(number)}, lambda *_: os.write(1, b'received\\n'))\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "end = time.monotonic() + 300\n"
        "while time.monotonic() < end:\n"
        "    time.sleep(0.1)\n"
    )
    (tmp_path / "script.py").write_text(script)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    environ["TMPDIR"] = str(tmp_path)
    command = [sys.executable, "-m", "core.run", "--devices", "2", "script.py"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd=tmp_path
    ) as agent:
        try:
            assert agent.stdout is not None
            ranks = [int(agent.stdout.readline()) for _ in range(2)]
            agent.send_signal(number)
            assert [agent.stdout.readline() for _ in range(2)] == ["received\n"] * 2
            time.sleep(0.6)
            assert all(map(is_running, ranks))
            begin = time.monotonic()
            agent.send_signal(number)
            said = agent.communicate(timeout=20)[1]
            assert time.monotonic() - begin < 10  # on a machine that does other things too
            assert agent.returncode == 128 + number
            assert f"a second {number.name} ends this process" in said
            wait_for(lambda: not any(map(is_running, ranks)))
        finally:
            agent.kill()
    assert not list(tmp_path.glob("torch-hal-run-*"))


@pytest.mark.slow
def test_the_end_of_torchruns_agent_is_the_end_of_its_processes(tmp_path: Path, started_not_forked: None) -> None:
    """It leaves its processes running if it is killed; they end by themselves, and say why."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    script = [str(SCRIPTS / "ends.py"), "sleep"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *script]
    with (
        open(tmp_path / "errors", "w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ, cwd=tmp_path) as agent,
    ):
        try:
            assert agent.stdout is not None
            ranks = [int(agent.stdout.readline().split()[-1]) for _ in range(2)]
            agent.kill()
            wait_for(lambda: not any(map(is_running, ranks)))
        finally:
            agent.kill()
            for rank in ranks:
                with suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
    assert re.search(r"rank [01] ends because its launcher", (tmp_path / "errors").read_text())


@pytest.mark.slow
def test_the_agent_passes_sigusr1_on(tmp_path: Path, started_not_forked: None) -> None:
    """It would end by it; the first process gets it, and tells the others."""
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(os.write(1, b'received') - 8))\n"
        "os.write(1, b'ready\\n')\n"
        "time.sleep(300 * (os.environ['RANK'] == '0'))\n"
    )
    (tmp_path / "script.py").write_text(code)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    command = [sys.executable, "-m", "core.run", "--devices", "2", "script.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path) as agent:
        try:
            assert agent.stdout is not None
            assert [agent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            agent.send_signal(signal.SIGUSR1)
            assert agent.communicate(timeout=60)[0] == "received"
            assert agent.returncode == 0
        finally:
            agent.kill()


@pytest.mark.slow
def test_two_machines_meet_at_an_address(tmp_path: Path) -> None:
    """Two agents, here on one host: consecutive ranks, and the same parameters everywhere."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "core.run", *arguments, "--devices", "2", str(SCRIPTS / "elastic.py")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    environ |= {"OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
        for _ in range(2)
    ]
    try:
        printed = [machine.communicate(timeout=120)[0] for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    assert [machine.returncode for machine in machines] == [0, 0], printed
    assert sorted("".join(printed).splitlines()) == [f"rank {rank} has 4 peers, restart 0" for rank in range(4)]
    found = states(tmp_path)
    assert all(torch.equal(found[0][name], found[rank][name]) for rank in range(4) for name in found[0])


def test_another_program(tmp_path: Path) -> None:
    """``--no-python`` starts it with the ranks of the run."""
    code = 'echo "rank $RANK of $WORLD_SIZE, $CORE_DEVICES, $0"; exit $((RANK * 5))'
    done = torch_hal_run("--devices", "2", "--no-python", "sh", "-c", code, "name", out=tmp_path, expect=5)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2, 2, name", "rank 1 of 2, 2, name"]


@pytest.mark.slow
def test_another_program_listens_at_the_rendezvous(tmp_path: Path, started_not_forked: None) -> None:
    """It accepts connections and says nothing: an error that names the address, not a hang."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoint = f"127.0.0.1:{stranger.getsockname()[1]}"
        arguments = ["--devices", "1", "--nnodes", "2", "--rdzv-endpoint", endpoint, SCRIPTS / "ends.py", "sleep"]
        done = torch_hal_run(*arguments, out=tmp_path, expect=2)
    assert f"--rdzv-endpoint {endpoint}: another program listens there" in done.stderr
