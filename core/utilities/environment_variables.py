"""The environment variables of torch-hal: the one table from which their check and their documentation are made.

``python -m core.list`` imports it, so it imports next to nothing.
"""

from __future__ import annotations

from ..errors import ConfigurationError, nearest, quoted
from ..kinds import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["INTERNAL", "PREFIX", "VARIABLES", "check_variables"]

PREFIX = "CORE_"
"""With what the names of torch-hal's environment variables begin."""

VARIABLES = {
    **{kind.variable: f"`{kind.name}`, if the argument is `auto`" for kind in KINDS.values() if kind.variable},
    "CORE_DEVICES": "`devices`, if the argument is `auto`",
    "CORE_NUM_NODES": "`num_nodes`, if the argument is `auto`",
    "CORE_CONFIG": "a file with values for these five, used where neither the argument nor its variable gives one",
    "CORE_LOG": "the level of torch-hal's own messages on stderr: `info` or `debug`",
    "CORE_DEBUG": "`debug` of a Runtime, if it is not given: 0 or 1",
    "CORE_PLUGINS": "which plugins are used: names to allow, or to deny with a `-`, separated by commas",
    "CORE_IMPORT": "modules that each process of a run imports first, separated by commas",
    "CORE_PROBE_TIMEOUT": "seconds that a plugin may take in the process that queries plugins (default: 20)",
}
"""The variables that users may set, and their meaning."""

INTERNAL = {
    "CORE_LAUNCHED_PLAN": "the Plan that a launcher gives the processes that it starts",
    "CORE_CAUSE": "where a started process writes why it failed, for its launcher",
    "CORE_LIFELINE": "how a started process notices that its launcher has ended",
    "CORE_FROZEN_CHILD": "the folder with the task of a child of a frozen program",
    "CORE_RANKS_OF": "the process that the ranks in the environment belong to",
    "CORE_CONFORMANCE_REPORTS": "the folder for reports of the conformance kit's processes",
    "CORE_SOAK": "the number of runs of a test",
    "CORE_TEST_RUN": "which run of a test this is",
    "CORE_TRACKER": "the folder of a tracker in a test",
}
"""The variables that torch-hal sets itself."""

_ENOUGH = 0.75
"""How similar a variable must be to one of torch-hal's to be taken for a misspelling of it."""

_DISTRIBUTION = "TORCH_HAL_"
"""With what users may expect the names to begin."""

_OF_SERVICES = ("CORE_SERVICE_", "CORE_PORT_")
"""What Kubernetes sets in each container if there is a service named ``core``; and ``CORE_PORT``."""


def check_variables(environ: Mapping[str, str]) -> None:
    """Reject a misspelt variable of torch-hal, which would have no effect.

    Variables that begin with ``CORE_`` and are similar to none are other programs' own.

    Raises:
        ConfigurationError: There is one.
    """
    for name in sorted(environ):
        if name.startswith(_DISTRIBUTION) and f"{PREFIX}{name.removeprefix(_DISTRIBUTION)}" in VARIABLES:
            raise ConfigurationError(
                f"environment variable {name}={environ[name][:100]!r}: torch-hal does not have it. Did you mean "
                f"{PREFIX + name.removeprefix(_DISTRIBUTION)!r}?"
            )
        if not name.startswith(PREFIX) or name in VARIABLES or name in INTERNAL:
            continue
        if name == "CORE_PORT" or name.startswith(_OF_SERVICES):
            continue
        suffixes = [known.removeprefix(PREFIX) for known in VARIABLES]
        if nearest(name.removeprefix(PREFIX), suffixes, cutoff=_ENOUGH):
            raise ConfigurationError(
                f"environment variable {name}={environ[name][:100]!r}: torch-hal does not have it."
                f"{nearest(name, VARIABLES)} Valid: {quoted(VARIABLES)}."
            )
