"""Read what servers reply within bounds, and tell what may pass."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from claim2source.core.terminal import printable_line, shortened

if TYPE_CHECKING:
    import httpx2

# Bytes of a reply, unpacked.
MOST_BYTES = 8 * 2**20
MOST_REDIRECTS = 3
# Sent with every request: other packings unpack without a bound.
HEADERS = {"Accept-Encoding": "gzip, deflate"}
_PACKED = ("gzip", "x-gzip", "deflate")
# Busy servers say these; 408 is a proxy's time-out, 409 a lock's.
_PASSING = (408, 409, 425, 429)
# With these no other request can succeed either.
_USELESS = (401, 402, 403, 404, 405, 501)
# Faults of the server's own that stay: what it was not made to do.
_LASTING = (501, 505, 506, 508, 510, 511)
_SPENT = re.compile(
    r"insufficient[_ ](?:quota|balance|funds|credits?)|exceeded_current_quota|arrearage"
    r"|billing_(?:hard_limit|not_active)",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(
    r"\b(?:inputs?|prompt|request|documents?|sequence|texts?|query|batch|payload)\b[^.]{0,60}"
    r"\b(?:too large|(?:is|are|was) too long)|context (?:length|size|window)|too many input tokens",
    re.IGNORECASE,
)
# Characters of a server's words that are shown, and that are searched for what they mean.
_LONGEST_WORDS, _READ = 300, 2000


class Spent(Exception):
    """Say that a budget allows no further request."""


@dataclass
class Budget:
    """Count the requests that are sent, with those that the client sends again."""

    most: int | None = None
    sent: int = 0

    def spend(self) -> None:
        """Count a request. Raises `Spent` where there may be no more."""
        if self.most is not None and self.sent >= self.most:
            raise Spent(f"the budget of {self.most} requests (llm.max_requests) is spent")
        self.sent += 1


class Refused(Exception):
    """Say with what status and words a server refused a request.

    `why` may repeat what was sent: who shows it takes the key out, and `shown` does the rest.
    """

    def __init__(self, status: int, why: str, codes: str = "") -> None:
        self.status, self.why, self.codes = status, why, codes
        super().__init__(why)

    @property
    def is_spent(self) -> bool:
        """Tell whether the account has no means left: waiting does not help."""
        if self.status not in (402, 403, 429):
            return False
        return self.status == 402 or bool(_SPENT.search(f"{self.codes} {self.why[:_READ]}"))

    @property
    def is_lasting(self) -> bool:
        """Tell whether no other request can succeed either."""
        return self.is_spent or self.status in _USELESS or 300 <= self.status < 400

    @property
    def is_too_large(self) -> bool:
        """Tell whether a shorter text may be taken; some servers say so with status 500."""
        return self.status == 413 or bool(_TOO_LARGE.search(self.why[:_READ]))

    @property
    def passes(self) -> bool:
        """Tell whether the same request may succeed later."""
        if self.is_spent or self.is_too_large:
            return False
        return self.status in _PASSING or (self.status >= 500 and self.status not in _LASTING)


def refusal(status: int, content: bytes) -> Refused:
    """Read a refusal's words, wherever a server puts them."""
    text = content.decode("utf-8", "replace")
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return Refused(status, text)
    found = said.get("error", said) if isinstance(said, dict) else said
    found = {"message": found} if isinstance(found, str) else found
    if not isinstance(found, dict):
        return Refused(status, text)
    codes = " ".join(str(found[key]) for key in ("code", "type", "param") if found.get(key))
    words = (found.get(key) for key in ("message", "detail"))
    why = next((one for one in words if one and isinstance(one, str)), text)
    return Refused(status, why, codes[:_LONGEST_WORDS])


def short_line(words: str) -> str:
    """Make one short line of a server's words."""
    return shortened(printable_line(words), _LONGEST_WORDS)


def other_shape(content: bytes, what: str) -> Refused:
    """Say that a reply is not what was asked for, and show how it begins."""
    start = content[: 4 * _LONGEST_WORDS].decode("utf-8", "replace")
    return Refused(200, f"a reply that is {what}: {start}")


@cache
def bounded_client() -> type[httpx2.AsyncClient]:
    """Make the class of a client whose replies are bounded, and which stays at its origin.

    The OpenAI package sends again what fails; what cannot succeed is marked for it by a header.
    """
    import httpx2

    class Bounded(httpx2.AsyncClient):
        budget = Budget()

        async def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:
            if request.method == "POST":
                self.budget.spend()
            try:
                # httpx's own limit starts anew with every piece of a reply.
                async with asyncio.timeout(request.extensions["timeout"]["read"]):
                    reply = await self._whole(request, more)
            except TimeoutError:
                raise httpx2.ReadTimeout("time-out", request=request) from None
            if reply.status_code == 200 and _is_cut(reply.content):
                raise httpx2.RemoteProtocolError("a reply that is cut off", request=request)
            passes = reply.status_code >= 400 and refusal(reply.status_code, reply.content).passes
            reply.headers["x-should-retry"] = "true" if passes else "false"
            return reply

        async def _whole(self, request: httpx2.Request, more: dict[str, Any]) -> httpx2.Response:
            more |= {"stream": True, "follow_redirects": False}
            for _ in range(1 + MOST_REDIRECTS):
                response = await super().send(request, **more)
                try:
                    further = _further(response)
                    if further is None:
                        body = _Body(response)
                        async for piece in response.aiter_raw():
                            body.add(piece)
                        return body.response()
                finally:
                    await response.aclose()
                request = further
            raise Refused(response.status_code, "it redirects again and again")

    return Bounded


def _is_cut(content: bytes) -> bool:
    """Tell whether a reply ends within its object: it may come whole the next time."""
    try:
        json.loads(content)
    except RecursionError:
        return False
    except ValueError as error:
        is_json = not content.strip() or content.lstrip()[:1] == b"{"
        return is_json and "Extra data" not in str(error)
    return False


def _further(response: httpx2.Response) -> httpx2.Request | None:
    """Return the request that a redirect asks for; None where it is none."""
    further, url = response.next_request, response.request.url
    if further is None:
        return None
    if (further.url.scheme, further.url.netloc) != (url.scheme, url.netloc):
        # The rest of the address may hold secrets.
        there = f"{further.url.scheme}://{further.url.netloc.decode('ascii', 'replace')}"
        raise Refused(response.status_code, f"it redirects to {there}: write that as the address")
    return further


class _Body:
    """Collect the bytes of a reply, unpacked. Raises `Refused` for more than MOST_BYTES."""

    def __init__(self, response: httpx2.Response) -> None:
        self._reply, self._content, self._unpack = response, bytearray(), None
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed in _PACKED:
            self._unpack = zlib.decompressobj(32 + zlib.MAX_WBITS)
        elif packed not in ("", "identity"):
            raise Refused(response.status_code, f"a reply that is packed as {packed}")

    def add(self, piece: bytes) -> None:
        room = MOST_BYTES + 1 - len(self._content)
        try:
            self._content += self._unpack.decompress(piece, room) if self._unpack else piece
        except zlib.error:
            raise Refused(self._reply.status_code, "a reply that cannot be unpacked") from None
        if len(self._content) > MOST_BYTES:
            raise Refused(self._reply.status_code, f"a reply of more than {MOST_BYTES >> 20} MiB")

    def response(self) -> httpx2.Response:
        reply, left_out = self._reply, ("content-encoding", "content-length", "transfer-encoding")
        headers = [(k, v) for k, v in reply.headers.multi_items() if k.lower() not in left_out]
        return type(reply)(
            reply.status_code, headers=headers, content=bytes(self._content), request=reply.request
        )
