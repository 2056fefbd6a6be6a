"""summary.yaml: what only a provider can attest, for the forms of `curate summary`."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from curation_assets.core.validation import build, checked, fields_of, setting
from curation_assets.core.yaml_files import read_yaml

SUMMARY_FILE = "summary.yaml"  # under home

Text = str | None


def _text(description: str) -> Any:
    return setting(default=None, description=description)


@checked("summary.yaml")
class Declared:
    """One sentence, or several, per field; null where nothing is said."""

    provider_name: Text = _text("Name of the provider.")
    provider_contact: Text = _text("Address and contact of the provider.")
    representative: Text = _text("Authorised representative in the Union with contact, or none.")
    model_names: Text = _text("Names and versions of the models trained on it.")
    base_models: Text = _text("Models that these were made from, with links to their summaries, or none.")
    market_date: Text = _text("Date on which the model was placed on the market.")
    text_content_types: Text = _text("Types of text, such as captions of products or of news photographs.")
    image_content_types: Text = _text("Types of images, such as photographs, drawings, maps.")
    latest_acquisition: Text = _text("Latest date on which content was acquired, where no download dates it.")
    collection_period: Text = _text("First and last day of collection, where neither fetches nor sources date it.")
    continuous_collection: Text = _text("Whether the model goes on learning from data collected after this date.")
    other_characteristics: Text = _text("Other characteristics of the data, such as regions or demography, or none.")
    public_datasets: Text = _text("Public data sets beside the sources of this pool, or none.")
    licensed_agreements: Text = _text("Whether licences were concluded with rightsholders, for which kinds of content.")
    private_datasets: Text = _text("Private data sets obtained from others that are no source of this pool, or none.")
    crawler_names: Text = _text("Crawlers beside this program's, by name, and who runs them; or none.")
    crawler_behaviour: Text = _text("What these crawlers obey: robots.txt, logins, paywalls, captchas, rate limits.")
    crawler_purpose: Text = _text("What crawlers are run for, by whom.")
    crawled_domains: Text = _text("Domains of crawled rows that have none on record, or where they are listed.")
    user_data: Text = _text("Whether data of users of services or of the model was used, and of which services.")
    synthetic_data: Text = _text("Models that made training data beside those named here, or none.")
    other_sources: Text = _text("Further sources of data, or none.")
    code_of_practice: Text = _text("Whether the provider has signed the Code of Practice for general-purpose AI.")
    copyright_policy: Text = _text("Measures that respect reservations of rights beside this program's; a link.")
    illegal_content_measures: Text = _text("Measures against illegal content beside those named here.")
    other_processing: Text = _text("Further processing before training, or none.")
    purpose: Text = _text("How the data furthers what the system is meant to do.")
    intellectual_property: Text = _text(
        "Whether data is protected by copyright, trademark or patent, or all is public."
    )
    purchased_or_licensed: Text = _text("Whether data was purchased or licensed.")
    personal_information: Text = _text("Whether there is personal information (Cal. Civ. Code 1798.140 (v)).")
    consumer_information: Text = _text("Whether there is aggregate consumer information (Cal. Civ. Code 1798.140 (b)).")
    first_used: Text = _text("Dates on which the data was first used during development.")
    use_cases: Text = _text("What the data is meant for, and what it is not meant for.")
    social_impact: Text = _text("Social impact of the data, or none that is known.")
    known_biases: Text = _text("Biases beside the shifts that are counted, or none that are known.")
    annotators: Text = _text("Labels that people gave: how many per sample, who they were, on which platform; or none.")


def read_declared(path: Path) -> Declared:
    """The file. A file that is missing says nothing. Raises ValueError for a key that no form asks for, with the
    nearest one, and for a value that is no text."""
    if not path.is_file():
        return Declared()
    content = read_yaml(path)
    if isinstance(content, Mapping):  # YAML makes dates of what looks like one
        content = {key: value.isoformat() if isinstance(value, date) else value for key, value in content.items()}
    return build(Declared, {} if content is None else content, str(path))


def blank_declared() -> str:
    """The text of a summary.yaml in which everything is to be filled in."""
    lines = ["# What only you can attest, for `curate summary`. A key without a value counts as not provided."]
    for name, info in fields_of(Declared).items():
        lines += ["", f"# {info.description}", f"{name}:"]
    return "\n".join(lines) + "\n"
