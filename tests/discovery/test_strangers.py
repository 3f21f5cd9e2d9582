"""Next to each of 63 kinds of broken plugin, the user's program runs as without it; its name gives the true cause."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broken_kinds import HARMLESS_BY_NAME, KINDS, Kind, write_site
from installing import environment, run_list

QUICK = ("import_exits", "class_patches_torch")
"""The kinds that are also tried in the quick tests."""
PART = 7
"""Kinds of which one process tries all; it has imported torch once."""

PROGRAM = """\
import hashlib, json, os, random, signal, sys, threading, traceback, warnings
import numpy
import torch
import torch._dynamo  # an optimizer imports it: once, for all processes that are forked from here
import core.plan.resolution
from torch.utils.data import DataLoader, TensorDataset
from core import Module, Trainer

torch.set_num_threads(1)


class Model(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(directory, devices, **arguments):
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(13, 3), torch.randn(13, 1)), batch_size=2)
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    before = sorted(sys.path), sorted(os.environ), os.getcwd(), signal.getsignal(signal.SIGTERM)
    model = Model()
    trainer = Trainer(
        devices=devices, max_epochs=2, enable_progress_bar=False, enable_checkpointing=False, logger=False,
        num_sanity_val_steps=0, enable_model_summary=False, default_root_dir=directory,
        strategy="ddp_fork" if devices > 1 else "auto", **arguments,
    )
    trainer.fit(model, data)
    os.environ.pop("CORE_RANKS_OF", None)
    after = sorted(sys.path), sorted(os.environ), os.getcwd(), signal.getsignal(signal.SIGTERM)
    weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    changed = [] if before[0] == after[0] and before[2:] == after[2:] else [str(before), str(after)]
    return {
        "weights": hashlib.sha256(weights).hexdigest(), "draws": [random.random(), float(numpy.random.rand())],
        "dtype": str(torch.get_default_dtype()), "threads": [t.name for t in threading.enumerate()],
        "changed": changed, "forward": torch.nn.Linear.forward.__qualname__, "print": print.__name__,
        "accelerator": trainer.plan.accelerator.name,
        "filters": sum(f[1] is None and f[3] is None for f in warnings.filters),
        "hook": sys.excepthook is sys.__excepthook__,
    }


def explain(directory):
    from core.plan import Request, resolve

    plan = resolve(Request.read())
    return {"accelerator": plan.accelerator.name, "rejected": {r.name: r.reason for r in plan.accelerator.rejected}}


def by_name(directory):
    try:
        train(directory, 1, accelerator="acme")
        error = ""
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {"error": error, **train(directory, 1, accelerator="cpu")}


ACTIONS = {
    "explain": explain,
    "one": lambda directory: train(directory, 1),
    "two": lambda directory: train(directory, 2, accelerator="auto"),
    "name": by_name,
}

for site in sys.argv[1:]:
    for action in ACTIONS:
        reading, writing = os.pipe()
        if not os.fork():
            log = os.open(f"{site}.{action}", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["PYTHONPATH"] = site
            os.environ["CORE_PROBE_TIMEOUT"] = "3" if "hangs" in site or "lock" in site else "30"
            os.environ["XDG_CACHE_HOME"] = site + "-cache"
            sys.path.insert(0, site)
            signal.alarm(100)
            try:
                os.write(writing, json.dumps(ACTIONS[action](os.path.dirname(site))).encode())
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            text = answer.read().decode()
        os.wait()
        print(json.dumps([os.path.basename(site), action, json.loads(text or "null")]), flush=True)
"""


def tried(directory: Path, kinds: list[str]) -> dict[str, dict[str, Any]]:
    """By kind and action, the answer; ``none`` is a site without a broken plugin."""
    (directory / "none").mkdir()
    for kind in kinds:
        write_site(directory / kind, kind, KINDS[kind])
    sites = [str(directory / kind) for kind in ["none", *kinds]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *sites],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        kind, action, answer = json.loads(line)
        assert answer is not None, (kind, action, (directory / f"{kind}.{action}").read_text())
        answers.setdefault(kind, {})[action] = answer
    return answers


def check(kind: str, facts: Kind, answers: dict[str, Any], clean: dict[str, Any]) -> None:
    assert answers["explain"]["accelerator"] == "cpu", answers["explain"]
    assert "acme" in answers["explain"]["rejected"]
    assert answers["one"] == clean["one"]
    assert answers["two"] == clean["two"]
    assert {name: answers["name"][name] for name in clean["one"]} == clean["one"]
    if kind in HARMLESS_BY_NAME:
        assert answers["name"]["error"] == ""
    else:
        assert answers["name"]["error"].startswith("BackendError: ")
        assert facts.cause in answers["name"]["error"]
        assert "acme" in answers["name"]["error"].partition("Usable")[0]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(list(QUICK), id="quick"),
        pytest.param(list(KINDS)[4::12], id="draw", marks=pytest.mark.slow),
        *(
            pytest.param(list(KINDS)[first : first + PART], id=f"{first}", marks=pytest.mark.exhaustive)
            for first in range(0, len(KINDS), PART)
        ),
    ],
)
def test_users_program_is_unharmed(kinds: list[str], tmp_path: Path) -> None:
    """The Plan, training on one and two processes, and training after the name was refused, are those without it."""
    answers = tried(tmp_path, kinds)
    clean = answers.pop("none")
    assert clean["one"]["accelerator"] == clean["two"]["accelerator"] == "cpu"
    faults = []
    for kind in kinds:
        try:
            check(kind, KINDS[kind], answers[kind], clean)
        except AssertionError as error:
            faults.append(f"{kind}: {str(error)[:1500]}")
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(list(KINDS)[2::4], id="draw", marks=pytest.mark.slow),
        pytest.param(list(KINDS), id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_listing_shows_the_cause_of_each(kinds: list[str], tmp_path: Path) -> None:
    """They are installed at once: each is a row; with --probe it has the state and the true cause."""
    installed = {kind: KINDS[kind] for kind in kinds}
    for kind, facts in installed.items():
        write_site(tmp_path, kind, facts, kind)
    environ = environment(tmp_path)
    plain = run_list("--json", environ=environ)
    assert plain.returncode == 0
    probed = run_list("--json", "--probe", "--timeout", "15", "--kind", "accelerator", environ=environ)
    rows = {
        row["distribution"]: row for row in json.loads(probed.stdout)["backends"] if not row["name"].endswith("acme2")
    }
    faults = []
    for kind, facts in installed.items():
        row = rows[f"torch-hal-{kind.replace('_', '-')}"]
        cause = facts.cause.replace("'acme'", repr(kind))
        if (row["state"], cause in row["reason"]) != ((facts.state, True) if facts.is_shown else ("available", False)):
            faults.append(f"{kind}: {row['state']}: {row['reason'][:300]}")
    assert not faults, "\n".join(faults)


def test_the_page_has_each_kind() -> None:
    """The table in docs/broken-plugins.md has a row for each kind, and none whose user was harmed."""
    page = (Path(__file__).parents[2] / "docs" / "broken-plugins.md").read_text("utf-8")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [kind.replace("_", " ") for kind in KINDS], "run: python docs/write_broken_plugins.py"
    assert "**" not in page
