"""Memory and threads that the machine, or a limit of it, refuses, whichever library requested them: one sentence."""

import errno
import os
import re

from curation_assets.core.disk import behind
from curation_assets.core.errors import first_line

_UNLIMITED = -1
#: What libraries say that have no error of their own for it: torch, DuckDB, pyarrow, the loader of libraries, threads.
_WORDS = re.compile(
    re.escape(os.strerror(errno.ENOMEM)) + r"|can't allocate memory|out of memory|bad_alloc|malloc of size|"
    r"failed to map segment|can't start new thread|cannot create thread|unable to allocate",
    re.IGNORECASE,
)
_KINDS = (RuntimeError, ImportError, OSError)


def refused_memory(error: BaseException) -> str | None:
    """A sentence where memory or a thread was refused somewhere behind `error`; None for every other error."""
    for one in behind(error):
        is_said = isinstance(one, _KINDS) or type(one).__module__.partition(".")[0] in ("duckdb", "_duckdb", "pyarrow")
        if isinstance(one, MemoryError) or (is_said and _WORDS.search(str(one))):
            return (
                f"not enough memory ({first_line(one)}): {_free()}. Give it more, or set CURATION_WORKERS lower, and "
                "run the same command again: what is finished is kept"
            )
    return None


def _free() -> str:
    import psutil  # of which `curate --help` needs nothing

    free = f"{psutil.virtual_memory().available / 2**30:.1f} GiB are free on this machine"
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError, ValueError):
        return free
    return free if limit == _UNLIMITED else f"{free}, and a process may have {limit / 2**30:.1f} GiB (`ulimit -v`)"
