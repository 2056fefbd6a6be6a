"""Headers by which the owner of an image forbids its use: X-Robots-Tag and TDM-Reservation."""

from collections.abc import Collection
from email.message import Message

#: Directives of X-Robots-Tag that have a value after the colon, where others have an agent before it.
_VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")


def opt_out_of(
    headers: Message, *, words: Collection[str], agents: Collection[str], obey_tdm_reservation: bool = True
) -> str | None:
    """The header that forbids the use, as 'X-Robots-Tag: noai', or None.

    `words`: directives that count as a no. They may be addressed to all or to one of `agents` ("img2dataset: noai");
    what is addressed to other agents does not concern us.
    """
    words = {word.strip().lower() for word in words}
    agents = {agent.lower() for agent in agents}
    for value in headers.get_all("X-Robots-Tag", []):
        addressee = None
        for part in str(value).split(","):
            name, colon, rest = part.partition(":")
            if colon and name.strip().lower() in _VALUED:
                continue
            if colon:
                addressee = name.strip().lower()
            word = (rest if colon else part).strip().lower()
            if word in words and (addressee is None or addressee in agents):
                return f"X-Robots-Tag: {value}"[:200]
    for value in headers.get_all("TDM-Reservation", []) if obey_tdm_reservation else ():
        if str(value).strip() == "1":
            return "TDM-Reservation: 1"
    return None
