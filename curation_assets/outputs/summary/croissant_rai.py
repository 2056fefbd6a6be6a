"""Croissant's properties of responsible AI (RAI 1.0), filled in from a release."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from curation_assets.outputs.summary import phrases
from curation_assets.outputs.summary.document import Form
from curation_assets.outputs.summary.facts import Answer, Facts, Section, automatic, braced

#: Values that RAI recommends for dataCollectionType, by how a source was obtained.
COLLECTION_TYPES = {
    "public": "Secondary Data analysis",
    "licensed": "Secondary Data analysis",
    "private": "Secondary Data analysis",
    "user_data": "User-generated content data",
    "synthetic": "Software Collection",
    "crawled": "Web Scraping",
    "other": "Others",
}


def sections(facts: Facts) -> list[Section]:
    """The properties by RAI's use cases; the question of each answer is the property's name."""
    return [
        Section("1", "Data life cycle", tuple(_life_cycle(facts))),
        Section("2", "Data labelling", tuple(_labelling(facts))),
        Section("3", "Safety and fairness", tuple(_fairness(facts))),
        Section("4", "Compliance", tuple(_compliance(facts))),
    ]


def rai_properties(sections: Sequence[Section]) -> dict[str, Any]:
    """Property → its text, or list of texts, for JSON-LD under the prefix rai. What is to be provided is left out."""
    texts: dict[str, Any] = {
        answer.question: answer.text
        for section in sections
        for answer in section.answers
        if answer.kind != "missing" and answer.question[0].islower()
    }
    for name in ("dataCollectionType", "dataCollectionTimeFrame"):
        if name in texts:
            texts[name] = texts[name].split("; ")
    if "hasSyntheticData" in texts:
        texts["hasSyntheticData"] = texts["hasSyntheticData"] == "true"
    return texts


def _life_cycle(facts: Facts) -> list[Answer]:
    fetched = facts.number("latest_fetched_at").value is not None
    kinds = {COLLECTION_TYPES[one] for one in facts.kept_sources["obtained"].drop_nulls()}
    kinds |= {"Web Scraping"} if fetched else set()
    names = facts.kept_sources["source"].drop_nulls().to_list()
    more = ", …" if len(names) > phrases.SHOWN_SOURCES else ""
    return [
        replace(phrases.download(facts), question="dataCollection"),
        automatic("dataCollectionType", "; ".join(sorted(kinds)), basis="release.json: about; provenance.parquet")
        if kinds
        else Answer("dataCollectionType", "`sources:` in the declaration of the pool, with obtained", "missing"),
        automatic(
            "dataCollectionMissingData",
            "Of {rows} rows {failed} failed. Of {kept} kept ones {licence} have no licence, {creator} no creator, "
            "{language} no language, {domain} no domain, {fetched_at} no time of fetch on record.",
            {name: facts.number(f"kept_without_{name}")
             for name in ("licence", "creator", "language", "domain", "fetched_at")},
            rows=facts.number("rows"),
            failed=facts.number("failed"),
            kept=facts.number("kept"),
        ),
        automatic(
            "dataCollectionRawData",
            "{count} sources: " + braced(", ".join(names[: phrases.SHOWN_SOURCES])) + more + ".",
            count=facts.number("kept_sources"),
            tables=[facts.counted("sources", "source", "rows", "kept", where=phrases.KEPT)],
        ),
        *_time_frame(facts),
        replace(phrases.policy(facts), question="dataPreprocessingProtocol"),
    ]  # fmt: skip


def _time_frame(facts: Facts) -> list[Answer]:
    """Two dates; none where neither fetches nor their sources date all kept rows."""
    known = {one["name"]: one for one in facts.sources()}
    first, last = facts.number("earliest_fetched_at"), facts.number("latest_fetched_at")
    undated = facts.kept_sources.filter(pl.col("kept_without_fetched_at") > 0)["source"]
    periods = [known.get(name, {}) for name in undated]
    began, ended = ([one.get(key) for one in periods] for key in ("collected_from", "collected_to"))
    if None in began or None in ended:
        return []
    if not periods:
        return [automatic("dataCollectionTimeFrame", "{first}; {last}", first=first, last=last)]
    dates = [min([*map(str, began), *([str(first.value)] if first.value else [])]),
             max([*map(str, ended), *([str(last.value)] if last.value else [])])]  # fmt: skip
    return [automatic("dataCollectionTimeFrame", "; ".join(dates),
                      basis="release.json: about.sources; provenance.parquet")]  # fmt: skip


def _labelling(facts: Facts) -> list[Answer]:
    models = ", ".join(sorted({str(model["address"]) for model in facts.release.models})) or "none"
    return [
        automatic("machineAnnotationTools", f"Scores by {models}.", basis="release.json: models"),
        facts.declared_answer("dataAnnotationProtocol", "annotators"),
        facts.declared_answer("annotationsPerItem", "annotators"),
    ]


def _fairness(facts: Facts) -> list[Answer]:
    stated = facts.declared.known_biases
    shifts = {name: phrases.shift(facts, name) for name in ("languages", "sources", "licences")}
    text = "Shares before and after selection: " + "; ".join(f"{name}: {share}" for name, share in shifts.items()) + "."
    return [
        automatic(
            "dataBiases",
            braced(text + (f" {stated}" if stated else "")) + " ({kept} of {rows} rows.)",
            kept=facts.number("kept"),
            rows=facts.number("rows"),
            tables=[facts.counted(name, facts.counts[name].columns[0], "rows", "kept") for name in shifts],
        ),
        facts.declared_answer("dataUseCases", "use_cases"),
        automatic(
            "dataLimitations",
            "Selection follows model scores: what the models cannot read or were not trained on is under-represented. "
            "{domains} domains.",
            domains=facts.number("kept_domains"),
        ),
        facts.declared_answer("dataSocialImpact", "social_impact"),
    ]


def _compliance(facts: Facts) -> list[Answer]:
    personal = phrases.personal(facts)
    stated = facts.declared.personal_information
    generated = facts.counts["captions"].filter(pl.col("caption_source").str.starts_with("generated"))
    synthetic = bool(facts.sources("synthetic") or generated["kept"].sum())
    repeated = " Samples are repeated, as subset.parquet has them." if facts.policy.repeats else ""
    answer = Answer("personalSensitiveInformation", f"{personal.text} {stated}", "declared", "personal_information",
                    personal.numbers, basis=personal.basis)  # fmt: skip
    return [
        answer if stated else facts.declared_answer("personalSensitiveInformation", "personal_information"),
        automatic(
            "dataManipulationProtocol",
            "Samples were selected, not changed; {dropped} rows were dropped." + repeated,
            dropped=facts.number("dropped"),
        ),
        automatic("dataImputationProtocol", "No value was filled in: what is unknown is null.",
                  basis="ledger: null with a reason"),
        automatic(
            "dataReleaseMaintenancePlan",
            "A release is never rewritten. After a takedown it is withdrawn, and a release without the samples takes "
            "its place under NAME.1, NAME.2, …",
            basis="release.json: previous, original",
        ),
        automatic("hasSyntheticData", "true" if synthetic else "false",
                  basis="release.json: about.sources; provenance.parquet"),
        phrases.signals(facts),
        phrases.decontamination(facts),
    ]  # fmt: skip


FORM = Form(
    "croissant-rai",
    "Croissant RAI",
    "Croissant RAI specification 1.0, http://mlcommons.org/croissant/RAI/1.0",
    "6 March 2024",
    sections,
)
