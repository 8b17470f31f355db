"""`helm test`: asks one question over the Service and streams the answer; exits 1 unless it is whole."""

import json
import os
import ssl
import sys
import urllib.request


def first_key(text):
    """Of a key file: its first line that is no comment."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def ask():
    """The answer's text and its finish reason; raises on any failure."""
    body = {
        "model": os.environ["PDSERVE_MODEL"],
        "messages": [{"role": "user", "content": os.environ["PDSERVE_QUESTION"]}],
        "max_tokens": 16,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    key = first_key(os.environ.get("PDSERVE_API_KEYS", ""))
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        os.environ["PDSERVE_URL"] + "/v1/chat/completions", json.dumps(body).encode(), headers
    )
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate is for the name that clients use
    context.verify_mode = ssl.CERT_NONE
    timeout_s = float(os.environ["PDSERVE_TIMEOUT_S"])
    text, reason = "", None
    with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if not data or data == "[DONE]":
                continue
            choice = json.loads(data)["choices"][0]
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    return text, reason


answer_text, finish_reason = ask()
print(answer_text)
if not answer_text.strip() or finish_reason not in ("stop", "length"):
    sys.exit(f"no whole answer: finish_reason={finish_reason}")
