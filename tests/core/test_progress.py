"""Bars of several threads on one terminal."""

import io
import threading

from rich.console import Console

from curation_assets.core.progress import Bars


def test_tasks_of_several_threads_are_lines_of_one_display() -> None:
    written = io.StringIO()
    bars = Bars(Console(file=written, force_terminal=True, width=80))
    both_begun = threading.Barrier(2, timeout=60)

    def work(label: str, total: int) -> None:
        with bars.task(label, total) as advance:
            both_begun.wait()
            advance(1)
            bars.note(f"{label} waits")
            both_begun.wait()

    threads = [threading.Thread(target=work, args=(label, 2)) for label in ("shard 0", "shard 1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    text = written.getvalue()
    assert "shard 0 waits" in text
    assert "shard 1 waits" in text
    frames = text.split("\x1b[2K")
    assert any("shard 0" in frame and "1/2" in frame for frame in frames)
    assert text.endswith("\x1b[2K") or text.endswith("\x1b[?25h")  # nothing of it stays
    with bars.task("later", 1) as advance:
        advance(1)
    assert "later" in written.getvalue()
