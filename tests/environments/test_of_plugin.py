"""A plugin's cluster environment, with variables of its own that no line of core knows, equals core's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from installing import files_of, lay_down
from python_processes import run_python

from core import ClusterEnvironmentRegistry
from core.discovery.ranks import launched_ranks
from core.environments import LaunchedEnvironment, RankVariables
from core.specs import ClusterEnvironmentSpec

PLUGIN = """
from core.hookspecs import hookimpl
from core.specs import ClusterEnvironmentSpec

@hookimpl
def core_cluster_environments():
    return [
        ClusterEnvironmentSpec(
            name="farm",
            target="torch_hal_farm.environment:FarmEnvironment",
            rank="FARM_TASK",
            size="FARM_TASKS",
            variables=("FARM_SLOT", "FARM_SLOTS"),
        )
    ]
"""
ENVIRONMENT = """
import os
from core.environments import LaunchedEnvironment, RankVariables

class FarmEnvironment(LaunchedEnvironment):
    name = "farm"
    variables = RankVariables("FARM_TASK", "FARM_TASKS", "FARM_SLOT", "FARM_SLOTS")

    @staticmethod
    def detect(environ=None):
        return "FARM_TASK" in (os.environ if environ is None else environ)

    def command(self, processes_per_node, num_nodes):
        return "farm submit"
"""
BEFORE = """
import json, sys
from core import get_logger, rank_zero_only, set_seed
from core.loggers import CSVLogger

get_logger("script").warning("logged by process 0")
facts = {
    "is_silent": rank_zero_only(lambda: False, default=True)(),
    "seed": set_seed(7, device_specific=True),
    "logger": CSVLogger("logs").process_index,
    "imported": sorted(name for name in sys.modules if name.startswith("torch_hal_")),
}
"""
RUN = """
import subprocess
from core import Runtime

runtime = Runtime(accelerator="cpu")
facts["run"] = [runtime.plan.cluster_environment.name, runtime.process_index, runtime.num_processes]
child = subprocess.run([sys.executable, "child.py"], capture_output=True, text=True, timeout=60)
facts["child"] = json.loads(child.stdout)
facts["warned"] = "whose ranks it inherited" in child.stderr
print(json.dumps(facts))
"""
CHILD = """
import json
from core import rank_zero_only
from core.environments.local import own_environ

is_silent = rank_zero_only(lambda: False, default=True)()
print(json.dumps([is_silent, sorted(name for name in own_environ() if name.startswith("FARM_"))]))
"""
FARM = {"FARM_TASK": "3", "FARM_TASKS": "4", "FARM_SLOT": "1", "FARM_SLOTS": "2", "FARM_QUEUE": "long"}


def test_rank_3_of_4(tmp_path: Path) -> None:
    """Before a run it is silent and has its own seed; what it starts is no rank; no code of the plugin is imported."""
    entry_points = "[core.cluster_environments]\nfarm = torch_hal_farm.plugin\n"
    files = files_of("torch-hal-farm", "1.0", entry_points) | {
        "torch_hal_farm/__init__.py": "",
        "torch_hal_farm/plugin.py": PLUGIN,
        "torch_hal_farm/environment.py": ENVIRONMENT,
    }
    site = lay_down(tmp_path / "site", files)
    (tmp_path / "script.py").write_text(BEFORE + RUN)
    (tmp_path / "child.py").write_text(CHILD)
    env = {**FARM, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_python("script.py", cwd=tmp_path, env=env, timeout=120)
    said: dict[str, Any] = json.loads(done.stdout)
    assert said == {
        "is_silent": True,
        "seed": 10,
        "logger": 3,
        "imported": [],
        "run": ["farm", 3, 4],
        "child": [False, ["FARM_QUEUE"]],
        "warned": True,
    }
    assert "logged by process 0" not in done.stderr


def test_a_class_that_was_registered_in_code() -> None:
    """Its variables are those that the class names."""

    class Farm(LaunchedEnvironment):
        name = "farm"
        variables = RankVariables("FARM_TASK", "FARM_TASKS", "FARM_SLOT", "FARM_SLOTS")

    assert launched_ranks(FARM) == (0, 1)
    ClusterEnvironmentRegistry.register("farm", Farm)
    assert launched_ranks(FARM) == (3, 4)


@pytest.mark.parametrize("fields", [{"rank": ""}, {"size": "A=1"}, {"requires": ["A", 3]}, {"variables": "A,B"}])
def test_what_is_no_variable(fields: dict[str, Any]) -> None:
    """The error names it, and the backend."""
    with pytest.raises(ValueError, match=r"of ClusterEnvironmentSpec 'farm': expected the name of an environment var"):
        ClusterEnvironmentSpec(name="farm", target="farm:Farm", **fields)
