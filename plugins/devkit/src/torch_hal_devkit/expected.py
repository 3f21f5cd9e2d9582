"""The file of expected failures: tests that are known to fail, and why."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from torch_hal.errors import nearest

__all__ = ["ExpectedFailures"]


@attrs.frozen
class ExpectedFailures:
    """Reasons by test id.

    The file is TOML, one line per test::

        "accelerator:acme::test_memory_is_freed" = "the driver keeps its last buffer, ACME-123"
    """

    file: Path
    reasons: Mapping[str, str]

    @classmethod
    def read(cls, file: Path) -> ExpectedFailures:
        """Read the file.

        Raises:
            pytest.UsageError: The file cannot be read, or an entry has no reason.
        """
        try:
            reasons = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--expected-failures {file}: {error}") from error
        for test, reason in reasons.items():
            if not isinstance(reason, str) or not reason.strip():
                raise pytest.UsageError(
                    f'--expected-failures {file}: {test!r} has reason {reason!r}. Valid: "{test}" = "why it fails"'
                )
        return cls(file, reasons)

    def mark(self, tests: Mapping[str, pytest.Item], *, is_selection: bool) -> None:
        """Mark the listed tests as expected to fail; one that passes is then a failure.

        Args:
            tests: All collected tests, by id.
            is_selection: Whether only some tests of the suites were collected; entries for others are then ignored.

        Raises:
            pytest.UsageError: An entry matches no test.
        """
        for test, reason in self.reasons.items():
            if test in tests:
                tests[test].add_marker(pytest.mark.xfail(reason=reason, strict=True))
            elif not is_selection:
                raise pytest.UsageError(
                    f"--expected-failures {self.file}: no test has the id {test!r}.{nearest(test, tests)}"
                )
