"""The verb ``torch-hal manifest``: write a run as a JobSet for Kubernetes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch_hal.commands.verb_parser import VerbParser
from torch_hal.errors import ConfigurationError, CoreError

from .settings_file import settings

__all__ = ["jobset", "main"]

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", re.ASCII)
"""Names of pods are made of it, and have at most 63 characters."""
_RESOURCE = re.compile(r"([\w./-]+)=(\d+\w*)", re.ASCII)
_PORT = 29400
_WAIT = 'until getent hosts "$0" > /dev/null; do sleep 1; done; exec "$@"'
"""A pod knows that it is the one where all meet, once the cluster knows that one's name."""


def jobset(
    name: str, image: str, command: Sequence[str], nodes: int, resources: Mapping[str, str], max_restarts: int
) -> dict[str, Any]:
    """The JobSet, as Kubernetes reads it: one pod for each machine, which all end with the first that fails.

    Args:
        name: Of the JobSet; its pods are ``<name>-node-0-<number>``.
        image: Of the container.
        command: ``torch-hal run`` with its arguments, the same in each pod.
        nodes: Number of pods.
        resources: What each pod needs, such as ``{"nvidia.com/gpu": "8"}``.
        max_restarts: How often all pods start again after a failure.
    """
    container: dict[str, Any] = {
        "name": "train",
        "image": image,
        "command": list(command) if nodes == 1 else ["sh", "-c", _WAIT, _first(name), *command],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # else 64 MB, too little for workers of a loader
    }
    if resources:
        container["resources"] = {"limits": dict(resources)}
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    job = {
        "completionMode": "Indexed",  # so that pods have names that do not change
        "parallelism": nodes,
        "completions": nodes,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {"maxRestarts": max_restarts},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _first(name: str) -> str:
    """The host name of the first pod."""
    return f"{name}-node-0-0.{name}"


def _command(values: Mapping[str, Any], name: str, script: Sequence[str]) -> list[str]:
    """``torch-hal run`` with what was given."""
    command = ["torch-hal", "run"]
    for key, value in values.items():
        text = "".join(f"{index}," for index in value) if isinstance(value, list) else str(value)
        if key != "num_nodes":
            command += [f"--{key}={text}"]
        elif value > 1:
            command += [f"--nnodes={text}", f"--rdzv-endpoint={_first(name)}:{_PORT}", f"--rdzv-id={name}"]
    return [*command, *script]


def main(arguments: Sequence[str] | None = None, program: str = "python -m torch_hal_tools.kubernetes_manifest") -> int:
    """Print the manifest; returns the exit code: 0, or 2 if an argument is not valid.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    from torch_hal.plan import Request

    parser = VerbParser(
        program,
        description="Print a manifest for Kubernetes, as JSON, which is YAML: a JobSet with one pod for each machine, "
        "in which torch-hal run starts the script. The image has the script and torch-hal; the cluster has JobSet. "
        "Names of backends are looked up in the pods, not here.",
        epilog="examples:\n"
        f"  {program} --name net --image IMAGE train.py\n"
        f"  {program} --name net --image IMAGE --num-nodes 2 --resource nvidia.com/gpu=8 train.py --lr 0.1\n"
        f"  {program} --name net --image IMAGE --config torch-hal.toml train.py | kubectl apply -f -",
        starts_script=True,
    )
    parser.add_argument("--name", required=True, help="the name of the JobSet")
    parser.add_argument("--image", required=True, help="the image of the container")
    for key, meaning in settings().items():
        parser.add_argument(f"--{key.replace('_', '-')}", metavar="VALUE", default="auto", help=meaning)
    parser.add_argument("--config", metavar="FILE", help="a file that torch-hal config has written")
    parser.add_argument(
        "--resource",
        metavar="NAME=N",
        action="append",
        default=[],
        help="what each pod needs, such as nvidia.com/gpu=8; may be repeated",
    )
    parser.add_argument(
        "--max-restarts", metavar="N", type=int, default=0, help="start all pods again after a failure (default: 0)"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script in the image")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="...", help="of the script")
    options = parser.read(arguments)
    try:
        environ = {} if options.config is None else {"CORE_CONFIG": options.config}
        request = Request.read(environ=environ, **{key: getattr(options, key) for key in settings()})
        values = {key: getattr(request, key) for key in settings() if not request.argument(key).is_auto}
        command = _command(values, options.name, [options.script, *options.arguments])
        resources = _resources(options.resource)
        if not _NAME.fullmatch(options.name):
            raise ConfigurationError(
                f"--name {options.name!r}: must have at most 40 small letters, digits and dashes, and begin with a "
                "letter, such as 'my-net'."
            )
        if options.max_restarts < 0:
            raise ConfigurationError(f"--max-restarts {options.max_restarts} must be an integer ≥ 0.")
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    nodes = values.get("num_nodes", 1)
    found = jobset(options.name, options.image, command, nodes, resources, options.max_restarts)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


def _resources(given: Sequence[str]) -> dict[str, str]:
    found = [_RESOURCE.fullmatch(each) for each in given]
    for text, match in zip(given, found, strict=True):
        if match is None:
            raise ConfigurationError(f"--resource {text!r}: must be a name and a quantity, such as nvidia.com/gpu=8.")
    return {match[1]: match[2] for match in found if match is not None}


if __name__ == "__main__":
    sys.exit(main())
