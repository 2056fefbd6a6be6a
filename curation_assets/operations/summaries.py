"""curate summary: a release's answers to a form, written beside it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from curation_assets.core.errors import StoreError
from curation_assets.core.visible import visible
from curation_assets.operations.releases import denied_samples, verify_release
from curation_assets.outputs.exports.croissant import CROISSANT, check_croissant, release_croissant
from curation_assets.outputs.summary.croissant_rai import FORM as RAI_FORM
from curation_assets.outputs.summary.declared import read_declared
from curation_assets.outputs.summary.document import Form, first_version, missing, to_json, to_markdown
from curation_assets.outputs.summary.facts import Facts
from curation_assets.outputs.summary.phrases import top_domains
from curation_assets.stores.atomic import remove_path, replacing
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.releases import PROVENANCE_FILE, Release, read_release, summaries_folder

SUMMARY_MD, SUMMARY_JSON, DOMAINS = "summary.md", "summary.json", "domains.csv"


@dataclass(frozen=True)
class Summary:
    """What was written."""

    folder: Path
    missing: list[str]  # a line for each answer that the provider has to give or confirm


def write_summary(home: Path, release: Release, form: Form, declared: Path, *, is_sme: bool = False) -> Summary:
    """Fill in a form from a release, in place of what was written of it before.

    `declared`: what the provider states (declared.py); `is_sme`: the shorter list of domains. The same release and
    statements give the same bytes; where they changed since it was written last, it has the next version, and the time
    of this change. Raises MissingReleaseError for a withdrawn release, StoreError for one that is
    damaged, that lists samples of the denylist, or whose version recorded no provenance, ValueError for a malformed
    file of statements.
    """
    _check(home, release)
    release = read_release(release.folder)  # as anybody reads it: mappings in the order of the file
    target = summaries_folder(release) / form.name
    written, version, updated_at = _written_before(target, first_version(release, form.name), release.created_at)
    facts = Facts(release, read_declared(declared), is_sme, version, updated_at)
    texts, left = _texts(facts, form)
    if written and texts != written:
        texts, left = _texts(replace(facts, version=version + 1, updated_at=utc_now()), form)
    remove_path(target)
    with replacing(target) as folder:
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(visible(text, "\n"), encoding="utf-8")
    if read_release(release.folder).withdrawn is not None:  # meanwhile: the takedown looked before this was written
        remove_path(summaries_folder(release))
        read_release(release.folder).check_in_force()
    return Summary(target, left)


def _texts(facts: Facts, form: Form) -> tuple[dict[str, str], list[str]]:
    """File → its text, and what is left to be provided."""
    sections = form.sections(facts)
    texts = {SUMMARY_MD: to_markdown(form, facts, sections), SUMMARY_JSON: to_json(form, facts, sections)}
    texts[DOMAINS] = top_domains(facts).rows.write_csv()
    if form is RAI_FORM:
        croissant = release_croissant(facts, sections)
        check_croissant(croissant)
        texts[CROISSANT] = json.dumps(croissant, indent=1, ensure_ascii=False) + "\n"
    return texts, missing(sections)


def _written_before(target: Path, version: int, updated_at: str) -> tuple[dict[str, str], int, str]:
    """What stands in the folder of a summary, file by file, its version and the time of its last change; these two as
    given where none stands there that can be read."""
    try:
        texts = {path.name: path.read_text(encoding="utf-8") for path in target.iterdir()}
        content = json.loads(texts[SUMMARY_JSON])
        return texts, int(content["version"]), str(content["last_update"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, version, updated_at


def _check(home: Path, release: Release) -> None:
    """Raise unless the release is in force, as it was released, and free of what the denylist knows."""
    release.check_in_force()
    problems = verify_release(release.folder)
    if problems:
        raise StoreError(
            f"release {release.name!r} is damaged: {'; '.join(problems)}; put a copy of {release.folder} in its place"
        )
    if PROVENANCE_FILE not in release.files:
        raise StoreError(
            f"release {release.name!r} has no {PROVENANCE_FILE}: a version before 0.4 made it, and did not record "
            f"where rows come from; make another: `curate release create {release.subset} NAME --pool {release.pool}`"
        )
    if denied := denied_samples(home, [release]):
        raise StoreError(
            f"release {release.name!r} lists {len(denied)} samples of the denylist; `curate takedown apply --pool "
            f"{release.pool}` makes the release without them"
        )
