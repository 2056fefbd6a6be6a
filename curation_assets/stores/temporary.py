"""Names of files that are being written: hidden, beside their target, with host and process of their writer."""

import os
import re
import socket
import uuid
from pathlib import Path

TEMPORARY = re.compile(r"^\.(?P<target>.+)\.tmp-(?P<host>[^-]+)-(?P<pid>\d+)-[0-9a-f]{8}(\.[a-z0-9]+)*$")


def host() -> str:
    """Name of this machine as file names hold it."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


def temporary_path(target: Path) -> Path:
    """A hidden path beside `target` (same file system, so os.replace is atomic) that names its writer."""
    return target.with_name(f".{target.name}.tmp-{host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}{target.suffix}")
