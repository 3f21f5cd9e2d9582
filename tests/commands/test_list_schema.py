"""``python -m core.list --json`` is what its JSON Schema says, and the schema describes each field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from installing import environment, files_of, lay_down, run_list

import core.list
from core.discovery.scan import Row
from core.kinds import KINDS

SCHEMA: dict[str, Any] = json.loads(Path(core.list.__file__).with_name("list.schema.json").read_text("utf-8"))
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def faults(value: Any, schema: dict[str, Any], path: str = "$") -> list[str]:
    """Where ``value`` is not as the schema says, in the part of JSON Schema that this one uses."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    found = [] if not types or any(isinstance(value, TYPES[name]) for name in types) else [f"{path}: not {types}"]
    found += [] if "const" not in schema or value == schema["const"] else [f"{path}: not {schema['const']}"]
    found += [] if "enum" not in schema or value in schema["enum"] else [f"{path}: {value!r} is none of them"]
    if isinstance(value, dict):
        found += [f"{path}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            described = schema["properties"].get(name)
            found += faults(item, described, f"{path}.{name}") if described else [f"{path}.{name}: not described"]
    if isinstance(value, list):
        found += [fault for item in value for fault in faults(item, schema["items"], f"{path}[]")]
    if isinstance(value, (int, float)) and value < schema.get("minimum", value):
        found.append(f"{path}: {value} is too small")
    return found


@pytest.mark.parametrize("arguments", [(), ("--verbose",), ("--probe", "--kind", "checkpoint_io")], ids=str)
def test_output_is_as_the_schema_says(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever is installed, broken or denied, each field has the type and the values that the schema gives."""
    entry_points = "[core.checkpoint_ios]\nacme = torch_hal_acme.plugin\ntar = a b\n[core.strategies]\nddp = x\n"
    lay_down(tmp_path, files_of("torch-hal-acme", "1.0", entry_points))
    lay_down(tmp_path, files_of("torch-hal-old", "1.0", "[core.precisions]\nold = x\n", ["torch-hal>=99"]))
    done = run_list("--json", *arguments, environ=environment(tmp_path, CORE_PLUGINS="-nothing"))
    listing = json.loads(done.stdout)
    assert len(listing["backends"]) > 2
    assert faults(listing, SCHEMA) == []


def test_schema_is_that_of_the_code() -> None:
    """The schema lists core's kinds and the fields of a row, describes each, and has the version of the output."""
    backend = SCHEMA["properties"]["backends"]["items"]
    row = Row(kind="strategy", name="ddp", distribution="torch-hal").to_dict()
    assert sorted(backend["properties"]) == sorted(backend["required"]) == sorted(row)
    assert backend["properties"]["kind"]["enum"] == list(KINDS)
    assert SCHEMA["properties"]["schema"]["const"] == core.list.SCHEMA
    assert all(field["description"] for field in {**SCHEMA["properties"], **backend["properties"]}.values())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"schema": 2}, "$.schema: not 1"),
        ({"more": 1}, "$.more: not described"),
        ({"version": None}, "$.version: not ['string']"),
        ({"backends": [{"state": "odd"}]}, "$.backends[].state: 'odd' is none of them"),
        ({"backends": [{}]}, "$.backends[]: name is missing"),
    ],
)
def test_check_finds_faults(change: dict[str, Any], fault: str) -> None:
    """The check of this file finds what is not as the schema says."""
    assert fault in faults({"schema": 1, "version": "", "backends": [], "warnings": [], **change}, SCHEMA)
