"""The EU's form: Annex of the Commission's explanatory notice on the public summary of training content."""

import polars as pl

from curation_assets.outputs.summary import phrases
from curation_assets.outputs.summary.document import VERSIONS, Form
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
            phrases.used(facts, "Used: publicly available data sets", "public"),
            *phrases.large_sets(facts),
            *phrases.source_answers(facts, ("public",)),
            *phrases.undeclared_answers(facts),
            facts.declared_answer("Other publicly available data sets", "public_datasets"),
        ]),
        _section("2.2", "Private data sets obtained from third parties", [
            phrases.used(facts, "Used: data sets licensed by rightsholders", "licensed"),
            phrases.used(facts, "Used: private data sets of other third parties", "private"),
            *phrases.source_answers(facts, ("licensed", "private")),
            facts.declared_answer("Licences concluded with rightsholders", "licensed_agreements"),
            facts.declared_answer("Other private data sets", "private_datasets"),
        ]),
        _section("2.3", "Data crawled and scraped from online sources", _crawled(facts)),
        _section("2.4", "User data", [
            phrases.used(facts, "Used: user data", "user_data"),
            *phrases.source_answers(facts, ("user_data",)),
            facts.declared_answer("Data of users of services or of the model", "user_data"),
        ]),
        _section("2.5", "Synthetic data", [
            phrases.used(facts, "Used: synthetic data sets", "synthetic"),
            *phrases.synthetic(facts),
            facts.declared_answer("Further synthetic data", "synthetic_data"),
        ]),
        _section("2.6", "Other sources", [
            phrases.used(facts, "Used: other sources", "other"),
            *phrases.source_answers(facts, ("other",)),
            facts.declared_answer("Further sources", "other_sources"),
        ]),
        _section("3.1", "Respect of reservations of rights from text and data mining", [
            facts.declared_answer("Signatory of the Code of Practice", "code_of_practice"),
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
        automatic("Version of the summary", str(facts.version), basis=VERSIONS),
        automatic("Last update", facts.updated_at, basis=VERSIONS),
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
        tables=[facts.counted("content_types", "content_type", "rows", "kept", "kept_image_bytes", where=phrases.KEPT)],
    )
    return facts.confirmed(draft, "image_content_types")


def _latest(facts: Facts) -> Answer:
    latest = facts.number("latest_fetched_at")
    ends = [str(one["collected_to"]) for one in facts.sources() if one.get("collected_to")]
    question = "Latest date of acquisition"
    if facts.declared.latest_acquisition or (latest.value is None and not ends):
        return facts.declared_answer(question, "latest_acquisition")
    stated = f"; sources state {max(ends)}" if ends else ""
    if latest.value is None:
        return automatic(question, f"{max(ends)}, as sources state.", basis="release.json: about.sources")
    return automatic(question, f"{{latest}}, the last fetch of an image{stated}.", latest=latest)


def _crawled(facts: Facts) -> list[Answer]:
    crawled = "obtained = 'crawled'"
    others = f"not ({phrases.CRAWLED})"
    by_others = facts.number("kept_without_fetched_at", "sources", crawled)
    fetched = facts.number("kept_fetched", "sources", others)
    answers = [
        phrases.used(facts, "Used: data that was crawled or scraped", "crawled"),
        *phrases.source_answers(facts, ("crawled",)),
        phrases.download(facts),
    ]
    if fetched.value:
        text = "{rows} kept rows of sources that were obtained otherwise; they stand in the sections of these sources."
        answers.append(automatic("Fetched by this program from addresses that other sources list", text, rows=fetched))
    if by_others.value:
        answers += [facts.declared_answer("Crawlers before this program", "crawler_names"),
                    facts.declared_answer("Their behaviour", "crawler_behaviour")]  # fmt: skip
    if facts.about.get("download") or facts.number("kept", "sources", crawled).value:
        stated, numbers = phrases.modalities(facts, phrases.CRAWLED)
        answers += [
            facts.declared_answer("Purpose of the crawlers", "crawler_purpose"),
            phrases.collection_period(facts, phrases.CRAWLED),
            automatic("Content", f"Modalities: {stated}; {{undeclared}} of these rows are of sources not declared.",
                      numbers, undeclared=facts.number("kept", "sources", "obtained is null")),
        ]  # fmt: skip
    return [*answers, *_domains(facts, facts.number("kept_without_domain", "sources", crawled))]


def _domains(facts: Facts, crawled_without: Number) -> list[Answer]:
    """The largest domains; asked of the provider where rows of crawled sources have none on record."""
    rows, unknown, undeclared = (
        facts.number(column, "sources", where)
        for column, where in (
            ("kept", phrases.CRAWLED), ("kept_without_domain", phrases.CRAWLED), ("kept", "obtained is null"))
    )  # fmt: skip
    if not rows.value:
        text = "{rows} kept rows are of sources that are declared as crawled, or are not declared: none is listed."
        return [automatic("Domains", text, rows=rows)]
    listed = phrases.top_domains(facts)
    share = "5 % or 1,000, the lower (small and medium-sized enterprises)" if facts.is_sme else "10 %"
    column = "is_top_twentieth_or_1000" if facts.is_sme else "is_top_tenth"
    answer = automatic(
        "Domains",
        f"Of {{rows}} kept rows of sources that are declared as crawled, or not declared ({{undeclared}}; column "
        f"undeclared of each domain): the largest {share} of {{domains}} registered domains by size of content (bytes "
        f"of images, then words), {{listed}} domains in domains.csv. {{unknown}} of these rows have no domain.",
        rows=rows,
        undeclared=undeclared,
        domains=facts.number("domain", "domains"),
        listed=facts.number("domain", "domains", column),
        unknown=unknown,
        tables=[listed],
    )
    other_domains = facts.declared_answer("Domains of crawled rows without one on record", "crawled_domains")
    return [answer, *([other_domains] if crawled_without.value else [])]


def _illegal(facts: Facts) -> list[Answer]:
    taken = facts.stated("left_out", "takedown") if "takedown" in facts.release.left_out else None
    unsafe = facts.number("rows", "reasons", "reason like '%signals.nsfw%'")
    found = facts.number("rows", "reasons", "reason = 'quarantined'")
    has_lists = facts.about.get("has_hash_lists", bool(found.value))  # an earlier version did not record it
    return [
        automatic(
            "Lists of known illegal images",
            "{found} images were on a hash list and are quarantined, unseen."
            if has_lists
            else "No hash list was compared: {found} images are quarantined.",
            found=found,
        ),
        automatic("Unsuitable images", "{unsafe} rows were dropped by the score nsfw.", unsafe=unsafe)
        if facts.was_made("signals/nsfw")
        else automatic("Unsuitable images", "The policy does not look for them.", basis="manifests.jsonl"),
        automatic("Takedowns", "{taken} rows were taken down.", taken=taken)
        if taken
        else automatic("Takedowns", "No row was taken down.", basis="release.json: left_out"),
        facts.declared_answer("Further measures", "illegal_content_measures"),
    ]


FORM = Form(
    "eu-gpai",
    "Public summary of training content",
    "Regulation (EU) 2024/1689, Article 53(1)(d); adopted as C(2025) 8311 of 5 December 2025",
    "24 July 2025",
    sections,
)
