"""A folder that tars arrive in, as a component of a Dagster project of your own, with an asset and a schedule of yours.

    python examples/growing_pool_in_dagster.py WORK TAR TAR

WORK is a new folder: for the project `lake`, and for `tars`, where the tars (KEY.jpg, KEY.txt) arrive one after the
other. With `dg dev` left running nobody has to launch anything: shards are filled in by the hour, subsets follow, and
the schedule makes the training set at six. What it printed on two tars of 12 photographs stands at the end.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg

TRAINING_SET = """\
from pathlib import Path

import curation_assets as ca
import dagster as dg

PROJECT = Path(__file__).parents[3]

@dg.asset(deps=[dg.AssetKey(["photos", "filtered", "subsets"])])
def training_set() -> None:
    kept = ca.open_pool("photos", home=PROJECT / "curation").subset("clip")
    kept.select("sample_id", "caption").write_csv(PROJECT / "training_set.csv")

daily = dg.ScheduleDefinition("training_set_daily", cron_schedule="0 6 * * *", target=[training_set])
"""


def main(work: Path, arriving: list[Path]) -> None:
    """Make the project in `work`, then let each tar arrive, and make its tables and the training set."""
    if absent := [tool for tool in ("create-dagster", "dg") if shutil.which(tool) is None]:
        sys.exit(f"no command {' or '.join(absent)} on the PATH: python -m pip install create-dagster dagster-dg-cli")
    lake, tars = work / "lake", work / "tars"
    tars.mkdir(parents=True)
    shutil.copy(arriving[0], tars)
    subprocess.run(["create-dagster", "project", str(lake), "--no-uv-sync"], check=True, stdout=sys.stderr)
    os.environ |= {"DAGSTER_HOME": str(lake / "dagster"), "PYTHONPATH": f"{lake / 'src'}:{os.getenv('PYTHONPATH', '')}"}
    (lake / "dagster").mkdir()

    def dg_command(*words: str) -> None:
        subprocess.run(["dg", *words], cwd=lake, check=True, stdout=sys.stderr)

    dg_command("scaffold", "defs", "curation_assets.CurationPool", "photos", "--source", str(tars))
    with (lake / "src" / "lake" / "defs" / "photos" / "defs.yaml").open("a") as declaration:
        declaration.write("    options: {fraction: 0.5}\n")  # goes on with the mapping `pool`
    (lake / "src" / "lake" / "defs" / "training_set.py").write_text(TRAINING_SET)

    # The daemon of `dg dev` looks every half minute for new shards, which it registers as partitions.
    server = subprocess.Popen(["dg", "dev", "--port", "0"], cwd=lake, stdout=sys.stderr)
    try:
        for number, tar in enumerate(arriving):
            shutil.copy(tar, tars)
            with dg.DagsterInstance.get() as instance:
                while len(shards := instance.get_dynamic_partitions("photos")) <= number and server.poll() is None:
                    time.sleep(1)
            subsets = ["--assets", '+key:"photos/filtered/subsets"', "--partition", sorted(shards)[number]]
            dg_command("launch", *subsets, "--config-json", '{"execution": {"config": {"in_process": {}}}}')
            dg_command("launch", "--assets", "training_set")
            rows = len((lake / "training_set.csv").read_text().splitlines()) - 1
            print(f"after tar {number + 1}: a training set of {rows}")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), [Path(tar) for tar in sys.argv[2:]])

PRINTED = """\
after tar 1: a training set of 6
after tar 2: a training set of 11
"""
