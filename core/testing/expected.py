"""The file of expected failures: what a vendor knows not to work, and why."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from core.errors import nearest

__all__ = ["ExpectedFailures"]


@attrs.frozen
class ExpectedFailures:
    """Reasons by the id of a test.

    The file is TOML, a line for each test::

        "accelerator:acme::test_memory_is_given_back" = "the driver keeps its last buffer, ACME-123"
    """

    file: Path
    reasons: Mapping[str, str]

    @classmethod
    def read(cls, file: Path) -> ExpectedFailures:
        """Read the file.

        Raises:
            pytest.UsageError: It cannot be read, or an entry has no reason.
        """
        try:
            reasons = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--expected-failures {file}: {error}") from error
        for test, reason in reasons.items():
            if not isinstance(reason, str) or not reason.strip():
                raise pytest.UsageError(
                    f'--expected-failures {file}: {test!r} has the reason {reason!r}. Valid: "{test}" = "why it fails"'
                )
        return cls(file, reasons)

    def mark(self, tests: Mapping[str, pytest.Item], *, is_selection: bool) -> None:
        """Expect ``tests``, by id, to fail; one that passes is then a failure.

        Args:
            tests: Every test that was collected.
            is_selection: Whether these are not all tests of their suites, so that an entry may be about another.

        Raises:
            pytest.UsageError: An entry is about no test.
        """
        for test, reason in self.reasons.items():
            if test in tests:
                tests[test].add_marker(pytest.mark.xfail(reason=reason, strict=True))
            elif not is_selection:
                raise pytest.UsageError(
                    f"--expected-failures {self.file}: there is no test {test!r}.{nearest(test, tests)}"
                )
