"""The optimizer that 16-mixed hands back has the user's class and the user's attributes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from abc import ABC, abstractmethod
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop, lr_scheduler

from core.strategies import OptimizerWrapper, unwrap_optimizer

from .mixed_loops import assert_equal, by_hand, prepared, sgd, with_runtime
from .problem import network


class TestItsClass:
    """The user's, and one for all optimizers of a class."""

    @pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
    def test_isinstance(self, kind: type[Optimizer]) -> None:
        """Of the user's class, with its name."""
        optimizer, own, _ = prepared(lambda module: kind(module.parameters(), lr=0.1))  # type: ignore[call-arg]
        assert isinstance(optimizer, kind)
        assert type(optimizer).__name__ == kind.__name__
        assert repr(optimizer) == repr(own)

    def test_one_class_for_each_type(self) -> None:
        """Made once, and freed with the user's class."""
        first, second = prepared()[0], prepared()[0]
        assert type(first) is type(second)
        assert type(first) is not type(prepared(lambda module: Adam(module.parameters()))[0])

        class Local(SGD):
            pass

        reference = weakref.ref(Local)
        own = Local(network().parameters(), lr=0.1)
        OptimizerWrapper(own, own.step)
        del Local, own
        gc.collect()
        gc.collect()  # the class was the cache's key as long as there was a wrapper's
        assert reference() is None

    def test_another_one_of_its_class(self) -> None:
        """``type(optimizer)(...)`` is a plain optimizer of the user's class."""
        optimizer, own, _ = prepared()
        other = type(optimizer)(network().parameters(), lr=0.5)
        assert type(other) is type(own) is SGD
        assert other.param_groups[0]["lr"] == 0.5

    def test_it_is_freed_without_the_garbage_collector(self) -> None:
        """No reference cycle keeps parameters, with a scheduler neither."""
        module = network()
        own = sgd(module)
        wrapper = OptimizerWrapper(own, own.step)
        lr_scheduler.StepLR(wrapper, 1)
        references: list[Any] = [weakref.ref(own), weakref.ref(wrapper)]
        gc.collect()
        gc.disable()
        try:
            del own, wrapper
            assert [reference() for reference in references] == [None, None]
        finally:
            gc.enable()


class Switching(SGD):
    """Has a mode that its own method sets, as optimizers that average weights have, and an attribute ``optimizer``."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.optimizer = "inner"
        self.engine = "steam"

    def train(self) -> str:
        """Set an attribute that was not there before."""
        self.mode = "train"
        return self.optimizer


class TestItsAttributes:
    """The user's, both ways."""

    def test_set_by_the_users_own_method(self) -> None:
        """Whichever of the two it is called on, also later."""
        optimizer, own, _ = prepared(lambda module: Switching(module.parameters()))
        assert not hasattr(optimizer, "mode")
        assert own.train() == "inner"
        assert optimizer.mode == "train"
        del own.mode
        assert optimizer.train() == "inner"
        assert own.mode == "train"
        optimizer.mode = "eval"
        assert own.mode == "eval"
        optimizer.optimizer = "other"
        assert own.optimizer == "other"
        assert vars(optimizer) is vars(own)
        assert unwrap_optimizer(optimizer) is own
        assert unwrap_optimizer(own) is own

    def test_replaced_as_a_whole(self) -> None:
        """Loading a state replaces the optimizer's state and groups: in both."""
        optimizer, own, train = prepared()
        train()
        state = copy.deepcopy(optimizer.state_dict())
        for target in (optimizer, own):
            target.load_state_dict(state)
            assert optimizer.state is own.state
            assert optimizer.param_groups is own.param_groups
        train()  # torch adds its hooks to the class of what it loads into: the prepared step is still there
        assert len(own.state) == len(state["state"])

    def test_in_slots(self) -> None:
        """They are outside of ``__dict__``, and shared as well."""

        class Slotted(SGD):
            __slots__ = ("mode",)

            def train(self) -> None:
                self.mode = "train"

        optimizer, own, train = prepared(lambda module: Slotted(module.parameters(), lr=0.1))
        optimizer.train()
        assert own.mode == "train"
        del own.mode
        assert not hasattr(optimizer, "mode")
        train()


class TestUnusualClasses:
    """Of users' optimizers."""

    def test_its_subclasses_are_registered(self) -> None:
        """Neither ``__init_subclass__`` nor a metaclass sees a class that the user did not write."""
        seen: list[str] = []

        class Meta(type):
            def __init__(cls, name: str, bases: Any, namespace: Any, *, key: str) -> None:
                super().__init__(name, bases, namespace)
                seen.append(key)

            def __new__(cls, name: str, bases: Any, namespace: Any, *, key: str) -> Any:
                return super().__new__(cls, name, bases, namespace)

        class Registered(SGD, metaclass=Meta, key="mine"):
            def __init_subclass__(cls, *, key: str) -> None:
                raise AssertionError(key)

            def __new__(cls, parameters: Any) -> Any:
                return super().__new__(cls)

            def __init__(self, parameters: Any) -> None:
                super().__init__(parameters, lr=0.1)

        optimizer, _, train = prepared(lambda module: Registered(module.parameters()))
        train()
        assert isinstance(optimizer, Registered)
        assert seen == ["mine"]

    def test_an_abstract_base(self) -> None:
        """A check against the prepared optimizer's class leaves no trace in the caches of ABCMeta."""

        class Base(Optimizer, ABC):
            @abstractmethod
            def mode(self) -> str: ...

        class Concrete(SGD, Base):
            def mode(self) -> str:
                return "concrete"

        optimizer, own, train = prepared(lambda module: Concrete(module.parameters(), lr=0.1))
        assert not isinstance(own, type(optimizer))
        assert isinstance(optimizer, Base)
        assert isinstance(own, Base)
        assert issubclass(Concrete, Concrete)
        assert optimizer.mode() == "concrete"
        train()

    def test_one_that_intercepts_attributes(self) -> None:
        """``__setattr__`` and ``__getattr__`` are for the user's own attributes."""

        class Intercepting(SGD):
            def __setattr__(self, name: str, value: Any) -> None:
                if name.startswith("_core"):
                    raise AttributeError(name)
                super().__setattr__(name, value)

            def __getattr__(self, name: str) -> Any:
                if name.startswith("virtual"):
                    return name
                raise AttributeError(name)

        optimizer, _, train = prepared(lambda module: Intercepting(module.parameters(), lr=0.1))
        train()
        assert optimizer.virtual_one == "virtual_one"
        assert not hasattr(optimizer, "actual")

    def test_one_that_holds_another(self) -> None:
        """As Lookahead does, or one that keeps an exponential average of the weights: bit for bit as by hand."""

        class Averaging(Optimizer):
            def __init__(self, optimizer: Optimizer) -> None:
                self.optimizer = optimizer
                super().__init__(optimizer.param_groups, {})
                self.average = [p.detach().clone() for g in self.param_groups for p in g["params"]]

            def step(self, closure: Any = None) -> Any:
                result = self.optimizer.step(closure)
                with torch.no_grad():
                    for average, p in zip(
                        self.average, [p for g in self.param_groups for p in g["params"]], strict=True
                    ):
                        average.lerp_(p, 0.5)
                return result

        made: list[Averaging] = []

        def make(module: nn.Module) -> Averaging:
            made.append(Averaging(sgd(module)))
            return made[-1]

        assert_equal(with_runtime(make), by_hand(make))
        assert_equal(made[0].average, made[1].average)

    def test_one_with_its_own_step(self) -> None:
        """As Lion: bit for bit as by hand."""

        class Lion(Optimizer):
            def __init__(self, parameters: Any, lr: float) -> None:
                super().__init__(parameters, {"lr": lr})

            @torch.no_grad()
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                for group in self.param_groups:
                    for p in group["params"]:
                        momentum = self.state[p].setdefault("m", torch.zeros_like(p))
                        p.add_((0.9 * momentum + 0.1 * p.grad).sign(), alpha=-group["lr"])
                        momentum.lerp_(p.grad, 0.01)

        assert_equal(*(train(lambda module: Lion(module.parameters(), 0.01)) for train in (with_runtime, by_hand)))


class TestCopies:
    """Of a prepared optimizer."""

    def test_deep(self) -> None:
        """It steps its own parameters, also where the user's class says how it is copied."""

        class Copied(SGD):
            is_copy = False

            def __deepcopy__(self, memo: Any) -> Copied:
                other = type(self)([p.detach().clone().requires_grad_() for p in self.param_groups[0]["params"]], lr=7)
                other.is_copy = True
                return other

        optimizer, own, _ = prepared(lambda module: Copied(module.parameters(), lr=0.1))
        duplicate = copy.deepcopy(optimizer)
        assert isinstance(duplicate, Copied)
        assert isinstance(duplicate, OptimizerWrapper)
        assert duplicate.is_copy
        assert unwrap_optimizer(duplicate) is not own
        assert duplicate.param_groups[0]["lr"] == 7
        assert own.param_groups[0]["lr"] == 0.1

    def test_pickled(self) -> None:
        """With pickle and torch.save: the state arrives, and the step goes through the strategy again."""
        optimizer, own, train = prepared()
        train()
        buffer = io.BytesIO()
        torch.save(optimizer, buffer)
        buffer.seek(0)
        copies = (
            pickle.loads(pickle.dumps(optimizer)),
            torch.load(buffer, weights_only=False),
            copy.deepcopy(optimizer),
        )
        for arrived in copies:
            assert isinstance(arrived, SGD)
            assert type(arrived) is type(optimizer)
            assert arrived.param_groups[0]["momentum"] == 0.9
            momentum = next(iter(own.state.values()))["momentum_buffer"]
            assert torch.equal(next(iter(arrived.state.values()))["momentum_buffer"], momentum)


class TestForVendors:
    """A strategy's author makes a wrapper with another step."""

    def test_a_subclass(self) -> None:
        """What it keeps for itself is not the user's, even where both have the same name."""

        class Wrapper(OptimizerWrapper):
            own_attributes = ("engine",)

            def __init__(self, optimizer: Optimizer, engine: list[Any]) -> None:
                super().__init__(optimizer, engine.append)
                self.engine = engine

            def zero_grad(self, set_to_none: bool = True) -> None:
                self.engine.append("zero_grad")

        own = Switching(network().parameters())
        engine: list[Any] = []
        wrapper: Any = Wrapper(own, engine)
        wrapper.step(None)
        wrapper.zero_grad()
        assert engine == [None, "zero_grad"]
        assert own.engine == "steam"
        assert wrapper.engine is engine
        again: Any = OptimizerWrapper(wrapper, lambda closure=None: "outer")
        assert (again.step(), again.engine) == ("outer", engine)
        assert isinstance(again, Wrapper)
        again.engine = []
        assert wrapper.engine == []
        assert unwrap_optimizer(again) is wrapper

    def test_a_step_in_the_class_is_refused(self) -> None:
        """It would have no effect."""
        with pytest.raises(TypeError, match=r"OptimizerWrapper.__init__\(optimizer, step\)"):

            class Wrapper(OptimizerWrapper):
                def step(self, closure: Any = None) -> None:  # type: ignore[override]
                    pass
