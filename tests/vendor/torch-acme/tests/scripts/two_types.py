"""Ask for a second type of device."""

from __future__ import annotations

import acme_driver
import pytest
import torch_acme

first = acme_driver.simulate(torch_acme.DEVICE_TYPE, 2)
assert acme_driver.simulate("acme", 2) is first
with pytest.raises(RuntimeError, match="2 devices of type 'acme' already"):
    acme_driver.simulate("hpu", 2)
print("refused")
