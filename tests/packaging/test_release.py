"""One version everywhere; CITATION.cff is well formed; run-time files are where an installed package looks."""

import re

import pytest
import yaml

import curation_assets
from curation_assets.core import settings
from curation_assets.core.settings import resource_path
from curation_assets.flow.sql import load_models
from tests.support.paths import REPOSITORY

CITATION = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())


def test_the_version_is_the_same_everywhere() -> None:
    version = curation_assets.__version__
    assert CITATION["version"] == version
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\S+)", changelog, flags=re.MULTILINE)[0]
    assert newest == version
    assert f"curation_assets-{version}-py3-none-any.whl" in (REPOSITORY / "docs" / "user" / "install.md").read_text()


def test_the_citation_names_the_software_and_five_papers() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= CITATION.keys()
    families = [paper["authors"][0]["family-names"] for paper in CITATION["references"]]
    assert families == ["Yanuka", "Mahmoud", "Rao", "Sharma", "Zhang"]
    for paper in CITATION["references"]:
        assert paper["type"] in ("conference-paper", "article")
        assert paper["title"]
        assert 2018 <= paper["year"] <= 2024
        assert all({"given-names", "family-names"} == set(author) for author in paper["authors"])


def test_a_checkout_finds_its_resources_beside_the_package() -> None:
    assert resource_path("dbt_like_sql") == REPOSITORY / "dbt_like_sql"
    assert resource_path("infra/dagster.yaml").is_file()
    assert load_models().keys() == load_models(REPOSITORY / "dbt_like_sql").keys()


def test_a_wheel_finds_its_resources_inside_the_package(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site-packages" / "curation_assets"
    (package / "infra").mkdir(parents=True)
    monkeypatch.setattr(settings, "PACKAGE_ROOT", package)
    assert resource_path("infra") == package / "infra"
    with pytest.raises(FileNotFoundError, match=r"dbt_like_sql .*install curation_assets again"):
        resource_path("dbt_like_sql")
