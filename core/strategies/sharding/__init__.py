"""Tensors sharded over a mesh of processes: for strategies whose parameters are torch's DTensors.

Importing it imports :mod:`torch.distributed.tensor`; so :mod:`core.strategies` does not.
"""

from .layout import like, put_whole, to_whole
from .mesh import check_size, detach_mesh, make_mesh
from .replaced_parameters import FollowedParameters
from .tensor_parallel import Plan, apply_plan, check_plan, find_plan, matches

__all__ = [
    "FollowedParameters",
    "Plan",
    "apply_plan",
    "check_plan",
    "check_size",
    "detach_mesh",
    "find_plan",
    "like",
    "make_mesh",
    "matches",
    "put_whole",
    "to_whole",
]
