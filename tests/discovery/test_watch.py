"""What an import changes in the process is told and undone; torch's own lazy imports are no change."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from python_processes import run_python

from core.discovery import activation
from core.discovery.import_side_effects import ProcessState
from core.errors import BackendError
from core.specs import PrecisionSpec

CHANGES = {
    "import os; os.umask(0)": "the umask",
    "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])": "the processors that the process may use",
    "import logging; logging.disable(50)": "the level below which logging is off",
    "import logging; logging.basicConfig(level=10)": "the handlers of the root logger",
    "import logging; logging.getLogger('torch_hal').setLevel(50)": "the level of the logger 'torch_hal'",
    "import signal; signal.setitimer(signal.ITIMER_REAL, 900)": "the timer of SIGALRM",
    "import socket; socket.setdefaulttimeout(0.1)": "the default timeout of sockets",
    "import locale; locale.setlocale(locale.LC_CTYPE, 'C')": "the locale",
    "import sys; sys.setprofile(lambda *_: None)": "the profile function",
    "import sys; sys.setswitchinterval(1)": "the switch interval of threads",
    "import sys; sys.set_int_max_str_digits(0)": "the number of digits",
    "import multiprocessing as m; m.set_start_method('spawn')": "how multiprocessing starts processes",
    "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, r.getrlimit(r.RLIMIT_CORE)[1]))": "the limit RLIMIT_CORE",
    "import torch; torch.nn.modules.module.register_module_forward_pre_hook(print)": "hooks of all modules",
    "from torch.optim.optimizer import register_optimizer_step_pre_hook as r; r(print)": "hooks of all optimizers",
    "import torch; torch.backends.cuda.enable_math_sdp(False)": "backends.cuda.math_sdp",
    "import torch; torch.distributed.all_reduce = print": "the function torch.distributed.all_reduce",
    "import core; core.Trainer.fit = print": "the function torch_hal.trainer.trainer.Trainer.fit",
}

SCRIPT = """\
import json, resource, sys
import torch
import core
import core.trainer.trainer
from core.discovery.import_side_effects import ProcessState

resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
found = {}
for code in json.loads(sys.argv[1]):
    state = ProcessState()
    exec(code, {})
    found[code] = [state.take_changes(), state.take_changes()]
state = ProcessState()
import torch._dynamo, torch.distributed.tensor
found["torch"] = [state.take_changes(), ""]
print(json.dumps(found))
"""


def test_changes_are_told_and_undone(tmp_path: Path) -> None:
    """The first comparison names the change; a second one finds none."""
    found = json.loads(
        run_python("-c", SCRIPT, json.dumps(list(CHANGES)), cwd=tmp_path, env={"LC_ALL": "C.UTF-8"}).stdout
    )
    assert found.pop("torch") == ["", ""]
    told = {code: changes for code, (changes, _) in found.items()}
    assert {code: CHANGES[code] for code in told if CHANGES[code] not in told[code]} == {}, told
    assert {code: left for code, (_, left) in found.items() if left} == {}


def test_a_class_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose import changed nothing is not imported again, nor compared; a harmful one is refused each time."""
    made = "from core import Precision\nclass {name}(Precision):\n    name = {name!r}\n"
    (tmp_path / "acme_calm.py").write_text(made.format(name="Calm"), "utf-8")
    (tmp_path / "acme_loud.py").write_text(f"import os\nos.umask(0)\n{made.format(name='Loud')}", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    compared: list[int] = []

    class Counted(ProcessState):
        def __init__(self) -> None:
            compared.append(1)
            super().__init__()

    monkeypatch.setattr(activation, "ProcessState", Counted)
    calm, loud = (PrecisionSpec(name=f"acme-{one}", target=f"acme_{one}:{one.title()}") for one in ("calm", "loud"))
    for _ in range(3):
        assert activation.load_watched(calm, "torch-hal-acme").name == "Calm"
    assert len(compared) == 1
    for _ in range(2):
        with pytest.raises(BackendError, match="the umask"):
            activation.load_watched(loud, "torch-hal-acme")
    monkeypatch.delitem(sys.modules, "acme_calm")
    activation.load_watched(calm, "torch-hal-acme")
    assert len(compared) == 4
    for name in ("acme_calm", "acme_loud"):
        monkeypatch.delitem(sys.modules, name)
