"""Activating one plugin: whatever it does becomes a record."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installing import lay_down

from core.discovery.activation import Activation, activate
from core.specs import AcceleratorSpec

HEAD = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec, StrategySpec

def acme(name="acme", **facts):
    return AcceleratorSpec(name=name, target="torch_hal_acme.accelerator:AcmeAccelerator", **facts)

"""
HOOK = "@hookimpl\ndef core_accelerators():\n    "
ACME = {"accelerator": {"acme"}}

Plugin = Callable[..., Activation]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Activates a plugin of the given code."""
    monkeypatch.syspath_prepend(tmp_path)

    def activated(code: str, declared: dict[str, set[str]] = ACME) -> Activation:
        lay_down(tmp_path, {"torch_hal_acme_test.py": HEAD + code})
        return activate("torch_hal_acme_test", declared)

    yield activated
    sys.modules.pop("torch_hal_acme_test", None)


def reason_of(activation: Activation, name: str = "acme") -> str:
    assert ("accelerator", name) not in activation.specs
    return activation.failures["accelerator", name].reason


@pytest.mark.parametrize("body", ["return [acme()]", "return (acme(),)", "yield acme()"])
def test_hands_over_specs(body: str, plugin: Plugin) -> None:
    """A hook may return a list or a tuple, or be a generator."""
    activation = plugin(HOOK + body)
    assert activation.failures == {}
    spec = activation.specs["accelerator", "acme"]
    assert isinstance(spec, AcceleratorSpec)
    assert spec.target == "torch_hal_acme.accelerator:AcmeAccelerator"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise ValueError('two\\n  lines')\n", "ValueError: two lines"),
        (
            "raise ValueError('no device') from OSError('no driver')\n",
            "ValueError: no device (from OSError: no driver)",
        ),
        ("raise SystemExit\n", "SystemExit"),
        (HOOK + "raise RuntimeError('no driver')\n", "its core_accelerators raises RuntimeError: no driver"),
        (HOOK + "yield acme()\n    raise SystemExit(3)\n", "its core_accelerators raises SystemExit: 3"),
        (HOOK + "return [acme(target2=1)]\n", "unexpected keyword argument 'target2'"),
        (HOOK + "return [acme(name=' ')]\n", "its core_accelerators raises ValueError: name=' ' of AcceleratorSpec"),
        (HOOK + "return [acme(detect='count')]\n", "expected 'package.module:attribute'"),
        (HOOK + "pass\n", "its core_accelerators returns None. Return a list of AcceleratorSpec objects"),
        (HOOK + "return 'acme'\n", "returns an object of type str"),
        (HOOK + "return acme()\n", "returns an object of type AcceleratorSpec"),
        (HOOK + "return {'acme': acme()}\n", "returns an object of type str"),
        (HOOK + "return [StrategySpec(name='acme', target='a:B')]\n", "returns an object of type StrategySpec"),
        ("", "torch_hal_acme_test does not implement the hook core_accelerators"),
        ("def core_accelerators():\n    return [acme()]\n", "does not implement the hook core_accelerators"),
        (HOOK.replace("core_a", "core_akk") + "return [acme()]\n", "its hooks are not valid: PluginValidationError"),
        (HOOK.replace("()", "(registry)") + "return [acme()]\n", "its hooks are not valid: PluginValidationError"),
        (HOOK + "return []\n", "its metadata declares 'acme', but its core_accelerators returns nothing"),
        (HOOK + "return [acme(), acme()]\n", "returns 'acme' twice"),
        (
            HOOK + "return [acme(name='acne')]\n",
            "its metadata declares 'acme', but its core_accelerators returns 'acne'",
        ),
    ],
)
def test_fault_is_recorded(code: str, reason: str, plugin: Plugin) -> None:
    """Each fault of a plugin is a failure of its backend with the true cause, never an exception."""
    assert reason in reason_of(plugin(code))


def test_traceback_leads_to_the_plugin(plugin: Plugin) -> None:
    """The recorded traceback shows the plugin's own lines, without those of core and Python that led there."""
    failure = plugin(HOOK + "raise RuntimeError('no driver')\n").failures["accelerator", "acme"]
    assert "raise RuntimeError('no driver')" in failure.traceback
    assert failure.traceback.count("File ") == 1
    assert isinstance(failure.cause, RuntimeError)


def test_other_kinds_of_the_plugin_work(plugin: Plugin) -> None:
    """A hook that fails takes only the backends of its kind with it."""
    code = (
        HOOK
        + "raise RuntimeError\n@hookimpl\ndef core_strategies():\n    return [StrategySpec(name='ring', target='a:B')]"
    )
    activation = plugin(code, {**ACME, "strategy": {"ring"}})
    assert list(activation.specs) == [("strategy", "ring")]
    assert list(activation.failures) == [("accelerator", "acme")]


def test_undeclared_name_is_not_used(plugin: Plugin) -> None:
    """What is handed over but not declared is a failure that says what to declare; what is declared is used."""
    activation = plugin(HOOK + "return [acme(), acme('more')]\n")
    assert list(activation.specs) == [("accelerator", "acme")]
    assert '[project.entry-points."core.accelerators"]' in reason_of(activation, "more")


def test_prints_are_kept(plugin: Plugin, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """What a plugin prints is kept and logged, does not reach our output, and is not a failure."""
    code = (
        "import sys\nprint('welcome')\nsys.stderr.writelines(['to', 'all'])\n"
        + HOOK
        + "print('hook'); return [acme()]\n"
    )
    streams = sys.stdout, sys.stderr
    activation = plugin(code)
    assert (sys.stdout, sys.stderr) == streams
    assert capfd.readouterr() == ("", "")
    assert activation.output == "welcome\ntoallhook\n"
    assert activation.failures == {}
    assert "printed during its activation: welcome toallhook" in caplog.text


def test_stream_that_a_plugin_keeps_works_afterwards(plugin: Plugin, capsys: pytest.CaptureFixture[str]) -> None:
    """A handler that a plugin hangs on sys.stderr while it is imported later writes to the real one."""
    code = (
        "import logging, sys\nhandler = logging.StreamHandler(sys.stderr)\nprint(end='', flush=True, file=sys.stderr)\n"
    )
    assert plugin(code + HOOK + "return [acme()]\n").failures == {}
    handler = sys.modules["torch_hal_acme_test"].handler
    handler.emit(logging.makeLogRecord({"msg": "later"}))
    assert capsys.readouterr().err == "later\n"


def test_environment_variables_are_put_back(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin whose import changes environment variables is broken, and each change is undone and named."""
    monkeypatch.setenv("ACME_CHANGED", "before")
    monkeypatch.setenv("ACME_GONE", "before")
    monkeypatch.delenv("ACME_NEW", raising=False)
    code = (
        "import os\nos.environ['ACME_CHANGED'] = 'after'\ndel os.environ['ACME_GONE']\nos.environ['ACME_NEW'] = '1'\n"
    )
    before = dict(os.environ)
    activation = plugin(code + HOOK + "return [acme()]\n")
    assert reason_of(activation) == "its import changes os.environ: ACME_CHANGED, ACME_GONE, ACME_NEW"
    assert dict(os.environ) == before


def test_broken_import_that_changes_variables_too(plugin: Plugin) -> None:
    """Changes of an import that fails are undone; the exception is the cause."""
    activation = plugin("import os\nos.environ['ACME_NEW'] = '1'\nraise ValueError('first')\n")
    assert reason_of(activation) == "ValueError: first"
    assert "ACME_NEW" not in os.environ


def test_hook_that_changes_variables(plugin: Plugin) -> None:
    """A hook must not change environment variables either."""
    activation = plugin("import os\n" + HOOK + "os.environ['ACME_NEW'] = '1'; return [acme()]\n")
    assert reason_of(activation) == "its core_accelerators changes os.environ: ACME_NEW"
    assert "ACME_NEW" not in os.environ


def test_second_activation_is_told_the_same(plugin: Plugin) -> None:
    """A module is executed once in a process, but the next front end finds its plugin just as broken."""
    code = "import os\nos.environ['ACME_NEW'] = '1'\n" + HOOK + "return [acme()]\n"
    assert reason_of(plugin(code)) == reason_of(activate("torch_hal_acme_test", ACME))


def test_interrupt_passes_through(plugin: Plugin, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while a plugin is imported stops the program, with its streams and variables put back."""
    with pytest.raises(KeyboardInterrupt):
        plugin("import os\nos.environ['ACME_NEW'] = '1'\nraise KeyboardInterrupt\n")
    assert "ACME_NEW" not in os.environ
    print("seen")
    assert capsys.readouterr().out == "seen\n"
