"""A third party's torch backend: importing it gives this process two simulated devices of type ``simx``.

It brings its own collective backend ``simccl``, as vendors do. ``SIMX_DEVICES`` says how many devices there are (0 for
a machine on which the package is installed and no device is found).
"""

from __future__ import annotations

import os

import simccl
import simdevice

__all__ = ["DEVICE_TYPE"]

DEVICE_TYPE = "simx"

simdevice.install(DEVICE_TYPE, int(os.environ.get("SIMX_DEVICES", "2")))
simccl.register(DEVICE_TYPE)
