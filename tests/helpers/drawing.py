"""How many examples hypothesis draws: 50, or ``FUZZ_DRAWS``. Up to 100 they are the same in each run, as for CI."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from hypothesis import HealthCheck, configuration, settings
from hypothesis import strategies as st

__all__ = ["DRAWS", "TEXTS", "drawn", "json_values"]

DRAWS = int(os.environ.get("FUZZ_DRAWS", "50"))

configuration.set_hypothesis_home_dir(os.path.join(tempfile.gettempdir(), "hypothesis"))


def drawn(part: float = 1) -> settings:
    """The settings of a test; ``part`` is the share of the draws that it makes."""
    return settings(
        max_examples=max(1, int(DRAWS * part)),
        deadline=None,
        derandomize=DRAWS <= 100,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


TEXTS = st.one_of(
    st.sampled_from(
        [
            *("", "\0", "\ud800", "..", "../x", "/etc/passwd", "a" * 300, "manifest.json", "shard-00000.pt", ".", "1"),
            *("é\n", "core-00000001-0123456789abcdef", "s3:/x", "a://b", "~", "auto", "-1", "9" * 30, "1e999"),
        ]
    ),
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs", "Cc", "Nd", "Nl"]), max_size=5),
)
"""Text that programs stumble over, and any other."""

_NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 2**64, 10**400, -(10**30), 1e999, -0.0])
)


def json_values() -> st.SearchStrategy[Any]:
    """Any value of JSON."""
    simple = st.one_of(st.none(), st.booleans(), _NUMBERS, TEXTS, st.binary(min_size=32, max_size=32).map(bytes.hex))
    return st.recursive(
        simple, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
    )
