"""California's form: what Civil Code section 3111 (AB 2013) asks of training data."""

from curation_assets.outputs.summary import phrases
from curation_assets.outputs.summary.document import Form
from curation_assets.outputs.summary.facts import Answer, Facts, Section, automatic


def sections(facts: Facts) -> list[Section]:
    """The form, filled in from a release."""
    points = automatic(
        "Number of data points",
        "{kept} image–text pairs or texts: {images} images, {captions} captions.",
        kept=facts.number("kept"),
        images=facts.number("kept_images"),
        captions=facts.number("kept_captions"),
    )
    types = automatic(
        "Types of data points",
        "Pairs of an image and a caption, or captions alone; scores by models, no labels of people.",
        tables=[facts.counted("content_types", "content_type", "rows", "kept", where=phrases.KEPT)],
    )
    obtained = facts.kept_sources["obtained"].drop_nulls().unique().sort()
    bought = automatic("Purchased or licensed", f"As sources are declared: {', '.join(obtained) or 'nothing is'}.",
                       basis="release.json: about.sources")  # fmt: skip
    questions: list[tuple[str, list[Answer]]] = [
        ("Sources or owners", [*phrases.source_answers(facts, phrases.OBTAINED),
                               *phrases.undeclared_answers(facts)]),
        ("How the data furthers the purpose", [facts.declared_answer("Purpose", "purpose")]),
        ("Number of data points", [points]),
        ("Types of data points", [types, phrases.languages(facts)]),
        ("Copyright, trademark, patent or public domain", [
            phrases.licences(facts), facts.declared_answer("Protected data", "intellectual_property")]),
        ("Purchased or licensed", [bought, facts.declared_answer("By the provider", "purchased_or_licensed")]),
        ("Personal information", [
            phrases.personal(facts), facts.declared_answer("Personal information", "personal_information")]),
        ("Aggregate consumer information", [
            facts.declared_answer("Aggregate consumer information", "consumer_information")]),
        ("Cleaning, processing and modification", [
            phrases.policy(facts), phrases.duplicates(facts), phrases.decontamination(facts), phrases.models(facts)]),
        ("Time of collection", [
            phrases.collection_period(facts), facts.declared_answer("Ongoing collection", "continuous_collection")]),
        ("First use", [facts.declared_answer("Dates of first use", "first_used")]),
        ("Synthetic data", [
            *phrases.synthetic(facts), facts.declared_answer("Further synthetic data", "synthetic_data")]),
    ]  # fmt: skip
    return [Section(f"(a)({n})", title, tuple(answers)) for n, (title, answers) in enumerate(questions, start=1)]


FORM = Form(
    "ca-ab2013",
    "Documentation of training data",
    "California Civil Code section 3111, AB 2013",
    "28 September 2024",
    sections,
)
