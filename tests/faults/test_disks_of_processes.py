"""A disk that fails under three processes: an error in each, with its remedy; the checkpoint before is whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from declared import PREFIX
from python_processes import run_script

SCRIPT = Path(__file__).parent / "scripts" / "faulty_disk.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason=f"{PREFIX}the faults are Linux's"),
]

LIMIT = "[Errno 27] File too large. Raise the limit on the size of files"
SPACE = "[Errno 28] No space left on device"
RIGHT = "Give this user the right to write there"
FILES = "[Errno 24] Too many open files"
STALE = "[Errno 116] Stale file handle. The network file system"
ANY_USER = {
    "large files of rank 1": f"rank 1: {LIMIT}",
    "large files of all": LIMIT,
    "no more files of rank 1": f"rank 1: {FILES}",
    "no more files of all": FILES,
    "stale handle of rank 1": f"rank 1: {STALE}",
    "stale handle of rank 0": f"rank 0: {STALE}",
}
ROOT = {
    "full disk": SPACE,
    "no inodes": SPACE,
    "read-only": "Mount the file system for writing",
    "no right of rank 1": RIGHT,
    "no right of all": RIGHT,
}


def can_mount(folder: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


@pytest.mark.parametrize("io", ["sharded", "async"])
def test_every_process_is_told(io: str, tmp_path: Path) -> None:
    """In the write of one process, of all, or before it; also where a thread writes. The script checks what is left."""
    for parent in (tmp_path, *tmp_path.parents[:2]):  # another user's process goes through them
        parent.chmod(0o755)
    is_root = can_mount(tmp_path / "probe")
    out = tmp_path / "out"
    said = run_script(SCRIPT, out, io, *(["root"] if is_root else []))
    for name, part in {**ANY_USER, **(ROOT if is_root else {})}.items():
        for each in (name, f"{name}, new"):
            assert len(said[each]) == 3
            for text in said[each]:
                assert part in text, (each, said[each])
                assert "Traceback" not in text
                assert str(out) in text
    assert all("The directory was removed or moved during the save" in text for text in said["removed"])
    assert not any("unchanged" in text for text in said["removed"])
    assert all("does not exist" in text for text in said["moved away"])
