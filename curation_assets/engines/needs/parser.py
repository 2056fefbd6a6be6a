"""parser: any spaCy pipeline with a tagger and a parser."""

from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(package="spacy", extra="texts")
