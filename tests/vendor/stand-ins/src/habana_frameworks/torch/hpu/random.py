"""Random number generators of the devices."""

from __future__ import annotations

from stand_ins import recorded

from habana_frameworks.torch.core import _module

__all__ = ["get_rng_state", "initial_seed", "manual_seed", "manual_seed_all", "set_rng_state"]

initial_seed = recorded("hpu.random.initial_seed")(_module.initial_seed)
manual_seed = recorded("hpu.random.manual_seed")(_module.manual_seed)
manual_seed_all = recorded("hpu.random.manual_seed_all")(_module.manual_seed_all)
get_rng_state = recorded("hpu.random.get_rng_state")(_module.get_rng_state)
set_rng_state = recorded("hpu.random.set_rng_state")(_module.set_rng_state)
