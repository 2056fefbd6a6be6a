"""The shipped profiles: every address, setting, option and share in them is one that exists."""

from pathlib import Path

import pytest

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import ROLES
from curation_assets.core.settings import PROFILES_ROOT, Settings, load_profile, load_settings
from curation_assets.engines.addresses import ModelAddress, resolve_address
from curation_assets.engines.needs import needs_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.methods import all_methods, get_method
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.scoring.parameters import with_parameters
from curation_assets.selection.policy import load_policies
from curation_assets.sources.all_options import with_profile_options
from curation_assets.sources.declaration import add_pool

SHIPPED = sorted(path.stem for path in PROFILES_ROOT.glob("*.yaml"))
PAPERS = ("icc_paper", "sieve_paper", "rao_paper", "datacomp")


def address_of(text: str) -> ModelAddress | None:
    """None for data that this machine lacks: a file of one's own, a system package."""
    try:
        return resolve_address(text, Path())
    except ModelUnavailableError:
        assert text.partition(":")[0] in ("path", "debian", "pool")
        return None


@pytest.mark.parametrize("name", SHIPPED)
def test_every_address_names_something_that_its_role_takes(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    for role, text in profile.roles.items():
        assert text.partition(":")[0] in needs_of(role).schemes
        address_of(text)
    for role, settings in profile.generation.items():
        assert role in profile.roles, f"settings of {role}, which has no address"
        assert set(settings) <= set(needs_of(role).settings)
        for part in {"text_encoder", "bridge", "image_text_encoder"} & set(settings):
            assert address_of(settings[part]) is not None


@pytest.mark.parametrize("name", SHIPPED)
def test_every_default_method_finds_its_roles(name: str) -> None:
    """Also those that make the columns which it reads."""
    profile = load_profile(name)
    run = [method for method in all_methods().values() if method.default or method.name in profile.methods]
    columns = {column for method in run for column in method.columns}
    needed = {role for method in run for role in method.roles}
    needed |= {made.role for name, made in DERIVED_COLUMNS.items() if name in columns and made.role}
    assert needed <= set(profile.roles)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_setting_option_and_share_exists(name: str) -> None:
    profile = load_profile(name)
    for method, settings in profile.methods.items():
        with_parameters(get_method(method), **settings)
    with_profile_options({}, profile.options, name)
    assert set(profile.fractions) <= set(load_policies())
    assert set(profile.batch_size) <= set(ROLES)


@pytest.mark.parametrize("name", PAPERS)
def test_roles_that_a_paper_does_not_use_fetch_nothing(name: str) -> None:
    """Their lines follow the comment that says so."""
    text = (PROFILES_ROOT / f"{name}.yaml").read_text(encoding="utf-8")
    rest = text.partition("# roles that the paper does not use")[2].partition("\ngeneration:")[0]
    lines = [line.strip() for line in rest.splitlines()[1:]]
    assert lines
    assert all(line.partition(": ")[2].startswith(("embedded:", "bank:", "debian:", "pool:")) for line in lines)


def pool_under(home: Path, profile: str, **options: object) -> PoolContext:
    """A declared pool of two urls, under a shipped profile."""
    home.mkdir(exist_ok=True)
    (home / "c.csv").write_text("url,caption\nhttp://127.0.0.1/1.jpg,a\nhttp://127.0.0.1/2.jpg,b\n")
    settings: Settings = load_settings(home, profile)
    add_pool(settings, "mine", home / "c.csv", options=options)
    return PoolContext.open(settings, "mine")


def test_the_student_of_icc_paper_is_the_papers(tmp_path: Path) -> None:
    options = pool_under(tmp_path, "icc_paper").options
    assert (options.student_kind, options.fuse_on, options.distil) == ("roberta", "student", True)
    assert options.distillation_size == 119_000
    fit = options.student_fit
    assert fit.backbone == "hub:distilroberta-base"
    assert (fit.epochs, fit.batch_size, fit.learning_rate) == (3, 128, 2e-5)


def test_what_a_pool_declares_goes_over_its_profile(tmp_path: Path) -> None:
    ctx = pool_under(tmp_path, "icc_paper", student_fit={"epochs": 1}, distillation_size=12)
    fit = ctx.options.student_fit
    assert (fit.epochs, fit.batch_size) == (1, 128), "a mapping goes setting by setting"
    assert ctx.options.distillation_size == 12
    # what equals the shipped default counts too, once it stands in the file
    file = tmp_path / "pools" / "mine.yaml"
    file.write_text(file.read_text().replace("options:", "options:\n  student_kind: minilm_ridge"))
    ctx = PoolContext.open(ctx.settings, "mine")
    assert ctx.options.student_kind == "minilm_ridge"
    assert PoolContext.open(load_settings(tmp_path, "embedded"), "mine").options.fuse_on == "teacher"


@pytest.mark.parametrize(
    ("profile", "shares"),
    [
        ("sieve_paper", {"sieve": 0.2, "sieve_clip": 0.2, "clip": 0.3}),
        ("datacomp", {"clip": 0.3, "sieve": 0.25}),
        ("icc_paper", {"icc": 0.025}),
        ("embedded", {"clip": 0.25}),
    ],
)
def test_policies_keep_the_papers_shares(tmp_path: Path, profile: str, shares: dict[str, float]) -> None:
    fractions = {
        policy.name: policy.fraction for policy in policies_of(pool_under(tmp_path, profile, policies=list(shares)))
    }
    assert {name: fractions[name] for name in shares} == shares
    own = pool_under(tmp_path / "own", profile, policies=list(shares), fraction=0.4)
    assert {policy.fraction for policy in policies_of(own)} == {0.4}


def test_a_share_reaches_the_first_cut_of_an_intersection(tmp_path: Path) -> None:
    ctx = pool_under(tmp_path, "sieve_paper", methods=["text_spotting"])
    policies = {policy.name: policy for policy in policies_of(ctx)}
    assert policies["sieve_text_spotting"].threshold == 1
    assert [prefilter.fraction for prefilter in policies["sieve_text_spotting"].prefilters] == [0.2]
    assert [prefilter.fraction for prefilter in policies["clip_text_spotting"].prefilters] == [0.3]


def test_a_wrong_line_of_a_profile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    for text, message in (
        ("fractions: {clip: 3}", r"fractions\.clip must be in \(0, 1\], got 3"),
        ("fractions: {clipp: .3}", "has no policy 'clipp'; did you mean 'clip'"),
        ("options: {metods: [icc]}", "profile 'p': options has no setting 'metods'|there is no setting 'metods'"),
        ("options: {given: {detected_objects: f.csv}}", "may not set given: it belongs to one pool"),
    ):
        file.write_text(f"roles: {{}}\n{text}\n")
        with pytest.raises(ValueError, match=message):
            policies_of(pool_under(tmp_path / "home", str(file)))


def test_sieve_and_vba_have_their_papers_generation_settings() -> None:
    sieve, icc = load_profile("sieve_paper"), load_profile("icc_paper")
    written = sieve.generation["captioner"]
    assert written["prompt"] == "a picture of"
    assert (written["min_new_tokens"], written["max_new_tokens"]) == (1, 16)  # 5 to 20 with the prompt's four
    assert (written["image_transform"], written["image_size"]) == ("clip", 224)
    assert (written["top_p"], written["top_k"], written["repetition_penalty"]) == (0.9, 50, 1.1)
    assert sieve.options["caption_count"] == 8
    assert icc.methods["vba"] == {"beams": 5}
    assert icc.address("beam_captioner") == "hub:Salesforce/blip2-opt-2.7b"
