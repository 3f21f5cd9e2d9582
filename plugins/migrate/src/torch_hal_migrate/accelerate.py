"""What a script uses of Accelerate: names that it imports, arguments, and members of its Accelerator."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from .scripts import Imports, Use

__all__ = ["uses"]

ROOTS = ("accelerate",)
MODULES = ("accelerator", "data_loader", "launchers", "local_sgd", "logging", "scheduler", "state", "tracking", "utils")
"""Names that are modules, so a script that imports them uses nothing yet."""

WRAPPERS = ("backward", "clip_grad_norm_", "load_checkpoint", "module", "no_sync", "save_checkpoint")
"""What the wrappers of DistributedDataParallel, FSDP and DeepSpeed have, and a model does not."""

STATES = ("AcceleratorState", "GradientState", "PartialState")

USUAL_NAME = "accelerator"
"""What scripts call their Accelerator; a function may get it as an argument without an annotation."""


def uses(tree: ast.AST) -> list[Use]:
    """What a script uses, in the order of lines; nothing if it does not import Accelerate."""
    imports = Imports(tree, ROOTS, MODULES)
    if not imports.paths:
        return []
    objects = {USUAL_NAME, *_objects(tree, imports)}
    modules = {(alias.asname or alias.name).partition(".")[0] for alias in _imported(tree)}
    found = list(imports.uses)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = imports.path(node)
            if path and path.rpartition(".")[2] not in MODULES:
                found.append(Use("names", path.rpartition(".")[2], node.lineno))
            elif (not path and _last_of(node.value) in objects and _first_of(node.value) not in modules) or (
                node.attr.startswith("_") and _is_state(node.value, imports, objects)
            ):
                found.append(Use("members", node.attr, node.lineno))
        elif isinstance(node, ast.Call) and imports.name(node.func) == "Accelerator":
            found += [Use("constructor", each.arg, each.value.lineno) for each in node.keywords if each.arg is not None]
    found += _scheduled(tree, objects)
    found += _of_wrappers(tree, objects)
    if any(use.name == "load_state" for use in found):
        found += _skipped(tree)
    return sorted(dict.fromkeys(found), key=lambda use: (use.line, use.section, use.name))


def _is_state(node: ast.AST, imports: Imports, objects: Collection[str]) -> bool:
    """Whether it is one of Accelerate's states: ``PartialState``, ``PartialState()`` or ``accelerator.state``."""
    if isinstance(node, ast.Attribute) and node.attr == "state":
        return _last_of(node.value) in objects
    return imports.name(node.func if isinstance(node, ast.Call) else node) in STATES


def _imported(tree: ast.AST) -> Iterator[ast.alias]:
    """What ``import`` binds: ``torch``, so ``torch.accelerator`` is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from node.names


def _objects(tree: ast.AST, imports: Imports) -> Iterator[str]:
    """The last names of what is an Accelerator: ``a`` of ``a = Accelerator()`` and of ``self.a = Accelerator()``."""
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign) and isinstance(value, ast.Call) and imports.name(value.func) == "Accelerator":
            yield from filter(None, map(_last_of, node.targets))
        elif isinstance(node, ast.arg) and node.annotation and imports.name(node.annotation) == "Accelerator":
            yield node.arg


def _scheduled(tree: ast.AST, objects: Collection[str]) -> Iterator[Use]:
    """The calls of ``prepare`` that are given a scheduler, by its name or by what it was made with."""
    made = {
        _last_of(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _makes_scheduler(node.value)
        for target in node.targets
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "prepare":
            names = {_last_of(given) for given in node.args}
            if _last_of(node.func.value) in objects and any(name in made or "sched" in name for name in names):
                yield Use("members", "prepare_scheduler", node.lineno)


def _of_wrappers(tree: ast.AST, objects: Collection[str]) -> Iterator[Use]:
    """What is read from a prepared model as if it were a wrapper, unless a class of the script defines it."""
    models, own, asked = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            models |= {*_models(node.value, node.targets[0], objects)}
        if isinstance(node, ast.FunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.If | ast.IfExp) and {"hasattr", "isinstance"} & {
            _last_of(each.func) for each in ast.walk(node.test) if isinstance(each, ast.Call)
        }:
            asked |= {id(each) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in asked:
            continue
        if node.attr in {*WRAPPERS} - own and ast.unparse(node.value) in models:
            yield Use("prepared", node.attr, node.lineno)


def _models(call: ast.Call, target: ast.expr, objects: Collection[str]) -> Iterator[str]:
    """The models that a call of ``prepare`` returns: what is named so, or assigned from ``prepare_model``."""
    if not (isinstance(call.func, ast.Attribute) and _last_of(call.func.value) in objects):
        return
    if call.func.attr == "prepare_model":
        yield ast.unparse(target)
    elif call.func.attr == "prepare":
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if not any(word in _last_of(each).lower() for word in ("optim", "loader", "sched", "dataset", "opt", "dl")):
                yield ast.unparse(each)


def _makes_scheduler(call: ast.Call) -> bool:
    """Whether a call is such as ``get_scheduler(...)`` and ``StepLR(...)``."""
    name = _last_of(call.func)
    return name.endswith("LR") or (name.startswith("get_") and "schedule" in name)


def _skipped(tree: ast.AST) -> Iterator[Use]:
    """Where a loop leaves out its first batches: ``if step < resume_step: continue``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue):
            compared = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
            if any(isinstance(part.ops[0], ast.Lt) and "resume" in ast.unparse(part) for part in compared):
                yield Use("members", "load_state", node.lineno)


def _last_of(node: ast.AST) -> str:
    """``b`` of ``b`` and of ``a.b``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _first_of(node: ast.AST) -> str:
    """``a`` of ``a`` and of ``a.b.c``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
