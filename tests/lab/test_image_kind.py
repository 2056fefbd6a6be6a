"""Training image_kind on anybody's images: from a table to a folder that a profile names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageDraw

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from lab import image_kind as command


def drawn(kind: str, number: int) -> Image.Image:
    """A logo is a disc on white, what stands for a photograph is coloured noise."""
    if kind == "photo":
        noise = np.random.default_rng(number).integers(0, 256, (60, 60, 3), dtype=np.uint8)
        return Image.fromarray(noise)
    image = Image.new("RGB", (60, 60), "white")
    ImageDraw.Draw(image).ellipse((5 + number, 5, 50, 50), fill=(200, 10 * number, 30))
    return image


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ten images of each of two kinds, two of a group, and a file that is no image."""
    rows = [("broken.png", "logo", "g0")]
    (tmp_path / "broken.png").write_bytes(b"no image")
    for kind in ("logo", "photo"):
        for number in range(10):
            drawn(kind, number).save(tmp_path / f"{kind}_{number}.png")
            rows.append((f"{kind}_{number}.png", kind, f"g{number // 2}"))
    pl.DataFrame(rows, schema=["image", "kind", "group"], orient="row").write_csv(tmp_path / "kinds.csv")
    return tmp_path / "kinds.csv"


def test_a_folder_is_trained_and_a_profile_names_it(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.parent / "out"
    command.main(["--pairs", str(table), "--out", str(out), "--folds", "2"])
    assert "broken.png left out" in capsys.readouterr().out
    card = json.loads((out / "image_kind" / "card.json").read_text())
    assert card["images"] == {"logo": 10, "photo": 10}
    assert card["groups"] == 5
    assert card["cross_validated"]["n"] == 20
    assert card["cross_validated"]["photo_auc"] >= 0.9
    assert card["cross_validated"]["kind_right"] >= 0.9
    profile = Profile("test", {"kind_classifier": f"path:{out / 'image_kind'}"}, device="cpu")
    engine: Any = load_engine("kind_classifier", profile)
    found = engine.kind_probabilities([drawn("logo", 3), drawn("photo", 4)]).argmax(axis=1)
    assert [engine.kinds[one] for one in found] == ["logo", "photo"]


def test_what_cannot_be_trained_on_is_refused(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pl.read_csv(table)
    for wrong, message in (
        (rows.drop("kind"), "expected the columns image, kind and perhaps group"),
        (rows.with_columns(kind=pl.lit("foto")), "'foto'"),
        (rows.with_columns(kind=pl.lit("photo")), "expected images of kind photo and of another kind"),
        (rows.head(12).tail(6), "expected at least 20 images"),
    ):
        wrong.write_csv(table)
        with pytest.raises(SystemExit):
            command.main(["--pairs", str(table), "--out", str(table.parent / "out")])
        assert message in capsys.readouterr().err
