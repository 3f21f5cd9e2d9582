"""Communication hooks that cannot be are refused when the strategy is made."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ConfigurationError
from core.strategies import DDPStrategy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"communication_hook": "fp16"}, r"communication_hook='fp16': unknown.*'fp16_compress'"),
        ({"communication_hook": 16}, r"communication_hook=16: must be one of"),
        (
            {"communication_hook": "fp16_compress", "communication_options": {"dtype": 8}},
            r"communication_options=\{'dtype': 8\}: communication_hook='fp16_compress' takes no options",
        ),
        (
            {"communication_hook": "power_sgd", "communication_options": {"wrapper": "fp16"}},
            r"'wrapper': 'fp16'.*wrapper must be one of 'bf16_compress', 'fp16_compress'",
        ),
        ({"communication_options": {"matrix_approximation_rank": 1}}, r"communication_hook=None takes no options"),
    ],
    ids=str,
)
def test_refused(options: dict[str, Any], message: str) -> None:
    """An unknown name, what is not a function, and options that the hook takes none of, each by its argument."""
    with pytest.raises(ConfigurationError, match=message):
        DDPStrategy(**options)
