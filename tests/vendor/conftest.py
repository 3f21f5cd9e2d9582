"""What lies here has test suites of its own, which are run where it is installed: see test_packages.py."""

from __future__ import annotations

collect_ignore_glob = ["torch-*", "stand-ins"]
