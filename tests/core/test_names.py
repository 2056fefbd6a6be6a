"""Names and addresses are matched whole: `$` takes a line break at the end for the end."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette

import curation_assets
from curation_assets.audit.diff import save_policy
from curation_assets.core.settings import Settings, check_shard_key, load_profile, shard_key
from curation_assets.defs.webserver import guarded
from curation_assets.selection.policy import Policy
from curation_assets.sources.declaration import Pool
from curation_assets.stores.releases import release_folder
from curation_assets.stores.shard_store import ShardStore

HOME = Path("home")
POLICY = Policy(name="p", rank_by="signals.icc", fraction=0.5)


def pool(name: str = "texts", host: str = "host.example") -> Pool:
    return Pool(name=name, kind="url_table", source="captions.csv", allow_hosts=(host,))


@pytest.mark.parametrize(
    ("take", "good"),
    [
        (lambda name: pool(name=name), "texts"),
        (lambda host: pool(host=host), "127.0.0.1:8080"),
        (lambda name: shard_key(name, 3), "texts"),
        (check_shard_key, "texts-000003"),
        (lambda address: Settings(home=HOME, profile=load_profile("embedded"), threads=1, ray=address), "auto"),
        (lambda name: release_folder(HOME, "texts", name), "2026-11"),
        (lambda name: ShardStore(HOME).asset_path(f"signals/{name}"), "icc"),
        (lambda host: guarded(Starlette(), [host]), "host.example"),
    ],
)
def test_a_name_with_a_line_break_is_refused(take: Callable[[str], object], good: str) -> None:
    take(good)
    for name in (f"{good}\n", f"\n{good}", f"{good}\r", f"{good}\x1b", f"{good}\u2028"):
        with pytest.raises(ValueError, match=r"got|expected"):
            take(name)


@pytest.mark.parametrize("name", ["mine\n", "größe", "a\x1b[31m", "", "../x"])
def test_a_policy_is_saved_under_a_name_that_a_table_may_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a policy's name has lower-case letters, digits and underscores"):
        save_policy(tmp_path, POLICY, name)
    assert list(tmp_path.iterdir()) == []


def test_no_pattern_that_ends_in_a_dollar_is_used_to_match() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(curation_assets.__file__).parent.rglob("*.py")]
    ends = {
        name
        for text in texts
        for name in re.findall(r"^(\w+) = re\.compile\(\s*r?f?\"[^\"\n]*\\?\$\"", text, re.MULTILINE)
    }
    matched = {name for text in texts for name in re.findall(r"\b(\w+)\.match\(", text)}
    words = {"_INITIALS", "_URL", "_CLITIC", "_MEASURE", "_CLOCK"}  # of texts without blanks (captioning.py)
    assert ends & matched <= {*words, "CLUSTER_VARIABLES"}  # names in the environment
    assert not [text for text in texts if re.search(r"re\.match\([^)\n]*\$\"", text)]
