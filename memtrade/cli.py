"""The command line.

exit status   0   done
              1   something differs, or a trial crashed
              2   bad input: one line on stderr, and nothing was written
              3   no plan reaches the budget
            130   stopped by Ctrl-C
"""

import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    RepeatArgumentError,
    Token,
    UnknownCommandError,
    UnusedCliTokensError,
    convert,
)

import memtrade
from memtrade.errors import InfeasibleBudgetError, MemtradeError, UnknownNameError
from memtrade.files import shown_path


def _typed(kind: Any, tokens: Sequence[Token]) -> Any:
    """A flag's value as cyclopts converts it, where it is one."""
    for token in tokens:
        if wrong := _wrong(kind, token.value):
            raise MemtradeError(f"{token.keyword or 'an argument'} must {wrong}")
    return convert(kind, tokens)


def _wrong(kind: Any, text: str) -> str:
    """What a value must be and this one is not, if so. 50.5 is no whole number: cyclopts makes it
    50, and another model runs than was asked for. Nor is nothing a budget or a folder, as an unset
    variable of the shell leaves it."""
    if kind in (str, str | None, Path, Path | None):
        return "" if text.strip() else "not be empty: give a value, or leave it out"
    for number, what in ((int, "a whole number"), (float, "a number")):
        if kind in (number, number | None):
            try:
                number(text)
            except ValueError:
                return f"be {what}, not {text!r}"
    return ""


app = App(
    name="memtrade",
    help="What each memory-saving strategy costs a TensorFlow training step.",
    version=lambda: memtrade.__version__,  # asked of git, so only when it is asked for
    default_parameter=Parameter(converter=_typed),
)
# By name, so that a command imports what it needs when it is called, and no sooner.
COMMANDS = {
    "Measure": {
        "run": "Strategies side by side: peak memory, host memory, step time",
        "verify": "Is it still the same gradient?",
        "max-batch": "The largest batch that runs, per strategy",
        "sweep": "Many trials out of a file, resumed where they stopped, here or on a cluster",
        "pipeline.commands.pipeline:pipeline": (
            "Pipelined training over several stages: run, sweep, serve, predict, table, published"
        ),
        "watch": "A training script with its memory, peak and limit, live",
        "calibrate": "This device's own rates, as a profile for predictions",
    },
    "Predict and plan": {
        "plan:inspect": "What is in a step, and what follows from it for plans",
        "plan": "What a strategy keeps, recomputes and swaps, and why",
        "predict": "Peak memory and step time on a device, without running",
        "predict:summary": "Memory by layer, and who stands at the peak",
        "explain": "Why memory ran out, and what would fit",
        "pictures:pareto": "Memory against time for strategies and budgets",
        "pictures:timeline": "Memory over the step: who holds what at the peak",
        "trace": "The simulated step for Perfetto",
        "pipeline.commands.partition:partition": "How well a model splits into stages",
    },
    "Read results": {
        "records:table": "Records side by side, and the tables of the thesis",
        "plot": "Records as a picture for print",
        "records:report": "Records as one page that opens offline",
        "records:accuracy": "How far peaks and times were off that had been predicted",
        "records:compare": "Which trials of two result sets differ",
    },
    "What there is": {
        "lists:models": "Models and their options",
        "lists:strategies": "Strategies and their options",
        "lists:devices": "Devices here, and device profiles",
        "lists:facts": "Which kernels are known here, from where, and how old",
    },
}
for group, commands in COMMANDS.items():
    for path, summary in commands.items():
        module, _, name = path.rpartition(":")
        function = name.replace("-", "_")
        room = "" if "." in module else "commands."
        where = f"memtrade.{room}{module or function}:{function}"
        app.command(where, name=name, group=group, help=summary)


def main(
    tokens: Sequence[str] | None = None,
    *,
    typed: Sequence[str] = (),
    on_begin: Callable[[], None] = lambda: None,
) -> int:
    """Runs a command and returns the exit status.

    `tokens` are the command and its flags, by default those of the process. `typed` is what to
    write into records as the command line where that is not "memtrade" and the tokens. `on_begin`
    is called when the command has been read and imported, before it begins.
    """
    tokens = list(sys.argv[1:] if tokens is None else tokens)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    _replace_unwritable()
    try:
        given = _negatives_joined(_script_apart(tokens))
        _tell_all(given)
        chosen, bound, left_out = app.parse_args(given, exit_on_error=False, print_error=False)
        if "command_line" in left_out:
            bound.arguments["command_line"] = command_text(typed or ["memtrade", *tokens])
        on_begin()
        status = chosen(*bound.args, **bound.kwargs) or 0
        sys.stdout.flush()
        return status
    except CycloptsError as error:
        return _complain(_in_words(error), status=2)
    except MemtradeError as error:
        return _complain(error, status=3 if isinstance(error, InfeasibleBudgetError) else 2)
    except UnicodeEncodeError as error:  # of a name that the locale has no signs for
        said = f"the name {error.object!r} is not of this locale: rename it, or set PYTHONUTF8=1"
        return _complain(MemtradeError(said), status=2)
    except KeyboardInterrupt:
        print("memtrade: stopped", file=sys.stderr)
        return 130
    except SystemExit as ended:
        # So rich ends where whoever reads stdout has left. Status 1 says that something differs.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return 0
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
            raise
        # Whoever read stdout has left (`| head`), or the disk is full: nothing more may be written
        # to it on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 0
        return _complain(MemtradeError(f"cannot write: {error.strerror}: make room"), status=2)


def _replace_unwritable() -> None:
    """Has stdout write ? for a sign that its encoding lacks: a table with ≈ in it can be read where
    the locale is ASCII or Latin, too."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")


def _tell_all(tokens: Sequence[str]) -> None:
    """A command's own help begins with all that its function says; the list of commands, which
    imports none of them, has a line of each."""
    if tokens[:1] and tokens[0] in app and not {*tokens}.isdisjoint(app.help_flags):
        command = app[tokens[0]]
        command.help = getattr(command.default_command, "__doc__", None) or command.help


def _script_apart(tokens: list[str]) -> list[str]:
    """What stands behind the name of a script that is watched is the script's own.

    >>> _script_apart(["watch", "--memory-limit", "1GB", "train.py", "--device", "3"])[3:]
    ['--', 'train.py', '--device', '3']
    """
    if tokens[:1] != ["watch"] or "--" in tokens:
        return tokens
    script = next((i for i, word in enumerate(tokens) if word.endswith(".py")), None)
    return tokens if script is None else [*tokens[:script], "--", *tokens[script:]]


def _negatives_joined(tokens: list[str]) -> list[str]:
    """A value such as -5MB with its flag: alone it reads as a flag, and its own would lack one.

    >>> _negatives_joined(["run", "--memory-limit", "-5MB", "--", "--depth", "-1"])
    ['run', '--memory-limit=-5MB', '--', '--depth', '-1']
    >>> _negatives_joined(["explain", "--error", "-", "--json"])  # of stdin
    ['explain', '--error=-', '--json']
    """
    end = tokens.index("--") if "--" in tokens else len(tokens)
    joined: list[str] = []
    for word in tokens[:end]:
        if joined and joined[-1].startswith("--") and re.match(r"-([.\d]|$)", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return [*joined, *tokens[end:]]


def command_text(words: Sequence[str]) -> str:
    """A command as one types it, without the folders of this machine.

    >>> command_text(["memtrade", "run", "--results=/home/me/my runs"])
    "memtrade run '--results=my runs'"
    """
    return shlex.join(_without_folders(word) for word in words)


def _without_folders(word: str) -> str:
    flag, equals, value = word.rpartition("=")
    return flag + equals + shown_path(Path(value)) if value.startswith("/") else word


def _in_words(error: CycloptsError) -> Exception:
    """What cyclopts refuses, with what to do about it."""
    if isinstance(error, UnknownCommandError):
        return _unknown(error)
    if isinstance(error, MissingArgumentError):
        return _missing(error)
    if isinstance(error, RepeatArgumentError):
        once = "give it once, with commas between the values where it takes several"
        return MemtradeError(f"{error.token.keyword} is given more than once: {once}")
    if isinstance(error, UnusedCliTokensError):
        command = " ".join(["memtrade", *(error.command_chain or ())])
        more = shlex.join(error.unused_tokens or ())
        return MemtradeError(f"{command} has no place for {more}: see {command} --help")
    return error


def _unknown(error: UnknownCommandError) -> MemtradeError:
    """What `memtrade plot runs` lacks: the command that goes before the folder."""
    name = (error.unused_tokens or [""])[0]
    choices = [each for each in error.app or () if not each.startswith("-")]
    of = " ".join(["command of memtrade", *(error.command_chain or ())])
    where = f": write one of them before {name}" if name and Path(name).exists() else ""
    return MemtradeError(f"{UnknownNameError(of, name, choices)}{where}")


def _missing(error: MissingArgumentError) -> Exception:
    """What has to be there, such as the script of `memtrade watch`, as its help calls it; or the
    value of a flag."""
    wanted = error.argument
    if wanted is None:
        return error
    command = " ".join(["memtrade", *(error.command_chain or ())])
    what = f" ({wanted.parameter.help.rstrip('.')})" if wanted.parameter.help else ""
    name = wanted.name if wanted.index is None else wanted.name.lstrip("-").upper()
    lacks = f"{command} takes {name}" if wanted.required else f"{name} takes a value"
    return MemtradeError(f"{lacks}{what}: give one, see {command} --help")


def _complain(error: Exception, *, status: int) -> int:
    print(f"memtrade: {' '.join(str(error).split())}", file=sys.stderr)
    return status
