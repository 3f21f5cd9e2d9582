"""The strategy's settings in the names of scripts for Accelerate: what they pass, and read as ``fsdp_plugin``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from torch_hal.errors import ConfigurationError, quoted

if TYPE_CHECKING:
    from torch_hal_fsdp.strategy import FSDPStrategy

__all__ = ["FullyShardedDataParallelPlugin", "ScriptSettings", "arguments_of"]

STATE_DICT_TYPES = {"sharded": "SHARDED_STATE_DICT", "full": "FULL_STATE_DICT"}
"""The values of the strategy's argument, and Accelerate's."""

_RESHARDS: dict[str, dict[str, Any]] = {
    "FULL_SHARD": {"reshard_after_forward": True},
    "SHARD_GRAD_OP": {"reshard_after_forward": False},
    "HYBRID_SHARD": {"replicas": "nodes", "reshard_after_forward": True},
    "HYBRID_SHARD_ZERO2": {"replicas": "nodes", "reshard_after_forward": False},
}
"""Values of ``sharding_strategy`` in the first version of FSDP."""

_CHANGE_NOTHING = {
    *("fsdp_version", "use_orig_params", "limit_all_gathers", "sync_module_states", "cpu_ram_efficient_loading"),
    *("backward_prefetch", "forward_prefetch", "state_dict_config", "optim_state_dict_config"),
}
"""What the second version of FSDP does by itself, or schedules by itself: no result depends on it."""

_READ = {
    *("sharding_strategy", "reshard_after_forward", "cpu_offload", "auto_wrap_policy", "transformer_cls_names_to_wrap"),
    *("min_num_params", "state_dict_type", "activation_checkpointing", "param_init_fn"),
}

_OFF = ("activation_checkpointing_offload",)
"""Fields that must be ``False``."""

_INSTEAD = {
    "activation_checkpointing_offload": "Set cpu_offload, or leave it out.",
    "mixed_precision_policy": "Set precision= of the Runtime, such as 'bf16-mixed'.",
    "ignored_modules": "Keep these modules out of the one that you prepare.",
    "ignored_params": "Keep their modules out of the one that you prepare.",
}


@dataclass(frozen=True, kw_only=True)
class FullyShardedDataParallelPlugin:
    """Arguments of :class:`FSDPStrategy` under Accelerate's names, for ``Runtime(fsdp_plugin=...)``.

    ``None`` is the strategy's default. Fields of Accelerate's that are not here are refused, with what to do instead.
    """

    sharding_strategy: Any = None
    """``reshard_after_forward`` and ``replicas``, by a name or number of FSDP's first version: ``"FULL_SHARD"``."""
    reshard_after_forward: Any = None
    """``reshard_after_forward``, or a name as above."""
    auto_wrap_policy: Callable[..., Any] | str | None = None
    """``wrap_policy``: ``"transformer_based_wrap"``, ``"size_based_wrap"``, ``"no_wrap"``, or a function of torch's."""
    transformer_cls_names_to_wrap: Sequence[str] | None = None
    """``wrap_policy``."""
    min_num_params: int | None = None
    """``wrap_policy``."""
    cpu_offload: Any = None
    """``cpu_offload``: a bool or an object of torch's."""
    state_dict_type: Any = None
    """``state_dict_type``: ``"SHARDED_STATE_DICT"`` or ``"FULL_STATE_DICT"``."""
    activation_checkpointing: bool | None = None
    """``activation_checkpointing``, of the modules that ``wrap_policy`` selects."""
    activation_checkpointing_offload: bool | None = None
    """``False``."""
    param_init_fn: Callable[[nn.Module], Any] | None = None
    """``init_fn``."""
    mixed_precision_policy: Any = None
    """Refused: ``precision`` of the Runtime."""
    ignored_modules: Any = None
    """Refused."""
    fsdp_version: int | None = None
    """Always the second; no result depends on this field and the next ones."""
    use_orig_params: bool | None = None
    limit_all_gathers: bool | None = None
    sync_module_states: bool | None = None
    cpu_ram_efficient_loading: bool | None = None
    backward_prefetch: Any = None
    forward_prefetch: bool | None = None
    state_dict_config: Any = None
    optim_state_dict_config: Any = None


def arguments_of(plugin: Any) -> dict[str, Any]:
    """The strategy's arguments in an object with attributes of Accelerate's ``FullyShardedDataParallelPlugin``.

    Raises:
        ConfigurationError: A setting is unknown, or has a value without a counterpart.
    """
    given = {name: value for name, value in _attributes(plugin).items() if value is not None}
    for name, value in given.items():
        if name not in _READ | _CHANGE_NOTHING and not (name in _OFF and value is False):
            instead = _INSTEAD.get(name, "Leave it out, or pass strategy=FSDPStrategy(...) of torch_hal_fsdp.")
            raise ConfigurationError(f"fsdp_plugin: {name}={value!r:.100}: has no counterpart here. {instead}")
    arguments: dict[str, Any] = _reshards(given)
    offload = given.get("cpu_offload", False)
    if type(offload).__name__ in ("CPUOffloadPolicy", "OffloadPolicy"):
        offload = type(offload).__name__ == "CPUOffloadPolicy"
    arguments["cpu_offload"] = getattr(offload, "offload_params", offload)
    if (policy := _policy(given)) is not None:
        arguments["wrap_policy"] = policy
    if given.get("activation_checkpointing"):
        arguments["activation_checkpointing"] = arguments.get("wrap_policy", "blocks")
    initialize = given.get("param_init_fn")
    if initialize is not None and getattr(initialize, "__module__", "").partition(".")[0] != "accelerate":
        arguments["init_fn"] = initialize  # Accelerate's own leaves memory as it is, for FSDP's first version to fill
    if "state_dict_type" in given:
        kind = _name(given["state_dict_type"])
        types = {theirs: ours for ours, theirs in STATE_DICT_TYPES.items()}
        if kind not in types:
            raise ConfigurationError(f"fsdp_plugin: state_dict_type={kind!r}. Valid: {quoted(types)}.")
        arguments["state_dict_type"] = types[kind]
    return arguments


def _attributes(plugin: Any) -> dict[str, Any]:
    return {} if plugin is None else {name: value for name, value in vars(plugin).items() if not name.startswith("_")}


def _name(value: Any) -> str:
    return str(getattr(value, "name", value)).upper()


def _reshards(given: dict[str, Any]) -> dict[str, Any]:
    reshard = given.get("reshard_after_forward")
    if isinstance(reshard, bool | int):
        return {"reshard_after_forward": reshard}
    strategy = given.get("sharding_strategy", reshard)
    if strategy is None:
        return {}
    numbers = dict(enumerate(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"), 1))
    name = numbers.get(strategy, "") if isinstance(strategy, int) else _name(strategy)
    if name not in _RESHARDS:
        raise ConfigurationError(
            f"fsdp_plugin: sharding_strategy={strategy!r}: has no counterpart here. Valid: {quoted(_RESHARDS)}. Where "
            "each process has the whole model, set strategy='ddp'."
        )
    return dict(_RESHARDS[name])


def _policy(given: dict[str, Any]) -> Any:
    """The strategy's ``wrap_policy``; ``None`` for its default."""
    classes, size = given.get("transformer_cls_names_to_wrap"), given.get("min_num_params", 0)
    policy = given.get("auto_wrap_policy")
    options = getattr(policy, "keywords", {})  # of a partial function
    name = str(getattr(getattr(policy, "func", policy), "__name__", policy)).lower()
    if name in ("no_wrap", "always_wrap_policy"):
        return lambda module: name != "no_wrap"
    classes = classes or options.get("transformer_layer_cls")
    if classes and "size" not in name:
        return [classes] if isinstance(classes, str) else list(classes)
    if size := size or options.get("min_num_params", 0):
        return size
    if policy is None or name.startswith("size_based"):
        return None
    if name.startswith("transformer"):
        return "model"
    raise ConfigurationError(
        f"fsdp_plugin: auto_wrap_policy={policy!r:.100}: has no counterpart here. Pass strategy=FSDPStrategy("
        "wrap_policy=...) of torch_hal_fsdp, with a function of a module."
    )


class ScriptSettings:
    """What a script can read; the strategy's arguments set it.

    Args:
        strategy: Of the run.
    """

    fsdp_version = 2

    def __init__(self, strategy: FSDPStrategy) -> None:
        object.__setattr__(self, "_strategy", strategy)

    _strategy: FSDPStrategy

    @property
    def reshard_after_forward(self) -> bool | int | None:
        """As the strategy's argument."""
        return self._strategy.reshard_after_forward

    @property
    def cpu_offload(self) -> bool:
        """As the strategy's argument."""
        return self._strategy.cpu_offload

    @property
    def activation_checkpointing(self) -> bool:
        """Whether some forward passes run again in the backward pass."""
        return self._strategy.activation_checkpointing is not None

    @property
    def state_dict_type(self) -> str:
        """``SHARDED_STATE_DICT`` or ``FULL_STATE_DICT``."""
        return STATE_DICT_TYPES[self._strategy.state_dict_type]

    def set_state_dict_type(self, state_dict_type: Any) -> None:
        """Accept what is set already.

        Raises:
            ConfigurationError: It is another one.
        """
        given = str(getattr(state_dict_type, "name", state_dict_type))
        if given != self.state_dict_type:
            self._refuse("state_dict_type", state_dict_type)

    def __setattr__(self, name: str, value: Any) -> None:
        if value != getattr(self, name, None):
            self._refuse(name, value)

    def _refuse(self, name: str, value: Any) -> NoReturn:
        raise ConfigurationError(
            f"fsdp_plugin.{name}={value!r}: arguments of the strategy set this. Create "
            "Runtime(strategy=FSDPStrategy(...)) with the argument, of torch_hal_fsdp. Runtime.save_model and "
            "get_state_dict give whole tensors with any."
        )

    def __repr__(self) -> str:
        names = ("fsdp_version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "state_dict_type")
        return f"<fsdp_plugin: {', '.join(f'{name}={getattr(self, name)!r}' for name in names)}>"
