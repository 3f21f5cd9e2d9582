"""The pytest plugin: what is collected, what counts as a skip, expected failures, separate processes, reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from declared import torch_takes_no_backend_in_python

from .kit import declare, run_kit

_SUITE = "torch_hal_devkit.suite.test_accelerator::TestAccelerator::"


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# -- which tests there are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no backend given. Pass --backend KIND:NAME"),
        (("--backend=acme",), "expected KIND:NAME"),
        (("--backend=hardware:acme",), "KIND one of 'accelerator'"),
        (("--backend=accelerator:cpuu",), "not installed or registered.*Did you mean 'cpu'"),
        (("--backend=accelerator:cpu", "--tiers=T9"), "unknown tier 'T9'"),
        (("--backend=accelerator:cpu", "--hide-devices=NOTHING"), "expected NAME=VALUE"),
        (("--backend=accelerator:cpu", "--conformance-report=r.txt"), "ends with one of '.html', '.json', '.md'"),
    ],
)
def test_a_command_line_that_says_too_little_is_refused(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    """Where an argument is missing or wrong the run fails with a message that says what is valid; nothing is run."""
    run = run_kit(tmp_path, *arguments)
    assert run.code in (2, 4), run.output
    assert not run.tests
    assert re.search(says, run.output), run.output


@pytest.mark.skipif(torch_takes_no_backend_in_python() is not None, reason=str(torch_takes_no_backend_in_python()))
def test_a_suite_of_the_vendors_own(tmp_path: Path, site: list[Path]) -> None:
    """A derived suite names its backend by a fixture, changes others, adds tests, and needs no option."""
    file = _write(
        tmp_path / "test_acme.py",
        "import os, pytest\n"
        "from torch_hal_devkit import AcceleratorSuite, BackendUnderTest, tier\n"
        "class TestMine(AcceleratorSuite):\n"
        "    @pytest.fixture\n"
        "    def backend(self):\n"
        "        return BackendUnderTest.find('accelerator', 'simx', os.environ)\n"
        "    @pytest.fixture\n"
        "    def hardware(self):\n"
        "        return 'simulated'\n"
        "    @tier('T2', needs=('float64',))\n"
        "    def test_mine(self, device):\n"
        "        assert device.type == 'simx'\n",
    )
    run = run_kit(tmp_path, "-k", "test_mine or description", site=site, suite=[str(file)])
    assert run.code == 0, run.output
    assert run.ids("passed") == {"TestMine::test_mine", "TestMine::test_the_description"}
    (suite,) = run.report["suites"]
    assert (suite["backend"]["name"], suite["hardware"]) == ("simx", "simulated")


@pytest.mark.slow
def test_the_machine_is_asked_once(tmp_path: Path, site: list[Path]) -> None:
    """Which accelerator is here is looked up once for all tests: a vendor's ``detect`` takes a process each time."""
    (tmp_path / "site" / "counting.py").write_text(
        "import os\n"
        "from core.hookspecs import hookimpl\n"
        "from core.specs import AcceleratorSpec\n"
        "def detect():\n"
        "    with open(os.environ['ASKED'], 'a') as file:\n"
        "        file.write('.')\n"
        "    return 0\n"
        "@hookimpl\n"
        "def core_accelerators():\n"
        "    cpu = 'core.accelerators.cpu:CPUAccelerator'\n"
        "    return [AcceleratorSpec(name='counting', target=cpu, priority=90, detect='counting:detect')]\n",
        "utf-8",
    )
    declare(tmp_path / "site", "torch-hal-counting", {"core.accelerators": {"counting": "counting"}})
    asked = tmp_path / "asked"
    arguments = ("--backend=precision:bf16-true", "--tiers=T2", "-k", "drawn or frozen or tied or layer")
    run = run_kit(tmp_path, *arguments, site=site, ASKED=str(asked))
    assert run.code == 0, run.output
    assert len(run.ids("passed")) > 5, run.output
    assert asked.read_text("utf-8") == "."


@pytest.mark.slow
def test_a_derived_suite_takes_the_backends_of_its_kind(tmp_path: Path) -> None:
    """A derived suite that names no backend is run for each ``--backend`` of its kind, and refused without one."""
    file = _write(
        tmp_path / "test_acme.py",
        "from torch_hal_devkit import AcceleratorSuite\nclass TestMine(AcceleratorSuite):\n    pass\n",
    )
    run = run_kit(
        tmp_path, "-k", "description", "--backend=accelerator:cpu", "--backend=precision:32-true", suite=[str(file)]
    )
    assert run.ids("passed") == {"TestMine[cpu]::test_the_description"}, run.output
    refused = run_kit(tmp_path, suite=[str(file)])
    assert refused.code == 2
    assert "TestMine: no backend given. Pass --backend accelerator:NAME" in refused.output


@pytest.mark.slow
def test_a_backend_registered_in_code(tmp_path: Path, site: list[Path]) -> None:
    """What a conftest registers is tested by name; what is asked of metadata is not run."""
    _write(
        tmp_path / "conftest.py",
        "from core import AcceleratorRegistry\n"
        "AcceleratorRegistry.register('mine', 'torch_hal_simx.accelerator:SimxAccelerator', description='mine')\n",
    )
    run = run_kit(
        tmp_path,
        "--backend=accelerator:mine",
        "-k",
        "32-true or requires or changes_nothing",
        "--tiers=T0,T1,T2",
        "--confcutdir=.",
        site=site,
        suite=["torch_hal_devkit.suite", "conftest.py"],
    )
    assert run.code == 0, run.output
    assert run.ids("not_run") == {"accelerator:mine::test_it_requires_torch_hal"}
    assert "accelerator:mine::test_training_equals_the_cpu[32-true]" in run.ids("passed")


# -- declarations ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_works_undeclared_is_reported(tmp_path: Path, site: list[Path]) -> None:
    """A test of what is declared as lacking is tried; where it passes, the report says so, and nothing has failed."""
    run = run_kit(
        tmp_path, "--backend=accelerator:modest", "-k", "random_state or float64 or 64-true", "--tiers=T2", site=site
    )
    assert run.code == 0, run.output
    prefix = "accelerator:modest::"
    assert run.ids("works_undeclared") == {
        f"{prefix}test_it_computes_in[float64]",
        f"{prefix}test_random_state_is_restored",
        f"{prefix}test_all_random_state_is_restored",
    }
    assert run.ids("unsupported") == {f"{prefix}test_training_equals_the_cpu[64-true]"}
    assert (
        "works, undeclared: accelerator:modest::test_it_computes_in[float64] (float64 is not supported: rounded by"
        in run.output
    )


@pytest.mark.slow
def test_what_is_lacked_is_skipped_with_the_declaration(tmp_path: Path, site: list[Path]) -> None:
    """A test of what is declared as lacking, and is, counts as skipped; the reason is the declaration's."""
    run = run_kit(tmp_path, "--backend=accelerator:limited", "-k", "random_state or memory", "--tiers=T2", site=site)
    assert run.code == 0, run.output
    assert run.ids("passed", "failed", "works_undeclared") == set(), run.output
    reasons = {test["reason"] for test in run.tests.values()}
    assert reasons == {
        "rng_state is not supported: the driver keeps it",
        "memory_stats is not supported: the driver does not count",
    }


@pytest.mark.slow
def test_a_skip_without_a_declaration_fails(tmp_path: Path) -> None:
    """Whatever else skips a test of a suite makes it fail."""
    file = _write(
        tmp_path / "test_acme.py",
        "import pytest\nfrom torch_hal_devkit import AcceleratorSuite\n"
        "class TestMine(AcceleratorSuite):\n"
        "    @pytest.fixture\n    def row(self):\n        pytest.skip('no time')\n",
    )
    run = run_kit(tmp_path, "-k", "usable", "--backend=accelerator:cpu", suite=[str(file)])
    assert run.ids("failed") == {"TestMine[cpu]::test_it_is_usable"}, run.output
    assert "no time" in run.output
    assert "skipped without a declaration" in run.output


@pytest.mark.slow
def test_fewer_devices_than_stated_fail(tmp_path: Path, site: list[Path]) -> None:
    """``--backend-devices`` says how many are here: where there are none, tests of a device fail."""
    arguments = (
        "--backend=accelerator:simx",
        "--backend-devices=1",
        "-k",
        "one_device_is_chosen and auto or synchronize_and",
    )
    run = run_kit(tmp_path, *arguments, site=site, SIMX_DEVICES="0")
    assert run.ids("failed") == {"accelerator:simx::test_synchronize_and_empty_cache"}, run.output
    assert "--backend-devices=1, but no device found" in run.output


# -- expected failures -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_expected_failures_are_strict(tmp_path: Path, site: list[Path]) -> None:
    """What is expected to fail and fails is listed with its reason; what passes all the same has failed."""
    _write(
        tmp_path / "known.toml",
        '"accelerator:statisticsinwords::test_statistics_are_numbers_with_units" = "driver 1.2, ACME-7"\n'
        '"accelerator:statisticsinwords::test_synchronize_and_empty_cache" = "driver 1.1"\n',
    )
    arguments = (
        "--backend=accelerator:statisticsinwords",
        "--expected-failures=known.toml",
        "-k",
        "statistics_are or synchronize_and",
    )
    run = run_kit(tmp_path, *arguments, site=site)
    assert run.code == 1, run.output
    (expected,) = run.ids("expected_failure")
    assert run.tests[expected]["reason"] == "driver 1.2, ACME-7"
    assert run.ids("failed") == {"accelerator:statisticsinwords::test_synchronize_and_empty_cache"}
    assert "[XPASS(strict)] driver 1.1" in run.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            '"accelerator:cpu::test_the_descripton" = "x"',
            "no test has the id .*Did you mean 'accelerator:cpu::test_the_desc",
        ),
        ('"accelerator:cpu::test_the_description" = " "', "has reason ' '"),
        ('"accelerator:cpu::test_the_description" = 3', "has reason 3"),
        ("what?", "known.toml: "),
    ],
)
def test_an_entry_that_says_nothing_is_an_error(tmp_path: Path, entry: str, says: str) -> None:
    """An entry without a reason, and one about no test, are usage errors, also where another tier is run."""
    _write(tmp_path / "known.toml", entry)
    run = run_kit(tmp_path, "--backend=accelerator:cpu", "--expected-failures=known.toml", "--tiers=T1")
    assert run.code == 4, run.output
    assert re.search(says, run.output), run.output


# -- separate processes --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_crash_and_a_hang_are_one_failure_each(tmp_path: Path, site: list[Path]) -> None:
    """With ``--isolate`` the test that ended its process has failed, and those after it are run all the same."""
    backends = ("aborting", "hanging", "abortingatexit", "simx")
    arguments = [f"--backend=accelerator:{name}" for name in backends]
    run = run_kit(
        tmp_path, *arguments, "--isolate", "--isolate-limit=15", "-k", "synchronize_and or statistics_are", site=site
    )
    assert run.code == 1, run.output
    waited = "test_synchronize_and_empty_cache"
    reasons = {name: run.tests[name]["reason"] for name in run.ids("failed")}
    assert reasons.keys() == {f"accelerator:{name}::{waited}" for name in backends[:2]} | {
        name for name in reasons if name.startswith("accelerator:abortingatexit::")
    }, run.output
    assert "the process was killed by SIGABRT in this test" in reasons[f"accelerator:aborting::{waited}"]
    assert "the process hung: it was killed after 15 s in this test" in reasons[f"accelerator:hanging::{waited}"]
    (at_exit,) = (reason for name, reason in reasons.items() if "atexit" in name)
    assert "the process was killed by SIGABRT after the last test" in at_exit
    assert len(run.tests) == 8
    assert len(run.ids("passed")) == 5


@pytest.mark.exhaustive
def test_separate_processes_report_the_same(tmp_path: Path, site: list[Path]) -> None:
    """With ``--isolate`` every test ends as it does without, expected failures and skips too."""
    _write(tmp_path / "known.toml", '"accelerator:limited::test_synchronize_and_empty_cache" = "no"\n')
    arguments = [
        "--backend=accelerator:limited",
        "--backend=accelerator:cpu",
        "-k",
        "memory_is_counted or synchronize_and or float64",
    ]
    arguments += ["--expected-failures=known.toml", "--tiers=T2"]
    together = run_kit(tmp_path, *arguments, site=site)
    apart = run_kit(tmp_path, *arguments, "--isolate", site=site)
    assert together.code == apart.code == 1
    ends = [{name: (t["outcome"], t["reason"]) for name, t in run.tests.items()} for run in (together, apart)]
    assert ends[0] == ends[1]
    assert {outcome for outcome, _ in ends[0].values()} == {"failed", "unsupported", "passed"}


# -- the report --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--tiers=T0",), ("-n2", "--tiers=T0")], ids=["one process", "workers"])
def test_the_report_is_the_same_from_workers(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """With pytest-xdist the report has every test once, in their order, and says that others were left out."""
    run = run_kit(tmp_path, "--backend=accelerator:cpu", "-k", "description or aliases", *arguments)
    assert run.code == 0, run.output
    assert run.ids("passed") == {"accelerator:cpu::test_the_description", "accelerator:cpu::test_the_aliases"}
    assert [*run.tests] == sorted(run.tests, reverse=True)
    assert run.report["complete"] is False
    assert run.report["deselected"] > 100


def test_without_workers_no_mark_is_of_them(tmp_path: Path) -> None:
    """Where pytest-xdist is not loaded its mark would be an unknown one, which strict projects refuse."""
    arguments = ("-p", "no:xdist", "--strict-markers", "--tiers=T0", "-k", "description or aliases")
    run = run_kit(tmp_path, "--backend=accelerator:cpu", *arguments)
    assert run.code == 0, run.output
    assert len(run.ids("passed")) == 2


@pytest.mark.slow
def test_the_report(tmp_path: Path, site: list[Path]) -> None:
    """JSON and Markdown say what was tested, on what, how each test ended, and whether all of them were run."""
    arguments = ("--backend=accelerator:limited", "--hardware=2 x Limited 1, driver 3", "--conformance-report=out/r.md")
    run = run_kit(tmp_path, *arguments, "--tiers=T2", "-k", "memory or synchronize_and", site=site)
    report = run.report
    assert report["format"] == 1
    assert report["versions"].keys() == {"torch-hal", "torch", "python", "platform", "machine"}
    assert report["deselected"] > 100
    assert report["complete"] is False
    (suite,) = report["suites"]
    assert suite["backend"] == {
        "kind": "accelerator",
        "name": "limited",
        "distribution": "torch-hal-mutants",
        "version": "1.0",
        "requires": ["torch-hal>=0.1,<1"],
    }
    assert (suite["hardware"], suite["devices"]) == ("2 x Limited 1, driver 3", 2)
    assert suite["tiers"] == {"T2": {"passed": 1, "unsupported": 2}}
    text = (tmp_path / "out" / "r.md").read_text("utf-8")
    for line in (
        "* ran on: 2 x Limited 1, driver 3",
        "* memory_stats is not supported: the driver does not count",
        "| T2 | 1 | 0 | 0 | 2 | 0 | 0 |",
        "* `test_memory_is_counted` (T2): memory_stats is not supported: the driver does not count",
    ):
        assert line in text.splitlines(), text
    assert "**Not complete**" in text
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == report
