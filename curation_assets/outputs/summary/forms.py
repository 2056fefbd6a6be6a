"""The forms of `curate summary` by name."""

from curation_assets.core.validation import unknown_name
from curation_assets.outputs.summary import ca_ab2013, croissant_rai, eu_gpai
from curation_assets.outputs.summary.document import Form

FORMS: dict[str, Form] = {form.name: form for form in (eu_gpai.FORM, ca_ab2013.FORM, croissant_rai.FORM)}


def get_form(name: str) -> Form:
    """The form of a name. Raises ValueError that names the nearest."""
    if name not in FORMS:
        raise ValueError(f"no form {unknown_name(name, FORMS)}")
    return FORMS[name]
