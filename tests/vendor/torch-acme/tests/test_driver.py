"""What is known of the cards without torch, and the compiled simulation."""

from __future__ import annotations

import subprocess
import sys

import acme_driver
import pytest
from acme_driver import build


@pytest.mark.parametrize(("said", "expected"), [("0", 0), ("2", 2), (" 3 ", 3)])
def test_count(monkeypatch: pytest.MonkeyPatch, said: str, expected: int) -> None:
    """The machine has as many cards as ``ACME_DEVICES`` says."""
    monkeypatch.setenv("ACME_DEVICES", said)
    assert acme_driver.count() == expected


@pytest.mark.parametrize("said", ["two", "-1", "1.5"])
def test_no_count(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """What is not a number is refused, by name."""
    monkeypatch.setenv("ACME_DEVICES", said)
    with pytest.raises(ValueError, match=f"ACME_DEVICES='{said}'"):
        acme_driver.count()


def test_counting_imports_no_torch() -> None:
    """Counting takes a process that never imports torch."""
    code = "import sys, acme_driver; assert acme_driver.count() == 2; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_is_compiled_once() -> None:
    """The simulation of this torch lies where it was left."""
    assert build.build() == build.build()
    assert build.build().exists()


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the error says so, and which one was looked for."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="needs a C\\+\\+ compiler: 'no-such-compiler'"):
        build.build()
