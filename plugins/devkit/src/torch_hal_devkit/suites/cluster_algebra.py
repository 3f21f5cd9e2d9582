"""T1 of cluster environments: which variables are read, in what order, by which instance, and after which errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from torch_hal.errors import ConfigurationError, CoreError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.cluster_probes import PROPERTIES, describe
from torch_hal_devkit.clusters import WELL_KNOWN, Cluster, connected, detections, made, other_shapes
from torch_hal_devkit.drawn import SEEDS
from torch_hal_devkit.fresh import ask
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.process_state import changes, draw, recorded, unusual
from torch_hal_devkit.suites.base import copied, reference

__all__ = ["ClusterAlgebraTests"]


class _Reads(Mapping[str, str]):
    """A mapping that is no dict."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


class ClusterAlgebraTests:
    """Tests of tier T1."""

    # -- which variables -----------------------------------------------------------------------------------------

    @tier("T1")
    def test_no_variables_are_not_the_process_own(
        self, backend: BackendUnderTest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An empty mapping means that no variable is set, also in a process in which the cluster's are."""
        expected = _answers(backend, {})
        for name, value in _set(cluster).items():
            monkeypatch.setenv(name, value)
        found = _answers(backend, {})
        assert found == expected, (
            f"given no variables, in a process of the cluster, it answers {found}. Expected: {expected}, as elsewhere"
        )

    @tier("T1")
    def test_without_a_mapping_they_are_the_process_own(
        self, backend: BackendUnderTest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a mapping, ``detect`` and an instance read this process's variables."""
        for sample in (*(sample(0) for sample in WELL_KNOWN), *cluster.variables):
            for name in sample:
                monkeypatch.delenv(name, raising=False)
        for variables in cluster.variables[:: max(1, len(cluster.variables) - 1)]:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            expected = describe(connected(backend, variables, cluster))
            for name, function in detections(backend).items():
                assert function(os.environ) is True, (
                    f"{name} returned False in a process of the cluster. Expected: True"
                )
            own = backend.load().detect()
            assert own is True, f"detect() returned {own!r} in a process of the cluster. Expected: True"
            environment = backend.create()
            environment.connect(cluster.processes_per_node, cluster.num_nodes)
            found = describe(environment)
            assert found == expected, f"without a mapping it reports {found}. Expected: {expected}"

    @tier("T1")
    def test_any_mapping_is_taken(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Variables come in any mapping, also one that cannot be changed, and stay as they are."""
        for variables in cluster.variables:
            expected = describe(connected(backend, variables, cluster))
            for given in (MappingProxyType(dict(variables)), _Reads(variables)):
                for name, function in detections(backend).items():
                    assert function(given), f"{name} of a {type(given).__name__} returned False. Expected: True"
                found = describe(connected(backend, given, cluster))
                assert found == expected, f"of a {type(given).__name__} it reads {found}. Expected: {expected}"
            kept = dict(variables)
            describe(connected(backend, kept, cluster))
            assert kept == dict(variables), "reading it changes the mapping of variables"

    @tier("T1")
    @pytest.mark.parametrize("seed", SEEDS)
    def test_other_variables_do_not_matter(self, backend: BackendUnderTest, cluster: Cluster, seed: int) -> None:
        """Variables of other programs, and the order of all, change neither ``detect`` nor a rank."""
        order = Random(seed)
        for variables in cluster.variables:
            expected = describe(connected(backend, variables, cluster))
            more = {**variables, **{f"KIT_{order.randrange(99)}": order.choice(["", "0", "x", "7"]) for _ in range(5)}}
            mixed = dict(order.sample([*more.items()], len(more)))
            for name, function in detections(backend).items():
                assert function(mixed), f"{name} returned False with further variables. Expected: True"
            found = describe(connected(backend, mixed, cluster))
            assert found == expected, f"with further variables it reports {found}. Expected: {expected}"

    @tier("T1")
    def test_a_variable_that_is_missing(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Without one of its variables a process is not detected, is refused, or has the ranks of before."""
        names = ("world_size", "local_world_size", "num_nodes", "global_rank", "local_rank", "node_rank")
        for variables in cluster.variables[:: max(1, len(cluster.variables) - 1)]:
            environment = connected(backend, variables, cluster)
            expected = [getattr(environment, name) for name in names]
            for missing in variables:
                rest = {name: value for name, value in variables.items() if name != missing}
                try:
                    if not backend.load().detect(rest):
                        continue
                    environment = connected(backend, rest, cluster)
                    found = [getattr(environment, name) for name in names]
                except CoreError:
                    continue
                assert found == expected, f"without {missing}, {', '.join(names)} are {found}. Expected: {expected}"

    @tier("T1")
    def test_clusters_of_other_shapes(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Ranks and the first machine are right, for any number of machines, processes on each, and kind of name."""
        others = other_shapes(cluster)
        if not others:
            skip_by_declaration("the suite's fixture cluster describes one cluster")
        for other in others:
            per_node, nodes = other.processes_per_node, other.num_nodes
            for rank, variables in enumerate(other.variables):
                environment = connected(backend, variables, other)
                found = [environment.world_size, environment.local_world_size, environment.num_nodes]
                found += [environment.global_rank, environment.local_rank, environment.node_rank]
                expected = [per_node * nodes, per_node, nodes, rank, rank % per_node, rank // per_node]
                assert found == expected, (
                    f"process {rank} of {nodes} x {per_node} has (world size, local size, machines, rank, local rank, "
                    f"machine) {found}. Expected: {expected}"
                )
                address = environment.main_address
                assert other.main_address in (None, address), (
                    f"of {nodes} machines main_address is {address!r}. Expected: {other.main_address!r}, the first one"
                )

    # -- orders and instances ------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("seed", SEEDS)
    def test_properties_in_any_order(self, backend: BackendUnderTest, cluster: Cluster, seed: int) -> None:
        """Properties are the same however often, and in which order, they are read."""
        order = Random(seed)
        variables = order.choice(list(cluster.variables))
        expected = describe(connected(backend, variables, cluster))
        environment = connected(backend, variables, cluster)
        for name in order.choices(PROPERTIES, k=30):
            found = getattr(environment, name)
            assert found == expected[name], f"read in another order, {name} is {found!r}. Expected: {expected[name]!r}"

    @tier("T1")
    def test_instances_are_independent(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Instances with the variables of different processes keep their own numbers, used in turns."""
        everyone = [(connected(backend, variables, cluster), rank) for rank, variables in enumerate(cluster.variables)]
        first = [describe(environment) for environment, _ in everyone]
        for environment, rank in reversed(everyone):
            if rank % 2:
                environment.teardown()
            made(backend, cluster.variables[0])
        again = [describe(environment) for environment, _ in everyone]
        assert again == first, f"after other instances were used, it reports {again}. Expected: {first}"
        ranks = [found["global_rank"] for found in first]
        assert ranks == [*range(len(everyone))], f"instances of all processes have the ranks {ranks}"

    @tier("T1")
    @pytest.mark.parametrize("how", ["pickled", "copied"])
    def test_a_copy_of_it_works(
        self, backend: BackendUnderTest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        """A pickled or deeply copied instance has the same numbers, whatever the variables of its process are."""
        environment = connected(backend, cluster.variables[-1], cluster)
        expected = {**describe(environment), "name": environment.name}
        for name in cluster.variables[-1]:
            monkeypatch.setenv(name, "77")
        other = copied(environment, how)
        found = {**describe(other), "name": other.name}
        assert found == expected, f"a {how} instance reports {found}. Expected: {expected}"

    @tier("T1")
    def test_other_processes_answer_the_same(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Processes with the same variables have the same properties, whatever Python hashes differently in each."""
        arguments = reference(backend), dict(cluster.variables[-1]), cluster.processes_per_node, cluster.num_nodes
        answers = [
            ask("torch_hal_devkit.cluster_probes:used", *arguments, environ={"PYTHONHASHSEED": seed}).value["first"]
            for seed in ("1", "2")
        ]
        assert answers[0] == answers[1], f"two processes with the same variables report {answers}. Expected: the same"

    @tier("T1")
    @pytest.mark.parametrize("text", ["False", "false"])
    def test_text_that_says_no(self, backend: BackendUnderTest, cluster: Cluster, text: str) -> None:
        """A variable with the text ``False`` makes nothing true that is not true without the variable."""
        variables, names = cluster.variables[0], ("creates_processes_externally", "hosts_store")
        expected = [getattr(connected(backend, variables, cluster), name) for name in names]
        for variable in set(backend.spec.process_variables) - {*variables}:
            try:
                environment = connected(backend, {**variables, variable: text}, cluster)
                found = [getattr(environment, name) for name in names]
            except CoreError:
                continue
            assert found == expected, f"with {variable}={text!r}, {', '.join(names)} are {found}. Expected: {expected}"

    @tier("T1")
    def test_after_a_refusal_it_goes_on(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """After numbers were refused, the cluster's own are accepted, and the ranks are as before."""
        variables = cluster.variables[-1]
        expected = describe(connected(backend, variables, cluster))
        environment = made(backend, variables)
        for more in (1, 2):
            try:
                environment.validate_settings(cluster.processes_per_node, cluster.num_nodes + more)
            except ConfigurationError:
                continue
        for _ in range(2):
            environment.validate_settings(cluster.processes_per_node, cluster.num_nodes)
            environment.connect(cluster.processes_per_node, cluster.num_nodes)
        found = describe(environment)
        assert found == expected, f"after a refusal it reports {found}. Expected: {expected}"

    @tier("T1")
    @pytest.mark.parametrize("seed", SEEDS)
    def test_drawn_numbers_are_refused(self, backend: BackendUnderTest, cluster: Cluster, seed: int) -> None:
        """Of any numbers of processes and machines, only the cluster's own are accepted."""
        order, own = Random(seed), (cluster.processes_per_node, cluster.num_nodes)
        for variables in cluster.variables:
            environment = made(backend, variables)
            if not environment.creates_processes_externally:
                skip_by_declaration("creates_processes_externally is False: it accepts any number of processes")
            processes, nodes = order.randrange(1, 9), order.randrange(1, 5)
            for numbers in ((processes, nodes), own[::-1], (own[0] * own[1], 1), own):
                try:
                    environment.validate_settings(*numbers)
                    is_accepted = True
                except ConfigurationError:
                    is_accepted = False
                assert is_accepted == (numbers == own), (
                    f"validate_settings{numbers} {'accepts' if is_accepted else 'refuses'} in a cluster of {own}"
                )

    @tier("T1")
    def test_what_else_it_tells(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """``requeue_command``, ``leaves_orphans`` and ``restarted_since`` have their types, and are the same again."""
        for variables in cluster.variables:
            environment = connected(backend, variables, cluster)
            command, orphans = environment.requeue_command(), environment.leaves_orphans
            since = environment.restarted_since
            assert isinstance(command, list), f"requeue_command() returned {command!r}. Expected: a list of texts"
            assert all(isinstance(part, str) and part for part in command), f"requeue_command() returned {command!r}"
            assert isinstance(orphans, bool), f"leaves_orphans is {orphans!r}. Expected: True or False"
            assert since is None or (isinstance(since, float) and since > 0), f"restarted_since is {since!r}"
            command.append("changed by the kit")
            again = environment.requeue_command()
            assert "changed by the kit" not in again, "a change of what requeue_command() returned is seen in the next"

    @tier("T1")
    def test_the_process_stays_as_it_was(self, backend: BackendUnderTest, cluster: Cluster) -> None:
        """Detecting, connecting, refusing and ``teardown`` leave a process as it is, whatever its settings are."""
        with unusual():
            before = recorded()
            draw()
            drawn_before = recorded(("random state",))
            for variables in cluster.variables:
                for function in detections(backend).values():
                    function(variables)
                environment = connected(backend, variables, cluster)
                describe(environment)
                with suppress(CoreError):
                    environment.validate_settings(77, 99)
                environment.teardown()
            changed = {**changes(before, recorded()), "random state": ""}
            changed |= changes(drawn_before, recorded(("random state",)))
        left = {aspect: text for aspect, text in changed.items() if text}
        assert not left, f"a process with unusual settings is changed: {left}. Expected: no change"


def _set(cluster: Cluster) -> dict[str, str]:
    return {
        name: value
        for sample in (*(sample(0) for sample in WELL_KNOWN), cluster.variables[0])
        for name, value in sample.items()
    }


def _answers(backend: BackendUnderTest, variables: Mapping[str, str]) -> dict[str, Any]:
    """What it says of these variables; of an error, its kind."""
    found: dict[str, Any] = {}
    for name, function in detections(backend).items():
        found[name] = _answer(lambda function=function: function(variables))
    environment = _answer(lambda: made(backend, variables))
    for name in PROPERTIES:
        found[name] = _answer(lambda name=name: getattr(environment, name))
    return found


def _answer(function: Any) -> Any:
    try:
        return function()
    except (CoreError, AttributeError) as error:
        return type(error).__name__
