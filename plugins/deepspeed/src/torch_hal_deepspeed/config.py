"""DeepSpeed's config: read, checked against the front end's arguments, and completed for the engine."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torch_hal.errors import ConfigurationError, WrongTypeError, nearest, quoted
from torch_hal.precisions import Precision
from torch_hal_deepspeed.library import part

__all__ = [
    "Config",
    "check_config",
    "check_precision",
    "complete",
    "micro_batch_size",
    "precision_of",
    "read_config",
    "settle_zero",
]

Config = dict[str, Any]

DEFAULT_STAGE = 2
DEFAULT_NVME_PATH = "/local_nvme"
OFFLOAD_DEVICES = ("cpu", "nvme")
STAGES = (0, 1, 2, 3)

_CORES_OWN = {
    "optimizer": "the optimizer that you prepare, or that configure_optimizers returns",
    "scheduler": "the scheduler of that optimizer",
    "managed_gradient_accumulation": "accumulate_grad_batches, or call step less often in your own loop",
    "amp": "precision='bf16-mixed' or '16-mixed'",
}
"""Keys that the config must not have, with the argument of the front end to use instead."""

_KNOWN = frozenset(
    [
        "activation_checkpointing",
        "aio",
        "autotuning",
        "bf16",
        "checkpoint",
        "comet",
        "comms_logger",
        "communication_data_type",
        "compile",
        "compression_training",
        "csv_monitor",
        "curriculum_learning",
        "data_efficiency",
        "data_parallel_size",
        "data_types",
        "dataloader_drop_last",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "elasticity",
        "expert_parallel",
        "flops_profiler",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "hybrid_engine",
        "log_level",
        "memory_breakdown",
        "nebula",
        "pipeline",
        "prescale_gradients",
        "seq_parallel_communication_data_type",
        "sequence_parallel_size",
        "sparse_gradients",
        "steps_per_print",
        "tensor_parallel",
        "tensorboard",
        "timers",
        "torch_autocast",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    ]
)


def read_config(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> Config:
    """A copy of the config, or of the JSON file at that path, without keys that are ``"auto"``.

    Raises:
        WrongTypeError: ``config`` is neither a mapping nor a path.
        ConfigurationError: The file cannot be read or is not a JSON object, or a key is unknown.
    """
    if config is None:
        return {}
    if isinstance(config, str | os.PathLike):
        content = _read_file(Path(config))
    elif isinstance(config, Mapping):
        content = copy.deepcopy(dict(config))
    else:
        raise WrongTypeError(f"config={config!r} must be a mapping, the path of a JSON file, or None.")
    cleaned: Config = _without_auto(content)
    for key in cleaned:
        if key in _CORES_OWN:
            raise ConfigurationError(f"config[{key!r}] is not supported: torch-hal sets it. Use {_CORES_OWN[key]}.")
        if key not in _KNOWN:
            raise ConfigurationError(
                f"config: unknown key {key!r}.{nearest(key, _KNOWN)} Valid: {quoted(sorted(_KNOWN))}."
            )
        if key in _SECTIONS and not isinstance(cleaned[key], dict):
            raise ConfigurationError(f"config[{key!r}]={cleaned[key]!r} must be a mapping.")
    if cleaned.get("checkpoint", {}).get("load_universal"):
        raise ConfigurationError(
            "config['checkpoint']['load_universal']=True is not supported: torch-hal converts checkpoints of another "
            "number of processes by itself. Leave it out."
        )
    return cleaned


_SECTIONS = (
    "zero_optimization",
    "fp16",
    "bf16",
    "torch_autocast",
    "data_types",
    "activation_checkpointing",
    "checkpoint",
)


def _read_file(path: Path) -> Config:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"config={str(path)!r} cannot be read: {error}. Give the path of a JSON file."
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"config={str(path)!r} is not valid JSON: {error}. Fix the file.") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"config={str(path)!r} must hold a JSON object, not {content!r}.")
    return content


def _without_auto(content: Any) -> Any:
    """``content`` without keys whose value is ``"auto"``, which the integration sets."""
    if not isinstance(content, dict):
        return content
    return {key: _without_auto(value) for key, value in content.items() if value != "auto"}


# -- ZeRO ------------------------------------------------------------------------------------------------------------


def settle_zero(
    config: Config,
    stage: int | None,
    offload_optimizer: str | None,
    offload_parameters: str | None,
    nvme_path: str | os.PathLike[str] | None,
) -> None:
    """Put the arguments into ``config["zero_optimization"]``.

    Raises:
        ConfigurationError: An argument is out of range, or contradicts the config or another argument.
    """
    zero = config.setdefault("zero_optimization", {})
    if stage is not None and (isinstance(stage, bool) or stage not in STAGES):
        raise ConfigurationError(f"stage={stage!r} must be 0, 1, 2, 3, or None to take it from the config.")
    settled = _agreed("stage", stage, zero.get("stage"), "config['zero_optimization']['stage']")
    zero["stage"] = DEFAULT_STAGE if settled is None else settled
    for argument, section, device in (
        ("offload_optimizer", "offload_optimizer", offload_optimizer),
        ("offload_parameters", "offload_param", offload_parameters),
    ):
        _settle_offload(zero, argument, section, device, nvme_path)
    if zero["stage"] < 3 and "offload_param" in zero:
        raise ConfigurationError(f"offload_parameters with stage={zero['stage']} is not supported. Set stage=3.")
    if zero["stage"] < 1 and "offload_optimizer" in zero:
        raise ConfigurationError(f"offload_optimizer with stage={zero['stage']} is not supported. Set stage=1, 2 or 3.")
    if zero["stage"] < 3 and zero.get("offload_optimizer", {}).get("device") == "nvme":
        raise ConfigurationError(f"offload_optimizer='nvme' with stage={zero['stage']} is not supported. Set stage=3.")
    if zero.get("offload_optimizer", {}).get("fast_init"):
        raise ConfigurationError(
            "config['zero_optimization']['offload_optimizer']['fast_init']=True is not supported: the optimizer would "
            "start with other weights than the module's. Leave it out."
        )


def _settle_offload(
    zero: Config, argument: str, section: str, device: str | None, nvme_path: str | os.PathLike[str] | None
) -> None:
    if device is not None and device not in OFFLOAD_DEVICES:
        raise ConfigurationError(f"{argument}={device!r}. Valid: {quoted(OFFLOAD_DEVICES)}, or None.")
    given = zero.get(section) or {}
    place = f"config['zero_optimization'][{section!r}]"
    chosen = _agreed(argument, device, given.get("device"), f"{place}['device']")
    if chosen in (None, "none"):
        zero.pop(section, None)
        return
    zero[section] = {**given, "device": chosen}
    if chosen == "nvme":
        path = _agreed("nvme_path", nvme_path and os.fspath(nvme_path), given.get("nvme_path"), f"{place}['nvme_path']")
        zero[section]["nvme_path"] = path or DEFAULT_NVME_PATH


def _agreed(argument: str, value: Any, other: Any, place: str) -> Any:
    """The value that is set in one of two places, or equal in both."""
    if value is not None and other is not None and value != other:
        raise ConfigurationError(f"{argument}={value!r} contradicts {place}={other!r}. Set only one of them.")
    return other if value is None else value


def check_config(config: Config) -> None:
    """Let DeepSpeed validate its ZeRO section, and check what NVMe offload needs. DeepSpeed must be imported.

    Raises:
        ConfigurationError: DeepSpeed rejects a key or value, the directory for NVMe offload is missing, or DeepSpeed's
            operator for it cannot be built.
    """
    zero = config["zero_optimization"]
    try:
        part("runtime.zero.config").DeepSpeedZeroConfig(**zero)
    except ValueError as error:  # pydantic's
        raise ConfigurationError(f"config['zero_optimization']: DeepSpeed rejects it: {error}") from error
    for section in ("offload_optimizer", "offload_param"):
        if zero.get(section, {}).get("device") == "nvme":
            _check_nvme(zero[section]["nvme_path"])


def _check_nvme(path: str) -> None:
    if not os.path.isdir(path) or not os.access(path, os.W_OK):
        raise ConfigurationError(
            f"nvme_path={path!r}: not a writable directory. Use a directory on the drive to offload to."
        )
    if not part("ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False):
        raise ConfigurationError(
            "offload to 'nvme': DeepSpeed cannot build or load its operator async_io. Install libaio (Debian: "
            "apt install libaio-dev) and a C++ compiler, or offload to 'cpu'."
        )


# -- precision -------------------------------------------------------------------------------------------------------

_AUTOCAST = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


def precision_of(config: Config) -> str | None:
    """The name of the precision that the config sets; ``None`` if it sets none.

    Raises:
        ConfigurationError: It sets several.
    """
    found = {
        f"config[{section!r}]": name
        for section, name in (("fp16", "16-true"), ("bf16", "bf16-true"))
        if config.get(section, {}).get("enabled")
    }
    autocast = config.get("torch_autocast", {})
    if autocast.get("enabled"):
        dtype = str(autocast.get("dtype", "bfloat16")).removeprefix("torch.")
        if dtype not in _AUTOCAST:
            raise ConfigurationError(
                f"config['torch_autocast']['dtype']={dtype!r} is not supported. Valid: {quoted(_AUTOCAST)}."
            )
        found["config['torch_autocast']"] = _AUTOCAST[dtype]
    if len(found) > 1:
        raise ConfigurationError(f"{' and '.join(found)} contradict each other. Keep one of them.")
    return next(iter(found.values()), None)


def check_precision(config: Config, precision: Precision, device_type: str) -> None:
    """Refuse a precision that contradicts the config, or with which DeepSpeed 0.19.8 computes wrong results.

    Raises:
        ConfigurationError: The config sets another precision; float16 where DeepSpeed does not support it; autocast to
            float16 with ZeRO, which does not tell the scaler of overflows and clips scaled gradients; float16 without
            ZeRO, which divides gradients by a scale without multiplying the loss by it.
    """
    asked, named = precision_of(config), precision.name
    if asked not in (None, named):
        raise ConfigurationError(
            f"precision={named!r} contradicts the config, which sets {asked!r}. Set only one of them."
        )
    if precision.compute_dtype is torch.float16 and not part("accelerator").get_accelerator().is_fp16_supported():
        raise ConfigurationError(
            f"precision={named!r}: DeepSpeed does not support float16 on this machine's {device_type!r} devices. "
            "Valid: 'bf16-mixed', 'bf16-true', '32-true'."
        )
    stage = config["zero_optimization"]["stage"]
    if named == "16-mixed" and stage:
        raise ConfigurationError(
            f"precision='16-mixed' with stage={stage}: under ZeRO DeepSpeed skips all steps after a gradient "
            "overflow, and clips scaled gradients. Use 'bf16-mixed', stage=0, or '16-true' with a scale by "
            "config['fp16']."
        )
    if named == "16-true" and not stage and config.get("fp16", {"loss_scale": 1}).get("loss_scale") != 1:
        raise ConfigurationError(
            "config['fp16'] with stage=0: without ZeRO, DeepSpeed divides gradients by the loss scale but does not "
            "multiply the loss by it. Set 'loss_scale': 1 in it, or stage=1, 2 or 3."
        )


def micro_batch_size(config: Config, processes: int) -> int | None:
    """The batch size of each process that the config sets; ``None`` if it sets none.

    Raises:
        ConfigurationError: The batch sizes contradict each other, or the number of processes.
    """
    micro: int | None = config.get("train_micro_batch_size_per_gpu")
    whole, steps = config.get("train_batch_size"), config.get("gradient_accumulation_steps", 1)
    if whole is None:
        return micro
    each, left = divmod(whole, processes * steps)
    if left or micro not in (None, each):
        raise ConfigurationError(
            f"config['train_batch_size']={whole!r} contradicts {processes} process(es), gradient_accumulation_"
            f"steps={steps} and train_micro_batch_size_per_gpu={micro!r}. Set it to their product, or leave it out."
        )
    return int(each)


def complete(config: Config, precision: Precision) -> Config:
    """The engine's config: the user's, with everything that the front end sets.

    The front end counts batches and decides when to step; the engine steps whenever it is called.
    """
    full = copy.deepcopy(config)
    for key in ("train_batch_size", "gradient_accumulation_steps"):
        full.pop(key, None)
    full["train_micro_batch_size_per_gpu"] = config.get("train_micro_batch_size_per_gpu", 1)
    full["gradient_accumulation_steps"] = 1
    full["managed_gradient_accumulation"] = False
    full.setdefault("gradient_clipping", 0.0)  # DeepSpeed's default is 1.0
    full.setdefault("zero_allow_untested_optimizer", True)
    full.setdefault("zero_force_ds_cpu_optimizer", False)
    computed = precision.compute_dtype
    if computed is precision.param_dtype:
        section = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(computed)
        if section is not None:
            defaults = {"loss_scale": 1.0} if section == "fp16" and section not in config else {}
            full[section] = {**defaults, **full.get(section, {}), "enabled": True}
    else:
        # Without modules named here, gradients keep the dtype in which the precision declares that they are reduced.
        modules: Config = {"lower_precision_safe_modules": []} if precision.reduce_dtype is not computed else {}
        dtype = str(computed).removeprefix("torch.")
        full["torch_autocast"] = {**modules, **full.get("torch_autocast", {}), "enabled": True, "dtype": dtype}
    return full
