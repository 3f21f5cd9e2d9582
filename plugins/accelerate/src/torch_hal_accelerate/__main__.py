"""``python -m torch_hal_accelerate SCRIPT …``: activate, then run a script that knows Accelerate only.

Hardware, precision and the rest come from torch-hal's environment variables, which ``torch-hal run`` sets::

    torch-hal run --accelerator acme --devices 2 -m torch_hal_accelerate train.py --lr 0.1
"""

from __future__ import annotations

import os
import runpy
import sys

from torch_hal.errors import CoreError
from torch_hal_accelerate import activate

__all__ = ["main"]

USAGE = "python -m torch_hal_accelerate [-m] SCRIPT [its arguments]"


def main() -> None:
    """Run the script that the command line names, as ``python SCRIPT`` would."""
    is_module = sys.argv[1:2] == ["-m"]
    arguments = sys.argv[2:] if is_module else sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(f"usage: {USAGE}\n\n{__doc__}")
        raise SystemExit(0 if arguments else 2)
    script = arguments[0]
    if not is_module and not os.path.isfile(script):
        sys.stderr.write(f"python -m torch_hal_accelerate: there is no script {script!r}. Usage: {USAGE}\n")
        raise SystemExit(2)
    try:
        activate()
    except CoreError as error:
        sys.stderr.write(f"python -m torch_hal_accelerate: {error}\n")
        raise SystemExit(2) from error
    sys.argv = arguments
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
