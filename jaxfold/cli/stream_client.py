"""A streaming HTTP client in a process of its own, so that a benchmark's client does not slow the server's process.

Reads one JSON request a line on stdin, {"url": ..., "bodies": [...]}, sends the bodies at the same time and answers
with one JSON line: for each body, [seconds on the monotonic clock, new tokens] of each event that counts some.
"""

import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 600


def arrivals(url: str, body: dict[str, Any]) -> list[tuple[float, int]]:
    """(time, new tokens) of every event of one streamed completion; the body asks for continuous_usage_stats.

    Raises:
        ConnectionError: the server answered anything but a whole stream.
    """
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", target.path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ConnectionError(f"HTTP {response.status}: {response.read(500).decode(errors='replace')}")
        times: list[tuple[float, int]] = []
        seen = 0
        for line in response:
            at = time.monotonic()
            if line.startswith(b"data: [DONE]"):
                return times
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise ConnectionError(event["error"]["message"])
                total = event["usage"]["completion_tokens"]
                if total > seen:
                    times.append((at, total - seen))
                    seen = total
        raise ConnectionError("the stream ended without [DONE]")
    finally:
        connection.close()


def main() -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        bodies = request["bodies"]
        try:
            with ThreadPoolExecutor(len(bodies)) as pool:
                answer: Any = list(pool.map(partial(arrivals, request["url"]), bodies))
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
