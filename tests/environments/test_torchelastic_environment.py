"""Processes that torchrun started, or anything that sets the variables it sets."""

from __future__ import annotations

import pytest

from core.environments import TorchElasticEnvironment
from core.environments.base import whole_number
from core.errors import ConfigurationError

BY_HAND = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
TWO_MACHINES = {**BY_HAND, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}


def test_who_this_process_is() -> None:
    """Ranks, sizes and the place to meet are what torchrun says."""
    environment = TorchElasticEnvironment(TWO_MACHINES)
    assert (environment.global_rank, environment.local_rank, environment.node_rank) == (3, 1, 1)
    assert (environment.world_size, environment.local_world_size, environment.num_nodes) == (4, 2, 2)
    assert (environment.main_address, environment.main_port) == ("host", 29500)
    assert environment.creates_processes_externally
    environment.connect(2, 2)


def test_started_by_hand() -> None:
    """On one machine the size there is that of the world; on several, the machine's number follows from the rank."""
    alone = TorchElasticEnvironment(BY_HAND)
    assert (alone.local_world_size, alone.num_nodes, alone.node_rank) == (4, 1, 0)
    alone.validate_settings(4, 1)
    several = TorchElasticEnvironment({**BY_HAND, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (several.num_nodes, several.node_rank) == (2, 1)
    several.validate_settings(2, 2)


@pytest.mark.parametrize("missing", sorted(BY_HAND))
def test_it_takes_all_variables_to_be_recognised(missing: str) -> None:
    """One variable less, and it was not torchrun."""
    assert TorchElasticEnvironment.detect(BY_HAND)
    assert not TorchElasticEnvironment.detect({name: value for name, value in BY_HAND.items() if name != missing})


@pytest.mark.parametrize(("said", "hosts"), [("True", True), ("False", False), (None, False)])
def test_who_serves_the_store(said: str | None, hosts: bool) -> None:
    """torchrun's agent serves it where the variable of torchrun says so."""
    environ = {**BY_HAND, **({} if said is None else {"TORCHELASTIC_USE_AGENT_STORE": said})}
    assert TorchElasticEnvironment(environ).hosts_store is hosts


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"RANK": "4"}, "a rank must be smaller than its world size"),
        ({"LOCAL_RANK": "2"}, "a rank must be smaller than its world size"),
        ({"WORLD_SIZE": "5"}, "every machine must have the same number of processes"),
        ({"GROUP_RANK": "0"}, "ranks must be consecutive on each machine"),
        ({"LOCAL_RANK": "0"}, "ranks must be consecutive on each machine"),
        ({"RANK": "three"}, "RANK is 'three'"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK is ''"),
        ({"GROUP_RANK": "-1"}, "GROUP_RANK is '-1'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is '0'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is ''"),
    ],
)
def test_variables_that_make_no_sense(changes: dict[str, str], says: str) -> None:
    """What contradicts itself or is not a number is refused before anyone tries to meet."""
    with pytest.raises(ConfigurationError, match=r"environment variable.*(must be|Start the script with)") as caught:
        TorchElasticEnvironment({**TWO_MACHINES, **changes}).validate_settings(2, 2)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("processes", "machines", "says"), [(1, 2, "devices asks for 1"), (4, 2, "devices asks for 4"), (2, 1, "num_")]
)
def test_other_sizes_than_were_started(processes: int, machines: int, says: str) -> None:
    """More or fewer processes or machines than torchrun started are refused, naming both numbers."""
    with pytest.raises(ConfigurationError, match=says):
        TorchElasticEnvironment(TWO_MACHINES).validate_settings(processes, machines)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("007", 7), ("999999999", 999_999_999)])
def test_whole_numbers(text: str, number: int) -> None:
    """Digits are a number."""
    assert whole_number({"N": text}, "N") == number


@pytest.mark.parametrize("text", ["", " 1", "-1", "+1", "1.0", "1_0", "0x1", "one", "٣", "²", "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    """Anything else is refused, naming the variable and what it holds."""
    with pytest.raises(ConfigurationError, match=r"variable N is .* must be an integer ≥ 0\.") as caught:
        whole_number({"N": text}, "N")
    assert repr(text)[:20] in str(caught.value)
    assert len(str(caught.value)) < 250


def test_bounds_and_defaults_of_whole_numbers() -> None:
    """A default stands in for a variable that is not set, never for one that is set badly; bounds are inclusive."""
    assert whole_number({}, "N", 3) == 3
    assert [whole_number({"N": text}, "N", low=1, high=2) for text in ("1", "2")] == [1, 2]
    for environ, options in (
        ({}, {}),
        ({"N": "x"}, {"default": 3}),
        ({"N": "0"}, {"low": 1}),
        ({"N": "3"}, {"high": 2}),
    ):
        with pytest.raises(ConfigurationError, match="variable N is"):
            whole_number(environ, "N", **options)
