"""Two cards, whatever the machine says."""

from __future__ import annotations

import os

os.environ["ACME_DEVICES"] = "2"  # before torch is imported, which loads the backend
