"""Short machine words for the many ways in which a download ends."""

import re


class NotFetched(Exception):  # noqa: N818 - names what happened, as a reason does
    """An image that is not fetched: opt_out, robots_txt, robots_txt_unreachable, download_rate_limited or
    download_redirect_loop.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(f"not_fetched:{reason}: {sentence}")
        self.reason = reason


#: img2dataset's message (lower case) contains → our reason. First match wins.
_MESSAGES: tuple[tuple[str, str], ...] = (
    ("x-robots-tag", "opt_out"),
    ("timed out", "download_timeout"),
    ("incompleteread", "download_truncated"),
    ("infinite loop", "download_redirect_loop"),
    ("name or service not known", "download_dns_failure"),
    ("nodename nor servname", "download_dns_failure"),
    ("temporary failure in name resolution", "download_dns_failure"),
    ("no address associated", "download_dns_failure"),
    ("getaddrinfo", "download_dns_failure"),
    ("certificate", "download_tls_error"),
    ("ssl", "download_tls_error"),
    ("connection refused", "download_connection_refused"),
    ("connection reset", "download_connection_lost"),
    ("remote end closed", "download_connection_lost"),
    ("broken pipe", "download_connection_lost"),
    ("unreachable", "download_unreachable"),
    ("no route to host", "download_unreachable"),
    ("hash mismatch", "download_hash_mismatch"),
    ("image too small", "image_too_small"),
    ("area too large", "image_too_many_pixels"),
    ("aspect ratio too large", "image_aspect_ratio"),
    ("decod", "image_undecodable"),
    ("opencv", "image_undecodable"),
)
_HTTP = re.compile(r"http error (\d{3})", re.IGNORECASE)
_OURS = re.compile(r"(url_refused|image_rejected|not_fetched):([a-z_0-9]+)")
_PREFIX = {"url_refused": "url_refused:", "image_rejected": "image_", "not_fetched": ""}


def reason_of(status: str, message: str | None) -> str:
    """Reason for img2dataset's `status` ≠ success and its `error_message`.

    Ours first (url_refused:private_address, image_too_many_pixels, robots_txt), then download_http_404 and the like;
    what is not known becomes download_failed or image_failed, and the message stays in raw/downloads.
    """
    text = message or ""
    ours = _OURS.search(text)
    if ours:
        return _PREFIX[ours[1]] + ours[2]
    http_code = _HTTP.search(text)
    if http_code:
        return f"download_http_{http_code[1]}"
    for fragment, reason in _MESSAGES:
        if fragment in text.lower():
            return reason
    return "image_failed" if status == "failed_to_resize" else "download_failed"
