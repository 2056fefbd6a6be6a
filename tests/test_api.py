"""The Python interface: `import curation_assets as ca`."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

import curation_assets as ca
from curation_assets import api
from curation_assets.methods import all_methods
from curation_assets.world.pool import plant_pool, render
from tests.conftest import FinishedPool
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY

CAPTIONS = ["a red ball on a green table", None, "", "the best day ever"]


def test_scoring_needs_no_dagster_until_a_pool_runs() -> None:
    code = "import sys, curation_assets as ca; ca.Pool; print([m for m in ('dagster', 'torch') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_public_names_are_typed_importable_and_documented() -> None:
    tree = ast.parse((REPOSITORY / "curation_assets" / "__init__.py").read_text())
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(ca.__all__) - {"__version__", "CurationPool"} == set(api.__all__) == typed & set(api.__all__)
    assert "CurationPool" in typed  # of Dagster, which the interface does not load
    assert sorted(ca.__all__) == ca.__all__
    for name in api.__all__:
        assert getattr(ca, name) is getattr(api, name)
        assert getattr(ca, name).__doc__
    rooms = {path.name for path in (REPOSITORY / "curation_assets").iterdir() if path.is_dir()}
    assert not rooms & set(ca.__all__)  # importing a room would hide a name of the interface
    assert (REPOSITORY / "curation_assets" / "py.typed").is_file()
    with pytest.raises(AttributeError, match="score_captions"):
        ca.scores  # noqa: B018


def test_captions_are_scored_as_the_file_is(tmp_path: Path) -> None:
    scored = ca.score_captions("icc", CAPTIONS)
    assert scored.columns[:3] == ["caption", "value", "reason"]
    assert scored["caption"].to_list() == CAPTIONS
    assert scored["value"].is_null().to_list() == [reason is not None for reason in scored["reason"]]
    assert scored["reason"][1] == "no_caption"
    assert scored["value"][0] > scored["value"][3]
    source = tmp_path / "captions.parquet"
    pl.DataFrame({"caption": CAPTIONS}).write_parquet(source)
    written = ca.score_file("icc", source, tmp_path / "scores.parquet")
    assert written["icc"].equals(scored["value"].alias("icc"), check_names=False)
    assert written["icc_reason"].equals(scored["reason"])
    assert pl.read_parquet(tmp_path / "scores.parquet").equals(written)


def test_pairs_take_paths_and_images_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = plant_pool(2, 11)
    pictures = [render(sample) for sample in samples]
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    captions = [sample.caption for sample in samples]
    of_paths = ca.score_pairs("clip_score", [*paths, tmp_path / "none.png", None], [*captions, "x", "y"])
    of_images = ca.score_pairs("clip_score", pictures, captions)
    assert of_paths.columns[:4] == ["image", "caption", "value", "reason"]
    assert of_paths["reason"].to_list() == [None, None, "image_not_found", "no_image"]
    assert of_paths["image"].to_list() == [*map(str, paths), str(tmp_path / "none.png"), None]
    assert of_images["image"].to_list() == [None, None]
    np.testing.assert_allclose(of_paths["value"][:2].to_numpy(), of_images["value"].to_numpy(), atol=1e-5)
    monkeypatch.chdir(tmp_path)
    here = ca.score_pairs("clip_score", ["0.png", "1.png"], captions)
    np.testing.assert_allclose(here["value"].to_numpy(), of_images["value"].to_numpy(), atol=1e-5)


def test_sizes_come_from_images_in_memory() -> None:
    small = Image.new("RGB", (20, 20))
    scored = ca.score_pairs("datacomp_basic", [small, small.resize((400, 300))], ["a dog on a red sofa at home"] * 2)
    assert scored["value"].to_list() == [0.0, 1.0]


def test_wrong_arguments_are_said() -> None:
    with pytest.raises(ValueError, match="put it in a list"):
        ca.score_captions("icc", "a dog")
    with pytest.raises(ValueError, match="captions: expected a list, got NoneType 'None'; put it in a list"):
        ca.score_captions("icc", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"captions\[1\]: expected a text or None, got int '3'"):
        ca.score_captions("icc", ["a dog", 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="images: expected a list, got NoneType"):
        ca.score_pairs("clip_score", None, ["a dog"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 images and 1 captions"):
        ca.score_pairs("clip_score", [None, None], ["a dog"])
    with pytest.raises(ValueError, match="looks at images"):
        ca.score_captions("clip_score", ["a dog"])
    with pytest.raises(ValueError, match="did you mean 'clip_score'"):
        ca.score_captions("clipscore", ["a dog"])
    with pytest.raises(ValueError, match="roles has no role"):
        ca.score_captions("icc", ["a dog"], roles={"pupil": "path:/x"})
    with pytest.raises(ValueError, match="no settings"):
        ca.score_captions("icc", ["a dog"], settings={"temperature": 2})


def test_methods_are_listed() -> None:
    methods = ca.list_methods()
    assert methods["method"].to_list() == list(all_methods())
    assert {"unit", "better", "source"} <= set(methods.columns)


@pytest.mark.slow
def test_a_captions_pool_is_declared_run_and_read(tmp_path: Path) -> None:
    texts = [f"a {colour} {thing}" for colour in ("red", "blue", "old") for thing in ("dog", "house", "idea", "boat")]
    pl.DataFrame({"caption": texts}).write_csv(tmp_path / "captions.csv")
    home = tmp_path / "home"
    declared = {"columns": {"url": None}, "policies": ["icc"], "fraction": 0.5}
    pool = ca.add_pool("mine", tmp_path / "captions.csv", home=home, **declared)
    again = ca.add_pool("mine", tmp_path / "captions.csv", home=home, **declared)
    assert repr(again) == repr(pool)
    assert ca.list_pools(home=home) == ["mine"]
    assert pool.shards == ["mine-000000"]
    assert pool.policies == ["icc"]
    with pytest.raises(ca.ExpectedError, match="not materialised"):
        pool.table("signals/icc")
    with pytest.raises(ValueError, match="pool 'mine' has no table 'signals/iccc'; did you mean 'signals/icc'"):
        pool.table("signals/iccc")
    with pytest.raises(ValueError, match="a table is named stage/name, got 'icc'; did you mean 'signals/icc'"):
        pool.scan("icc")
    with pytest.raises(ValueError, match="no tables"):
        pool.run(tables=["signals/nothing"])
    seen = []
    reports = pool.run(progress=False, on_table=lambda report: seen.append(report.table))
    assert [report.table for report in reports] == seen
    assert set(seen) == set(pool.tables)
    values = pool.table("signals/icc")
    assert values.height == 12
    assert pool.table("signals/icc", "mine-000000").drop("source_row", strict=False).height == 12
    assert pool.scan("raw/samples").select(pl.len()).collect().item() == 12
    kept = pool.subset("icc")
    assert kept.height == 6
    best = values.sort("value", descending=True).head(6)["sample_id"]
    assert set(kept["sample_id"]) == set(best)
    assert (home / "catalog.duckdb").is_file()
    assert all(report.computed == 0 for report in ca.open_pool("mine", home=home).run(progress=False))


def test_a_finished_pool_explains_and_compares(finished_pool: FinishedPool) -> None:
    pool = ca.open_pool("tiny", home=finished_pool.settings.home, profile="embedded")
    kept = pool.subset("icc")
    [entry] = pool.why(kept["sample_id"][0])
    assert {verdict["policy"]: verdict["verdict"] for verdict in entry["policies"]}["icc"] == "kept"
    difference = pool.diff("icc", "clip")
    assert difference.overlap.left == kept.height
    assert difference.to_dict()["left"]["name"] == "icc"
    fewer = pool.diff("icc", fraction=0.25)
    assert fewer.overlap.right < fewer.overlap.left
    assert fewer.overlap.only_right == 0
    with pytest.raises(ValueError, match="the same policy"):
        pool.diff("icc")
    with pytest.raises(ValueError, match="no policy 'ice'"):
        pool.diff("ice")
    with pytest.raises(ValueError, match="no sample"):
        pool.why("0" * 32)
    with pytest.raises(ValueError, match="declared: tiny"):
        ca.open_pool("nothing", home=finished_pool.settings.home)


SCRIPT = """
import polars as pl, curation_assets as ca
print("the script runs")
pl.DataFrame({"caption": [f"a red {thing} {n}" for n in range(10) for thing in ("dog", "cat")]}).write_csv("c.csv")
pool = ca.add_pool("mine", "c.csv", home="home", columns={"url": None}, shard_size=10, policies=["icc"])
pool.run(progress=False)
print(pool.subset("icc").height > 0)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CURATION_WORKERS": "2"}
    shown = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == ["the script runs", "True"]


@pytest.mark.slow
def test_a_script_with_torch_and_a_pools_assets_ends_without_a_word(tmp_path: Path) -> None:
    """As one that runs a pool and then opens `ca.dataset`: DuckDB's binding printed 39 lines at its end."""
    webdataset_pool(tmp_path, shards=1, per_shard=2)
    script = (
        "import torch\n"
        "from curation_assets.core.settings import load_settings\n"
        "from curation_assets.defs.assets import pool_assets\n"
        "from curation_assets.stores.catalog import rebuild_catalog\n"
        f"settings = load_settings({str(tmp_path)!r})\n"
        "pool_assets(settings, 'photos')\n"
        "rebuild_catalog(settings.home)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "leaked" not in run.stderr
