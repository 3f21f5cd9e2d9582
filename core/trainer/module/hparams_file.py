"""Hyperparameters in a file: YAML, JSON, or Lightning's table of keys and values."""

from __future__ import annotations

import ast
import csv
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from ...errors import BackendError, CheckpointError, ConfigurationError
from ...hints.argument_checks import check_path

__all__ = ["read_hparams"]


def read_hparams(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The hyperparameters in ``hparams.yaml``, ``hparams.json``, or a CSV file with the columns ``key`` and ``value``.

    Raises:
        BackendError: It is YAML, and PyYAML is not installed.
        CheckpointError: The file cannot be read, or holds no mapping.
        ConfigurationError: It is of another kind.
    """
    check_path("hparams_file", path)
    place = Path(path).expanduser()
    kind = place.suffix.lower()
    if kind not in (".yaml", ".yml", ".json", ".csv"):
        raise ConfigurationError(f"hparams_file={os.fspath(path)!r}: must end with .yaml, .yml, .json or .csv.")
    try:
        text = place.read_text("utf-8")
        found = _parsed(kind, text)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"hparams_file={os.fspath(path)!r}: could not be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"hparams_file={os.fspath(path)!r}: holds a {type(found).__name__}, not a mapping.")
    return found


def _parsed(kind: str, text: str) -> Any:
    if kind == ".json":
        return json.loads(text)
    if kind == ".csv":
        return {row["key"]: _literal(row["value"]) for row in csv.DictReader(text.splitlines())}
    if importlib.util.find_spec("yaml") is None:
        raise BackendError("hparams_file: the package 'yaml' is not installed. Run: pip install pyyaml")
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
