"""A simulated accelerator in pure Python: a third party's out-of-tree torch backend whose chip is the host's CPU.

``install("simx", devices=2)`` gives this process a device type ``simx`` with two devices, under torch's PrivateUse1
key. The README next to this package says what is simulated and what is not.
"""

from __future__ import annotations

from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from simdevice import autocast, kernels, patches
from simdevice.module import DeviceModule
from simdevice.tensors import host_view, set_module

__all__ = ["DeviceModule", "host_view", "install"]


def install(name: str, devices: int) -> DeviceModule:
    """Make ``devices`` simulated devices of type ``name`` known to torch; once a process, as torch has it.

    Returns:
        The device module, from then on also ``torch.<name>``.
    """
    module = DeviceModule(name, devices)
    set_module(module)
    _setup_privateuseone_for_python_backend(name, backend_module=module)
    kernels.register()
    autocast.register(name)
    patches.apply(module)
    return module
