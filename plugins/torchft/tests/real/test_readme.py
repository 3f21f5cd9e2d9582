"""README's Python, on torchft itself."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[2] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """A single replica trains by README's Python."""
    lighthouse = "from torchft.coordination import LighthouseServer\n"
    lighthouse += 'server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=100)\n'
    run_readme(
        README,
        tmp_path,
        {'lighthouse="http://host:29510"': "lighthouse=server.address()", "max_steps=10_000": "max_steps=2"},
        before=lighthouse,
    )
