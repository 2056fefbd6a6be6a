"""Redraw the pictures of the README from a finished `make demo`: lineage in Dagster's UI, and the report."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from curation_assets.cli.run import DEMO_POOL
from curation_assets.core.settings import load_settings
from curation_assets.core.stages import STAGES
from curation_assets.defs.launch import prepare_instance

PICTURES = Path(__file__).parents[1] / "pictures"
COLOURS = 256  # of a picture, which the README loads


def screenshot(browser: str, url: str, path: Path, size: str) -> None:
    """One page as PNG; the browser gets half a minute of virtual time to draw it."""
    subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
            f"--window-size={size}", "--virtual-time-budget=25000", f"--screenshot={path}", url,
        ],
        check=True, timeout=180, capture_output=True,
    )  # fmt: skip
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Write docs/pictures/asset_graph.png and docs/pictures/report.png."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("need chromium on the PATH (Debian: apt-get install chromium fonts-dejavu-core)")
    settings = load_settings()
    report = settings.work(DEMO_POOL) / "downstream" / "report" / "report.html"
    if not report.exists():
        sys.exit(f"{report} is missing; run make demo first")
    PICTURES.mkdir(exist_ok=True)
    screenshot(browser, report.resolve().as_uri(), PICTURES / "report.png", "1240,750")
    prepare_instance(settings)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    webserver = Path(sys.executable).parent / "dagster-webserver"
    server = subprocess.Popen([webserver, "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)])
    try:
        wait_for(f"http://127.0.0.1:{port}/server_info")
        verdicts = quote(f'+key:"{DEMO_POOL}/filtered/icc"', safe="")  # and what they rest on
        expanded = quote(",".join(f"global@global:{DEMO_POOL}_{stage}" for stage in STAGES), safe="")
        url = f"http://127.0.0.1:{port}/asset-groups~{verdicts}/?expanded={expanded}"
        screenshot(browser, url, PICTURES / "asset_graph.png", "1500,640")
    finally:
        server.terminate()
        server.wait()


def wait_for(url: str, seconds: float = 90) -> None:
    """Return when `url` answers. Raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"{url} did not answer within {seconds:.0f} s")


if __name__ == "__main__":
    main()
