"""Draws the pictures of the site into ``docs/pictures``.

python docs/draw_pictures.py            # writes them
python docs/draw_pictures.py --check    # exit code 1 if one is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from draw_plots import plots
from svg import Picture

__all__ = ["main"]

FOLDER = Path(__file__).parent / "pictures"


def way_of_the_data() -> Picture:
    """From arguments to the two front ends."""
    picture = Picture(760, 250, "The way of the data")
    steps = (
        ("arguments", ("call, command line,", "environment"), "soft"),
        ("Request", ("frozen, checked,", "with its sources"), "a-soft"),
        ("Plan", ("frozen, explained:", "what runs, and why"), "a-soft"),
        ("Strategy", ("live: accelerator,", "precision, IO, ranks"), "b-soft"),
        ("Runtime", ("your loop", ""), "c-soft"),
    )
    for number, (name, lines, color) in enumerate(steps):
        x = 2 + 154 * number
        picture.box(x, 30, 136, 86, color)
        picture.text(x + 68, 50, name, "strong")
        picture.lines(x + 68, 76, *lines)
        if number:
            picture.arrow((x - 18, 73), (x, 73))
    picture.box(618, 152, 136, 60, "c-soft")
    picture.text(686, 172, "Trainer", "strong")
    picture.lines(686, 194, "our loop")
    picture.arrow((686, 116), (686, 152))
    picture.box(156, 170, 290, 52)
    picture.text(301, 187, "registry", "strong")
    picture.lines(301, 207, "installed names, and what hardware is here")
    picture.arrow((224, 170), (224, 116))
    picture.arrow((378, 170), (378, 116))
    return picture


def discovery() -> Picture:
    """From a name to a class."""
    picture = Picture(760, 190, "Discovery, activation, probing")
    columns = (
        ("discovery", "a-soft", ("reads metadata", "of installed packages"), ("entry points", "no import")),
        (
            "activation",
            "b-soft",
            ("imports one light module", "of one plugin"),
            ("specs: name, class, detect", "no torch"),
        ),
        (
            "probing",
            "c-soft",
            ("asks the hardware", "or its driver"),
            ("how many devices", "in a process with a limit"),
        ),
        ("loading", "soft", ("imports the class", "that the Plan has chosen"), ("the backend", "in your process")),
    )
    for number, (name, color, does, gives) in enumerate(columns):
        x = 2 + 193 * number
        picture.box(x, 10, 175, 170, color)
        picture.text(x + 87, 32, name, "strong")
        picture.lines(x + 87, 62, *does)
        picture.line(x + 20, 104, x + 155, 104)
        picture.lines(x + 87, 128, *gives)
        if number:
            picture.arrow((x - 18, 95), (x, 95))
    return picture


Process = Sequence[tuple[str, str, float]]
"""What a process holds: a letter, a colour, and the part of it, from 0 to 1."""
WHOLE: Process = (("P", "a", 1.0), ("G", "b", 1.0), ("O", "c", 1.0))


def step(name: str, processes: Sequence[Process], phases: Sequence[tuple[str, str]], note: str) -> Picture:
    """What processes hold, and what a step sends.

    Args:
        name: The strategy.
        processes: What each holds.
        phases: The parts of a step, each with what is sent in it or an empty text.
        note: Below the processes.
    """
    width = 780
    picture = Picture(width, 200, f"A step of {name}")
    picture.text(4, 14, name, "strong", "start")
    for number, held in enumerate(processes):
        x = 4 + 150 * number
        picture.box(x, 34, 132, 112)
        picture.text(x + 66, 50, f"process {number}" if len(processes) > 1 else "the process", "small")
        for place, (letter, color, part) in enumerate(held):
            column, full = x + 12 + 38 * place, 66
            picture.box(column, 66, 32, full, "page", "line")
            top = 66 + (full - full * part) * (number / max(1, len(processes) - 1))
            picture.box(column, top, 32, full * part, f"{color}-soft", color)
            picture.text(column + 16, top + full * part / 2, letter, "strong")
    picture.lines(4, 166, note, anchor="start")
    start = 4 + 150 * len(processes) + 22
    wide = (width - start - 4) / len(phases)
    for number, (phase, sent) in enumerate(phases):
        left = start + wide * number
        middle = left + (wide - 8) / 2
        picture.box(left, 34, wide - 8, 34, "soft")
        picture.text(middle, 51, phase)
        if sent:
            picture.arrow((middle, 68), (middle, 96))
            picture.lines(middle, 108, *sent.split("\n"))
    picture.lines(width - 4, 190, "time →", anchor="end")
    return picture


def steps() -> Iterator[tuple[str, Picture]]:
    """The pictures of steps."""
    plain = ("forward", ""), ("backward", ""), ("optimizer", "")
    yield "step-single-device", step("single_device", [WHOLE], plain, "Nothing is sent.")
    yield (
        "step-ddp",
        step(
            "ddp",
            [WHOLE, WHOLE],
            (("forward", ""), ("backward", "average G,\nbucket by bucket"), ("optimizer", "")),
            "Each holds everything, and makes the same step.",
        ),
    )
    sharded: Process = (*WHOLE[:2], ("O", "c", 0.5))
    yield (
        "step-ddp-sharded",
        step(
            "ddp_sharded",
            [sharded, sharded],
            (("forward", ""), ("backward", "average G"), ("optimizer", "send its part\nof P")),
            "Each holds and steps a part of the optimizer's state.",
        ),
    )
    part: Process = [(letter, color, 0.5) for letter, color, _ in WHOLE]
    yield (
        "step-fsdp",
        step(
            "fsdp",
            [part, part],
            (
                ("forward", "gather P,\nblock by block"),
                ("backward", "gather P, reduce\nand divide G"),
                ("optimizer", ""),
            ),
            "Each holds a part of everything, and one or two whole blocks for a moment.",
        ),
    )
    yield (
        "step-tensor-parallel",
        step(
            "fsdp_tensor_parallel",
            [part, part],
            (("forward", "outputs of\neach layer"), ("backward", "gradients of\noutputs"), ("optimizer", "")),
            "Each layer is divided; the processes read the same batch.",
        ),
    )
    yield (
        "step-decentralized",
        step(
            "bagua_decentralized, shift_one",
            [WHOLE, WHOLE],
            (("forward", "average P with\none other process"), ("backward", ""), ("optimizer", "")),
            "In each step with another one; no process waits for all.",
        ),
    )


def pictures() -> Iterator[tuple[str, Picture]]:
    """Every picture with its name."""
    yield "way-of-the-data", way_of_the_data()
    yield "discovery", discovery()
    yield from steps()
    yield from plots()


def main(arguments: Sequence[str]) -> int:
    """Write the pictures, or check them; returns the exit code."""
    stale = []
    for name, picture in pictures():
        file, content = FOLDER / f"{name}.svg", picture.svg()
        if not file.exists() or file.read_text("utf-8") != content:
            stale.append(file.name)
            if "--check" not in arguments:
                file.write_text(content, "utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run: python docs/draw_pictures.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
