"""Four IPUs of a pod's partition, played by the stand-in of poptorch."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["ACME_DEVICES"] = "0"
os.environ["IPU_DEVICES"] = "4"
os.environ["OMP_NUM_THREADS"] = "1"  # many small operations, next to other processes
os.environ["IPUOF_VIPU_API_PARTITION_ID"] = "p4"
for name in ("POPTORCH_IPU_MODEL", "IPUOF_CONFIG_PATH"):
    os.environ.pop(name, None)


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """What poptorch is asked, from now on."""
    import stand_ins

    stand_ins.calls.clear()
    yield stand_ins.calls
    stand_ins.calls.clear()
