"""The EU's form: Annex of the Commission's explanatory notice on the public summary of training content."""

import polars as pl

from curation_assets.outputs.summary import phrases
from curation_assets.outputs.summary.document import Form, version_of
from curation_assets.outputs.summary.facts import Answer, Facts, Number, Section, automatic, braced

BILLION = 1_000_000_000
TEXT_BINS = ((BILLION, "less than 1 billion tokens"), (10_000 * BILLION, "1 billion to 10 trillion tokens"))
IMAGE_BINS = ((1_000_000, "less than 1 million images"), (BILLION, "1 million to 1 billion images"))
LARGEST = {"tokens": "more than 10 trillion tokens", "images": "more than 1 billion images"}


def text_bin(words: int) -> str:
    """The bin of so many words. 749,999,999 words → less than 1 billion tokens."""
    tokens = words / phrases.WORDS_PER_TOKEN
    return next((name for limit, name in TEXT_BINS if tokens < limit), LARGEST["tokens"])


def image_bin(images: int) -> str:
    """The bin of so many images."""
    return next((name for limit, name in IMAGE_BINS if images < limit), LARGEST["images"])


def sections(facts: Facts) -> list[Section]:
    """The form, filled in from a release."""
    return [
        _head(facts),
        _section("1.1", "Provider", [
            facts.declared_answer("Provider name", "provider_name"),
            facts.declared_answer("Contact", "provider_contact"),
            facts.declared_answer("Authorised representative", "representative"),
        ]),
        _section("1.2", "Model", [
            facts.declared_answer("Model names", "model_names"),
            facts.declared_answer("Models it was made from", "base_models"),
            facts.declared_answer("Date of placement on the market", "market_date"),
        ]),
        _section("1.3", "Modalities, size and other characteristics", _characteristics(facts)),
        _section("2.1", "Publicly available data sets", [
            *phrases.source_answers(facts, ("public",), "No source of this release is declared as public."),
            *phrases.undeclared_answers(facts),
        ]),
        _section("2.2", "Private data sets obtained from third parties", [
            *phrases.source_answers(facts, ("licensed", "private"), "No source is declared as licensed or private."),
            facts.declared_answer("Licences concluded with rightsholders", "licensed_agreements"),
            facts.declared_answer("Other private data sets", "private_datasets"),
        ]),
        _section("2.3", "Data crawled and scraped from online sources", _crawled(facts)),
        _section("2.4", "User data", [
            *phrases.source_answers(facts, ("user_data",), "No source of this release is declared as user data."),
            facts.declared_answer("Data of users of services or of the model", "user_data"),
        ]),
        _section("2.5", "Synthetic data", [
            *phrases.synthetic(facts),
            facts.declared_answer("Further synthetic data", "synthetic_data"),
        ]),
        _section("2.6", "Other sources", [
            *phrases.source_answers(facts, ("other",), "No source of this release is declared as another kind."),
            facts.declared_answer("Further sources", "other_sources"),
        ]),
        _section("3.1", "Respect of reservations of rights from text and data mining", [
            phrases.signals(facts),
            facts.declared_answer("Further measures", "copyright_policy"),
        ]),
        _section("3.2", "Removal of illegal content", _illegal(facts)),
        _section("3.3", "Other information", [
            phrases.policy(facts),
            phrases.models(facts),
            phrases.duplicates(facts),
            phrases.decontamination(facts),
            facts.declared_answer("Further processing", "other_processing"),
        ]),
    ]  # fmt: skip


def _section(number: str, title: str, answers: list[Answer]) -> Section:
    return Section(number, title, tuple(answers))


def _head(facts: Facts) -> Section:
    release = facts.release
    earlier = release.previous
    answers = [
        automatic("Version of the summary", str(version_of(release)), basis="release.json: name, original"),
        automatic("Last update", release.created_at, basis="release.json: created_at"),
        automatic("Earlier summary", f"That of release {earlier}." if earlier else "None.",
                  basis="release.json: previous"),
    ]  # fmt: skip
    return _section("0", "Summary", answers)


def _characteristics(facts: Facts) -> list[Answer]:
    words, images = facts.number("kept_words"), facts.number("kept_images")
    count = int(words.value or 0)
    text = automatic(
        "Text: size",
        f"{text_bin(count)}: {{words}} words of {{captions}} captions, estimated as {{tokens}} tokens, at "
        f"{phrases.WORDS_PER_TOKEN} words a token.",
        tokens=facts.number("kept_words", per=phrases.WORDS_PER_TOKEN),
        words=words,
        captions=facts.number("kept_captions"),
    )
    image = automatic(
        "Images: size",
        f"{image_bin(int(images.value or 0))}: {{images}} images of {{size}} bytes.",
        images=images,
        size=facts.number("kept_image_bytes"),
    )
    return [
        text,
        facts.confirmed(automatic("Text: types of content", "Captions of images, and other texts that came as such.",
                                  basis="no classes of text are in a release"), "text_content_types"),
        image,
        *([_image_types(facts, images)] if images.value else []),
        _latest(facts),
        facts.declared_answer("Continuous collection", "continuous_collection"),
        phrases.languages(facts),
        phrases.licences(facts),
        facts.declared_answer("Other characteristics", "other_characteristics"),
    ]  # fmt: skip


def _image_types(facts: Facts, images: Number) -> Answer:
    known = facts.counts["content_types"].filter(pl.col("kept") > 0)["content_type"].drop_nulls().to_list()
    holds = facts.about.get("holds")
    text = f"The pool holds {holds}. " if holds else ""
    text += f"Media types of what was fetched: {', '.join(known) or 'not recorded'}; what the images show is not in a "
    draft = automatic(
        "Images: types of content",
        braced(text + "release.") + " {images} images.",
        images=images,
        tables=[facts.counted("content_types", "content_type", "rows", "kept", "kept_image_bytes")],
    )
    return facts.confirmed(draft, "image_content_types")


def _latest(facts: Facts) -> Answer:
    latest = facts.number("latest_fetched_at")
    ends = [str(one["collected_to"]) for one in facts.about.get("sources") or [] if one.get("collected_to")]
    asked = "Latest date of acquisition"
    if facts.declared.latest_acquisition or (latest.value is None and not ends):
        return facts.declared_answer(asked, "latest_acquisition")
    stated = f"; sources state {max(ends)}" if ends else ""
    if latest.value is None:
        return automatic(asked, f"{max(ends)}, as sources state.", basis="release.json: about.sources")
    return automatic(asked, f"{{latest}}, the last fetch of an image{stated}.", latest=latest)


def _crawled(facts: Facts) -> list[Answer]:
    listed = phrases.top_domains(facts)
    share = "5 % or 1,000, the lower (small and medium-sized enterprises)" if facts.is_sme else "10 %"
    column = "is_top_twentieth_or_1000" if facts.is_sme else "is_top_tenth"
    answers = [phrases.download(facts)]
    if facts.about.get("download"):
        answers += [
            facts.declared_answer("Purpose of the crawlers", "crawler_purpose"),
            phrases.collection_period(facts),
            automatic("Content", "Images beside captions: {images} images of {size} bytes.",
                      images=facts.number("kept_images"), size=facts.number("kept_image_bytes")),
        ]  # fmt: skip
    return [
        *phrases.source_answers(facts, ("crawled",), "No source of this release is declared as crawled."),
        *answers,
        automatic(
            "Domains",
            f"The largest {share} of {{domains}} registered domains by size of content (bytes of images, then words): "
            f"{{listed}} domains in domains.csv. {{unknown}} kept rows have no domain.",
            listed=facts.number(column, "domains"),
            domains=facts.number("kept_domains"),
            unknown=facts.number("kept_without_domain"),
            tables=[facts.counted("domains", *listed.columns, where=pl.col(column), condition=column)],
        ),
    ]


def _illegal(facts: Facts) -> list[Answer]:
    taken = facts.said("left_out", "takedown") if "takedown" in facts.release.left_out else None
    unsafe = facts.number("rows", "reasons", "reason like '%signals.nsfw%'")
    return [
        automatic(
            "Lists of known illegal images",
            "{found} images were on a hash list and are quarantined, unseen.",
            found=facts.number("rows", "reasons", "reason = 'quarantined'"),
        ),
        automatic("Unsuitable images", "{unsafe} rows were dropped by the score nsfw.", unsafe=unsafe),
        automatic("Takedowns", "{taken} rows were taken down.", taken=taken)
        if taken
        else automatic("Takedowns", "No row was taken down.", basis="release.json: left_out"),
        facts.declared_answer("Further measures", "illegal_content_measures"),
    ]


FORM = Form(
    "eu-gpai",
    "Public summary of training content",
    "Regulation (EU) 2024/1689, Article 53(1)(d)",
    "24 July 2025",
    sections,
)
