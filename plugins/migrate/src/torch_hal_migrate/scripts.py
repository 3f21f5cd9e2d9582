"""What a script uses of Lightning: names that it imports, arguments, and members of its objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["Imports", "Use", "class_kinds", "names_of_scripts", "uses"]

ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric")
RANK_ZERO = "lightning_utilities.core.rank_zero"
"""A module of another package whose functions need the rank that Lightning tells them when it is imported."""
MODULES = frozenset(
    [
        "accelerators",
        "callbacks",
        "cli",
        "csv_logs",
        "early_stopping",
        "combined_loader",
        "core",
        "datamodule",
        "environments",
        "exceptions",
        "fabric",
        "fsdp",
        "io",
        "loggers",
        "lr_monitor",
        "memory",
        "model_checkpoint",
        "module",
        "model_summary",
        "optimizer",
        "plugins",
        "precision",
        "profilers",
        "progress",
        "pytorch",
        "rank_zero",
        "seed",
        "strategies",
        "tensorboard",
        "tqdm_progress",
        "trainer",
        "tuner",
        "types",
        "utilities",
        "warnings",
    ]
)
"""Names that are modules, so a script that imports them uses nothing yet."""

BASES = {"LightningModule": "module_members", "LightningDataModule": "datamodule_members"}
"""The sections with the members of classes that a script derives from."""
ARGUMENTS = {
    "Trainer": "trainer_arguments",
    "ModelCheckpoint": "model_checkpoint_arguments",
    "seed_everything": "seed_arguments",
}
"""The sections with the arguments of what is imported."""

USUAL_FABRIC = "fabric"
"""What scripts call their Fabric; a function may get it as an argument without an annotation."""

CALLED_ON = {"fit_arguments": "trainer", "log_arguments": "self"}
"""The sections with the arguments of several methods, and what these are called on."""

HOOK_ARGUMENTS = {
    **dict.fromkeys(("optimizer_idx", "hiddens", "on_tpu", "using_native_amp", "using_lbfgs"), ".*"),
    "dataloader_iter": ".*_step",
    "dataloader_idx": "on_train_batch_(start|end)",
    "outputs": "on_(train|validation|test)_epoch_end",
}
"""By argument: the steps and hooks in which it is to be reported."""

STAGES = ("fit", "validate", "test", "predict")


class Use(NamedTuple):
    """A name that a script uses."""

    section: str
    """The section of the table to find it in; ``names`` for what is imported."""
    name: str
    line: int
    call: str = ""
    """For an argument of one of several methods, how the script calls that one: ``trainer.test``. For an import that a
    variable of the environment decides on, its condition."""


class Imports:
    """The names in a script that come from a library, with their whole paths.

    Args:
        tree: The script.
        roots: The library's packages; Lightning's by default.
        modules: Names in it that are modules.
    """

    def __init__(self, tree: ast.AST, roots: Collection[str] = ROOTS, modules: Collection[str] = MODULES) -> None:
        self._modules = frozenset((*roots, *modules))
        self.paths: dict[str, str] = {}
        self.uses: list[Use] = []
        self._hidden: set[int] = set()
        """Names in a function that imports something else by that name: ``import polars as pl``."""
        decided = {id(inner): ast.unparse(test) for test, body in _decided(tree) for inner in ast.walk(body)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    if root in roots:
                        self.paths[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in roots and not node.level:
                for alias in node.names:
                    self.paths[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    if alias.name not in modules:
                        self.uses.append(Use("names", alias.name, node.lineno, decided.get(id(node), "")))
            elif isinstance(node, ast.ImportFrom) and node.module == RANK_ZERO and ROOTS[0] in roots:
                zero = [alias.name for alias in node.names if alias.name.startswith("rank_zero")]
                self.uses += [Use("names", name, node.lineno) for name in zero]
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                others = {name for node in ast.walk(function) for name in _bound(node, roots)} & self.paths.keys()
                names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
                self._hidden |= {id(name) for name in names if name.id in others}

    def path(self, node: ast.AST) -> str:
        """The path of an expression such as ``pl.callbacks.Timer`` in the library; empty if it is not from there."""
        if isinstance(node, ast.Name):
            return "" if id(node) in self._hidden else self.paths.get(node.id, "")
        if isinstance(node, ast.Attribute):
            outer = self.path(node.value)
            return f"{outer}.{node.attr}" if outer and _last(outer) in self._modules else ""
        return ""

    def name(self, node: ast.AST) -> str:
        """The last name of that path."""
        return _last(self.path(node))


def class_kinds(trees: Iterable[ast.AST], callbacks: Iterable[str]) -> dict[str, str]:
    """For each class of the scripts that derives from one of Lightning's, the section with the members it inherits.

    Args:
        trees: The scripts; a class may derive from one in another script.
        callbacks: Lightning's callbacks.
    """
    known = {**BASES, **dict.fromkeys(callbacks, "callback_members")}
    kinds: dict[str, str] = {}
    pairs = [(tree, Imports(tree)) for tree in trees]
    while True:
        found = {
            node.name: section
            for tree, imports in pairs
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name not in kinds
            for base in node.bases
            if (section := known.get(imports.name(base)) or kinds.get(_last_of(base)))
        }
        if not found:
            return kinds
        kinds |= found


def names_of_scripts(trees: Iterable[ast.AST], kinds: Collection[str]) -> set[str]:
    """What the classes of :func:`class_kinds` define in their bodies."""
    return {
        name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in kinds
        for statement in node.body
        for name, _ in _defined(statement)
    }


def names_scripts_call(trees: Iterable[ast.AST], kinds: Collection[str]) -> set[str]:
    """What the classes of :func:`class_kinds` use in methods of other names, which may be their own."""
    return {
        used.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in kinds
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for used in ast.walk(method)
        if isinstance(used, ast.Attribute) and used.attr != method.name
    }


def uses(tree: ast.AST, kinds: Mapping[str, str], members: Mapping[str, Iterable[str]]) -> list[Use]:
    """What a script uses, in the order of lines.

    Args:
        tree: The script.
        kinds: Classes of this and other scripts; see :func:`class_kinds`.
        members: The known names by section. Other attributes of a module belong to the script, except for hooks.
    """
    reader = _Reader(Imports(tree), kinds, {section: frozenset(names) for section, names in members.items()})
    reader.visit(tree)
    return sorted(
        dict.fromkeys([*reader.imports.uses, *reader.found]), key=lambda use: (use.line, use.section, use.name)
    )


class _Reader(ast.NodeVisitor):
    def __init__(self, imports: Imports, kinds: Mapping[str, str], members: Mapping[str, frozenset[str]]) -> None:
        self.imports, self.kinds, self.members = imports, kinds, members
        self.found: list[Use] = []
        self.scopes: list[dict[str, str]] = [{}]
        """For names of objects, the section with their members; the innermost scope last."""
        self.classes: list[str] = []

    # -- scopes --------------------------------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        section = self.kinds.get(node.name, "")
        for statement in node.body if section else ():
            for name, line in _defined(statement):
                if name in self.members[section] or name.startswith("on_"):
                    self.found.append(Use(section, name, line))
                    self.found += _hook_arguments(statement, name)
        self.classes.append(section)
        self.generic_visit(node)
        self.classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args]
        scope = {argument.arg: self._section_of(argument.annotation) for argument in arguments}
        if scope.get(USUAL_FABRIC) == "" and any(_last(path) == "Fabric" for path in self.imports.paths.values()):
            scope[USUAL_FABRIC] = "fabric_members"
        if arguments and self.classes and self.classes[-1] and not _is_static(node):
            section = self.classes[-1]
            scope[arguments[0].arg] = section
            is_hook = node.name.startswith("on_") or node.name in self.members.get(section, ())
            if section == "callback_members" and is_hook and len(arguments) >= 3:
                scope |= {arguments[1].arg: "trainer_members", arguments[2].arg: "module_members"}
        self.scopes.append(scope)  # an argument of an unknown class hides a name of the scopes around
        self.classes.append("")  # functions in a method are no methods
        self.generic_visit(node)
        self.classes.pop()
        self.scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and (section := self._section_of(node.value.func)):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.scopes[-1][target.id] = section

    def _section_of(self, node: ast.AST | None) -> str:
        """The section with the members of objects of a class."""
        if node is None:
            return ""
        name = self.imports.name(node)
        return {**BASES, "Trainer": "trainer_members", "Fabric": "fabric_members"}.get(name) or self.kinds.get(
            _last_of(node), ""
        )

    # -- uses ----------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self.imports.path(node)
        if path:
            if _last(path) not in MODULES:
                self.found.append(Use("names", _last(path), node.lineno))
            return
        section = self._object(node.value)
        if section and (node.attr in self.members[section] or section == "trainer_members"):
            self.found.append(Use(section, node.attr, node.lineno))
        self.generic_visit(node)

    def _object(self, node: ast.AST) -> str:
        """The section with the members of the object that an expression is."""
        if isinstance(node, ast.Name):
            bound = next((scope[node.id] for scope in reversed(self.scopes) if node.id in scope), "")
            return bound or self.kinds.get(node.id, "")
        if isinstance(node, ast.Call):
            return self._section_of(node.func)
        if isinstance(node, ast.Attribute) and self._object(node.value):
            return {"trainer": "trainer_members", "lightning_module": "module_members"}.get(node.attr, "")
        return ""

    def visit_Call(self, node: ast.Call) -> None:
        section = self._arguments(node.func)
        if section:
            names = (keyword for keyword in node.keywords if keyword.arg is not None)
            call = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            call = f"{CALLED_ON[section]}.{call}" if section in CALLED_ON else ""
            self.found += [Use(section, str(keyword.arg), keyword.value.lineno, call) for keyword in names]
        self.generic_visit(node)

    def _arguments(self, function: ast.AST) -> str:
        """The section with the arguments of a call."""
        if name := self.imports.name(function):
            return ARGUMENTS.get(name, "")
        if isinstance(function, ast.Attribute):
            section = self._object(function.value)
            if section == "trainer_members" and function.attr in STAGES:
                return "fit_arguments"
            if section == "module_members" and function.attr in ("log", "log_dict"):
                return "log_arguments"
        return ""


def _defined(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """The names that a statement of a class body defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, statement.lineno
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    yield from ((target.id, statement.lineno) for target in targets if isinstance(target, ast.Name))


def _hook_arguments(hook: ast.stmt, name: str) -> Iterator[Use]:
    """The arguments of a step or hook that it had in other versions only, or that hold something else here.

    Those with a default have it.
    """
    if isinstance(hook, ast.FunctionDef):
        positional = [*hook.args.posonlyargs, *hook.args.args]
        for node in positional[: len(positional) - len(hook.args.defaults)]:
            if re.fullmatch(HOOK_ARGUMENTS.get(node.arg, "(?!)"), name):
                yield Use("hook_arguments", node.arg, node.lineno, name)


def _bound(node: ast.AST, roots: Collection[str]) -> list[str]:
    """What an import of another package binds."""
    if isinstance(node, ast.Import):
        return [alias.asname or alias.name for alias in node.names if alias.name.partition(".")[0] not in roots]
    if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").partition(".")[0] not in roots):
        return [alias.asname or alias.name for alias in node.names]
    return []


def _decided(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """The statements that a variable of the environment decides on, each with the condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and {"environ", "getenv"} & {_last_of(part) for part in ast.walk(node.test)}:
            yield from ((node.test, statement) for statement in node.body)


def _is_static(node: ast.FunctionDef) -> bool:
    return any(_last_of(decorator) == "staticmethod" for decorator in node.decorator_list)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _last_of(node: ast.AST) -> str:
    """``b`` of ``b`` and of ``a.b``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
