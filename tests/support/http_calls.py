"""Calls to a page server of the tests."""

import http.client
import json
from typing import Any

from curation_assets.annotation.web import LabellingServer


def call(server: LabellingServer, method: str, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    sent = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    connection.request(method, path, None if content is None else json.dumps(content), sent)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, json.loads(body) if answer.headers.get_content_type() == "application/json" else body
