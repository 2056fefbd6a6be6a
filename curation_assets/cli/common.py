"""What every command shares: two streams, one form of table, the common options, and errors shown as sentences.

Standard output holds the result of the command and nothing else; progress, notices, warnings and errors go to
standard error. Texts of users (names, paths, captions, reasons) are printed as they are, with their control characters
made visible: nothing here reads Rich's markup.
"""

import contextlib
import json
import logging
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.table import Table
from rich.text import Text

from curation_assets.cli.commands import takes_home
from curation_assets.core.disk import damaged_database, refused_write
from curation_assets.core.errors import EXPECTED_ERRORS, first_line
from curation_assets.core.memory import refused_memory
from curation_assets.core.plain_json import plain
from curation_assets.core.visible import Terminal, visible

if TYPE_CHECKING:
    from curation_assets.core.contract import Checked
    from curation_assets.core.settings import Settings

#: Columns of what goes to a file or a pipe, unless COLUMNS says how many. A terminal's tables are fitted to its width.
PIPED_WIDTH = 250
FEW = 30  # values; a statistic of fewer is never shown without their number and an interval
UNEXPECTED = 70  # exit status of a bug: EX_SOFTWARE of sysexits.h

_has_columns = os.environ.get("COLUMNS", "").isdigit() and int(os.environ["COLUMNS"]) > 0
console = Terminal(width=None if sys.stdout.isatty() or _has_columns else PIPED_WIDTH)  # Rich reads COLUMNS itself
notices = Terminal(stderr=True)

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Folder, or s3://BUCKET/PREFIX, for everything written (default: $CURATION_HOME or ./data)."
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="A shipped profile or a file (default: $CURATION_PROFILE, then the pool's own)."),
]
PoolArgument = Annotated[str, typer.Argument(help="A declared pool; see `curate pool list`.")]
PoolOption = Annotated[str | None, typer.Option("--pool", help="Needed when several pools have run.")]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Where another command holds the pool: wait, or end with status 1.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Everything, as JSON alone on standard output.")]
RoleOption = Annotated[
    list[str] | None,
    typer.Option("--role", help="Another model for a role: ROLE=ADDRESS, such as student=path:/folder (repeat)."),
]

_home: Path | None = None  # of this call: where a traceback is written
_given_home: str | None = None  # what --home named: a command that a message advises needs it, too


def settings_from(home: Path | None, profile: str | None = None) -> "Settings":
    """Settings of this call, with torch bound to the number of threads that they name."""
    from curation_assets.core.settings import home_name, load_settings  # numpy, of which `curate --help` needs nothing
    from curation_assets.stores.objects import open_home

    global _home, _given_home
    settings = load_settings(home, profile)
    _home = settings.home
    _given_home = None if home is None else home_name(settings.home)
    open_home(settings.home)
    return settings


# -- what is shown ----------------------------------------------------------------------------------------------------


def show(text: str | Text | Table = "") -> None:
    """Print on standard output; a text is one line, whatever it holds, and keeps its brackets."""
    text = visible(text) if isinstance(text, str) else text
    console.print(text, markup=False, highlight=False, soft_wrap=not isinstance(text, Table))


def show_checked(found: "Sequence[Checked]") -> None:
    """Each rule that a file of a user's own was tried by; exit 1 where it breaks one."""
    for checked in found:
        show(f"ok: {checked.rule}" if checked.fault is None else f"FAULT: {checked.rule} {checked.fault}")
    if any(checked.fault is not None for checked in found):
        raise typer.Exit(1)


def with_home(text: str) -> str:
    """A message whose `curate …` in backquotes get the --home of this call: typed as they stand, they work."""

    def completed(found: re.Match[str]) -> str:
        line = found[1]
        if _given_home is None or "--home" in line or not takes_home(line.split()):
            return found[0]
        return f"`curate {line} --home {shlex.quote(_given_home)}`"

    return re.sub(r"`curate ([^`]+)`(?! \(pid)", completed, text)  # not of the command that holds a pool


def notice(text: str | Text) -> None:
    """Print a line on standard error: what is going on, where something was written, what to do next."""
    notices.print(
        visible(with_home(text)) if isinstance(text, str) else text, markup=False, highlight=False, soft_wrap=True
    )


def warn(text: str) -> None:
    """Print a warning on standard error."""
    notice(Text.assemble(("warning", "yellow"), f" {visible(with_home(text))}"))


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: int | Sequence[str] = 1,
    title: str | None = None,
    keep: Sequence[str] = (),
) -> None:
    """Print a table without lines, within the width of the terminal: long cells fold.

    `left`: how many of the first columns, or which, are aligned left; the others hold numbers. `keep`: columns that
    are not folded.
    """
    table = Table(
        title=title and Text(visible(title)), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for index, heading in enumerate(headings):
        is_left = index < left if isinstance(left, int) else heading in left
        table.add_column(
            Text(visible(heading)), justify="left" if is_left else "right", overflow="fold", no_wrap=heading in keep
        )
    for row in rows:
        table.add_row(*(Text(visible(cell)) if isinstance(cell, str) else cell for cell in row))
    show(table)


_answer: TextIO | None = None  # standard output, while everything else that is printed goes to standard error


def show_json(content: object, indent: int | None = 1) -> None:
    """Print JSON on standard output, under `json_alone` too."""
    text = visible(json.dumps(plain(content), indent=indent, ensure_ascii=False, default=str), "\n")
    print(text, file=_answer or sys.stdout)


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """Whatever is printed meanwhile, by libraries too, goes to standard error; `show_json` alone reaches the output."""
    global _answer
    _answer = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _answer = None


# -- what goes wrong --------------------------------------------------------------------------------------------------


def fail(sentence: str) -> None:
    """Print an error on standard error; its further lines are set in, so that none looks like a line of ours."""
    lines = [visible(line) for line in with_home(sentence).split("\n")]
    notice(Text.assemble(("error", "bold red"), " " + "\n  ".join(lines)))


def each_pool(names: Iterable[str], act: Callable[[str], None], what: str = "pool") -> dict[str, str]:
    """Do it for every pool (or `what` has these names); one that fails is named, the others go on.

    Returns those that failed, with the reason.
    """
    failed = {}
    for name in names:
        try:
            act(name)
        except EXPECTED_ERRORS as error:
            failed[name] = str(error)
            fail(f"{what} {name}: {error}")
    return failed


GOES_ON = "stopped; finished tables and shards are kept, the same command goes on from here"
_stop_notice = GOES_ON


def on_stop(sentence: str) -> None:
    """The sentence of this command when it is stopped, in place of GOES_ON.

    Libraries with signal handlers of their own may raise one Ctrl+C twice, the second time in the handler of the first:
    so the last handler shows it.
    """
    global _stop_notice
    _stop_notice = sentence


@contextlib.contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Expected errors (bad values, absent files or models, damaged tables, a full disk) become a sentence and exit 1.

    Ctrl+C exits 130, SIGTERM 143, each with one sentence. Anything else is a bug: its traceback goes to a file, and the
    exit status is UNEXPECTED.
    """
    # Ctrl+C while SQLAlchemy closes one of Dagster's connections is logged with its traceback otherwise.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    on_stop(GOES_ON)
    stack = contextlib.ExitStack()
    came = stack.enter_context(_stop_signals())
    try:
        yield
    except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
        raise  # what typer itself shows
    except KeyboardInterrupt:
        _end_children()
        notice(_stop_notice)
        raise typer.Exit(128 + (came() or signal.SIGINT)) from None
    except Exception as error:  # nobody above would do better: this is the last place before Python's own traceback
        sentence = refused_write(error, _home or Path.cwd()) or refused_memory(error) or _damage(error)
        if sentence is not None or isinstance(error, EXPECTED_ERRORS):
            fail(sentence or str(error))
            raise typer.Exit(1) from error
        if number := came():  # native code makes an error of its own of Ctrl+C
            _end_children()
            notice(_stop_notice)
            raise typer.Exit(128 + number) from None
        path = write_traceback(error)
        fail(f"unexpected {type(error).__name__}: {first_line(error)}; this is a bug: please report it with {path}")
        raise typer.Exit(UNEXPECTED) from error
    finally:
        stack.close()


def _damage(error: Exception) -> str | None:
    folder = os.environ.get("DAGSTER_HOME") or (_home and _home / "dagster")
    return damaged_database(error, Path(folder)) if folder else None


def write_traceback(error: Exception) -> Path:
    """Write the traceback, without values of variables, below the home or, where that cannot be, a temporary folder."""
    name = f"error-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    text = " ".join(sys.argv) + "\n\n" + "".join(traceback.format_exception(error))
    if _home is not None and _home.is_dir():
        with contextlib.suppress(OSError):
            folder = _home / "logs"
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            return folder / name
    path = Path(tempfile.gettempdir()) / f"curate-{name}"
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def _stop_signals() -> Iterator[Callable[[], int | None]]:
    """SIGTERM interrupts as Ctrl+C does. Yields a function: which of the two came (None where nothing tells).

    Libraries (Dagster) put handlers of their own in our place, so the number is read from the wakeup descriptor, by a
    thread: no handler runs while DuckDB works, which has to be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    numbers: list[int] = []

    def watch() -> None:
        while received := reader.recv(1):
            if received[0] in (signal.SIGINT, signal.SIGTERM):
                numbers.append(received[0])
                if (catalog := sys.modules.get("curation_assets.stores.catalog")) is not None:
                    catalog.interrupt_queries()

    def came() -> int | None:
        time.sleep(0.05)  # for the thread
        return next(iter(numbers), None)

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield came
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        writer.close()
        watcher.join()
        reader.close()


def _end_children() -> None:
    """End the worker processes at once: they ignore Ctrl+C, and what they have in hand may take minutes."""
    import psutil

    parallel = sys.modules.get("curation_assets.flow.parallel")
    if parallel is not None:
        parallel.replace_no_worker()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    if parallel is not None:  # what goes on in this process starts workers anew
        parallel.stop_workers()
