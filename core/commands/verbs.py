"""The verbs of the command line."""

from __future__ import annotations

__all__ = ["VERBS"]

VERBS = {
    "list": ("torch_hal.list", "show the installed backends and the state of each"),
    "run": ("torch_hal.run.__main__", "run a script on several processes, with any backend"),
    "explain": ("torch_hal.explain", "show what would run for given arguments, and why"),
    "doctor": ("torch_hal.doctor.__main__", "one page for a bug report: what is here, what is wrong"),
    "conformance": ("torch_hal.conformance", "test a backend, and write a page to publish"),
    "new-plugin": ("torch_hal.new_plugin.__main__", "write the package of a new backend"),
    "migrate": ("torch_hal.migrate.__main__", "list what a script for Lightning or Accelerate needs"),
    "consolidate": ("torch_hal.consolidate", "write a checkpoint directory as one file"),
    "completion": ("torch_hal.completion", "write the completion of these commands for a shell"),
}
"""For each verb: the module whose function ``main(arguments, program)`` runs it, and what it does."""
