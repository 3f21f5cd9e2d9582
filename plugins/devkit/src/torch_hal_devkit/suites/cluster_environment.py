"""The suite of cluster environments."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from torch_hal.discovery.ranks import ranks_by, with_variables
from torch_hal.errors import ConfigurationError, CoreError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.cluster_probes import describe
from torch_hal_devkit.clusters import PROCESSES, WELL_KNOWN, Cluster, cluster_of, connected, detections, made
from torch_hal_devkit.fresh import ask
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.suites.base import Suite, reference
from torch_hal_devkit.suites.cluster_algebra import ClusterAlgebraTests
from torch_hal_devkit.suites.importing import ImportTests
from torch_hal_devkit.suites.metadata import MetadataTests

__all__ = ["ClusterEnvironmentSuite", "Cluster"]

Variables = Mapping[str, str]

_UNKNOWN = """\
the kit does not know which variables the cluster of {backend} sets. Write them into your tests:

    class TestIt(ClusterEnvironmentSuite):
        @pytest.fixture
        def cluster(self):
            variables = [{{"MY_RANK": "0", ...}}, {{"MY_RANK": "1", ...}}]
            return Cluster(processes_per_node=2, num_nodes=1, variables=variables)
"""

_QUICK = 0.5
"""Seconds."""

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")

_GARBAGE = ("", " ", "abc", "-1", "1.5", "99999999999999999999", "\x00", "٣", "a,b;c[1-", "0x10")

_ODD: dict[str, Variables] = {
    "no variables": {},
    "RANK alone": {"RANK": "0"},
    "sizes without ranks": {"WORLD_SIZE": "4", "SLURM_NTASKS": "4", "OMPI_COMM_WORLD_SIZE": "4"},
    **{
        f"everything {garbage!r}": dict.fromkeys(
            (
                *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
                *("MASTER_ADDR", "MASTER_PORT", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_NAME", "SLURM_NODELIST"),
                *("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "LSB_JOBID", "LSB_DJOB_RANKFILE"),
                *("JSM_NAMESPACE_RANK", "KUBERNETES_PORT", "TORCHELASTIC_RUN_ID"),
            ),
            garbage,
        )
        for garbage in _GARBAGE
    },
}


class ClusterEnvironmentSuite(MetadataTests, ImportTests, ClusterAlgebraTests, Suite):
    """The conformance suite of cluster environments; no cluster is needed."""

    kind: ClassVar[str] = "cluster_environment"

    @pytest.fixture
    def cluster(self, backend: BackendUnderTest) -> Cluster:
        """The variables of the cluster's processes; an override returns them, unless a well-known launcher sets them.

        An environment that starts no processes has one process here. Any other must recognize the variables of
        torchrun, Slurm or Open MPI.
        """
        known = [cluster_of(sample) for sample in WELL_KNOWN]
        clusters = [cluster for cluster in known if _starts(backend, cluster.variables[0])]
        if backend.load().detect({}) and not _starts(backend, {}):
            clusters.append(Cluster(PROCESSES, 1, [{}]))
        if not clusters:
            pytest.fail(_UNKNOWN.format(backend=backend), pytrace=False)
        return clusters[0]

    # -- detecting -----------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("variables", _ODD)
    def test_detection_never_raises(self, backend: BackendUnderTest, variables: str) -> None:
        """``detect`` of the class and of the spec return the same bool for any variables, or both refuse them."""
        answers: dict[str, Any] = {}
        for name, function in detections(backend).items():
            try:
                answers[name] = function(dict(_ODD[variables]))
            except ConfigurationError:
                answers[name] = "refused"
                continue
            except Exception as error:
                raise AssertionError(f"{name} with {variables} raised {error!r}. Expected: True or False") from error
            assert isinstance(answers[name], bool), (
                f"{name} with {variables} returned {answers[name]!r}. Expected: True or False"
            )
        assert len(set(answers.values())) == 1, f"with {variables}, detection returned {answers}. Expected: the same"

    @tier("T1")
    def test_its_own_processes_are_detected(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """``detect`` of the class and of the spec recognize each process that the cluster has started."""
        for name, function in detections(backend).items():
            for rank, variables in enumerate(cluster.variables):
                assert function(variables), f"{name} returned False for the variables of rank {rank}. Expected: True"

    @tier("T1")
    def test_detection_is_quick(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Each start of each script calls ``detect``; it asks no server."""
        for name, function in detections(backend).items():
            seconds = min(_seconds(function, cluster.variables[0]) for _ in range(3))
            assert seconds <= _QUICK, f"{name} takes {seconds:.1f} s. Expected: at most {_QUICK} s"

    @tier("T1")
    def test_other_processes_are_not_detected(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """An environment that creates processes does not claim a process that no launcher started."""
        if not made(backend, cluster.variables[0]).creates_processes_externally:
            skip_by_declaration("creates_processes_externally is False")
        for name, function in detections(backend).items():
            assert not function({}), f"{name} returned True without any variables. Expected: False"

    # -- ranks ---------------------------------------------------------------------------------------------------

    @tier("T1")
    def test_ranks_are_consistent(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Global ranks, local ranks and node ranks count up from 0 and match the sizes."""
        per_node, nodes = cluster.processes_per_node, cluster.num_nodes
        for rank, variables in enumerate(cluster.variables):
            environment = connected(backend, variables, cluster)
            found = {name: getattr(environment, name) for name in _RANKS}
            expected = {
                "world_size": per_node * nodes,
                "local_world_size": per_node,
                "num_nodes": nodes,
                "global_rank": rank,
                "local_rank": rank % per_node,
                "node_rank": rank // per_node,
            }
            assert found == expected, f"process {rank} of {nodes} x {per_node} reports {found}. Expected: {expected}"
            for name, value in found.items():
                assert type(value) is int, f"{name} is {value!r}. Expected: an integer"

    @tier("T1")
    def test_the_spec_names_its_variables(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """The spec's ``rank`` and ``size`` tell the ranks before a run; ``variables`` are all others that differ."""
        if not made(backend, cluster.variables[0]).creates_processes_externally:
            skip_by_declaration("creates_processes_externally is False")
        spec, ranks = with_variables(backend.spec), list(enumerate(cluster.variables))
        if not (spec.rank and spec.size):
            having = sorted(name for name in ranks[0][1] if all(each.get(name) == str(rank) for rank, each in ranks))
            assert not having, (
                f"the spec has rank={spec.rank!r}, size={spec.size}. Expected: rank={having[0]!r}, and size"
            )
            skip_by_declaration("the spec names no variable with the rank")
        for rank, variables in ranks:
            found, expected = ranks_by(spec, variables), (rank, len(ranks))
            assert found == expected, (
                f"by the spec's rank, size, requires and excludes, process {rank} has rank and world size {found}. "
                f"Expected: {expected}"
            )
        differ = {name for _, each in ranks for name in each if each[name] != ranks[0][1].get(name)}
        missing = sorted(differ.difference(spec.process_variables))
        assert not missing, (
            f"the spec's variables lack {missing}, which differ between processes. Expected: all of them"
        )

    @tier("T1")
    def test_main_address_and_port(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Main address and port are valid, the same in each process, and can be reached from each machine."""
        places = set()
        for variables in cluster.variables:
            environment = connected(backend, variables, cluster)
            address, port = environment.main_address, environment.main_port
            assert isinstance(address, str), f"main_address={address!r}. Expected: a host name or an address"
            assert _is_host(address), f"main_address={address!r}. Expected: a host name or an address, without a port"
            low = 1 if environment.creates_processes_externally else 0  # its launcher's store gets a free port
            assert type(port) is int, f"main_port={port!r}. Expected: an integer"
            assert low <= port <= 65535, f"main_port={port!r}. Expected: a port, {low} to 65535"
            places.add((address, port))
        assert len(places) == 1, f"processes of one run have main addresses {sorted(places)}. Expected: the same"
        address, _ = places.pop()
        assert cluster.num_nodes == 1 or not _is_loopback(address), (
            f"main_address={address!r} on {cluster.num_nodes} machines, where each machine finds itself by it"
        )

    @tier("T1")
    def test_properties_are_stable(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Properties do not change when the mapping of variables changes later."""
        given = dict(cluster.variables[-1])
        environment = connected(backend, given, cluster)
        first = describe(environment)
        given.update(dict.fromkeys(given, "no number"))
        given["WORLD_SIZE"] = "no number"
        second = describe(environment)
        assert second == first, f"after the variables changed, properties are {second}. Expected: {first}, as before"

    @tier("T1")
    def test_truth_values(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """``creates_processes_externally`` and ``hosts_store`` are the same bool in each process."""
        for name in ("creates_processes_externally", "hosts_store"):
            values = {getattr(connected(backend, variables, cluster), name) for variables in cluster.variables}
            assert values in ({True}, {False}), f"{name} is {values}. Expected: True or False, the same in each process"

    # -- what it refuses -----------------------------------------------------------------------------------------

    @tier("T1")
    def test_its_own_numbers_are_taken(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """``validate_settings`` accepts the cluster's numbers of processes and machines."""
        for variables in cluster.variables:
            made(backend, variables).validate_settings(cluster.processes_per_node, cluster.num_nodes)

    @tier("T1")
    @pytest.mark.parametrize("which", ["more processes", "fewer processes", "more machines", "fewer machines"])
    def test_other_numbers_are_refused(self, backend: BackendUnderTest, cluster: Cluster, which: str) -> None:
        """Another number of processes or machines raises a ConfigurationError that names it."""
        environment = made(backend, cluster.variables[0])
        processes, nodes, step = cluster.processes_per_node, cluster.num_nodes, 1 if which.startswith("more") else -1
        if which.endswith("processes"):
            processes += step
            if not environment.creates_processes_externally:
                skip_by_declaration("creates_processes_externally is False: it accepts any number of processes")
        else:
            nodes += step
        if min(processes, nodes) < 1:
            skip_by_declaration("there is only one")
        text = _refusal(environment, processes, nodes)
        number = processes if which.endswith("processes") else nodes
        assert str(number) in text, f"the error does not name the requested number {number}: {text}"

    @tier("T1")
    @pytest.mark.parametrize("garbage", _GARBAGE, ids=repr)
    def test_variables_that_make_no_sense(self, backend: BackendUnderTest, cluster: Cluster, garbage: str) -> None:
        """Invalid variables raise nothing but a CoreError."""
        for name in cluster.variables[0]:
            variables = {**cluster.variables[0], name: garbage}
            try:
                if not backend.load().detect(variables):
                    continue
                environment = made(backend, variables)
                environment.connect(cluster.processes_per_node, cluster.num_nodes)
                describe(environment)
            except CoreError:
                continue
            except Exception as error:
                raise AssertionError(f"{name}={garbage!r} raised {error!r}. Expected: core.errors.CoreError") from error

    # -- side effects --------------------------------------------------------------------------------------------

    @tier("T1")
    def test_importing_it_takes_no_torch(self, backend: BackendUnderTest) -> None:
        """Importing the class does not import torch."""
        target = reference(backend)["target"]
        assert not ask("torch_hal_devkit.cluster_probes:imported", reference(backend)).value, (
            f"importing {target} imports torch"
        )

    @tier("T1")
    def test_the_environment_variables_stay_as_they_are(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Using it does not change ``os.environ``, and later changes of ``os.environ`` do not affect it."""
        variables = dict(cluster.variables[-1])
        answer = ask(
            "torch_hal_devkit.cluster_probes:used",
            reference(backend),
            variables,
            cluster.processes_per_node,
            cluster.num_nodes,
        ).value
        assert not answer["changed"], f"using it changes the variables {answer['changed']}. Expected: no change"
        assert answer["second"] == answer["first"], (
            f"after os.environ changed, properties are {answer['second']}. Expected: {answer['first']}, as before"
        )

    @tier("T1")
    def test_given_variables_go_before_the_process_own(
        self, backend: BackendUnderTest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An environment with an explicit mapping reads that mapping, and not ``os.environ``."""
        expected = describe(connected(backend, cluster.variables[-1], cluster))
        names = {name for sample in WELL_KNOWN for name in sample(0)} | set(cluster.variables[-1])
        for name in names:
            monkeypatch.setenv(name, "77")
        found = describe(connected(backend, cluster.variables[-1], cluster))
        assert found == expected, f"with other variables in os.environ, properties are {found}. Expected: {expected}"

    @tier("T1")
    def test_using_it_prints_nothing(
        self, backend: BackendUnderTest, cluster: Cluster, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Detecting, connecting, reading and teardown print nothing, which every process would."""
        capfd.readouterr()
        for variables in cluster.variables:
            backend.load().detect(variables)
            environment = connected(backend, variables, cluster)
            environment.validate_settings(cluster.processes_per_node, cluster.num_nodes)
            describe(environment)
            environment.teardown()
        printed = "".join(capfd.readouterr())
        assert not printed, f"using it prints {printed[:300]!r}. Expected: nothing"

    @tier("T1")
    def test_teardown_can_be_called_twice(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """``teardown`` can be called twice, does not change ``os.environ``, and leaves the ranks known."""
        before = dict(os.environ)
        environment = connected(backend, cluster.variables[-1], cluster)
        expected = {name: getattr(environment, name) for name in _RANKS}
        environment.teardown()
        environment.teardown()
        assert dict(os.environ) == before, "teardown() changes os.environ. Expected: no change"
        found = {name: getattr(environment, name) for name in _RANKS}
        assert found == expected, f"after teardown() it reports {found}. Expected: {expected}, as before"


_RANKS = ("world_size", "local_world_size", "num_nodes", "global_rank", "local_rank", "node_rank")


def _starts(backend: BackendUnderTest, variables: Variables) -> bool:
    """Whether these are variables of its cluster, and the cluster creates processes."""
    try:
        is_its = bool(backend.load().detect(variables))
    except ConfigurationError:  # it refuses the variables of another launcher
        return False
    return is_its and bool(made(backend, variables).creates_processes_externally)


def _seconds(function: Any, variables: Variables) -> float:
    began = time.perf_counter()
    function(variables)
    return time.perf_counter() - began


def _is_host(address: str) -> bool:
    return bool(_HOST_NAME.fullmatch(address)) or _ip(address) is not None


def _is_loopback(address: str) -> bool:
    ip = _ip(address)
    return address == "localhost" if ip is None else ip.is_loopback


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def _refusal(environment: Any, processes: int, nodes: int) -> str:
    call = f"validate_settings({processes}, {nodes})"
    try:
        environment.validate_settings(processes, nodes)
    except ConfigurationError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{call} raised {error!r}. Expected: core.errors.ConfigurationError") from error
    raise AssertionError(f"{call} raised nothing. Expected: core.errors.ConfigurationError")
