"""DeepSpeed: its engine runs backward and step, and ZeRO shards the training state over processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_hal.errors import CheckpointError, ConfigurationError, quoted
from torch_hal.strategies import (
    InferenceModule,
    ManualGradients,
    ProcessGroupParts,
    ProcessGroupStrategy,
    TrainingStep,
    TrainingStepOptions,
    refuse_unfrozen,
)
from torch_hal_deepspeed.checkpoints import DeepSpeedCheckpointIO, EngineState, SavedEngine
from torch_hal_deepspeed.config import (
    Config,
    check_config,
    check_precision,
    complete,
    micro_batch_size,
    precision_of,
    read_config,
    settle_zero,
)
from torch_hal_deepspeed.engine import Engine, check_averages, is_divided, is_released, load_divided, whole_state
from torch_hal_deepspeed.library import import_deepspeed, meet, part
from torch_hal_deepspeed.manual import EngineGradients
from torch_hal_deepspeed.module import EngineModule
from torch_hal_deepspeed.optimizer import EngineOptimizer
from torch_hal_deepspeed.recompute import Parts, check_parts, recompute
from torch_hal_deepspeed.script_settings import ScriptSettings, arguments_of

__all__ = ["DeepSpeedStrategy"]

DEVICE_TYPES = ("cpu", "cuda", "hpu", "mlu", "mps", "npu", "sdaa", "supa", "xpu")
"""The device types that DeepSpeed supports."""


class DeepSpeedStrategy(ProcessGroupStrategy):
    """DeepSpeed's engine, which shards optimizer state, gradients and parameters over processes.

    One module with trainable parameters and its one optimizer form an engine when the optimizer is prepared. From then
    on the engine owns parameters, gradients and optimizer state: ``runtime.backward`` and ``optimizer.step`` call it,
    and each step applies all gradients since the last one.

    Source: Rajbhandari et al., ZeRO, SC 2020; https://www.deepspeed.ai.

    Args:
        stage: What is sharded: 0 nothing, 1 the optimizer state, 2 gradients too, 3 parameters too. The config's value
            unless given, or 2.
        offload_optimizer: ``"cpu"`` or ``"nvme"``: where the optimizer state is kept and the optimizer steps; ``None``
            for the config's value, or the device.
        offload_parameters: The same for the parameters of stage 3.
        nvme_path: A directory on the drive, for ``"nvme"``; ``/local_nvme`` by default.
        activation_checkpointing: Classes of modules, or their names, whose forward pass runs again in the backward pass
            instead of keeping activations; config["activation_checkpointing"] has its options.
        config: DeepSpeed's own config, as a mapping or as the path of a JSON file.
        shared_memory_op: Whether DeepSpeed may compile its operator for collectives over shared memory on the CPU. That
            takes half a minute the first time, and needs a C++ compiler.
        **parts: As in :class:`core.strategies.ProcessGroupStrategy`. ``precision`` is what the config asks for unless
            given; the engine writes its own checkpoints, so ``checkpoint_io`` is ``None``.

    Raises:
        ConfigurationError: An argument is unknown, out of its range, or contradicts the config.
        WrongTypeError: The config is neither a mapping nor a path.
    """

    distributed_type = "DEEPSPEED"
    name = "deepspeed"
    precisions = ("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
    applies_precision: ClassVar[bool] = False
    keeps_buffers_equal = False
    equal_buffers_in_evaluation = True
    clip_algorithms: ClassVar[tuple[str, ...]] = ("norm",)

    def __init__(
        self,
        *,
        stage: int | None = None,
        offload_optimizer: str | None = None,
        offload_parameters: str | None = None,
        nvme_path: str | os.PathLike[str] | None = None,
        activation_checkpointing: Parts | None = None,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        shared_memory_op: bool = False,
        **parts: Unpack[ProcessGroupParts],
    ) -> None:
        self.config = read_config(config)
        settle_zero(self.config, stage, offload_optimizer, offload_parameters, nvme_path)
        self.stage: int = self.config["zero_optimization"]["stage"]
        super().__init__(**parts)
        requested = dict(self.requested_parts)
        precision, configured = requested.get("precision"), precision_of(self.config)
        if isinstance(precision, str) and configured not in (None, precision):
            raise ConfigurationError(
                f"precision={precision!r} contradicts the config, which asks for {configured!r}. Set one of the two."
            )
        if configured is not None:
            requested.setdefault("precision", configured)
        checkpoint_io = requested.setdefault("checkpoint_io", DeepSpeedCheckpointIO())
        if not isinstance(checkpoint_io, DeepSpeedCheckpointIO):
            raise ConfigurationError(
                f"checkpoint_io={checkpoint_io!r}: DeepSpeed's engine writes its own checkpoints. Leave it out."
            )
        self.requested_parts = MappingProxyType(requested)
        if activation_checkpointing is not None:
            check_parts(activation_checkpointing)
        self.activation_checkpointing = activation_checkpointing
        self.shared_memory_op = shared_memory_op
        self.inference_is_collective = self.stage == 3  # type: ignore[misc]  # by stage, not by class
        self.engine_settings = {"deepspeed_plugin": ScriptSettings(self)}
        self._model: EngineModule | None = None
        self._engine: Engine | None = None

    @classmethod
    def of_script(cls, plugin: Any) -> DeepSpeedStrategy:
        """The strategy that a script asks for by ``Runtime(deepspeed_plugin=plugin)``; see :class:`DeepSpeedPlugin`."""
        return cls(**arguments_of(plugin))

    # -- life ----------------------------------------------------------------------------------------------------

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: DeepSpeed does not support the device, the precision on it, or the config.
            BackendError: DeepSpeed cannot be imported for that device.
        """
        super().connect(**parts)
        device_type = self.parallel_devices[0].type
        if device_type not in DEVICE_TYPES:
            raise ConfigurationError(
                f"strategy={self.name!r} with devices of type {device_type!r}: DeepSpeed has no accelerator for them. "
                f"Valid: {quoted(DEVICE_TYPES)}."
            )
        import_deepspeed(device_type)
        check_config(self.config)
        check_precision(self.config, self.precision, device_type)
        if not isinstance(self.checkpoint_io, DeepSpeedCheckpointIO):
            raise ConfigurationError(
                f"checkpoint_io={type(self.checkpoint_io).__name__}: DeepSpeed's engine writes its own checkpoints. "
                "Valid: 'auto'."
            )
        micro_batch_size(self.config, self.cluster_environment.world_size)

    def init_dist_connection(self) -> None:
        """Join the process group, and let DeepSpeed use it."""
        import_deepspeed(self.root_device.type)  # before there is a group, which it would hold as a default argument
        super().init_dist_connection()
        leave = meet(self.local_rank, self.local_processes, self.shared_memory_op)
        self.release_at_leave(partial(self._release, leave))

    def _release(self, leave: Callable[[], None]) -> None:
        """Release what holds the process group."""
        engine, self._engine = self._engine, None
        model, self._model = self._model, None
        if model is not None:
            model.attach(None)
        if engine is not None:
            engine.release()
        del engine
        leave()

    # -- modules -------------------------------------------------------------------------------------------------

    def init_module(self) -> AbstractContextManager[Any]:
        """A context in which the parameters of new modules are sharded over the processes at once.

        For stage 3; for other stages it does nothing. All processes start with the parameters of rank 0. The processes
        must have been started: call ``runtime.launch()`` or ``trainer.runtime.launch()`` first.
        """
        if self.stage < 3:
            return nullcontext()
        # It takes the dtype from its config, but another one from its argument on a device without float16.
        context: AbstractContextManager[Any] = part("").zero.Init(config_dict_or_path=self._engine_config())
        return context

    def _engine_config(self) -> Config:
        return complete(self.config, self.precision)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """``module``, called through the engine once its optimizer is prepared too.

        An unsharded module without trainable parameters is only converted and moved.

        Raises:
            ConfigurationError: There already is one, the module is sharded but this stage shards no parameters, or
                this stage shards them and the module averages some of them.
        """
        divided = is_divided(module)
        if not divided and not any(parameter.requires_grad for parameter in module.parameters()):
            return super().setup_module(module)
        if self._model is not None:
            raise ConfigurationError(
                f"module: {type(module).__name__} is the second with trainable or divided parameters in this run, "
                f"after {type(self._model.module).__name__}, and DeepSpeed's engine takes one. Valid: one module that "
                "holds both."
            )
        if self.stage == 3:
            check_averages(module)
        if divided and self.stage < 3:
            raise ConfigurationError(
                f"module: {type(module).__name__} was made divided, and stage={self.stage} divides no parameters. "
                "Valid: stage=3, or a module made outside of init_module()."
            )
        if not divided:
            module = super().setup_module(module) if self.stage < 3 else self.precision.convert_module(module)
        for buffer in module.buffers():  # the engine broadcasts parameters only
            if not buffer.is_meta:
                buffer.copy_(self.broadcast(buffer.cpu()))
        if self.activation_checkpointing is not None:
            recompute(module, self.activation_checkpointing, self._engine_config())
        start = self._start_inference if self.stage == 3 else None
        # Again: a script may have written it into the config since; see ScriptSettings.
        self._model = EngineModule(module, start, micro_batch_size(self.config, self.world_size))
        refuse_unfrozen(self.name, module, self._model)
        return self._model

    def check_compile(self, argument: str) -> None:
        """See the base class; refused by stage 3, whose hooks of parameters DeepSpeed's own code cannot trace.

        Raises:
            ConfigurationError: The stage is 3.
        """
        if self.stage == 3:
            raise ConfigurationError(
                f"{argument}: DeepSpeed gathers the parameters of stage=3 in hooks that torch.compile cannot trace. "
                "Leave it out, or use stage=2."
            )
        super().check_compile(argument)

    def inference_module(self, module: nn.Module) -> nn.Module:
        """The wrapped module; sharded parameters are gathered while it runs."""
        if not isinstance(module, EngineModule):
            return module
        if self.stage < 3:
            return module.module
        if self._engine is None:
            self._start_inference()
        return InferenceModule(module.module)

    def _start_inference(self) -> None:
        assert self._model is not None
        self._engine = Engine(self._model, None, self._engine_config())

    # -- optimizers and the step ---------------------------------------------------------------------------------

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizers, stepped by the engine; schedulers act on their groups as before.

        Raises:
            ConfigurationError: There is no module yet, or an earlier run sharded it; the optimizer belongs to another
                module, is the second one, or has already stepped.
        """
        return [
            optimizer if self._is_stepped(optimizer) else EngineOptimizer(optimizer, self._make_engine(optimizer))
            for optimizer in optimizers
        ]

    def _is_stepped(self, optimizer: Optimizer) -> bool:
        """Whether :meth:`setup_optimizers` has returned ``optimizer`` in this run."""
        return isinstance(optimizer, EngineOptimizer) and optimizer.engine is self._engine

    def _make_engine(self, optimizer: Optimizer) -> Engine:
        name = type(optimizer).__name__
        if self._model is None:
            raise ConfigurationError(f"optimizer {name}: its module is not prepared. Valid: the module first.")
        if self._engine is not None and self._engine.optimizer is None:
            raise ConfigurationError(
                f"optimizer {name}: its module has run without it, and DeepSpeed's engine takes none afterwards. "
                "Valid: to prepare both before the module is called."
            )
        if is_released(self._model):
            raise ConfigurationError(
                "module: it was divided in an earlier run, whose parts DeepSpeed's engine cannot train in another one. "
                "Valid: a new module, which loads a checkpoint of it; or this one, to validate or predict."
            )
        if self._engine is not None:
            raise ConfigurationError(
                f"optimizer {name} is the second in this run, and DeepSpeed's engine supports one. Pass one optimizer "
                "with several parameter groups."
            )
        if optimizer.state:
            raise ConfigurationError(
                f"optimizer {name}: it has stepped before DeepSpeed took its parameters. Valid: prepare a new "
                "optimizer, then load what was saved."
            )
        known = {id(parameter) for parameter in self._model.parameters()}
        if any(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"]):
            raise ConfigurationError(
                f"optimizer {name}: it has parameters that are not of the prepared module "
                f"{type(self._model.module).__name__}. Valid: those of that module."
            )
        self._engine = Engine(self._model, optimizer, self._engine_config())
        return self._engine

    @property
    def engine(self) -> Any:
        """DeepSpeed's own engine.

        Raises:
            ConfigurationError: No optimizer was prepared in this run, so there is none.
        """
        return self._own_engine().engine

    def _own_engine(self) -> Engine:
        if self._engine is None or self._engine.optimizer is None:
            raise ConfigurationError(
                f"strategy {self.name!r}: no engine yet. Valid: after a module and its optimizer are prepared."
            )
        return self._engine

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the engine's backward pass; a step applies the gradients of all passes since the last step.

        Raises:
            ConfigurationError: There is no engine, the config asks for several batches per step, or the engine's
                ``backward`` does not take an argument.
        """
        self._check_own_steps()
        self._own_engine().backward(loss, *args, **kwargs)

    def _check_own_steps(self) -> None:
        steps = self.config.get("gradient_accumulation_steps", 1)
        if steps != 1:
            raise ConfigurationError(
                f"config['gradient_accumulation_steps']={steps!r} in your own loop, which steps where it says "
                "so. Valid: to leave it out, and to step every so many batches."
            )

    def make_backward(self) -> Callable[..., None]:
        """The engine's own, once there is one and the config leaves steps to the loop."""
        engine = self._engine
        if engine is None or engine.optimizer is None or self.config.get("gradient_accumulation_steps", 1) != 1:
            return self.backward
        return engine.make_backward()

    def manual_gradients(self, module: nn.Module) -> ManualGradients:
        """The engine's own backward, any number of times before a step.

        Raises:
            ConfigurationError: The config asks for several batches per step.
        """
        self._check_own_steps()
        return EngineGradients(self._own_engine(), partial(self.no_sync, module))

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Let the engine average remaining gradients, clip, step, and clear the gradients."""
        return optimizer.step(closure) if closure is not None else optimizer.step()

    def may_skip_steps(self) -> bool:
        """``True``: the engine leaves out steps whose gradients are not finite, also in float32 with ZeRO."""
        return True

    def steps_taken(self, optimizer: Optimizer) -> int:
        """0 if the engine left out the last step, else 1."""
        del optimizer
        return int(self._own_engine().was_applied)

    def uses_native_step(self) -> bool:
        """``True``: the optimizers that :meth:`setup_optimizers` returns call the engine."""
        return True

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Nothing to do: the engine averages when it steps, or at once if gradients are sharded."""
        del module
        return nullcontext()

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Nothing to do: the engine scales the loss itself, and unscales in its step."""
        del optimizer

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Let the engine clip in its next step, when it has whole gradients.

        Returns:
            A scalar that the engine's step sets to the norm before clipping; NaN until then. ``None`` under float16
            with stage 0, where the engine does not tell the norm.

        Raises:
            ConfigurationError: The engine cannot clip by value, by another norm, or only some of the parameters.
        """
        engine = self._own_engine()
        self.check_clip_algorithm(algorithm)
        self._check_clipping(clip_value, "clip_value")
        if norm_type != 2.0:
            raise ConfigurationError(f"norm_type={norm_type!r}: DeepSpeed's engine clips by the 2-norm. Valid: 2.0.")
        chosen = {id(parameter) for parameter in parameters}
        if not (engine.parameters <= chosen or engine.stepped <= chosen):
            raise ConfigurationError(
                "parameters: some of those that the optimizer has are not among them, and DeepSpeed's engine clips all "
                "gradients as one vector. Valid: all of the module's."
            )
        return engine.clip_next(clip_value)

    def _check_clipping(self, value: float | None, argument: str) -> None:
        own = self.config.get("gradient_clipping")
        if value is not None and own not in (None, value):
            raise ConfigurationError(
                f"{argument}={value!r} contradicts config['gradient_clipping']={own!r}. Valid: one of the two."
            )

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """The engine's backward and step; the engine also accumulates and clips.

        Raises:
            ConfigurationError: The config contradicts the Trainer's accumulation or clipping.
        """
        engine, accumulate = self._own_engine(), options.accumulate
        steps = self.config.get("gradient_accumulation_steps")
        if steps not in (None, accumulate):
            raise ConfigurationError(
                f"accumulate_grad_batches={accumulate} contradicts config['gradient_accumulation_steps']={steps!r}. "
                "Valid: the same, or to leave it out of the config."
            )
        self._check_clipping(options.clip_value, "gradient_clip_val")
        if options.clip_value is not None:
            engine.clip_always(options.clip_value)
        backward, apply = engine.backward, options.optimizer.step

        def step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            loss = forward(batch, batch_idx)
            if loss is not None:
                backward(loss / accumulate if accumulate > 1 else loss)
            if is_step_end and engine.has_gradients:
                apply()
            return loss

        return step

    # -- state ---------------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> Any:
        """A placeholder for the engine's state, which each process writes; the module's own without an optimizer."""
        if self._engine is None or self._engine.optimizer is None or not self._is_own(module):
            return self.whole_module_state(module)
        return EngineState(self._engine, self._engine.prefix(module))

    def optimizer_state(self, optimizer: Optimizer) -> Any:
        """Like :meth:`module_state`."""
        return EngineState(self._own_engine())

    def whole_module_state(self, module: nn.Module) -> dict[str, Any]:
        """Whole tensors on the CPU in rank 0."""
        return whole_state(module) if self._engine is not None or is_divided(module) else module.state_dict()

    def _is_own(self, module: nn.Module) -> bool:
        own = {id(parameter) for parameter in self._model.parameters()} if self._model is not None else set()
        return any(id(parameter) in own for parameter in module.parameters())

    def load_module_state(self, module: nn.Module, state: Any) -> None:
        """Load the weights of a checkpoint that an engine on any number of processes wrote, or a plain state."""
        weights = state.weights() if isinstance(state, SavedEngine) else state
        if self._engine is not None and self._is_own(module):
            self._engine.load_weights(module, weights)
        elif is_divided(module):
            load_divided(module, weights)
        else:
            module.load_state_dict(weights)

    def load_optimizer_state(self, optimizer: Optimizer, state: Any) -> None:
        """Load all state that an engine on any number of processes wrote, weights included.

        Raises:
            CheckpointError: Another strategy wrote it.
        """
        if not isinstance(state, SavedEngine):
            raise CheckpointError(
                f"optimizer {type(optimizer).__name__}: the state is not DeepSpeed's, and its engine loads no other. "
                "Load only the module, or use the strategy that wrote the checkpoint."
            )
        state.load_into(self._own_engine())
