"""Installed metadata with any content, drawn by hypothesis: rows with states, and no exception."""

from __future__ import annotations

import shutil
from pathlib import Path

from drawing import TEXTS, drawn
from hypothesis import given
from hypothesis import strategies as st

from core.discovery.selection import survey
from core.kinds import CLASS_KINDS, KINDS

GROUPS = sorted(kind.group for kind in KINDS.values())
LINES = st.one_of(
    st.sampled_from([*(f"[{group}]" for group in GROUPS), "[console_scripts]", "[", "]", "[]", "", "#x", ";"]),
    st.tuples(TEXTS, st.sampled_from(["=", " = ", ":", ""]), TEXTS).map("".join),
    st.builds(
        "{} = {}".format, st.sampled_from(["cpu", "acme", "acme@x", "a b"]), st.sampled_from(["m", "m:A", "1:", ""])
    ),
)
ENTRY_POINTS = st.one_of(
    st.lists(LINES, max_size=8).map(lambda lines: "\n".join(lines).encode(errors="surrogatepass")),
    st.binary(max_size=60),
    st.binary(max_size=20).map(lambda data: f"[{GROUPS[0]}]\n".encode() + data),
)
HEADERS = st.lists(
    st.one_of(
        st.builds(
            "{}: {}".format,
            st.sampled_from(["Name", "Version", "Requires-Dist", "name", "X"]),
            st.one_of(
                TEXTS, st.sampled_from(["torch-hal>=0.1,<1", "torch-hal>=9", "torch-hal ~~ 1", "torch-hal[x]; a"])
            ),
        ),
        TEXTS,
    ),
    max_size=6,
).map(lambda lines: "\n".join(lines).encode(errors="surrogatepass"))
FOLDERS = st.sampled_from(
    [
        "acme-1.0.dist-info",
        "acme.dist-info",
        "-.dist-info",
        "acme-1-2-3.dist-info",
        "a.egg-info",
        "ä-1.dist-info",
        "b-1.egg",
    ]
)


def test_any_metadata(tmp_path: Path) -> None:
    """Each row has a state, and all can be printed."""
    folder = tmp_path / "installed"

    @drawn()
    @given(st.dictionaries(FOLDERS, st.tuples(ENTRY_POINTS, st.none() | HEADERS | st.binary(max_size=40)), max_size=3))
    def check(distributions: dict[str, tuple[bytes, bytes | None]]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, (entry_points, headers) in distributions.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "entry_points.txt").write_bytes(entry_points)
            if headers is not None:
                (folder / name / ("METADATA" if name.endswith(".dist-info") else "PKG-INFO")).write_bytes(headers)
        found = survey({}, [str(folder)])
        for row in (*found.rows, *found.classes):
            assert row.kind in {*KINDS, *CLASS_KINDS}
            assert row.state in ("installed", "denied", "incompatible", "conflict", "failed"), row
        said = [*found.warnings, *map(str, found.rows), *map(str, found.classes), *map(str, found.damaged)]
        "".join(said).encode(errors="surrogatepass")

    check()
