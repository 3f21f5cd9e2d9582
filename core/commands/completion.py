"""``torch-hal completion``: completion of the commands in bash, zsh and fish.

The scripts hold the verbs and their options, taken from the verbs' own help. Names of backends are asked for when the
user presses the key, by ``torch-hal list``, so a plugin that is installed later is completed too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence

from ..discovery.loading import describe
from ..errors import CoreError
from ..kinds import KINDS
from .verb_parser import VerbParser, one_of
from .verbs import available_verbs, load_verb

__all__ = ["SHELLS", "main", "options_of"]

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")

_BASH = """\
_torch_hal() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" found="" before=""
    COMPREPLY=()
    case "$word" in
        =) word="" ;;
        --*=*) last="${{word%%=*}}" before="${{word%%=*}}=" word="${{word#*=}}" ;;
        *) if [ "$last" = "=" ]; then last="${{COMP_WORDS[COMP_CWORD-2]}}"; fi ;;
    esac
    case "$last" in
{named}
        --kind) found="{kinds}" ;;
    esac
    if [ -z "$found" ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then
            found="{verbs} --help --version"
        else
            case "${{COMP_WORDS[1]}}" in
{options}
            esac
            case "$word" in -*) ;; *) found="" ;; esac
            case "$COMP_CWORD $last $word" in "2 completion -"*) ;; "2 completion "*) found="{shells}" ;; esac
        fi
    fi
    if [ -n "$found" ]; then
        COMPREPLY=( $(compgen -P "$before" -W "$found" -- "$word") )
    else
        COMPREPLY=( $(compgen -f -- "$word") )
    fi
}}
complete -o filenames -F _torch_hal torch-hal
"""

_ZSH = """\
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""

_FISH_NAMES = "(torch-hal list --kind {kind} 2>/dev/null | string match -r '^[^ ]+(?= )' | tail -n +2)"
_NAMES = "$(torch-hal list --kind {kind} 2>/dev/null | awk 'NR > 1 && /^[^ ]/ {{ print $1 }}')"


def main(arguments: Sequence[str] | None = None, program: str = "torch-hal completion") -> int:
    """Print the script for a shell; returns the exit code: 0.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Write the completion of torch-hal's verbs, options and backends for a shell.",
        epilog="""\
examples:
  bash: torch-hal completion bash > ~/.local/share/bash-completion/completions/torch-hal
  zsh:  source <(torch-hal completion zsh)     in ~/.zshrc
  fish: torch-hal completion fish > ~/.config/fish/completions/torch-hal.fish
""",
    )
    parser.add_argument("shell", metavar="SHELL", type=one_of(SHELLS), help="the shell: bash, zsh or fish")
    shell = parser.read(arguments).shell
    try:
        verbs = available_verbs(os.environ)
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    sys.stdout.write(SHELLS[shell]({verb: options_of(verb) for verb in verbs}))
    return 0


def options_of(verb: str) -> list[str]:
    """The options of a verb, as its help names them; of a package's verb that is broken, ``--help`` alone."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            load_verb(verb, os.environ)(["--help"], f"torch-hal {verb}")
    except Exception as error:  # noqa: BLE001  a package's verb may raise anything
        sys.stderr.write(f"the options of {verb!r} are not completed: {describe(error)}\n")
    usage, *rest = re.split(r"^examples?:", text.getvalue(), flags=re.MULTILINE)
    del rest  # examples have options of other programs
    return sorted({"--help", *_OPTION.findall(usage)})


def _bash(options: Mapping[str, Sequence[str]]) -> str:
    named = (f'        --{_dashed(kind)}) found="{_NAMES.format(kind=kind)}" ;;' for kind in KINDS)
    by_verb = (f'                {verb}) found="{" ".join(options[verb])}" ;;' for verb in options)
    return _BASH.format(
        named="\n".join(named),
        kinds=" ".join(KINDS),
        verbs=" ".join(options),
        options="\n".join(by_verb),
        shells=" ".join(SHELLS),
    )


def _zsh(options: Mapping[str, Sequence[str]]) -> str:
    return _ZSH + _bash(options)


def _fish(options: Mapping[str, Sequence[str]]) -> str:
    no_verb, in_verb = "__fish_use_subcommand", "__fish_seen_subcommand_from"
    purposes = available_verbs(os.environ)
    lines = [f"complete -c torch-hal -n {no_verb} -f -a {verb} -d {_quoted(purposes[verb])}" for verb in options]
    lines += [f"complete -c torch-hal -n {no_verb} -l {name}" for name in ("help", "version")]
    lines.append(f"complete -c torch-hal -n '{in_verb} completion' -f -a {_quoted(' '.join(SHELLS))}")
    by_name = {_dashed(kind): _FISH_NAMES.format(kind=kind) for kind in KINDS} | {"kind": " ".join(KINDS)}
    for verb, names in options.items():
        for name in (name.removeprefix("--") for name in names):
            values = f" -x -a {_quoted(by_name[name])}" if name in by_name else ""
            lines.append(f"complete -c torch-hal -n '{in_verb} {verb}' -l {name}{values}")
    return "\n".join(lines) + "\n"


def _dashed(kind: str) -> str:
    return kind.replace("_", "-")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""For each shell: the function that writes its script, given the options of each verb."""
