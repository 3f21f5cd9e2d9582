"""The examples for precision, checkpoint and environment authors pass the conformance kit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .kit import declare, run_kit

DOCS = Path(__file__).parents[3] / "docs"

PLUGIN = """
from core.hookspecs import hookimpl
from core.specs import CheckpointIOSpec, ClusterEnvironmentSpec, PrecisionSpec


@hookimpl
def core_precisions():
    return [PrecisionSpec(name="bf16-stochastic", target="precision_page:StochasticBF16", description="an example")]


@hookimpl
def core_checkpoint_ios():
    return [CheckpointIOSpec(name="weights", target="checkpoint_page:WeightsIO", description="an example")]


@hookimpl
def core_cluster_environments():
    target, detect = "environment_page:JobEnvironment", "environment_page:JobEnvironment.detect"
    own = {"rank": "RANK", "size": "WORLD_SIZE", "excludes": "LOCAL_RANK", "variables": ("MASTER_ADDR", "MASTER_PORT")}
    return [ClusterEnvironmentSpec(name="pytorch_job", target=target, description="an example", detect=detect, **own)]
"""


def _python_of(page: str, name: str) -> str:
    """The block of a page that defines the class ``name``."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found: list[str] = [block for block in blocks if f"\nclass {name}(" in block]
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
def test_they_pass_the_kit(tmp_path: Path) -> None:
    """Each class of the pages is installed as a plugin; nothing fails, and what is skipped is declared."""
    site = tmp_path / "site"
    groups = {"precisions": "bf16-stochastic", "checkpoint_ios": "weights", "cluster_environments": "pytorch_job"}
    declare(site, "torch-hal-pages", {f"core.{group}": {name: "pages_plugin"} for group, name in groups.items()})
    (site / "pages_plugin.py").write_text(PLUGIN, "utf-8")
    for kind, name in (("precision", "StochasticBF16"), ("checkpoint", "WeightsIO"), ("environment", "JobEnvironment")):
        (site / f"{kind}_page.py").write_text(_python_of(f"{kind}-authors.md", name), "utf-8")
    own = tmp_path / "test_job.py"
    own.write_text("import os\n" + _python_of("environment-authors.md", "TestJob"), "utf-8")
    suites = ("torch_hal_devkit.suite.test_precision", "torch_hal_devkit.suite.test_checkpoint_io", str(own))
    backends = ("--backend=precision:bf16-stochastic", "--backend=checkpoint_io:weights")
    run = run_kit(tmp_path, *backends, site=[site], suite=suites, timeout=390)
    assert run.code == 0, run.output
    assert len(run.report["suites"]) == 3
    assert all(suite["proven"] >= 40 for suite in run.report["suites"]), run.output
