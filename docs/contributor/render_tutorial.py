"""Run docs/user/tutorial.py and write docs/user/tutorial.md with what each cell prints.

python docs/contributor/render_tutorial.py
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "user" / "tutorial.py"
PAGE = SCRIPT.with_suffix(".md")


def cells(text: str) -> list[tuple[str, str]]:
    """(kind, content) of each `# %%` cell: 'markdown' without its comment signs, or 'code'."""
    found = []
    for kind, content in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text, flags=re.DOTALL | re.MULTILINE):
        if kind:
            content = re.sub(r"^# ?", "", content, flags=re.MULTILINE)
        found.append(("markdown" if kind else "code", content.strip()))
    return found


def run_cells(text: str) -> str:
    """Run the code cells in order, in one namespace, and return the page: texts, code and what it printed."""
    namespace: dict[str, Any] = {}
    blocks = []
    for kind, content in cells(text):
        if kind == "markdown":
            blocks.append(content)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(content, str(SCRIPT), "exec"), namespace)
        blocks.append(f"```python\n{content}\n```")
        if printed.getvalue():
            blocks.append(f"```text\n{printed.getvalue().rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    PAGE.write_text(run_cells(SCRIPT.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written: {PAGE}")
