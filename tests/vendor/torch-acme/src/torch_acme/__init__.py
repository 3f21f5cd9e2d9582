"""The torch backend of Acme's cards: importing it gives torch the device type ``acme``, and collectives ``accl``."""

from __future__ import annotations

import acme_driver

__all__ = ["DEVICE_TYPE"]

DEVICE_TYPE = "acme"

acme_driver.simulate(DEVICE_TYPE, acme_driver.count())
