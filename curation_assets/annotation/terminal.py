"""Rating and ranking in the terminal: a line and Enter for each."""

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from curation_assets.annotation.session import LabellingSession, RankingSession


def answer_in_terminal(session: LabellingSession | RankingSession, console: Console, ask: Callable[[], str]) -> None:
    """Ask until all is done or the rater quits. `ask` returns one typed line and raises EOFError at the end."""

    def show(line: str, style: str = "") -> None:
        console.print(line, style=style, highlight=False, markup=False)

    for line in session.intro:
        show(line)
    show(session.keys, "dim")
    while session.current is not None:
        first, *captions = session.current
        console.print(Text(f"\n{session.done_count + 1}/{session.total}  ", style="dim") + Text(first, style="bold"))
        for letter, text in zip("abcdefghijklmnopqrstuvwxyz", *captions or [[]], strict=False):
            show(f"  {letter}  {text}")
        try:
            typed = ask().strip().lower()
            if typed == "q":
                break
            session.typed(typed)
        except EOFError:
            break
        except ValueError as error:
            show(str(error))
    show(f"\n{session.done_count} of {session.total} {session.names[0]}s done by {session.rater}")
