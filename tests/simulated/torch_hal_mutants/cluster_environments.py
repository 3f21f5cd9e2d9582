"""Each class breaks one rule."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import torch  # noqa: F401 - the rule that NeedsTorch breaks, and every class next to it

from core.environments import LocalEnvironment, TorchElasticEnvironment
from core.errors import ConfigurationError

Variables = Mapping[str, str] | None


class _Unchecked(TorchElasticEnvironment):
    def _check_ranks(self) -> None:
        pass


class WantsItsVariables(TorchElasticEnvironment):
    @staticmethod
    def detect(environ: Variables = None) -> bool:
        return int((os.environ if environ is None else environ)["WORLD_SIZE"]) > 0


class AnswersInWords(TorchElasticEnvironment):
    @staticmethod
    def detect(environ: Variables = None) -> bool:
        return (os.environ if environ is None else environ).get("RANK")  # type: ignore[return-value]


class TakesAll(TorchElasticEnvironment):
    @staticmethod
    def detect(environ: Variables = None) -> bool:
        return True


class CountsFromOne(_Unchecked):
    @property
    def global_rank(self) -> int:
        return super().global_rank + 1


class RanksOfOneMachine(_Unchecked):
    @property
    def global_rank(self) -> int:
        return self.local_rank


class NamesNoRank(TorchElasticEnvironment):
    """Its spec names no variable with the rank."""


class NamesTheMachine(TorchElasticEnvironment):
    """Its spec names the rank of the machine as the rank of the process."""


class SharesItsLocalRank(TorchElasticEnvironment):
    """Its spec leaves the local rank to programs that the process starts."""


class MeetsApart(TorchElasticEnvironment):
    @property
    def main_port(self) -> int:
        return super().main_port + self.node_rank


class TakesAnySize(TorchElasticEnvironment):
    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        pass


class RefusesInSilence(TorchElasticEnvironment):
    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        try:
            super().validate_settings(processes_per_node, num_nodes)
        except ConfigurationError:
            raise ConfigurationError("no") from None


class ReadsLate(TorchElasticEnvironment):
    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", super().main_address)


class Borrows(TorchElasticEnvironment):
    """Keeps the mapping that it is given, and not a copy."""

    def __init__(self, environ: Variables = None) -> None:
        super().__init__(environ)
        if environ is not None:
            self.environ = environ


class SetsVariables(TorchElasticEnvironment):
    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        super().connect(processes_per_node, num_nodes)
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        os.environ["NCCL_DEBUG"] = "INFO"


class StumblesOverText(TorchElasticEnvironment):
    @property
    def node_rank(self) -> int:
        return int(self.environ["GROUP_RANK"])


class NeedsTorch(LocalEnvironment):
    @staticmethod
    def detect(environ: Variables = None) -> bool:
        return True


class CountsMachinesAsProcesses(_Unchecked):
    """The number of machines is the number of processes."""

    @property
    def num_nodes(self) -> int:
        return self.world_size


class CountsLocally(_Unchecked):
    """The world size counts one machine only."""

    @property
    def world_size(self) -> int:
        return int(self.environ["LOCAL_WORLD_SIZE"])

    @property
    def num_nodes(self) -> int:
        return super().world_size // self.local_world_size


class RanksInWords(_Unchecked):
    """The local rank is a text."""

    @property
    def local_rank(self) -> int:
        return self.environ["LOCAL_RANK"]  # type: ignore[return-value]


class HasNoAddress(TorchElasticEnvironment):
    """The main address is blank."""

    @property
    def main_address(self) -> str:
        return " "


class HasNoPort(TorchElasticEnvironment):
    """The main port is no port."""

    @property
    def main_port(self) -> int:
        return 70000


class HostsWhereItLikes(TorchElasticEnvironment):
    """Whether the launcher hosts the store differs between processes."""

    @property
    def hosts_store(self) -> bool:
        return self.global_rank == 0


class StartsSomewhere(TorchElasticEnvironment):
    """Rank 0 says that nothing started it."""

    @property
    def creates_processes_externally(self) -> bool:
        return self.environ.get("RANK") != "1"


class ClaimsOneRank(TorchElasticEnvironment):
    """Only the process of rank 0 is recognized."""

    @staticmethod
    def detect(environ: Variables = None) -> bool:
        variables = os.environ if environ is None else environ
        return TorchElasticEnvironment.detect(variables) and variables.get("RANK") == "0"


class RefusesItself(TorchElasticEnvironment):
    """The cluster's own numbers are refused where there are several machines."""

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        if num_nodes > 1:
            raise ConfigurationError(f"num_nodes={num_nodes}: one machine only")


class CleansUp(TorchElasticEnvironment):
    """``teardown`` removes the launcher's variables."""

    def teardown(self) -> None:
        for name in [*os.environ]:
            if name in self.environ:
                del os.environ[name]
        os.environ["GONE"] = "1"


class MeetsAtHome(TorchElasticEnvironment):
    """Each of several machines takes itself for the main one."""

    @property
    def main_address(self) -> str:
        return "127.0.0.1"


class AddsThePort(TorchElasticEnvironment):
    """The main address has the port, too."""

    @property
    def main_address(self) -> str:
        return f"{super().main_address}:{self.main_port}"


class AsksAServer(TorchElasticEnvironment):
    """``detect`` waits for an answer."""

    @staticmethod
    def detect(environ: Variables = None) -> bool:
        time.sleep(0.6)
        return TorchElasticEnvironment.detect(environ)


class Reports(TorchElasticEnvironment):
    """Connecting prints a line."""

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        super().connect(processes_per_node, num_nodes)
        print("connected")


class ForgetsItsRank(TorchElasticEnvironment):
    """After ``teardown`` the ranks are gone."""

    def teardown(self) -> None:
        self.environ = {}


class TakesItsOwnForNone(TorchElasticEnvironment):
    """With an empty mapping, this process's variables are read."""

    def __init__(self, environ: Variables = None) -> None:
        super().__init__(environ or None)

    @staticmethod
    def detect(environ: Variables = None) -> bool:
        return TorchElasticEnvironment.detect(environ or None)
