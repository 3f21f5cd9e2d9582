"""``torch-hal run``, also ``python -m core.run``: start a script on several processes, with any backend by name."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence

from ..errors import CoreError
from .options import Options, misplaced, parse


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.run") -> int:
    """Run a script; returns the exit code: the failed process's, ``128 + n`` for signal n, 2 for invalid arguments.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments, program, os.environ)
        if late := misplaced(options):
            sys.stderr.write(
                f"{program}: {' and '.join(late)} after {options.script}: an argument of the script, which reads none. "
                f"Put options of this command before the script.\n"
            )
        from .planning import plan_run

        run = plan_run(options, os.environ)
        if options.dry_run:
            _show(options, run.processes, run.text, run.variables)
            return 0
        from .agent import start

        # torchrun's agent gives the started processes its own variables, so they are set here. This process is theirs.
        for name in run.removed:
            os.environ.pop(name, None)
        os.environ.update(run.variables)
        return start(options, run.processes, program)
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted by SIGINT\n")
        return 128 + int(signal.SIGINT)
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2


def _show(options: Options, processes: int, plan: str, variables: dict[str, str]) -> None:
    machines = "" if options.nodes == (1, 1) else f" on each of {options.nnodes} machines"
    lines = [plan, "", f"{processes} process(es){machines} run: {shlex.join(options.command())}"]
    lines += [f"  {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
