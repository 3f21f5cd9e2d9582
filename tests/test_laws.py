"""The laws that hold for all of core, whichever package a line is in; see docs/architecture.md."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import core
from core.utilities.environment_variables import INTERNAL, VARIABLES

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core"
FILES = sorted(CORE.rglob("*.py"))

NAMES = """
aiu amd apple ascend aws biren cambricon cann cerebras cnnl cuda cudnn enflame gaudi gcu graphcore groq habana hccl hip
hpu huawei iluvatar intel ipu maia metax miopen mlu moore mps mtia mthreads musa nccl npu nvidia oneapi opencl poptorch
rccl rocm sycl tenstorrent tpu trainium xccl xla xpu
"""
VENDORS = frozenset(NAMES.split())
"""Names of hardware, of who makes it and of what drives it."""

READS_THE_ENVIRONMENT = {
    "__main__.py": "the edge of a command",
    "__init__.py": "whether torch, which the first use of a name imports, will read the metadata of all distributions",
    "cli/parser.py": "the edge of a command",
    "commands/checkpoints.py": "the edge of a command",
    "commands/completion.py": "the edge of a command",
    "discovery/activation.py": "undoes what a plugin's import changes in it",
    "doctor/__main__.py": "the edge of a command",
    "discovery/import_side_effects.py": "compares it before and after an import of a plugin, and undoes the changes",
    "discovery/worker.py": "the edge of the process that --probe starts",
    "environments/base.py": "the package that reads it",
    "environments/local.py": "the edge of both front ends: leaves out ranks of the process that started this one",
    "environments/torch_env.py": "the package that reads it",
    "environments/lsf.py": "the package that reads it",
    "environments/mpi.py": "the package that reads it",
    "environments/slurm.py": "the package that reads it",
    "explain.py": "the edge of a command",
    "list.py": "the edge of a command",
    "discovery/classes.py": "CORE_PLUGINS, where a logger or profiler is requested by name",
    "registration.py": "CORE_PLUGINS, where a backend is looked up in a registry",
    "run/__main__.py": "the edge of a command; its variables become those of the processes that it starts",
    "run/agent.py": "gives started processes their variables",
    "strategies/launchers/__init__.py": "the start of a process that a launcher started: takes its lifeline",
    "strategies/launchers/function.py": "gives a started process its variables",
    "strategies/launchers/script.py": "gives a started process its variables",
    "strategies/parallel.py": "gives this process, now one of several, its variables",
    "commands/verbs.py": "the edge of a command",
    "utilities/child_process.py": "gives a child of a frozen program its task",
}
"""Files of core that may touch the process's environment variables, and why (law 7)."""


# -- law 1: no vendor's name ---------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """The words of an identifier or a text: ``is_cudaAvailable2`` has is, cuda, available."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Every identifier and string literal in ``source`` with its line; no comment, no docstring."""
    tree = ast.parse(source)
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in documentation:
            continue
        for _, value in ast.iter_fields(node):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, bytes):
                    item = item.decode(errors="replace")
                if isinstance(item, str):
                    yield getattr(node, "lineno", 0), item


def vendors_in(source: str) -> list[tuple[int, str]]:
    """Lines and vendors' names outside of documentation."""
    return sorted((line, word) for line, text in texts(source) for word in words(text) if word in VENDORS)


@pytest.mark.parametrize(
    ("line", "vendor"),
    [
        ('if device.type == "cuda": pass', "cuda"),
        ("tensor.is_cuda", "cuda"),
        ("import torch_xla.core", "xla"),
        ("from habana import hpu", "hpu"),
        ("class MyHPUAccelerator: pass", "hpu"),
        ("def f(*, use_mps=False): pass", "mps"),
        ("def f(useNpu): pass", "npu"),
        ("f(nccl=1)", "nccl"),
        ("x = f'{a}cuda:{b}'", "cuda"),
        ("x = b'xpu'", "xpu"),
        ("x = 1; 'said in passing'; y = 'Gaudi2'", "gaudi"),
        ("match x:\n case [*ipu]: pass", "ipu"),
    ],
)
def test_a_vendor_is_noticed(line: str, vendor: str) -> None:
    """The search below finds a vendor's name wherever code can hold one."""
    assert vendor in [word for _, word in vendors_in(line)]


@pytest.mark.parametrize(
    "line", ["# as CUDA does", '"""A docstring on cuda."""', "x = 'input, amidst, mapset'", "x = maps_of_inputs"]
)
def test_documentation_and_other_words_are_no_vendors(line: str) -> None:
    """The search below passes over comments, docstrings and words that merely contain a name."""
    assert vendors_in(line) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CORE)))
def test_core_names_no_vendor(file: Path) -> None:
    """No identifier, string or file name in core has a vendor's name in it."""
    assert vendors_in(file.read_text(encoding="utf-8")) == []
    assert not VENDORS.intersection(words(str(file.relative_to(CORE))))


# -- law 3: what is light stays light ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "core",
        "core.builtin",
        "core.discovery.registry",
        "core.doctor.__main__",
        "core.hookspecs",
        "core.registration",
        "core.specs",
    ],
)
def test_light_modules_import_no_torch(module: str) -> None:
    """A plugin's hook module, and finding out what is installed, costs no import of torch."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# -- law 7: environment variables are read at the edge -------------------------------------------------------------


def environment_lines(source: str) -> list[int]:
    """Lines that touch the process's environment variables."""
    ways = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    nodes = list(ast.walk(ast.parse(source)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os"]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "os"]
    lines = [node.lineno for node in attributes if node.attr in ways]
    return sorted(lines + [node.lineno for node in imports if ways & {name.name for name in node.names}])


@pytest.mark.parametrize("line", ["os.environ['A']", "os.getenv('A')", "from os import environ", "dict(os.environ)"])
def test_the_environment_is_noticed(line: str) -> None:
    """The search below finds each way to the environment variables."""
    assert environment_lines(line) == [1]


def test_environment_variables_are_read_at_the_edge() -> None:
    """Only the files named above touch the process's environment variables, and each of them does."""
    touching = {file.relative_to(CORE).as_posix() for file in FILES if environment_lines(file.read_text("utf-8"))}
    assert touching == set(READS_THE_ENVIRONMENT)


def test_every_variable_is_in_the_table() -> None:
    """Each variable that core or a plugin of this repository names is in the table, or it would be refused."""
    sources = [*FILES, *(ROOT / "plugins").glob("*/src/**/*.py")]
    found = {name for file in sources for name in re.findall(r"\bCORE_[A-Z_]+\b", file.read_text("utf-8"))}
    assert {name for name in found if not name.endswith("_")} <= {*VARIABLES, *INTERNAL, "CORE_PORT"}


# -- what a checkpoint says is data ----------------------------------------------------------------------------------


UNPICKLES = {
    "core/checkpoints/shard_files.py": "its unpickler makes objects of a list of classes only",
    "core/checkpoints/safe_unpickling.py": "that unpickler; torch.load(weights_only=True) of listed files, new bytes",
    "core/strategies/launchers/function.py": "from a pipe to a process of the same run",
    "core/strategies/partial_save.py": "from a process of the same run",
    "core/utilities/objects.py": "from a process of the same run",
    "core/checkpoints/foreign.py": "torch.load(weights_only=True) of a file that the user names",
    "plugins/accelerate/src/torch_hal_accelerate/random_state.py": "torch.load(weights_only=True)",
    "plugins/deepspeed/src/torch_hal_deepspeed/library.py": "torch.load(weights_only=True) of files that were checked",
    "plugins/devkit/src/torch_hal_devkit/suites/base.py": "bytes that it has just written, of the backend under test",
    "plugins/devkit/src/torch_hal_devkit/suites/precision.py": "torch.load(weights_only=True) of bytes just written",
    "plugins/ray/src/torch_hal_ray/payload.py": "from a process of the same run",
    "plugins/xla/src/torch_hal_xla/strategies/launcher.py": "from a process of the same run",
    "plugins/xla/src/torch_hal_xla/strategies/parallel.py": "from a process of the same run",
}
"""Files that make objects of bytes, and why that runs no code of a checkpoint's."""
RUNS_CODE = {"core/strategies/launchers/function.py", "plugins/ray/src/torch_hal_ray/payload.py"}
"""Those of them that let torch run code: only for bytes of processes of the same run, never for a file."""


def unpickling_in(source: str) -> list[tuple[int, bool]]:
    """Lines that make objects of pickled bytes, and whether torch is told to run code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if re.fullmatch(r"(\w*pickle\.(loads?|Unpickler)|torch\.load)", name):
                safe = [k for k in node.keywords if k.arg == "weights_only" and ast.unparse(k.value) == "True"]
                found.append((node.lineno, name == "torch.load" and not safe))
        if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases):
            found.append((node.lineno, False))
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "torch", "torch.serialization"):
            found += [(node.lineno, True) for name in node.names if name.name in ("load", "loads", "Unpickler")]
    return sorted(found)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("torch.load(x)", [(1, True)]),
        ("torch.load(x, weights_only=False)", [(1, True)]),
        ("torch.load(x, weights_only=flag)", [(1, True)]),
        ("torch.load(x, weights_only=True)", [(1, False)]),
        ("pickle.loads(x)", [(1, False)]),
        ("from pickle import loads", [(1, True)]),
        ("class A(pickle.Unpickler): pass", [(1, False)]),
        ("json.load(x)", []),
    ],
)
def test_unpickling_is_noticed(line: str, found: list[tuple[int, bool]]) -> None:
    """The search below finds each way to make objects of bytes."""
    assert unpickling_in(line) == found


def test_nothing_in_a_checkpoint_is_unpickled() -> None:
    """Only the files named above make objects of bytes, each of them does, and two let torch run code."""
    sources = [*FILES, *(ROOT / "plugins").glob("*/src/**/*.py")]
    calls = {file.relative_to(ROOT).as_posix(): unpickling_in(file.read_text("utf-8")) for file in sources}
    used = {name for name, lines in calls.items() if lines or "AllowedUnpickler(" in (ROOT / name).read_text("utf-8")}
    assert used == set(UNPICKLES)
    assert {name for name, lines in calls.items() if any(runs for _, runs in lines)} == RUNS_CODE


# -- the package does not depend on its name -------------------------------------------------------------------------


def test_modules_of_core_import_each_other_relatively() -> None:
    """A project may have a package ``core`` of its own: so only the real name is written, where a name is needed."""
    absolute = set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                absolute |= {(file.relative_to(CORE).as_posix(), (node.module or "").partition(".")[0])}
            elif isinstance(node, ast.Import):
                absolute |= {(file.relative_to(CORE).as_posix(), alias.name.partition(".")[0]) for alias in node.names}
    assert {pair for pair in absolute if pair[1] in ("core", "torch_hal")} == {("__init__.py", "torch_hal")}


# -- private names of torch ------------------------------------------------------------------------------------------

PRIVATE_NAMES_OF = "core/utilities/torch_private.py"
"""The one file that may use private names of torch, and depend on its version."""
OF_OTHERS = {
    **dict.fromkeys(("_exit", "_getframe", "_current_frames"), "documented functions of os and sys"),
    **dict.fromkeys(("_asdict", "_replace"), "documented methods of named tuples"),
    **dict.fromkeys(("_option_string_actions", "_subcommands_action"), "argparse and jsonargparse"),
    **dict.fromkeys(("_optimizer_config", "_scheduler_config"), "what core.cli notes in a user's module"),
    **dict.fromkeys(("_computed", "_update_count"), "torchmetrics"),
    **dict.fromkeys(("_core_explanation", "_core_failed_at"), "what core notes in an exception"),
}
"""Private attributes that no class of core defines, nor torch."""


def is_private(name: str) -> bool:
    """Whether ``name`` begins with one underscore."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


def torch_names_in(source: str, own: set[str], torchs: set[str]) -> list[tuple[int, str]]:
    """Private names of torch that ``source`` uses, and its version, each with its line.

    Args:
        source: The text of a module.
        own: Private names that core defines.
        torchs: Private names that are known as torch's, also if core defines one of that name.
    """
    found, shown = [], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "str":
            shown |= {id(argument) for argument in node.args}  # the version is only shown or stored
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = node.attr in own and (node.attr not in torchs or ast.unparse(node.value) == "self")
            found += [] if is_own or node.attr in OF_OTHERS else [(node.lineno, node.attr)]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.__version__" and id(node) not in shown:
            found.append((node.lineno, "__version__"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in torchs:
            found.append((node.lineno, node.value))
        elif isinstance(node, ast.FunctionDef) and node.name in torchs and node.args.args[:1]:
            found += [(node.lineno, node.name)] if node.args.args[0].arg == "self" else []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            paths = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            parts = [path.split(".") for path in paths if not getattr(node, "level", 0)]
            found += [(node.lineno, each) for path in parts if path[0] == "torch" for each in path if is_private(each)]
    return found


def private_definitions(source: str) -> set[str]:
    """Private names that a module defines: functions, classes, variables, attributes of ``self``."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    names |= {node.attr for node in attributes if ast.unparse(node.value) == "self"}
    return {name for name in names if is_private(name)}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("torch._C.f()", "_C"),
        ("from torch._C import f", "_C"),
        ("import torch._dynamo", "_dynamo"),
        ("from torch.nn.modules.batchnorm import _BatchNorm", "_BatchNorm"),
        ("optimizer._opt_called = True", "_opt_called"),
        ("getattr(module, '_modules', {})", "_modules"),
        ("module._modules", "_modules"),
        ("class A(B):\n def _modules(self): ...", "_modules"),
        ("if torch.__version__ > '2.7': ...", "__version__"),
    ],
)
def test_a_private_name_of_torch_is_noticed(source: str, name: str) -> None:
    """The search below finds each way to a private name of torch, and to its version."""
    assert name in [found for _, found in torch_names_in(source, {"_modules"}, {"_modules"})]


@pytest.mark.parametrize(
    "source", ["self._modules", "def _modules(frame): ...", "str(torch.__version__)", "os._exit(1)"]
)
def test_own_names_are_not_taken_for_torchs(source: str) -> None:
    """The search below passes over core's own names, those of Python, and a version that is only shown."""
    assert torch_names_in(source, {"_modules"}, {"_modules"}) == []


def test_private_names_of_torch_stand_in_one_file() -> None:
    """What can break with the next version of torch is in one file, which has a test for each name."""
    sources = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in FILES}
    theirs = sources.pop(PRIVATE_NAMES_OF)
    nodes = list(ast.walk(ast.parse(theirs)))
    torchs = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    torchs |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    torchs |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    torchs = {name for name in torchs if is_private(name) and name.isidentifier()}
    assert {"_modules", "_opt_called", "_C", "_build_params_for_reducer"} <= torchs
    own = set().union(*map(private_definitions, sources.values()))
    found = {file: torch_names_in(source, own, torchs) for file, source in sources.items()}
    assert {file: names for file, names in found.items() if names} == {}


TRAINER = re.compile("(.*[.])?_?(last_)?trainer")


def test_the_trainer_is_typed_and_keeps_its_privates() -> None:
    """Whoever is given a Trainer names its type, which is imported for type checkers alone, and its public names."""
    faults = set()
    for file in FILES:
        tree, place = ast.parse(file.read_text("utf-8")), file.relative_to(CORE).as_posix()
        only_types = {id(node) for top in tree.body if isinstance(top, ast.If) for node in ast.walk(top)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and TRAINER.fullmatch(ast.unparse(node.value)):
                faults |= {f"{place}: trainer.{node.attr}"} if re.match("_[^_]", node.attr) else set()
            elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                is_any = TRAINER.fullmatch(name) and ast.unparse(node.annotation) == "Any"
                faults |= {f"{place}: {name}: Any"} if is_any else set()
            elif isinstance(node, ast.ImportFrom) and place.startswith(("callbacks/", "trainer/")):
                is_trainer = (node.module or "").rpartition(".")[2] == "trainer" and id(node) not in only_types
                faults |= {f"{place}: import"} if is_trainer else set()
    # A Strategy does not know the Trainer.
    unknown = {f"strategies/{file}.py: trainer: Any" for file in ("base", "inputs")}
    assert faults == {*unknown, "trainer/__init__.py: import"}


# -- public names and sizes ----------------------------------------------------------------------------------------


def test_every_public_name_exists() -> None:
    """Each module of core can be imported, and has each name of its ``__all__``, which names nothing twice."""
    names = [found.name for found in pkgutil.walk_packages(core.__path__, "core.")]
    if importlib.util.find_spec("jsonargparse") is None:  # the extra [cli]
        names = [name for name in names if not name.startswith("core.cli")]
    modules = [importlib.import_module(name) for name in names]
    assert len(modules) > 60
    for module in [core, *modules]:
        public = getattr(module, "__all__", [])
        assert len(public) == len(set(public)), module.__name__
        assert not [name for name in public if not hasattr(module, name)], module.__name__


def test_public_names_are_listed_and_say_where_they_live() -> None:
    """``dir(core)`` shows every public name, and an unknown one is an AttributeError that names it."""
    assert {*core.__all__} <= {*dir(core)}
    with pytest.raises(AttributeError, match="NoSuchName"):
        core.NoSuchName  # noqa: B018


def names_of_core(source: str) -> set[tuple[str, str]]:
    """The names of core that a file imports or takes from an imported module, each with its module."""
    nodes = list(ast.walk(ast.parse(source)))
    taken = {(ast.unparse(node.value), node.attr) for node in nodes if isinstance(node, ast.Attribute)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {(node.module, name.name) for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {pair for name in node.names for pair in taken if pair[0] == (name.asname or name.name)}
            found |= {(name.name, "") for name in node.names if "." in name.name}
    found = {(re.sub(r"^torch_hal(?=\.|$)", "core", module), name) for module, name in found}
    return {(module, name) for module, name in found if module.partition(".")[0] == "core"}


def is_documented(module: str, name: str, entries: list[str]) -> bool:
    """Whether the API reference with these entries has the name: by itself, or in the ``__all__`` of a module."""
    public = module in entries and (not name or name in importlib.import_module(module).__all__)
    return public or f"{module}.{name}" in entries


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from core.data.shares import Share", {("core.data.shares", "Share")}),
        ("from torch_hal.errors import quoted", {("core.errors", "quoted")}),
        ("import core\ncore.Module, x.core.y", {("core", "Module")}),
        ("import core.random\ncore.random.f()", {("core.random", ""), ("core.random", "f")}),
        ("from torch_hal_ray import core\nfrom . import core", set()),
    ],
)
def test_a_name_of_core_is_noticed(source: str, found: set[tuple[str, str]]) -> None:
    """The search below finds each way to a name of core."""
    assert names_of_core(source) == found


def test_plugins_import_only_public_names() -> None:
    """What the plugins of this repository do, those of anyone else can do by the API reference.

    The devkit is none of them: it tests what core does inside.
    """
    files = [file for file in (ROOT / "plugins").glob("*/src/**/*.py") if file.relative_to(ROOT).parts[1] != "devkit"]
    found = {
        (*name, file.relative_to(ROOT).parts[1]) for file in files for name in names_of_core(file.read_text("utf-8"))
    }
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    entries = re.findall(r"^::: (\S+)", pages, re.MULTILINE)
    assert len(found) > 100
    assert not [each for each in sorted(found) if not is_documented(*each[:2], entries)]


def test_front_ends_are_one_class_over_components() -> None:
    """Methods are their own, not those of a chain of bases, and no component uses another's private names."""
    assert len(core.Runtime.__mro__) <= 4
    assert len(core.Trainer.__mro__) <= 4
    for file in sorted((CORE / "runtime").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.attr.startswith("_"):
                assert node.attr.startswith("__"), f"{file}:{node.lineno}: {ast.unparse(node)}"
