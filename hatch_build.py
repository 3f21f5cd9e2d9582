"""Puts the package into a wheel under both of its names; a source tree has the second one as a symbolic link."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["TwoNames"]


class TwoNames(BuildHookInterface[Any]):
    """Type checkers read the copy ``core``; a program runs the modules of ``torch_hal`` under both names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds; an editable installation follows the link and needs no copy."""
        if version == "standard":
            build_data["force_include"]["core"] = "torch_hal"
