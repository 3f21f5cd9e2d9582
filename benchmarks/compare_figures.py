"""The figures of `compare.py` from the files of its processes, their checks, and the table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from compare_roster import ALLOWED, DDP, PLAIN, PLAIN_ADAM, TO_DDP, Entry
from torch import Tensor

__all__ = ["Figures", "broken", "figures_of", "table"]

LAST = 20
"""Steps at the end of a run over which its final loss is the mean."""


@dataclass
class TaskFigures:
    """What training on one task came to.

    Attributes:
        first: Loss of the first step.
        final: Mean loss of the last :data:`LAST` steps.
        above: The part of the plain loop's fall from first to final loss that is missing at the end; below 0 where
            training went further.
        losses: Greatest relative difference of a step's loss to DDP's.
        parameters: Greatest difference of a final parameter to DDP's, divided by the largest in its tensor.
        fitted: As ``losses``, of the Trainer's.
        ranks: As ``parameters``, between the two processes; ``None`` where each has but a part.
        resumed: As ``parameters``, of the resumed run to the uninterrupted one; of their losses if that is more.
    """

    first: float
    final: float
    above: float = 0.0
    losses: float | None = None
    parameters: float | None = None
    fitted: float | None = None
    ranks: float | None = None
    resumed: float | None = None


@dataclass
class Figures:
    """What training with one strategy came to.

    Attributes:
        tasks: By name.
        refusal: Why it was refused.
        failure: What its processes said where they failed.
        curves: Of each task, what is compared with others: the losses of all processes, step by step, and parameters.
    """

    tasks: dict[str, TaskFigures] = field(default_factory=dict)
    refusal: str | None = None
    failure: str | None = None
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)


def figures_of(entry: Entry, folder: Path, before: Mapping[str, Figures]) -> Figures:
    """Read what an entry's processes left in ``folder``, and compare it with what entries ``before`` it came to."""
    found = Figures()
    for path in sorted(folder.glob("*-loop-0.pt")):
        name = path.name.removesuffix("-loop-0.pt")
        loop, first, resumed = (_read(folder, f"{name}-{phase}") for phase in ("loop", "first", "resumed"))
        curve = {"loop": _losses(loop), "parameters": loop[0]["parameters"]}
        task = TaskFigures(curve["loop"][0].item(), curve["loop"][-LAST:].mean().item())
        if first:
            plain = before[PLAIN_ADAM if entry.adam else PLAIN].tasks[name]
            task.above = (task.final - plain.final) / (plain.first - plain.final)
            task.ranks = _between_ranks(loop)
            task.resumed = _resumed(first, resumed)
            curve["fit"] = _losses(first)
        if first and entry.name != DDP and not entry.adam:
            ddp = before[DDP].curves[name]
            task.losses = _apart(curve["loop"], ddp["loop"])
            task.parameters = _apart_in_all(curve["parameters"], ddp["parameters"])
            if curve["fit"].shape == ddp["fit"].shape:  # else its processes share batches
                task.fitted = _apart(curve["fit"], ddp["fit"])
        found.tasks[name], found.curves[name] = task, curve
    return found


def broken(entry: Entry, found: Mapping[str, Figures]) -> list[str]:
    """Where an entry is not what it must be."""
    figures = found[entry.name]
    if figures.refusal is not None:
        return [] if entry.needs is not None and entry.needs in figures.refusal else [f"refused: {figures.refusal}"]
    if figures.failure is not None or not figures.tasks:
        return [figures.failure or "left no figures"]
    faults = []
    for name, task in figures.tasks.items():
        allowed = ALLOWED[entry.bar]
        if not math.isfinite(task.final) or task.final >= task.first:
            faults.append(f"{name}: loss went from {task.first} to {task.final}")
        if task.above > allowed or (entry.bar == "exact" and task.above < -allowed):
            faults.append(f"{name}: final loss {task.final} is {task.above:+.2g} of the fall from the plain loop's")
        if entry.is_ddp is not None:
            limit = 0.0 if entry.is_ddp == "bits" else TO_DDP
            apart = {"losses": task.losses, "parameters": task.parameters, "Trainer's losses": task.fitted}
            faults += [f"{name}: {what} {by:.2g} from DDP's" for what, by in apart.items() if by and not by <= limit]
        if entry.equal_ranks and task.ranks:
            faults.append(f"{name}: processes are {task.ranks:.2g} apart")
        if entry.resumed == "bits" and task.resumed:
            faults.append(f"{name}: resumed is {task.resumed:.2g} from uninterrupted")
    return faults


def _read(folder: Path, start: str) -> list[dict[str, Any]]:
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob(f"{start}-?.pt"))]


def _losses(ranks: list[dict[str, Any]]) -> Tensor:
    return torch.stack([rank["losses"] for rank in ranks]).mean(0)


def _between_ranks(ranks: list[dict[str, Any]]) -> float | None:
    whole = [rank["parameters"] for rank in ranks if rank["parameters"]]
    return _apart_in_all(whole[0], whole[1]) if len(whole) > 1 else None


def _resumed(first: list[dict[str, Any]], resumed: list[dict[str, Any]]) -> float:
    apart = []
    for whole, again in zip(first, resumed, strict=True):
        apart.append(_apart(again["losses"], whole["losses"][len(whole["losses"]) // 2 :]))
        if whole["parameters"] or again["parameters"]:
            apart.append(_apart_in_all(again["parameters"], whole["parameters"]))
    return max(apart)


def _apart(losses: Tensor, others: Tensor) -> float:
    if losses.shape != others.shape:
        raise ValueError(f"{tuple(losses.shape)} losses to compare with {tuple(others.shape)}")
    return ((losses - others) / others).abs().max().item()


def _apart_in_all(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys():
        raise ValueError(f"parameters {sorted(one)} to compare with {sorted(other)}")
    return max(((one[name] - other[name]).abs().max() / other[name].abs().max()).item() for name in one)


LEGEND = f"""\
Final losses are means over the last {LAST} steps. Every other figure is the larger one of both tasks: relative
differences of a step's loss from DDP's; differences of a final parameter from DDP's, and between processes if each
has all parameters, relative to the largest value in its tensor; and both of these between an uninterrupted run of the
Trainer and one that new processes resumed at the end of an epoch. *equal* means bit for bit. `async` is not
deterministic. DeepSpeed keeps tensors of less than a megabyte in memory, so all of these models when the strategy
offloads to a drive; the tests of torch-hal-deepspeed train and resume a larger one there, bit for bit as on the host.
Under `qadam` the optimizer is Adam, as in the second row.
"""


def table(entries: Iterable[Entry], found: Mapping[str, Figures]) -> str:
    """A line of Markdown for each entry, and what the columns are."""
    entries = list(entries)
    tasks = list(found[entries[0].name].tasks)
    head = ["strategy", *(f"{name}: final loss" for name in tasks), "losses to DDP's", "parameters to DDP's"]
    head += ["Trainer's losses to DDP's", "between processes", "resumed to uninterrupted"]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for entry in entries:
        figures = found[entry.name]
        if figures.refusal is not None or figures.failure is not None:
            why = "failed" if figures.failure is not None else f"refused by name here: needs {entry.needs}"
            lines.append([entry.name, why, *("" for _ in head[2:])])
            continue
        by_task = list(figures.tasks.values())
        line = [f"`{entry.name}`" if entry.strategy else entry.name, *(f"{task.final:.4f}" for task in by_task)]
        compared = ("losses", "parameters", "fitted", "ranks", "resumed")
        line += [_greatest([getattr(task, what) for task in by_task]) for what in compared]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{LEGEND}"


def _greatest(by_task: list[float | None]) -> str:
    differences = [difference for difference in by_task if difference is not None]
    if not differences:
        return ""
    return f"{max(differences):.0e}" if max(differences) else "equal"
