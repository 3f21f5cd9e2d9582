"""``importing.py FOLDER STRATEGY``: each process that is started for the run stays while it imports this script."""

import os
import sys
import time
from pathlib import Path

if "RANK" in os.environ or __name__ == "__mp_main__":
    Path(sys.argv[1], f"importing-{os.getpid()}").touch()
    time.sleep(100)

from core import Runtime

if __name__ == "__main__":
    Runtime(accelerator="cpu", devices=3, strategy=sys.argv[2]).launch(print)
