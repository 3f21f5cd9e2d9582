"""A checkpoint of one file: what :func:`torch.save` has written, and behind it the manifest.

The file is a ZIP archive, as torch writes it, with one more entry and a comment at its end::

    entries of torch.save, and its list of them     the content: the manifest has its size and CRC-32
    archive/manifest.json                           the manifest
    the list of all entries                         which torch.load and unzip read
    the comment                                     a line of fixed length: see Trailer

What is behind the content is the tail, whose SHA-256 is in the comment. So reading a manifest takes two short reads,
however large the file is.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from pathlib import Path
from typing import IO, NamedTuple

CONTENT = "content"
"""What a manifest calls the part of the file that :func:`torch.save` has written."""
ENTRY = "manifest.json"
"""The manifest's entry in the archive, in the folder of torch's own entries."""
_LINE = "torch-hal checkpoint {:016d} {:016d} {:08d} {:08d} {}"
_TRAILER = re.compile(rb"torch-hal checkpoint (\d{16}) (\d{16}) (\d{8}) (\d{8}) ([0-9a-f]{64})")
LENGTH = len(_LINE.format(0, 0, 0, 0, "0" * 64))
"""Bytes of the comment."""
_LOCAL_HEADER, _END_RECORD = 30, 22
"""Bytes of the fixed parts of an entry's header and of an archive's end (APPNOTE.TXT of PKWARE, 4.3.7 and 4.3.16)."""


class Trailer(NamedTuple):
    """The comment at the end of the file."""

    sequence: int
    """The manifest's sequence number: it tells which checkpoint of a directory was saved last."""
    size: int
    """Bytes of the tail, without the comment."""
    manifest_at: int
    """Where the manifest begins in the tail."""
    manifest_size: int
    """Bytes of the manifest."""
    sha256: str
    """Hexadecimal digest of the tail, without the comment, and the digits of ``sequence``."""


def parse_trailer(end: bytes) -> Trailer | None:
    """The trailer in the last bytes of a file; ``None`` if there is none."""
    found = _TRAILER.fullmatch(end, max(len(end) - LENGTH, 0))
    if found is None:
        return None
    sequence, size, manifest_at, manifest_size = map(int, found.groups()[:4])
    return Trailer(sequence, size, manifest_at, manifest_size, found[5].decode())


def read_trailer(file: IO[bytes]) -> tuple[Trailer | None, int]:
    """The trailer of an open file, and the file's size."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - LENGTH, 0))
    return parse_trailer(file.read(LENGTH)), size


def trailer_at(path: str | os.PathLike[str]) -> Trailer | None:
    """The trailer of the file at ``path``; ``None`` if it has none."""
    with open(path, "rb", buffering=0) as file:
        return read_trailer(file)[0]


def content_size(trailer: Trailer, file_size: int) -> int:
    """Bytes of the content of a file."""
    return file_size - LENGTH - trailer.size


def read_tail(file: IO[bytes], trailer: Trailer, file_size: int, largest: int) -> bytes:
    """The manifest in an open file, after the tail has been compared with its digest.

    Raises:
        ValueError: The file is damaged.
    """
    start = content_size(trailer, file_size)
    if start < 0 or trailer.size > largest:
        raise ValueError(f"its tail cannot have {trailer.size} bytes")
    file.seek(start)
    tail = file.read(trailer.size)
    if _digest(tail, trailer.sequence) != trailer.sha256:
        raise ValueError("its last part does not match its own checksum")
    return tail[trailer.manifest_at : trailer.manifest_at + trailer.manifest_size]


def has_lost_its_trailer(file: IO[bytes]) -> bool:
    """Whether an open file without a trailer was a checkpoint of ours, or a file of torch.save whose end is missing."""
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return False
    file.seek(max(file.seek(0, io.SEEK_END) - _END_RECORD, 0))
    ends_as_torch_ends_it = file.read(4) == b"PK\x05\x06"  # without a comment
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return True
    return ENTRY in names or ("data.pkl" in names and not ends_as_torch_ends_it)


def write_tail(path: Path, manifest: bytes, content: int, sequence: int) -> None:
    """Write the manifest behind the content of a file, in place of the one that is there.

    Args:
        path: The file.
        manifest: The manifest.
        content: Bytes of the content.
        sequence: The number in the manifest.
    """
    with path.open("r+b") as file:
        file.truncate(content)
        with zipfile.ZipFile(file, "a") as archive:
            entry = f"{archive.infolist()[0].filename.partition('/')[0]}/{ENTRY}"
            # Behind torch's own list of entries, which would be overwritten: the digest of the content includes it.
            archive.start_dir = content
            archive.writestr(zipfile.ZipInfo(entry), manifest)
            archive.comment = b"0" * LENGTH
        size = file.seek(0, io.SEEK_END) - LENGTH - content
        file.seek(content)
        tail = file.read(size)
        at = _LOCAL_HEADER + len(entry.encode())
        line = _LINE.format(sequence, size, at, len(manifest), _digest(tail, sequence))
        file.write(line.encode())


def _digest(tail: bytes, sequence: int) -> str:
    return hashlib.sha256(tail + f"{sequence:016d}".encode()).hexdigest()
