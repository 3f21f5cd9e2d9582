"""The command line of ``torch-hal run``."""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from ..commands.verb_parser import VerbParser
from ..errors import ConfigurationError, nearest
from ..kinds import KINDS

_NODES = re.compile(r"(\d{1,6})(?::(\d{1,6}))?", re.ASCII)

_DESCRIPTION = """\
Start a script on several processes and machines, with torchrun's agent. The script does not change: its Trainer or
Runtime uses what is requested here, unless it sets the argument itself.
"""

_EPILOG = """\
examples:
  {program} --devices 4 train.py --lr 0.1
  {program} --accelerator acme --devices 4 --strategy fsdp --precision bf16-mixed train.py
  {program} --config cluster.toml train.py
  {program} --devices 2 --dry-run train.py
  {program} --nnodes 2 --rdzv-endpoint host1:29400 --devices 8 train.py     (on each machine)
  {program} --devices 2 --max-restarts 3 --log-dir logs -m package.train
"""


@frozen(kw_only=True)
class Options:
    """The arguments of one call, checked."""

    script: str
    """A script file, a module, or a program."""
    arguments: tuple[str, ...] = ()
    """The script's own arguments."""
    requested: dict[str, str]
    """By argument of the front ends (``accelerator``, ``devices``…): what was given; without those that were not."""
    config: str | None = None
    """The config file of the run, if one was given."""
    is_module: bool = False
    is_program: bool = False
    nodes: tuple[int, int] = (1, 1)
    """The smallest and the largest number of machines."""
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    rdzv_conf: dict[str, str]
    local_addr: str | None = None
    max_restarts: int = 0
    prefix: bool = False
    log_dir: str | None = None
    verbose: bool = False
    dry_run: bool = False

    @property
    def nnodes(self) -> str:
        """The number of machines as the user would write it: ``2`` or ``1:2``."""
        low, high = self.nodes
        return str(low) if low == high else f"{low}:{high}"

    def command(self) -> list[str]:
        """The command that each process runs."""
        if self.is_program:
            return [self.script, *self.arguments]
        return [sys.executable, "-u", *(["-m"] if self.is_module else []), self.script, *self.arguments]


def parse(arguments: Sequence[str], program: str, environ: Mapping[str, str]) -> Options:
    """Read the command line.

    Args:
        arguments: The command line without the program's name.
        program: How the user called this command, for messages.
        environ: The environment variables, which may name a config file and the number of machines.

    Raises:
        ConfigurationError: An argument or the config file is not valid.
        SystemExit: argparse cannot read the arguments, or was asked for help.
    """
    given = vars(_parser(program).read(arguments))
    requested = {name: given.pop(name) for name in (*_kinds(), "devices")}
    nnodes = given.pop("nnodes")
    asked = f"--nnodes {nnodes}"
    if nnodes is None:
        from ..plan import Request
        from ..plan.request import with_config

        request = Request.read(environ=with_config(environ, given["config"]))
        asked, nnodes = str(request.argument("num_nodes")), str(request.num_nodes).replace("auto", "1")
    options = Options(
        nodes=_nodes(nnodes),
        requested={name: value for name, value in requested.items() if value is not None},
        rdzv_conf=_settings(given.pop("rdzv_conf")),
        **{**given, "arguments": tuple(given["arguments"])},
    )
    _check(options, asked)
    return options


def _kinds() -> list[str]:
    """The kinds that a script can be told by an environment variable."""
    return [kind.name for kind in KINDS.values() if kind.variable]


def _parser(program: str) -> VerbParser:
    parser = VerbParser(
        program,
        description=_DESCRIPTION,
        epilog=_EPILOG.format(program=program),
        starts_script=True,
    )
    run = parser.add_argument_group("what runs")
    for name in _kinds():
        kind = KINDS[name]
        run.add_argument(f"--{name}", metavar="NAME", help=f"{kind.description} ({kind.variable})")
    devices = "on each machine: a number, indices such as 0,2 or -1 for all (CORE_DEVICES). One process for each"
    run.add_argument("--devices", metavar="D", help=devices)
    config = "a file with values for these and num_nodes, which options overrule (CORE_CONFIG)"
    run.add_argument("--config", metavar="FILE", help=config)
    several = parser.add_argument_group("several machines")
    nodes = "number of machines, or smallest and largest number, as in 1:4 (CORE_NUM_NODES; default: 1)"
    several.add_argument("--nnodes", "--num-nodes", metavar="N", help=nodes)
    endpoint = "where the machines meet: one of them and a free port, the same on each"
    several.add_argument("--rdzv-endpoint", default="", metavar="HOST:PORT", help=endpoint)
    identity = "the name of the run, the same on each machine (default: torch-hal)"
    several.add_argument("--rdzv-id", default="torch-hal", metavar="ID", help=identity)
    conf = "further settings of torchrun's rendezvous, such as join_timeout=60"
    several.add_argument("--rdzv-conf", default="", metavar="K=V,...", help=conf)
    several.add_argument("--local-addr", metavar="ADDRESS", help="this machine's address, if its name does not tell")
    more = parser.add_argument_group("failures and output")
    restarts = "start all processes again after a failure, at most N times (default: 0)"
    more.add_argument("--max-restarts", type=int, default=0, metavar="N", help=restarts)
    more.add_argument("--prefix", action="store_true", help="print each line with its rank: [1] ...")
    log_dir = "write what each process prints to DIR/rank_<rank>.log; with --prefix also to the terminal"
    more.add_argument("--log-dir", metavar="DIR", help=log_dir)
    more.add_argument("--verbose", action="store_true", help="show what torchrun's agent logs")
    more.add_argument("--dry-run", action="store_true", help="print the Plan and the command, and start nothing")
    parser.add_argument("-m", "--module", dest="is_module", action="store_true", help="SCRIPT is a module")
    no_python = "SCRIPT is a program that is started without Python"
    parser.add_argument("--no-python", dest="is_program", action="store_true", help=no_python)
    parser.add_argument("script", metavar="SCRIPT", help="the script that each process runs")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its own arguments")
    return parser


def _nodes(text: str) -> tuple[int, int]:
    match = _NODES.fullmatch(text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise ConfigurationError(f"--nnodes {text!r} must be a number of machines ≥ 1, or two such as 1:4.")
    return low, high


def _settings(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    wrong = [name for name, equals, _ in pairs if not equals or not name.strip()]
    if wrong:
        raise ConfigurationError(f"--rdzv-conf {text!r} must be settings such as join_timeout=60,read_timeout=30.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check(options: Options, asked: str) -> None:
    if options.is_module and options.is_program:
        raise ConfigurationError("-m and --no-python contradict each other: SCRIPT is a module, or a program.")
    if options.max_restarts < 0:
        raise ConfigurationError(f"--max-restarts {options.max_restarts} must be an integer ≥ 0.")
    if options.nodes[1] > 1 and not options.rdzv_endpoint:
        raise ConfigurationError(
            f"{asked} needs --rdzv-endpoint HOST:PORT: the name of one of the machines and a free "
            "port on it, the same on each machine."
        )
    if options.nodes[1] == 1:
        unused: dict[str, Any] = {"--rdzv-endpoint": options.rdzv_endpoint, "--rdzv-conf": options.rdzv_conf}
        for name, value in {**unused, "--local-addr": options.local_addr}.items():
            if value:
                raise ConfigurationError(f"{name} is for several machines. Set --nnodes, or leave it out.")
    if not (options.is_module or options.is_program) and not os.path.isfile(options.script):
        raise ConfigurationError(
            f"there is no script {options.script!r} in {os.getcwd()!r}.{_near(options.script)} Use -m for a module, or "
            "--no-python for another program."
        )
    if options.log_dir is not None and os.path.exists(options.log_dir) and not os.path.isdir(options.log_dir):
        raise ConfigurationError(f"--log-dir {options.log_dir!r} is a file. Give a folder.")


def _near(script: str) -> str:
    """A script that may be meant; or that ``script`` is a folder."""
    if os.path.isdir(script):
        return " It is a folder: give a file in it."
    folder = os.path.dirname(script)
    if not os.path.isdir(folder or "."):
        return ""
    found = [os.path.join(folder, name) for name in os.listdir(folder or ".") if name.endswith(".py")]
    return nearest(script, found, cutoff=0.8)


def misplaced(options: Options) -> list[str]:
    """Options of this command that were given after a script that reads no command line, and so have no effect."""
    own = {f"--{name}" for name in (*_kinds(), "devices", "nnodes", "num-nodes", "max-restarts")}
    after = {argument.partition("=")[0] for argument in options.arguments}
    if options.is_module or options.is_program or not own & after:
        return []
    text = Path(options.script).read_text("utf-8", errors="replace")
    return [] if any(each in text for each in _READERS) else sorted(own & after)


_READERS = ("argparse", "argv", "ArgumentParser", "CLI", "click", "fire", "hydra", "parse_args", "typer")
"""What stands in a script that reads its command line."""

_NAMES = ("core", "torch_hal")


def imports_core(options: Options) -> bool:
    """Whether the script that ``options`` names has an import of core that is always run; false if that is unknown.

    A script that never imports core would not see Ctrl-C. It keeps Python's own handling.
    """
    script = Path(options.script)
    if options.is_module or options.is_program or any(_is_other(script.parent / name) for name in _NAMES):
        return False
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    return any(name.partition(".")[0] in _NAMES for name in names)


def _is_other(package: Path) -> bool:
    """Whether a script next to it imports ``package`` in place of the installed one."""
    return package.exists() or package.with_suffix(".py").exists()
