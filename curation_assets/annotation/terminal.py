"""Rating in the terminal: one key and Enter per caption."""

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from curation_assets.annotation import QUESTION, SCALE
from curation_assets.annotation.session import LabellingSession

KEYS = "0–3 rate · s skip · b back · q quit"


def rate_in_terminal(session: LabellingSession, console: Console, ask: Callable[[], str]) -> None:
    """Ask until all is rated or the rater quits. `ask` returns one typed line and raises EOFError at the end."""
    console.print(f"[bold]{QUESTION}[/]", highlight=False)
    for rating, meaning in SCALE.items():
        console.print(f"  {rating}  {meaning}", highlight=False, markup=False)
    console.print(KEYS, style="dim", highlight=False, markup=False)
    while (caption := session.current) is not None:
        console.print(Text(f"\n{session.done_count + 1}/{session.total}  ", style="dim") + Text(caption, style="bold"))
        try:
            typed = ask().strip().lower()
        except EOFError:
            break
        if typed in ("0", "1", "2", "3"):
            session.rate(int(typed))
        elif typed == "s":
            session.rate(None)
        elif typed == "b":
            if not session.go_back():
                console.print("This is the first one.")
        elif typed == "q":
            break
        else:
            console.print(f"Not understood: {typed!r}. {KEYS}", highlight=False, markup=False)
    console.print(
        f"\n{session.done_count} of {session.total} captions done by {session.rater}", highlight=False, markup=False
    )
