"""The verb ``torch-hal ssh``: run a script on several machines, over SSH."""

from __future__ import annotations

import argparse
import itertools
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import IO

from torch_hal.commands.verb_parser import VerbParser

__all__ = ["main", "remote_command"]

GRACE_SECONDS = 30.0
"""How long the other machines have to end by themselves when one has failed, and again when they were interrupted."""

OWN = ("--nnodes", "--num-nodes", "--rdzv-endpoint", "--rdzv-id")
"""Options of ``torch-hal run`` that follow from the machines."""

CONNECTION_FAILED = 255
"""Exit code of ssh's own errors."""

LOST_LINK = 2
"""Exit code of ``torch-hal run`` on a machine that cannot reach the one that serves the rendezvous."""


def remote_command(directory: str, environ: Mapping[str, str], command: Sequence[str]) -> str:
    """What a machine's shell runs: ``command``, which gets SIGINT when the connection ends, however it ends.

    Args:
        directory: The working directory there.
        environ: Environment variables, in addition to those of a login there.
        command: Without a shell's syntax.
    """
    # Without a terminal, SSH passes no signal on. The shell, which leads a process group, becomes the command: its
    # group gets the signal, as at Ctrl-C in a terminal.
    watch = "exec 3<&0; (cat <&3; kill -s INT -- -$$) >/dev/null 2>&1 &"
    variables = [f"{name}={value}" for name, value in sorted(environ.items())]
    run = shlex.join(["env", *variables, *command])
    script = f"cd {shlex.quote(directory)} || exit 2; {watch} exec {run} </dev/null 3<&-"
    return f"exec sh -c {shlex.quote(script)}"  # a login shell may be another than sh


class Machine:
    """One machine's connection, and what it prints.

    Args:
        host: Its name, as given to ssh.
        ssh: The program and its options.
        command: What its shell runs.
    """

    def __init__(self, host: str, ssh: Sequence[str], command: str) -> None:
        self.host = host
        self._rest = b""
        # In a new session: Ctrl-C in the terminal would otherwise end the connection before the script.
        self.process = subprocess.Popen(
            [*ssh, "-o", "BatchMode=yes", "-o", "ControlMaster=no", host, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> IO[bytes]:
        """The pipe that it prints to."""
        assert self.process.stdout is not None
        return self.process.stdout

    def show(self) -> bool:
        """Print the lines that have come, each with the machine's name; false at the end of its output."""
        data = os.read(self.output.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + (data or b"\n" * bool(self._rest))).split(b"\n")
        for line in lines:
            sys.stdout.write(f"{self.host}: {line.decode(errors='replace')}\n")
        sys.stdout.flush()
        return bool(data)

    def interrupt(self) -> None:
        """End its input, at which the script there gets SIGINT."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def disconnect(self) -> None:
        """End the connection."""
        self.process.kill()


def follow(machines: Sequence[Machine]) -> tuple[str, int] | None:
    """Show what the machines print until all have ended; returns the first that failed and its exit code.

    Others have ``GRACE_SECONDS`` to end after a failure. Then their scripts are interrupted; then the connections end.
    """
    failed: tuple[str, int] | None = None
    steps = [Machine.interrupt, Machine.disconnect]
    next_step = float("inf")
    with selectors.DefaultSelector() as selector:
        for machine in machines:
            selector.register(machine.output, selectors.EVENT_READ, machine)
        while selector.get_map():
            try:
                # Not longer at once: a signal between a look at signals and the wait would be noticed after it.
                for key, _ in selector.select(max(0.0, min(1.0, next_step - time.monotonic()))):
                    if not key.data.show():
                        selector.unregister(key.fileobj)
                        code = key.data.process.wait()
                        # One that lost the machine which serves the rendezvous may end before that machine does.
                        is_cause = failed is None or (failed[1] == LOST_LINK and len(steps) == 2)
                        if code and is_cause:
                            failed, next_step = (key.data.host, code), time.monotonic() + GRACE_SECONDS
            except KeyboardInterrupt:
                failed, next_step = failed or ("", 128 + signal.SIGINT), time.monotonic()
            if time.monotonic() >= next_step:
                for key in selector.get_map().values():
                    steps[0](key.data)
                steps = steps[1:]
                next_step = time.monotonic() + GRACE_SECONDS if steps else float("inf")
    return failed


def main(arguments: Sequence[str] | None = None, program: str = "python -m torch_hal_tools.ssh") -> int:
    """Run a script on all machines; returns the exit code: 0, of the first that failed, or 2 for invalid arguments.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Start a script on several machines over SSH: 'torch-hal run' in the same directory on each. The "
        "first one serves the rendezvous. Each line of output begins with the machine's name. If one fails, or at "
        "Ctrl-C, the others end. CORE_... variables are passed on.",
        epilog=f"examples:\n  {program} node1,node2 --devices 4 train.py\n"
        f"  {program} --env HF_HOME me@a,me@b t.py --lr 1",
        starts_script=True,
    )
    directory = "the working directory there (default: as here)"
    parser.add_argument("--directory", default=os.getcwd(), metavar="DIR", help=directory)
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="Python there (default: as here)")
    env = "pass this environment variable on; repeat it for others"
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help=env)
    endpoint = "where the machines meet (default: the first one, port 29400)"
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help=endpoint)
    parser.add_argument("--ssh", default="ssh", metavar="COMMAND", help="ssh with options, as in 'ssh -p 2222'")
    parser.add_argument("hosts", metavar="HOST,HOST", help="the machines, as ssh knows them")
    parser.add_argument(
        "run", metavar="...", nargs=argparse.REMAINDER, help="options of 'torch-hal run', and the script"
    )
    options = parser.read(arguments)
    hosts = options.hosts.split(",")
    if not all(hosts) or len({*hosts}) < len(hosts) or options.hosts.startswith("-"):
        parser.error(f"{options.hosts!r} must be different hosts, separated by commas, such as node1,node2")
    if not options.run:
        parser.error("no script is given")
    before_script = itertools.takewhile(lambda each: not each.endswith(".py"), options.run)
    if own := [each for each in before_script if each.partition("=")[0] in OWN]:
        parser.error(f"{own[0]!r} follows from the hosts; --rdzv-endpoint stands before them")
    if missing := [name for name in options.env if name not in os.environ]:
        parser.error(f"argument --env: {missing[0]!r} is not set")
    names = [*options.env, *(name for name in os.environ if name.startswith("CORE_"))]
    meeting = options.rdzv_endpoint or hosts[0].rpartition("@")[2]
    several = ["--nnodes", str(len(hosts)), "--rdzv-endpoint", meeting] if len(hosts) > 1 else []
    run = [options.python, "-m", "torch_hal.run", *several, "--rdzv-id", uuid.uuid4().hex, *options.run]
    command = remote_command(options.directory, {name: os.environ[name] for name in names}, run)
    try:
        machines = [Machine(host, shlex.split(options.ssh), command) for host in hosts]
    except (OSError, ValueError) as error:
        parser.error(f"argument --ssh: {options.ssh!r} cannot be started: {error}")
    failed = follow(machines)
    if failed is None:
        return 0
    host, code = failed
    if code == CONNECTION_FAILED:
        sys.stderr.write(f"{program}: no connection to {host}. 'ssh {host} true' must work, and ask for no password.\n")
    else:
        sys.stderr.write(f"{program}: {f'{host} failed first, with' if host else 'interrupted,'} exit code {code}\n")
    return code if code > 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
