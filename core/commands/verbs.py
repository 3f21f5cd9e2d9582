"""The verbs of the command line."""

from __future__ import annotations

__all__ = ["VERBS"]

VERBS = {
    "list": ("core.list", "show the installed backends and the state of each"),
    "run": ("core.run.__main__", "run a script on several processes, with any backend"),
    "explain": ("core.explain", "show what would run for given arguments, and why"),
    "doctor": ("core.doctor.__main__", "one page for a bug report: what is here, what is wrong"),
    "conformance": ("core.conformance", "test a backend, and write a page to publish"),
    "new-plugin": ("core.new_plugin.__main__", "write the package of a new backend"),
    "migrate": ("core.migrate.__main__", "list what a script for Lightning or Accelerate needs"),
    "consolidate": ("core.consolidate", "write a checkpoint directory as one file"),
    "completion": ("core.completion", "write the completion of these commands for a shell"),
}
"""For each verb: the module whose function ``main(arguments, program)`` runs it, and what it does."""
