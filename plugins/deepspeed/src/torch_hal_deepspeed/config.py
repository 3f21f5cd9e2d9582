"""DeepSpeed's config: read, held against the words of the front end, and completed for the engine."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from core.errors import ConfigurationError, WrongTypeError, nearest, quoted
from core.precisions import Precision
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
    "optimizer": "the optimizer that is prepared, or that configure_optimizers returns",
    "scheduler": "the scheduler that goes with the optimizer",
    "managed_gradient_accumulation": "accumulate_grad_batches, or when the loop of one's own steps",
    "amp": "precision='bf16-mixed' or '16-mixed'",
}
"""What the front end has a word of its own for, so that the config has none."""

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
    """A copy of the config, or of what the JSON file at that path holds, without what says ``"auto"``.

    Raises:
        WrongTypeError: It is neither.
        ConfigurationError: The file cannot be read, is no JSON object, or has keys that mean nothing.
    """
    if config is None:
        return {}
    if isinstance(config, str | os.PathLike):
        content = _read_file(Path(config))
    elif isinstance(config, Mapping):
        content = copy.deepcopy(dict(config))
    else:
        raise WrongTypeError(f"config={config!r}. Valid: a mapping, the path of a JSON file, or None.")
    cleaned: Config = _without_auto(content)
    for key in cleaned:
        if key in _CORES_OWN:
            raise ConfigurationError(f"config[{key!r}]: the front end decides it. Valid: {_CORES_OWN[key]}.")
        if key not in _KNOWN:
            raise ConfigurationError(
                f"config[{key!r}]: DeepSpeed knows no such key.{nearest(key, _KNOWN)} Valid: {quoted(sorted(_KNOWN))}."
            )
        if key in _SECTIONS and not isinstance(cleaned[key], dict):
            raise ConfigurationError(f"config[{key!r}]={cleaned[key]!r}. Valid: a section, that is a mapping.")
    if cleaned.get("checkpoint", {}).get("load_universal"):
        raise ConfigurationError(
            "config['checkpoint']['load_universal']=True: a checkpoint of another number of processes is recognised by "
            "itself. Valid: to leave it out."
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
        raise ConfigurationError(f"config={str(path)!r}: it cannot be read: {error}. Valid: a JSON file.") from error
    except ValueError as error:
        raise ConfigurationError(f"config={str(path)!r}: it is no JSON: {error}. Valid: a JSON object.") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"config={str(path)!r}: it holds {content!r}. Valid: a JSON object.")
    return content


def _without_auto(content: Any) -> Any:
    """The field's word for what another is to decide."""
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
        ConfigurationError: One is out of its range, or contradicts the config or another one.
    """
    zero = config.setdefault("zero_optimization", {})
    if stage is not None and (isinstance(stage, bool) or stage not in STAGES):
        raise ConfigurationError(f"stage={stage!r}. Valid: 0, 1, 2, 3, or None for what the config says.")
    settled = _agreed("stage", stage, zero.get("stage"), "config['zero_optimization']['stage']")
    zero["stage"] = DEFAULT_STAGE if settled is None else settled
    for argument, section, device in (
        ("offload_optimizer", "offload_optimizer", offload_optimizer),
        ("offload_parameters", "offload_param", offload_parameters),
    ):
        _settle_offload(zero, argument, section, device, nvme_path)
    if zero["stage"] < 3 and "offload_param" in zero:
        raise ConfigurationError(f"offload_parameters with stage={zero['stage']}. Valid: with stage=3.")
    if zero["stage"] < 1 and "offload_optimizer" in zero:
        raise ConfigurationError(f"offload_optimizer with stage={zero['stage']}. Valid: with stage 1, 2 or 3.")
    if zero["stage"] < 3 and zero.get("offload_optimizer", {}).get("device") == "nvme":
        raise ConfigurationError(f"offload_optimizer='nvme' with stage={zero['stage']}. Valid: with stage=3.")
    if zero.get("offload_optimizer", {}).get("fast_init"):
        raise ConfigurationError(
            "config['zero_optimization']['offload_optimizer']['fast_init']=True: the optimizer would begin with other "
            "weights than the module's. Valid: False, or to leave it out."
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
    """What two places say, if they do not contradict each other."""
    if value is not None and other is not None and value != other:
        raise ConfigurationError(f"{argument}={value!r} contradicts {place}={other!r}. Valid: one of the two.")
    return other if value is None else value


def check_config(config: Config) -> None:
    """Let DeepSpeed judge the section on ZeRO, and look for what NVMe drives need; DeepSpeed must be imported.

    Raises:
        ConfigurationError: A key or value there is none of DeepSpeed's.
        BackendError: The drives, or the operator for them, are not there.
    """
    zero = config["zero_optimization"]
    try:
        part("runtime.zero.config").DeepSpeedZeroConfig(**zero)
    except ValueError as error:  # pydantic's
        raise ConfigurationError(f"config['zero_optimization']: DeepSpeed refuses it: {error}") from error
    for section in ("offload_optimizer", "offload_param"):
        if zero.get(section, {}).get("device") == "nvme":
            _check_nvme(zero[section]["nvme_path"])


def _check_nvme(path: str) -> None:
    if not os.path.isdir(path) or not os.access(path, os.W_OK):
        raise ConfigurationError(
            f"nvme_path={path!r}: no directory that this process may write to. Valid: one on the drive to offload to."
        )
    if not part("ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False):
        raise ConfigurationError(
            "offload to 'nvme': DeepSpeed's operator async_io cannot be built or loaded here; it needs libaio and a "
            "C++ compiler. Valid: offload to 'cpu', or to install them."
        )


# -- precision -------------------------------------------------------------------------------------------------------

_AUTOCAST = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


def precision_of(config: Config) -> str | None:
    """The name of the precision that the config asks for; ``None`` where it asks for none.

    Raises:
        ConfigurationError: It asks for several.
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
                f"config['torch_autocast']['dtype']={dtype!r}. Valid: {quoted(_AUTOCAST)}, or to leave it out."
            )
        found["config['torch_autocast']"] = _AUTOCAST[dtype]
    if len(found) > 1:
        raise ConfigurationError(f"{' and '.join(found)} contradict each other. Valid: one of them.")
    return next(iter(found.values()), None)


def check_precision(config: Config, precision: Precision, device_type: str) -> None:
    """Refuse a precision that contradicts the config, or of which DeepSpeed 0.19.8 makes nothing that is right.

    Raises:
        ConfigurationError: The config asks for another; float16 on devices where DeepSpeed has none; autocast to
            float16 with ZeRO, whose scaler is told of no overflow that ZeRO found, and which clips by a norm that is
            still scaled; float16 without ZeRO, where gradients are divided by a scale that the loss is not
            multiplied by.
    """
    asked, named = precision_of(config), precision.name
    if asked not in (None, named):
        raise ConfigurationError(f"precision={named!r} contradicts the config, which asks for {asked!r}.")
    if precision.compute_dtype is torch.float16 and not part("accelerator").get_accelerator().is_fp16_supported():
        raise ConfigurationError(
            f"precision={named!r}: DeepSpeed has no float16 on this machine's {device_type!r} devices. Valid: "
            "'bf16-mixed', 'bf16-true', '32-true'."
        )
    stage = config["zero_optimization"]["stage"]
    if named == "16-mixed" and stage:
        raise ConfigurationError(
            f"precision='16-mixed' with stage={stage}: under ZeRO DeepSpeed takes no step any more once a gradient "
            "overflowed, and clips gradients that are scaled. Valid: 'bf16-mixed', stage=0, or '16-true' with a scale "
            "by config['fp16']."
        )
    if named == "16-true" and not stage and config.get("fp16", {"loss_scale": 1}).get("loss_scale") != 1:
        raise ConfigurationError(
            "config['fp16'] with stage=0: without ZeRO DeepSpeed divides gradients by a scale that it does not "
            "multiply the loss by. Valid: 'loss_scale': 1 in it, or stage 1, 2 or 3."
        )


def micro_batch_size(config: Config, processes: int) -> int | None:
    """What the config says of batches, as the number of items that each process gets at once; ``None`` if nothing.

    Raises:
        ConfigurationError: What it says contradicts itself, or the number of processes.
    """
    micro: int | None = config.get("train_micro_batch_size_per_gpu")
    whole, steps = config.get("train_batch_size"), config.get("gradient_accumulation_steps", 1)
    if whole is None:
        return micro
    each, left = divmod(whole, processes * steps)
    if left or micro not in (None, each):
        raise ConfigurationError(
            f"config['train_batch_size']={whole!r} contradicts {processes} process(es), gradient_accumulation_"
            f"steps={steps} and train_micro_batch_size_per_gpu={micro!r}. Valid: their product."
        )
    return int(each)


def complete(config: Config, precision: Precision) -> Config:
    """The engine's config: the user's, and all that the front end decides.

    Batches are counted by the front end, and when a step is due; the engine learns it from being called.
    """
    full = copy.deepcopy(config)
    for key in ("train_batch_size", "gradient_accumulation_steps"):
        full.pop(key, None)
    full["train_micro_batch_size_per_gpu"] = config.get("train_micro_batch_size_per_gpu", 1)
    full["gradient_accumulation_steps"] = 1
    full["managed_gradient_accumulation"] = False
    full.setdefault("gradient_clipping", 0.0)  # where nothing is said, DeepSpeed clips to 1.0
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
