"""What scripts use without a Runtime: ``PartialState``, and functions that need none."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..discovery.ranks import launched_ranks
from ..environments.base import LAUNCHED
from ..environments.local import ranks_environ
from ..errors import ConfigurationError, nearest
from ..hints.argument_checks import check_flags, suggest_arguments_of, suggest_in_methods
from ..hints.remedies import package
from ..plan import Plan, Request, assemble, resolve
from ..strategies.base import Strategy
from ..utilities.live_runtimes import last_run
from .checks import used_by_with
from .collectives import split
from .prepare.preparing import synchronize_generators
from .properties import ReadOnlyFacts
from .runtime import Runtime
from .settings import read_rng_types

T = TypeVar("T")


@suggest_in_methods(leave=())
@suggest_arguments_of
class PartialState(ReadOnlyFacts):
    """Which process this is, also before there is a Runtime; no settings pass through it.

    ::

        with PartialState().main_process_first():
            dataset = download()

    Its facts are those of the last Runtime that was not torn down. Before there is one, they are what the launcher of
    this process has set, such as torchrun; without a launcher this is the only process. Under a launcher, methods that
    wait for other processes connect with them for that time. Processes that a strategy starts run the script when the
    first process has already reached its Runtime: until they create theirs, these methods do not wait.

    Args:
        cpu: Whether the device is the CPU.

    Raises:
        WrongTypeError: ``cpu`` is no bool.
        ConfigurationError: When a fact is read: the last Runtime has another device than the CPU although ``cpu`` is
            set; or it is a setting, such as ``mixed_precision``, and there is no Runtime.
    """

    _called, _front_end = "PartialState", Runtime

    def __init__(self, cpu: bool = False) -> None:
        check_flags("PartialState: ", cpu=cpu)
        self._cpu = cpu
        self._own: dict[str | None, Strategy] = {}

    @property
    def _strategy(self) -> Strategy:  # type: ignore[override]  # a different one, once there is a Runtime
        run = last_run()
        if run is None:
            told = _told()
            if told not in self._own:
                self._own[told] = assemble(_launchers_plan(told, self._cpu))
            return self._own[told]
        strategy: Strategy = run.strategy
        if self._cpu and strategy.root_device.type != "cpu":
            raise ConfigurationError(
                f"PartialState(cpu=True): the Runtime of this process is on {strategy.root_device}. Leave it out, or "
                "pass cpu=True to the Runtime."
            )
        return strategy

    def _engine_setting(self, name: str) -> Any:
        return _setting_of_run(name, super()._engine_setting(name))

    @property
    def mixed_precision(self) -> str:
        """Like the last Runtime's."""
        return str(_setting_of_run("mixed_precision", super().mixed_precision))

    @property
    def scaler(self) -> Any:
        """Like the last Runtime's."""
        return _setting_of_run("scaler", super().scaler)

    def __repr__(self) -> str:
        return f"<PartialState: process {self.process_index} of {self.num_processes}, on {self.device}>"

    # -- waiting -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _meeting(self) -> Iterator[Runtime | None]:
        """A Runtime in which the processes wait for each other; ``None`` where there is no one to wait for."""
        run = last_run()
        if run is not None:
            yield run
        elif _told() is not None or self.num_processes == 1:
            yield None
        else:
            with Runtime(cpu=self._cpu) as brief:
                yield brief

    def wait_for_everyone(self) -> None:
        """Like :meth:`core.Runtime.wait_for_everyone`."""
        with self._meeting() as run:
            if run is not None:
                run.wait_for_everyone()

    def destroy_process_group(self) -> None:
        """Tear down the last Runtime and its process group; does nothing if there is none."""
        run = last_run()
        if run is not None:
            run.teardown()

    @used_by_with("PartialState().main_process_first()")
    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Like :meth:`core.Runtime.main_process_first`."""
        with self._meeting() as run, nullcontext() if run is None else run.main_process_first():
            yield

    @used_by_with("PartialState().local_main_process_first()")
    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Like :meth:`core.Runtime.local_main_process_first`."""
        with self._meeting() as run, nullcontext() if run is None else run.local_main_process_first():
            yield

    @used_by_with("PartialState().split_between_processes(inputs) as part")
    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Like :meth:`core.Runtime.split_between_processes`.

        Raises:
            ConfigurationError: A strategy has started this process, and there is no Runtime.
        """
        if _told() is not None and last_run() is None:
            raise ConfigurationError(
                "PartialState.split_between_processes: there is no Runtime in this process, and process 0 had none "
                "either when it was here, so it took all inputs. Create the Runtime before, or start the script by "
                "'torch-hal run'."
            )
        yield split(inputs, self.num_processes, self.process_index, apply_padding)


AcceleratorState = PartialState
"""The same, under Accelerate's name for what also has settings."""


def is_initialized() -> bool:
    """Whether there is a Runtime in this process, so that :class:`AcceleratorState` has settings."""
    return last_run() is not None


def _setting_of_run(name: str, value: Any) -> Any:
    return _no_run(name) if last_run() is None else value


def _no_run(name: str) -> NoReturn:
    raise ConfigurationError(
        f"PartialState.{name}: there is no Runtime in this process, and only a Runtime has settings. Create it before."
    )


def _told() -> str | None:
    """The Plan that a strategy has sent to this process, as JSON; ``None`` if no strategy started it."""
    return ranks_environ().get(LAUNCHED)


def _launchers_plan(told: str | None, cpu: bool) -> Plan:
    """The Plan of this process according to its launcher; of a single process without one."""
    if told is not None:
        plan = Plan.from_json(told)
        given: dict[str, Any] = {"accelerator": plan.accelerator.name, "devices": plan.request["devices"]}
        return resolve(Request.read(**given, num_nodes=plan.num_nodes))
    devices: Any = "auto" if launched_ranks()[1] > 1 else 1
    return resolve(Request.read(accelerator="cpu" if cpu else "auto", devices=devices))


class _Names(type):
    def __getattr__(cls, name: str) -> str:
        if not name.isupper():
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}. Its names are in capitals.")
        return name


class DistributedType(metaclass=_Names):
    """Values of :attr:`core.Runtime.distributed_type`, which are text: ``DistributedType.NO`` is ``"NO"``.

    Strategies of other packages may have any name, so each name in capitals is its own value.
    """


def gather(tensor: Any) -> Any:
    """:meth:`core.Runtime.gather` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    return _last_run("gather").gather(tensor)


def gather_object(object: Any) -> list[Any]:  # noqa: A002  Accelerate's name
    """:meth:`core.Runtime.gather_object` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    gathered: list[Any] = _last_run("gather_object").gather_object(object)
    return gathered


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """:meth:`core.Runtime.broadcast` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    return _last_run("broadcast").broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[T], from_process: int = 0) -> list[T]:
    """:meth:`core.Runtime.broadcast_object_list` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    received: list[T] = _last_run("broadcast_object_list").broadcast_object_list(object_list, from_process)
    return received


def synchronize_rng_states(rng_types: Sequence[str], generator: torch.Generator | None = None) -> None:
    """Give each process of the last Runtime the states of process 0's generators; every process calls it.

    Args:
        rng_types: The generators: ``"torch"``, the type of the run's devices, and ``"generator"``.
        generator: The one that ``"generator"`` means.

    Raises:
        ConfigurationError: There is no Runtime or no such generator, or one of ``"generator"`` and ``generator`` is
            missing.
    """
    run = _last_run("synchronize_rng_states")
    strategy = run._life.live()
    kinds = read_rng_types(rng_types, strategy.root_device.type)
    if ("generator" in rng_types) != (generator is not None):
        raise ConfigurationError(
            f"synchronize_rng_states: rng_types={list(rng_types)!r}, generator={generator!r}: pass both 'generator' "
            "and the generator, or neither."
        )
    synchronize_generators(strategy, kinds)
    if generator is not None:
        generator.set_state(strategy.broadcast(generator.get_state()))


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """A progress bar, ``tqdm.auto.tqdm``, that shows in process 0 of each machine only.

    Args:
        *args: As of tqdm.
        main_process_only: Whether the other processes show none; they iterate all the same.
        **kwargs: As of tqdm.

    Raises:
        ConfigurationError: tqdm is not installed.
    """
    if importlib.util.find_spec("tqdm") is None:
        raise ConfigurationError(f"tqdm: it is not installed. Run: pip install {package('torch-hal[progress]')!r}")
    from tqdm.auto import tqdm as bar

    if main_process_only and not PartialState().is_local_main_process:
        kwargs["disable"] = True
    return bar(*args, **kwargs)


def _last_run(function: str) -> Any:
    run = last_run()
    if run is None:
        raise ConfigurationError(
            f"{function}: there is no Runtime in this process. Create one before, or call runtime.{function}(...)."
        )
    return run


@contextmanager
def init_on_device(device: torch.device | str, include_buffers: bool = False) -> Iterator[None]:
    """Create the parameters of modules on ``device``.

    ::

        with init_on_device("cuda:0"):
            model = Model()

    Args:
        device: The device.
        include_buffers: Whether all other tensors of the block are created there too.
    """
    if include_buffers:
        with torch.device(device):
            yield
        return

    def place(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.device == torch.device(device):  # one that two modules share stays one
            return None
        placed = nn.Parameter(parameter.data.to(device), parameter.requires_grad)
        placed.__dict__.update(parameter.__dict__)
        return placed

    hook = register_module_parameter_registration_hook(place)
    try:
        yield
    finally:
        hook.remove()


def init_empty_weights(include_buffers: bool = False) -> AbstractContextManager[None]:
    """Create modules whose parameters have no memory, of any size.

    ::

        with init_empty_weights():
            model = Model()
        model.load_state_dict(weights, assign=True)

    Args:
        include_buffers: Whether buffers have none either.
    """
    return init_on_device("meta", include_buffers)


def release_memory(*objects: Any) -> list[None]:
    """Collect garbage, and return the unused memory of torch's current accelerator to it.

    ::

        model, optimizer = release_memory(model, optimizer)

    Args:
        *objects: What the caller holds.

    Returns:
        ``None`` for each object, to assign to the names that hold them: memory is freed when nothing refers to it.
    """
    clear_device_cache(garbage_collection=True)
    return [None] * len(objects)


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Return the unused memory of torch's current accelerator to it.

    Args:
        garbage_collection: Whether to collect garbage before.
    """
    if garbage_collection:
        gc.collect()
    if torch.accelerator.is_available():
        empty_cache = getattr(torch.get_device_module(), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()


def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: torch.device | str | int,
    value: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
) -> None:
    """Move one parameter or buffer to a device, or give it a value there, as one on ``meta`` needs.

    ::

        with init_empty_weights():
            model = Model()
        set_module_tensor_to_device(model, "layers.0.weight", "cuda:0", value=weights["layers.0.weight"])

    Args:
        module: The module.
        tensor_name: As in ``named_parameters()`` or ``named_buffers()``.
        device: Where it is to be.
        value: Its value; by default its own.
        dtype: That of the value; by default that of the tensor if it is a floating point one, as the value is.
        non_blocking: Whether not to wait for the copy.

    Raises:
        ConfigurationError: There is no such tensor, it is on ``meta`` and there is no value, or shapes differ.
    """
    old: torch.Tensor | None = None
    for get in (module.get_buffer, module.get_parameter):
        with suppress(AttributeError):
            old = get(tensor_name)
    if old is None:
        known = [each for each, _ in (*module.named_parameters(), *module.named_buffers())]
        raise ConfigurationError(
            f"tensor_name={tensor_name!r}: {type(module).__name__} has no such parameter or buffer."
            f"{nearest(tensor_name, known)}"
        )
    if value is None and old.is_meta and torch.device(device).type != "meta":
        raise ConfigurationError(f"{tensor_name!r} is on 'meta', so it has no value. Pass value=.")
    if value is not None and value.shape != old.shape:
        raise ConfigurationError(
            f"{tensor_name!r} has shape {tuple(old.shape)}, and value has shape {tuple(value.shape)}."
        )
    data = old.detach() if value is None else value.detach()
    if dtype is None and old.is_floating_point() and data.is_floating_point():
        dtype = old.dtype
    data = data.to(device, dtype, non_blocking=non_blocking)
    placed: torch.Tensor = data
    if isinstance(old, nn.Parameter):
        placed = nn.Parameter(data, old.requires_grad)
        placed.__dict__.update(old.__dict__)
    owner_name, _, name = tensor_name.rpartition(".")
    setattr(module.get_submodule(owner_name), name, placed)
