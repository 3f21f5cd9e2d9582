"""``core.cli.CLI``: the command line, config files, and what they make."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from core import Callback, Trainer
from core.callbacks import ModelCheckpoint
from core.cli import CLI, ArgumentParser, SaveConfigCallback
from core.errors import ConfigurationError, UnknownNameError, WrongTypeError
from core.loggers import CSVLogger

from .train import Bent, Line, Ones, WithoutOptimizer

QUIET = (
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
)
SHORT = (*QUIET, "--trainer.max_epochs=1")


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(*args: str, **options: Any) -> CLI:
    """The objects, without a run."""
    options = {"model_class": Line, "datamodule_class": Ones, **options}
    return CLI(args=args, run=False, **options)


def printed(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0, **options: Any) -> str:
    """What a command that only prints writes, to standard output or (if it fails) to standard error."""
    options = {"model_class": Line, "datamodule_class": Ones, **options}
    with pytest.raises(SystemExit) as ended:
        CLI(args=args, **options)
    assert ended.value.code == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def saved() -> Path:
    """The config of the first run."""
    (first, *_) = sorted(Path().rglob("config.yaml"))
    return first


# -- values --------------------------------------------------------------------------------------------------------


def test_arguments_reach_their_objects() -> None:
    """Each prefix is an object; a value has the type of its annotation; what is not given has its default."""
    cli = made("--trainer.max_epochs=3", "--model.lr", "0.25", "--data.batch_size=16", "--model.bias=false", *QUIET)
    assert (cli.model.lr, cli.model.name, cli.model.layer.bias) == (0.25, "line", None)
    assert isinstance(cli.datamodule, Ones)
    assert cli.datamodule.batch_size == 16
    assert (cli.trainer.max_epochs, cli.trainer.accumulate_grad_batches) == (3, 1)
    assert cli.subcommand is None


def test_fractions_and_counts_are_not_mixed_up() -> None:
    """``1.0`` is a fraction and ``1`` a count, also in a config that was saved."""
    given = {"limit_train_batches": "1.0", "limit_val_batches": "1", "val_check_interval": "0.5"}
    cli = made(*(f"--trainer.{name}={value}" for name, value in given.items()), *QUIET)
    Path("c.yaml").write_text(cli.config_text())
    for trainer in (cli.trainer, made("--config=c.yaml").trainer):
        assert [repr(getattr(trainer, name)) for name in given] == [*given.values()]


def test_the_later_wins() -> None:
    """Config files and arguments apply from left to right, on top of ``trainer_defaults``."""
    Path("a.yaml").write_text("model: {lr: 1.0, name: null}\ntrainer: {max_epochs: 5, max_steps: 7}\n")
    Path("b.yaml").write_text("model: {lr: 2.0}\n")
    defaults = {"max_steps": 2, "log_every_n_steps": 9}
    cli = made("--config=a.yaml", "-c", "b.yaml", "--trainer.max_epochs=6", *QUIET, trainer_defaults=defaults)
    assert (cli.model.lr, cli.model.name) == (2.0, None)
    assert (cli.trainer.max_epochs, cli.trainer.max_steps, cli.trainer.log_every_n_steps) == (6, 7, 9)
    assert made("--model.lr=3", "--config=a.yaml", *QUIET).model.lr == 1.0


def test_the_printed_config_is_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    """``--print_config`` prints all values, ``None`` in place of another default too; ``--config`` reads them."""
    given = ("--model.name=null", "--model.lr=0.3", "--data.batch_size=4", "--trainer.callbacks=ModelCheckpoint")
    text = printed(capsys, "fit", *given, *QUIET, "--print_config")
    config = yaml.safe_load(text)
    assert config["model"] == {"lr": 0.3, "bias": True, "name": None}
    assert config["trainer"]["devices"] in (1, "1")
    Path("c.yaml").write_text(text)
    assert printed(capsys, "fit", "--config", "c.yaml", "--print_config") == text


def test_arguments_in_code() -> None:
    """``args`` also takes what a config file holds."""
    cli = CLI(Line, Ones, args={"model": {"lr": 4}, "trainer": {"devices": 1, "enable_progress_bar": False}}, run=False)
    assert cli.model.lr == 4


def test_callbacks_and_loggers_by_class() -> None:
    """``--trainer.callbacks+=`` appends a callback, whose arguments follow; a logger is given by its class."""
    callbacks = ("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=x")
    cli = made(*callbacks, "--trainer.logger=CSVLogger", "--trainer.logger.save_dir=logs", *QUIET)
    (checkpoint,) = cli.trainer.callbacks
    assert isinstance(checkpoint, ModelCheckpoint)
    assert checkpoint.dirpath == str(Path("x").absolute())
    assert [type(logger) for logger in cli.trainer.loggers] == [CSVLogger]
    assert [type(logger) for logger in made("--trainer.logger=csv", *QUIET).trainer.loggers] == [CSVLogger]


def test_callbacks_in_code_are_added() -> None:
    """Objects in ``trainer_defaults`` stay when the user names other callbacks."""

    class Mine(Callback):
        pass

    defaults = {"callbacks": [Mine()]}
    cli = made("--trainer.callbacks=ModelCheckpoint", *QUIET, trainer_defaults=defaults)
    assert [type(callback) for callback in cli.trainer.callbacks] == [Mine, ModelCheckpoint]
    assert type(made(*QUIET, trainer_defaults=defaults).trainer.callbacks[0]) is Mine


# -- classes by name -----------------------------------------------------------------------------------------------


def test_the_user_names_the_classes() -> None:
    """Without classes in the code, ``--model`` and ``--data`` take an import path; ``--data`` may be missing."""
    path = Line.__module__
    cli = made(f"--model={path}.Bent", "--model.degree=3", *QUIET, model_class=None, datamodule_class=None)
    assert type(cli.model) is Bent
    assert (cli.model.lr, cli.model.degree, cli.datamodule) == (0.5, 3, None)
    cli = made("--model", f"{path}.Line", "--data", f"{path}.Ones", *QUIET, model_class=None, datamodule_class=None)
    assert isinstance(cli.datamodule, Ones)


def test_a_derived_class_in_place_of_the_one_in_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """With ``subclass_mode_model`` the class in the code is the base of what the user may name."""
    options: dict[str, Any] = {"subclass_mode_model": True, "run": False}
    assert type(made("--model=Bent", *QUIET, subclass_mode_model=True).model) is Bent
    error = printed(capsys, f"--model={WithoutOptimizer.__module__}.WithoutOptimizer", *QUIET, code=2, **options)
    assert "WithoutOptimizer" in error
    for name in ("lrr", "degre"):  # of its base, and its own
        error = printed(capsys, "--model=Bent", f"--model.{name}=1", *QUIET, code=2, **options)
        assert f"Bent has no argument {name!r}. Did you mean {name[:-1] if name == 'lrr' else 'degree'!r}?" in error


# -- wrong names and values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--trainer.max_epoch=3", "'--trainer.max_epochs'"),
        ("--modl.lr=3", "'--model.lr'"),
        ("--data.batch=3", "'--data.batch_size'"),
    ],
)
def test_a_wrong_name_is_an_error(given: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown argument, also an abbreviated one, is quoted with the nearest that exists."""
    error = printed(capsys, "fit", given, code=2)
    assert f"unrecognized arguments: {given}. Did you mean {meant}" in error
    assert len(error) < 500


@pytest.mark.parametrize("run", [True, False])
def test_a_wrong_name_in_a_file_is_an_error(run: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for a config file."""
    Path("c.yaml").write_text("model: {lrate: 3}\n")
    error = printed(capsys, *["fit"] * run, "--config=c.yaml", code=2, run=run)
    assert "lrate" in error
    assert "'model.lr'" in error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("fit", "--lr=1"), "unrecognized arguments: --lr=1. Did you mean '--model.lr'?"),
        (("fit", "run.yaml"), "unrecognized arguments: run.yaml. To read a config file, write: --config run.yaml"),
        (("fit", "--trainer.gpus=2"), "--trainer.gpus=2. Set accelerator='gpu' and devices= to the same value"),
        (("fit", "--trainer={gpus: 2}"), "Set accelerator='gpu' and devices= to the same value"),
        (("fit", "--trainer.callbacks+=ModelCheckpont"), "Did you mean 'ModelCheckpoint'"),
        (("fit", "--trainer.callbacks+=Zzz"), "Give the whole path of the class."),
        (("fit", "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpat=x"), "Did you mean 'dirpath'?"),
        (("fit", f"--trainer.callbacks+={Line.__module__}.Lne"), "Did you mean 'Line'"),
    ],
)
def test_the_remedy_for_a_wrong_argument(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option without its prefix, a file without its option, and a misspelt class: each has what to write."""
    with pytest.raises(SystemExit):
        CLI(Line, Ones, args=list(args))
    assert said in capsys.readouterr().err


def test_wrong_arguments_in_code() -> None:
    """A misspelt argument of ``CLI`` or of its Trainer, and an object in place of a class, say what is meant."""
    with pytest.raises(WrongTypeError, match=r"CLI: unknown argument 'save_config'.*'save_config_kwargs'"):
        CLI(Line, Ones, save_config=False)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"trainer_defaults\['max_epoch'\].*'max_epochs'"):
        made(trainer_defaults={"max_epoch": 1})
    with pytest.raises(WrongTypeError, match=r"Pass the class, without calling it: Line"):
        CLI(Line())  # type: ignore[arg-type]


def test_errors_in_values_are_the_trainers() -> None:
    """A value that the Trainer refuses is its own error, which names the argument."""
    with pytest.raises(ConfigurationError, match="max_epochs=-2: must be an integer"):
        made("--trainer.max_epochs=-2", *QUIET)
    with pytest.raises(UnknownNameError, match="precision='bf17'"):
        made("--trainer.precision=bf17", *QUIET)


def test_a_value_of_the_wrong_type_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    error = printed(capsys, "fit", "--trainer.max_epochs=many", code=2)
    assert "trainer.max_epochs" in error
    assert "many" in error


def test_help_lists_what_is_installed_here(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of accelerator, strategy and precision has the installed names; each sub-command is described."""
    text = " ".join(printed(capsys, "fit", "--help").split())
    assert "Installed here: cpu, torch" in text
    assert "ddp_spawn" in text
    assert "Installed here: 16-mixed," in text
    assert "The learning rate." in text
    for stage in ("fit", "validate", "test", "predict"):
        assert f" {stage} " in printed(capsys, "--help")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"model_class": torch.nn.Linear}, "model_class=.*Linear.*core.Module"),
        ({"model_class": Line()}, "model_class"),
        ({"datamodule_class": Line}, "datamodule_class=.*core.DataModule"),
        ({"trainer_class": Line}, "trainer_class=.*core.Trainer"),
    ],
)
def test_classes_of_the_wrong_kind_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(WrongTypeError, match=match):
        made(**options)


def test_what_has_no_effect_is_refused() -> None:
    """Methods that are never called, and arguments of a callback that is not used."""

    class Mistaken(CLI):
        def before_train(self) -> None:
            raise AssertionError

    with pytest.raises(ConfigurationError, match="before_train"):
        Mistaken(Line, Ones, args=QUIET, run=False)
    with pytest.raises(ConfigurationError, match="save_config_kwargs"):
        made(save_config_callback=None, save_config_kwargs={"overwrite": True})
    with pytest.raises(ConfigurationError, match=r"parser_kwargs.*'fit'"):
        made(parser_kwargs={"fit": {}})


# -- runs ----------------------------------------------------------------------------------------------------------


class Recorded(CLI):
    """Records what is called."""

    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        self.calls: list[str] = []
        parser.link_arguments("data.batch_size", "model.lr", compute_fn=float)
        parser.add_argument("--note", type=str, default="")

    def before_fit(self) -> None:
        self.calls.append(f"before {self.trainer.global_step}")

    def after_fit(self) -> None:
        self.calls.append(f"after {self.trainer.global_step}")


def test_fit_with_links_and_methods_around_it() -> None:
    """Linked arguments have one value; the methods around a stage are called; own arguments are in the config."""
    cli = Recorded(Line, Ones, args=["fit", "--data.batch_size=4", "--note=hello", *SHORT])
    assert cli.calls == ["before 0", "after 8"]
    assert cli.model.lr == 4.0
    assert cli.get("note") == "hello"
    assert "lr" not in yaml.safe_load(saved().read_text())["model"]


class Named(CLI):
    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("--note", type=str | None)
        parser.link_arguments("ckpt_path", "note")


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_the_other_stages_load_a_checkpoint(stage: str) -> None:
    """``--ckpt_path`` of each sub-command, which others can be linked to; only ``fit`` saves the config."""
    trained = CLI(Line, Ones, args=["fit", *SHORT])
    saved().unlink()
    cli = Named(Line, Ones, args=[stage, *QUIET, "--ckpt_path=last", "--seed_everything=5"])
    assert cli.get("note") == "last"
    assert torch.equal(cli.model.layer.weight, trained.model.layer.weight)
    assert not [*Path().rglob("*.yaml")]


def test_seeds() -> None:
    """``true`` is seed 0; ``false`` leaves the generators alone; the seed is in the config."""
    first = made("--seed_everything=true", *QUIET)
    assert first.config["seed_everything"] == 0
    assert torch.equal(first.model.layer.weight, made("--seed_everything=0", *QUIET).model.layer.weight)
    assert not torch.equal(first.model.layer.weight, made(*QUIET, seed_everything_default=3).model.layer.weight)
    torch.manual_seed(9)
    made("--seed_everything=false", *QUIET)
    after = torch.rand(1)
    torch.manual_seed(9)
    Line()
    assert torch.equal(after, torch.rand(1))


def test_the_saved_config_repeats_the_run() -> None:
    """Same weights from the file alone; the same config may be saved again."""
    args = ["fit", "--model.lr=0.03", "--seed_everything=11", *SHORT]
    first = CLI(Line, Ones, args=args)
    second = CLI(Line, Ones, args=["fit", f"--config={saved()}"])
    assert torch.equal(first.model.layer.weight, second.model.layer.weight)


def test_another_runs_config_is_not_overwritten() -> None:
    """Another config in the same folder is refused before training; ``overwrite`` replaces it."""
    without = [
        "--trainer.enable_checkpointing=false",
        "--trainer.logger=false",
    ]  # with checkpoints, each run has its own folder
    CLI(Line, Ones, args=["fit", *SHORT, *without])
    before = Path("config.yaml").read_text()
    with pytest.raises(ConfigurationError, match=r"config\.yaml exists, with the config of another run"):
        CLI(Line, Ones, args=["fit", "--model.lr=2", *SHORT, *without])
    assert Path("config.yaml").read_text() == before
    CLI(Line, Ones, args=["fit", "--model.lr=2", *SHORT, *without], save_config_kwargs={"overwrite": True})
    assert yaml.safe_load(Path("config.yaml").read_text())["model"]["lr"] == 2


def test_a_continued_run_keeps_the_config_before_it() -> None:
    """With ``--ckpt_path`` the config gets a number."""
    CLI(Line, Ones, args=["fit", *SHORT])
    cli = CLI(Line, Ones, args=["fit", *SHORT, "--trainer.max_epochs=2", "--ckpt_path=last"])
    assert cli.trainer.current_epoch == 2
    epochs = [
        yaml.safe_load(saved().with_name(name).read_text())["trainer"]["max_epochs"]
        for name in ("config.yaml", "config-1.yaml")
    ]
    assert epochs == [1, 2]


def test_the_config_is_where_the_user_wants_it() -> None:
    """Without checkpoints in ``default_root_dir``; another name by ``save_config_kwargs``; ``None`` saves nothing."""
    args = ["fit", *SHORT, "--trainer.enable_checkpointing=false", "--trainer.logger=false"]
    CLI(Line, Ones, args=[*args, "--trainer.default_root_dir=a"], save_config_kwargs={"filename": "x.yaml"})
    assert [path.name for path in Path("a").iterdir()] == ["x.yaml"]
    CLI(Line, Ones, args=[*args, "--trainer.default_root_dir=b"], save_config_callback=None)
    assert not Path("b").exists()
    CLI(Line, Ones, args=["fit", *QUIET, "--trainer.fast_dev_run=true", "--trainer.default_root_dir=c"])
    assert not Path("c").exists()
    with pytest.raises(ConfigurationError, match="filename='a/b'"):
        SaveConfigCallback("", filename="a/b")


# -- optimizers ----------------------------------------------------------------------------------------------------


def test_optimizer_and_scheduler_from_the_command_line() -> None:
    """For a module without ``configure_optimizers``: one step of SGD, with the learning rate halved after an epoch."""
    args = ["fit", "--optimizer=SGD", "--optimizer.lr=0.5", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=1"]
    args += ["--lr_scheduler.gamma=0.5", "--trainer.limit_train_batches=1", "--seed_everything=2"]
    cli = CLI(WithoutOptimizer, Ones, args=[*args, *QUIET, "--trainer.max_epochs=2"])
    torch.manual_seed(2)
    plain = WithoutOptimizer()
    batch = next(iter(Ones().loader()))
    for lr in (0.5, 0.25):
        plain.zero_grad()
        plain.training_step(batch, 0).backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                assert parameter.grad is not None
                parameter.sub_(lr * parameter.grad)
    assert torch.equal(cli.model.layer.weight, plain.layer.weight)
    copy = pickle.loads(pickle.dumps(cli.model))
    assert isinstance(copy.configure_optimizers()[0][0], torch.optim.SGD)


def test_an_optimizer_without_effect_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the module makes its own optimizer, there is no such argument; nor a scheduler without an optimizer."""
    assert "--optimizer=SGD" in printed(capsys, "fit", "--optimizer=SGD", code=2)
    with pytest.raises(ConfigurationError, match="--optimizer: Line defines configure_optimizers"):
        made("--model=Line", "--optimizer=SGD", "--optimizer.lr=1", *QUIET, model_class=None)
    with pytest.raises(ConfigurationError, match="--lr_scheduler: there is no optimizer"):
        made("--lr_scheduler=StepLR", "--lr_scheduler.step_size=1", *QUIET, model_class=WithoutOptimizer)


def test_a_trainer_of_the_users_own() -> None:
    """A derived Trainer's own argument is on the command line."""

    class Mine(Trainer):
        def __init__(self, extra: int = 1, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.extra = extra

    cli = made("--trainer.extra=4", "--trainer.max_epochs=2", *QUIET, trainer_class=Mine)
    assert isinstance(cli.trainer, Mine)
    assert (cli.trainer.extra, cli.trainer.max_epochs) == (4, 2)
