"""Other forms of a module than layers in the constructor of a ``core.Module``, over two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import State, assert_same, run_script, states


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_sharded"])
@pytest.mark.parametrize("form", ["late", "plain"])
def test_each_form_equals_hand_written_ddp(form: str, strategy: str, hand_written: State, tmp_path: Path) -> None:
    """Bit for bit: on both ranks, in the process that asked, and resumed from a checkpoint by new objects."""
    folders = tmp_path / "whole", tmp_path / "resumed"
    for folder in folders:
        folder.mkdir()
    run_script(folders[0], "module_forms.py", form, strategy)
    run_script(folders[1], "module_forms.py", form, strategy, str(folders[0] / "epoch=2.ckpt"))
    for folder in folders:
        left = states(folder)
        assert sorted(left) == [0, 1, 100]
        for state in left.values():
            assert_same(state, hand_written)
