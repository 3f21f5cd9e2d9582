"""Processes started by DeepSpeed's launcher, ``deepspeed script.py``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_hal.environments import TorchElasticEnvironment

__all__ = ["DeepSpeedEnvironment", "detect"]

_OWN = ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
"""The variables that it sets in addition to torchrun's: this machine's number, how many there are, processes on it."""


def detect(environ: Mapping[str, str]) -> bool:
    """Whether DeepSpeed's launcher started this process."""
    return TorchElasticEnvironment.detect(environ) and all(name in environ for name in _OWN)


class DeepSpeedEnvironment(TorchElasticEnvironment):
    """As torchrun's, with the node rank and the local world size under the names of DeepSpeed's launcher."""

    name = "deepspeed"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        given = dict(os.environ if environ is None else environ)
        for own, common in (("LOCAL_SIZE", "LOCAL_WORLD_SIZE"), ("CROSS_RANK", "GROUP_RANK")):
            if own in given:
                given[common] = given[own]
        super().__init__(given)

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether DeepSpeed's launcher started this process."""
        return detect(os.environ if environ is None else environ)
