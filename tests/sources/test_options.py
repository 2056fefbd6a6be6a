"""Options of a pool and everything else that checks itself: typing errors, limits, documentation, round trips."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.core.settings import PACKAGE_ROOT, Profile, load_profile, load_settings
from curation_assets.core.validation import content_of, described, fields_of, nested
from curation_assets.flow.options import BridgeTraining, DuplicateSettings
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.selection.policy import Policy, Prefilter, load_policy
from curation_assets.sources.all_options import PoolOptions, option_groups
from curation_assets.sources.declaration import Pool, add_pool, load_pool, save_pool
from curation_assets.sources.download.download import DownloadSettings
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.training.bridge import BridgeRecipe
from curation_assets.training.options import StudentFit
from curation_assets.training.students import FIT_DEFAULTS

sys.path.insert(0, str(PACKAGE_ROOT.parent / "docs" / "contributor"))

from make_options import COMMAND, PAGE, TABLES, options_page

REPOSITORY = PACKAGE_ROOT.parent


def declare(home: Path, options: str) -> Path:
    """A declaration as a user writes it."""
    path = home / "pools" / "mine.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"name: mine\nkind: url_table\nsource: s.csv\noptions: {options}\n", encoding="utf-8")
    return path


def error_of(home: Path, options: str) -> str:
    path = declare(home, options)
    with pytest.raises(ValueError, match=re.escape(str(path))) as error:
        load_pool(load_settings(home), "mine")
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "{caption_cuont: 2}",
            "options has no setting 'caption_cuont'; did you mean 'caption_count'? known: agreement",
        ),
        (
            "{duplicates: {cosin: .9}}",
            "options.duplicates has no setting 'cosin'; did you mean 'cosine'? known: copy_cosine, cosine",
        ),
        ("{downstream_budget: {captioning: {samples_seen: many}}}", "options.downstream_budget"),
        ("{train_sba: {lr: 1}}", "options.train_sba has no setting 'lr'; known: accumulation, batch_size"),
        ("{student_fit: {epoch: 1}}", "options.student_fit has no setting 'epoch'; did you mean 'epochs'?"),
        ("{7: 1}", "options has no setting 7; known: agreement_methods"),
        ("[methods]", "options must be a mapping, got ['methods']"),
        ("{caption_count: 0}", "options.caption_count must be an integer ≥ 1, got 0"),
        ("{caption_count: two}", "options.caption_count must be an integer ≥ 1, got 'two'"),
        ("{caption_count: true}", "options.caption_count must be an integer ≥ 1, got True"),
        ("{caption_count: 2.5}", "options.caption_count must be an integer ≥ 1, got 2.5"),
        ("{fraction: 0}", "options.fraction must be a number in (0, 1] or null, got 0"),
        ("{fraction: .nan}", "options.fraction must be a number in (0, 1] or null, got nan"),
        ("{mu_logit: .inf}", "options.mu_logit must be a number, got inf"),
        ("{min_success_rate: 90}", "options.min_success_rate must be a number in [0, 1], got 90"),
        ("{min_group: 1}", "options.min_group must be an integer ≥ 2, got 1"),
        ("{length_unit: letters}", "options.length_unit must be one of words, characters, got 'letters'"),
        ("{fuse_on: both}", "options.fuse_on must be one of teacher, student, got 'both'"),
        (
            "{student_kind: mlp}",
            "options.student_kind must be one of minilm_ridge, minilm_mlp, minilm_finetuned, roberta",
        ),
        ("{distil: 1}", "options.distil must be true, false or null, got 1"),
        ("{methods: tmars}", "options.methods must be a list of strings, got 'tmars'"),
        ("{methods: [tmars, 3]}", "options.methods[1] must be a string, got 3"),
        (
            "{agreement_similarities: [cosine]}",
            "options.agreement_similarities[0] must be one of text_similarity, edit",
        ),
        ("{downstream_seeds: [0, a]}", "options.downstream_seeds[1] must be an integer, got 'a'"),
        ("{recipes: {sieve_clip: {alpha: x}}}", "options.recipes.sieve_clip.alpha must be a number, got 'x'"),
        ("{recipes: {sieve_clip: 3}}", "options.recipes.sieve_clip must be a mapping of names to numbers, got 3"),
        ("{duplicates: 3}", "options.duplicates must be true, false or a mapping, got 3"),
        ("{duplicates: {prefer: fused.icc}}", "options.duplicates: prefer must read signals.METHOD, got 'fused.icc'"),
        ("{size: 0, min_group: 1}", "options.size must be an integer ≥ 1 or null, got 0; options.min_group must be"),
    ],
)
def test_mistakes_name_the_file_the_option_and_what_is_expected(tmp_path: Path, options: str, message: str) -> None:
    assert error_of(tmp_path, options).startswith(message)


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    assert len(error_of(tmp_path, f"{{caption_count: {'x' * 5000}}}")) < 200


def test_a_typing_error_in_python_names_the_pool(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("caption\na\n")
    with pytest.raises(ValueError, match=r"^pool 'mine': options has no setting 'metods'; did you mean 'methods'\?"):
        add_pool(load_settings(tmp_path), "mine", tmp_path / "c.csv", options={"metods": ["tmars"]})
    assert not (tmp_path / "pools").exists()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PoolOptions(**{"fuse": 1}), "options: there is no setting 'fuse'; did you mean 'fuse_on'? known: "),
        (lambda: DownloadSettings(threads=0), "download: threads must be an integer ≥ 1, got 0"),
        (
            lambda: DownloadSettings(encode_quality=101),
            "download: encode_quality must be an integer in [1, 100], got 101",
        ),
        (lambda: Prefilter("signals.a", 0), "prefilter: fraction must be a number in (0, 1] or null, got 0"),
        (
            lambda: Policy("p", "signals.a", fraction=2),
            "policy 'p': fraction must be a number in (0, 1] or null, got 2",
        ),
        (lambda: Policy("p", "signals.a"), "policy 'p': needs fraction, threshold or count, one of them; got none"),
        (lambda: Policy(), "policy: name is missing; rank_by is missing"),
        (lambda: Policy(*"abcdefghijk"), "policy 'a': fraction must be a number"),
        (
            lambda: Profile("p", {"captoiner": "hub:x"}),
            "profile 'p': roles has no role 'captoiner'; did you mean 'capt",
        ),
        (
            lambda: Profile("p", {}, batch_size={"x": 1}),
            "profile 'p': batch_size has no role 'x'; known: aesthetic_head",
        ),
        (lambda: Profile("p", {}, device="gpu"), "profile 'p': device must be one of auto, cpu, cuda, got 'gpu'"),  # type: ignore[arg-type]
        (lambda: Profile("p", {"captioner": "x"}), "profile 'p': address of role 'captioner' must read scheme:rest"),
    ],
)
def test_every_class_answers_in_the_same_words(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        build()
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__  # pydantic's own text stays out of the traceback


def test_files_of_policies_and_profiles_are_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: p\nrank_by: signals.a\nfraction: .5\nprefilters: [{rank_by: signals.b, treshold: 1}]\n")
    with pytest.raises(
        ValueError, match=r"p\.yaml: prefilters\[0\] has no setting 'treshold'; did you mean 'threshold'"
    ):
        load_policy(path)
    path.write_text("roles: {captioner: 'hub:x'}\nbatchsize: {captioner: 3}\n")
    with pytest.raises(ValueError, match=r"p\.yaml: there is no setting 'batchsize'; did you mean 'batch_size'"):
        load_profile(str(path))
    path.write_text("- a\n")
    with pytest.raises(ValueError, match=r"p\.yaml: expected a mapping, got \['a'\]"):
        load_profile(str(path))
    path.write_text("roles: {parser: 'hub:x'}\n")
    assert load_profile(str(path)) == Profile("p", {"parser": "hub:x"})


def test_a_profile_of_one_captioner_fills_both_roles_with_it(tmp_path: Path) -> None:
    """Files written before VBA had a role of its own."""
    path = tmp_path / "p.yaml"
    path.write_text(
        "roles: {captioner: 'hub:x'}\ngeneration: {captioner: {max_new_tokens: 7}}\nbatch_size: {captioner: 5}\n"
    )
    profile = load_profile(str(path))
    assert profile.roles == {"captioner": "hub:x", "beam_captioner": "hub:x"}
    assert profile.generation["beam_captioner"] == {"max_new_tokens": 7}
    assert profile.batch_size["beam_captioner"] == 5
    path.write_text("roles: {captioner: 'hub:x', beam_captioner: 'hub:y'}\ngeneration: {captioner: {top_p: .5}}\n")
    profile = load_profile(str(path))
    assert profile.address("beam_captioner") == "hub:y"
    assert "beam_captioner" not in profile.generation


def test_a_change_is_checked_like_a_new_one() -> None:
    options = replace(PoolOptions(), fraction=1)
    assert options.fraction == 1
    assert type(options.fraction) is int  # 1 and 1.0 hash differently: what was written stays
    with pytest.raises(ValueError, match="caption_count must be an integer"):
        replace(options, caption_count=0)


def test_true_takes_the_defaults_and_false_switches_off() -> None:
    for written in (True, {"perceptual_bits": 4}):
        assert Pool("p", "url_table", "s", options={"duplicates": written}).options.duplicates == DuplicateSettings()  # type: ignore[arg-type]
    for written in (False, None, {}):
        assert Pool("p", "url_table", "s", options={"train_sba": written}).options.train_sba is None  # type: ignore[arg-type]
    assert content_of(PoolOptions(duplicates=DuplicateSettings())) == {"duplicates": True}
    assert content_of(PoolOptions(duplicates=DuplicateSettings(cosine=0.9))) == {"duplicates": {"cosine": 0.9}}


def test_the_shipped_declaration_says_only_what_differs() -> None:
    """data/pools/scenes.yaml loads, and would be written alike."""
    settings = load_settings(REPOSITORY / "data")
    written = yaml.safe_load((settings.pools_root / "scenes.yaml").read_text(encoding="utf-8"))
    pool = load_pool(settings, "scenes")
    assert pool.options.downstream_budget == written["options"]["downstream_budget"]
    assert content_of(pool) == written


# -- documentation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [cls for _, _, cls in TABLES])
def test_every_setting_has_one_line_of_documentation(cls: type) -> None:
    assert cls.__doc__
    for name, info in fields_of(cls).items():
        line = info.description or ""
        assert 4 <= len(line) <= 100, name
        assert line.endswith("."), name
        assert "Union" not in described(info), name
    assert all(nested(info.annotation) in {None, *(cls for _, _, cls in TABLES)} for info in fields_of(cls).values())


def test_the_page_of_options_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == options_page(), f"run {COMMAND} (or make docs)"


def test_every_option_is_read_somewhere() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE_ROOT.rglob("*.py"))
    of_columns = {option for column in DERIVED_COLUMNS.values() for option in column.options.values()}
    read = set(re.findall(r"\boptions\.(\w+)|Options\.of\([\w.]+\)\.(\w+)", sources))
    assert set(fields_of(PoolOptions)) <= {name for names in read for name in names} | of_columns


def test_every_folder_declares_its_own_options() -> None:
    """Each option in one group, each group in the options.py of its folder; all of them are in the assembled class."""
    groups = option_groups()
    assert [name for group in groups for name in fields_of(group)] == list(fields_of(PoolOptions))
    assert {group.__module__.rpartition(".")[2] for group in groups} == {"options"}
    files = {path for path in PACKAGE_ROOT.rglob("options.py") if path.parent.name != "core"}
    assert {Path(str(sys.modules[group.__module__].__file__)) for group in groups} == files


def test_a_reader_sees_the_options_of_its_group(tmp_path: Path) -> None:
    pool = Pool("p", "url_table", "s", options={"image_clusters": 3})  # type: ignore[arg-type]
    assert SignalsOptions.of(pool).image_clusters == 3
    with pytest.raises(TypeError, match="expected a pool's options with those of SignalsOptions, got Pool"):
        SignalsOptions.of(SimpleNamespace(options=pool))


def test_trainings_take_what_the_options_offer() -> None:
    recipe = {field.name for field in fields(BridgeRecipe)}
    assert set(fields_of(BridgeTraining)) == recipe | {"captions", "save_every"}
    for name, info in fields_of(BridgeTraining).items():
        if name in recipe:  # its line says the published value
            published = re.search(r"null: ([\d.]+)\.$", str(info.description))
            assert published is not None, name
            assert float(published[1]) == getattr(BridgeRecipe(), name), name
    for settings in FIT_DEFAULTS.values():
        assert settings.keys() == fields_of(StudentFit).keys() - {"backbone"}


# -- round trips ------------------------------------------------------------------------------------------------------

#: Without line and paragraph separators: PyYAML writes them bare and reads a blank.
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=8)


def values_of(annotation: Any, metadata: Any = ()) -> st.SearchStrategy[Any]:
    """Anything that a field takes, as YAML would give it."""
    limits = {name: getattr(one, name) for one in metadata for name in ("ge", "gt", "le", "lt") if hasattr(one, name)}
    cls = nested(annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if cls is not None:
        own = {name: values_of(info.annotation, info.metadata) for name, info in fields_of(cls).items()}
        if cls is DuplicateSettings:
            own["prefer"] = st.sampled_from([None, "signals.icc"])
            own["keep"] = st.sampled_from(["best", "random"])  # others need image embeddings
        if cls is DownloadSettings:  # these go into a header
            own |= {name: st.sampled_from([None, "mybot"]) for name in ("user_agent_token", "user_agent_contact")}
        if cls is PoolOptions:
            own["owners"] = st.lists(st.sampled_from(["team:vision", "a.b@photos.example"]), max_size=3)
            own["asset_key_prefix"] = st.lists(st.sampled_from(["team", "v_2"]), max_size=3)
            own["downstream_sizes"] = st.lists(st.integers(1, 1000).map(lambda one: one / 1000), max_size=3)
            own["takedown_feed"] = st.sampled_from([None, "https://photos.example/takedowns.jsonl"])
        some = st.fixed_dictionaries({}, optional=own)
        if cls is DuplicateSettings:  # `prefer` ranks with keep: best alone
            some = some.filter(lambda one: one.get("keep", "best") == "best" or one.get("prefer") is None)
        return st.none() | some if type(None) in parts else some
    if hasattr(annotation, "__metadata__"):
        return values_of(annotation.__origin__, metadata)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is tuple:
        return st.lists(values_of(parts[0]), max_size=3)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values_of(parts[0]), values_of(parts[1]), max_size=3)
    if parts:
        return st.one_of(*(values_of(part, metadata) for part in parts))
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if annotation is int:
        return st.integers(low, high).filter(lambda n: n != limits.get("gt") and n != limits.get("lt"))
    if annotation is float:
        return st.floats(
            low, high, exclude_min="gt" in limits, exclude_max="lt" in limits, allow_nan=False, allow_infinity=False
        )
    return {bool: st.booleans(), str: TEXTS, type(None): st.none()}[annotation]


@pytest.mark.slow
@given(options=values_of(PoolOptions), download=values_of(DownloadSettings))
def test_whatever_is_valid_survives_saving(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], download: dict[str, Any]
) -> None:
    settings = load_settings(tmp_path_factory.getbasetemp() / "round_trip")
    pool = Pool("mine", "url_table", str(settings.home / "s.csv"), options=options, download=download)  # type: ignore[arg-type]
    for name, value in options.items():
        if isinstance(value, int | float | str | list) and name not in ("duplicates", "train_sba"):
            kept = getattr(pool.options, name)
            assert json.dumps(kept) == json.dumps(value)  # hashes see the same
    save_pool(settings, pool)
    loaded = load_pool(settings, "mine")
    assert loaded == pool
    assert json.dumps(asdict(loaded.options), sort_keys=True) == json.dumps(asdict(pool.options), sort_keys=True)
    assert loaded.download_config() == pool.download_config()
