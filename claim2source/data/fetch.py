"""Read posts from a file, from standard input, or from the public APIs of Bluesky and Mastodon.

Only hosts of these networks are contacted, over HTTPS. Redirects are refused, the size of answers
is limited, and no key or cookie is sent.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from claim2source.core.arguments import is_digits
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.languages import is_language_tag, primary_language
from claim2source.data.networks import Bluesky, PostParts, mastodon_post, objects
from claim2source.data.posts import LONGEST, Post, read_posts

BLUESKY, BLUESKY_API = "bsky.app", "public.api.bsky.app"
# Instances of Mastodon that researchers and newsrooms use; users can name others.
MASTODON = tuple(
    (
        "mastodon.social mastodon.online mastodon.world mstdn.social mstdn.science mas.to "
        "fosstodon.org hachyderm.io scholar.social fediscience.org sciences.social "
        "med-mastodon.com troet.cafe chaos.social social.tchncs.de piaille.fr mamot.fr"
    ).split()
)
log = logging.getLogger(__name__)
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
_HEADERS["User-Agent"] = "claim2source"
_HOST = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)+")
_HANDLE = re.compile(r"did:[a-z]+:[A-Za-z0-9._:%-]+|[A-Za-z0-9.-]+")
_KEY = re.compile(r"[A-Za-z0-9._~:-]+")
_OTHER_ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]*://\S*|file:.*|(?:data|javascript|mailto|blob|view-source|vbscript|at):\S+",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Fetcher:
    """Read posts. `instances` are further hosts of Mastodon.

    `base_urls` maps a host to an address that replaces https://HOST, for tests.
    """

    instances: tuple[str, ...] = ()
    timeout: float = 10.0
    limit: int = 2**20
    base_urls: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in self.instances:
            if not _HOST.fullmatch(host):
                raise UserError(f"instances: {host!r} is not a host, such as mastodon.social")

    def knows(self, address: str) -> bool:
        """Whether an address is on a network whose posts can be read."""
        try:
            host = urlsplit(address.strip()).hostname or ""
        except ValueError:
            return False
        return host.removeprefix("www.") in (BLUESKY, *MASTODON, *self.instances)

    def post(self, address: str, id: str = "0") -> Post:
        """Read the post at an address. Raises `UserError` if none can be read."""
        try:
            parts = urlsplit(address.strip())
            host, port = (parts.hostname or "").removeprefix("www."), parts.port
        except ValueError:
            raise UserError(f"{address}: is not an address") from None
        if parts.scheme != "https" or port is not None or parts.username is not None:
            raise UserError(f"{address}: is not a plain https:// address of a post")
        path = parts.path.strip("/").split("/")
        if host == BLUESKY:
            return self._bluesky(address, path, id)
        if host in (*MASTODON, *self.instances):
            return self._mastodon(address, host, path, id)
        raise UserError(
            f"{address}: {host or 'this'} is neither {BLUESKY} nor a known instance of Mastodon; "
            "add it with --instances, or paste the post's text"
        )

    def _bluesky(self, address: str, path: list[str], id: str) -> Post:
        good = len(path) == 4 and path[0] == "profile" and path[2] == "post"
        if not (good and _HANDLE.fullmatch(path[1]) and _KEY.fullmatch(path[3])):
            raise UserError(f"{address}: is not https://{BLUESKY}/profile/NAME/post/KEY")
        name = path[1]
        if not name.startswith("did:"):
            query = f"com.atproto.identity.resolveHandle?handle={quote(name, safe='')}"
            name = _text(self._json(f"{BLUESKY_API}/xrpc/{query}", address), "did", address)

        def fetch_post_view(uri: str) -> dict[str, Any] | None:
            """Fetch the post at an AT address; None if it is not visible."""
            query = f"app.bsky.feed.getPosts?uris={quote(uri, safe='')}"
            posts = objects(self._json(f"{BLUESKY_API}/xrpc/{query}", address).get("posts"))
            return posts[0] if posts and isinstance(posts[0].get("record"), dict) else None

        view = fetch_post_view(f"at://{name}/app.bsky.feed.post/{path[3]}")
        if view is None:
            raise UserError(f"{address}: no such post, or it is not public")
        return _to_post(address, id, Bluesky(fetch_post_view).post(view))

    def _mastodon(self, address: str, host: str, path: list[str], id: str) -> Post:
        if not (len(path) == 2 and path[0].startswith("@") and is_digits(path[1])):
            raise UserError(f"{address}: is not https://{host}/@NAME/NUMBER")
        answer = self._json(f"{host}/api/v1/statuses/{path[1]}", address)
        _text(answer, "content", address)
        return _to_post(address, id, mastodon_post(answer))

    def _json(self, url: str, address: str) -> dict[str, Any]:
        import httpx2

        host, _, rest = url.partition("/")
        endpoint = f"{self.base_urls.get(host, f'https://{host}')}/{rest}"
        data, end = b"", time.monotonic() + self.timeout
        try:
            with httpx2.stream("GET", endpoint, headers=_HEADERS, timeout=self.timeout) as answer:
                code = answer.status_code
                if answer.has_redirect_location:
                    reason = f"it redirects elsewhere ({code})"
                    raise UserError(f"{address}: {host} cannot be read: {reason}")
                if code in (400, 401, 403, 404, 410):
                    raise UserError(f"{address}: no such post, or it is not public")
                if answer.is_error:
                    raise UserError(f"{address}: {host} answered with status {code}")
                for part in answer.iter_raw():
                    data += part
                    if len(data) > self.limit:
                        reason = f"{host} sent more than {self.limit} bytes"
                        raise UserError(f"{address}: {reason}")
                    if time.monotonic() > end:
                        raise httpx2.ReadTimeout("timed out")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UserError(f"{address}: {host} cannot be read: {error}") from None
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise UserError(f"{address}: {host} did not answer with a JSON object")
        return reply


def is_address(text: str) -> bool:
    """Whether a text is an address and nothing else."""
    return re.fullmatch(r"https?://\S+", text.strip(), re.IGNORECASE) is not None


def is_other_address(text: str) -> bool:
    """Whether a text is only an address outside the web, such as file:///x."""
    return _OTHER_ADDRESS.fullmatch(text.strip()) is not None and not is_address(text)


def _to_post(address: str, id: str, parts: PostParts) -> Post:
    if not parts.text.strip():
        has = ", ".join(parts.without_text)
        raise UserError(f"{address}: the post has no text" + (f"; it has {has}" if has else ""))
    date = parts.date
    day = date[:10] if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", date) else ""
    lang = primary_language(parts.lang) if is_language_tag(parts.lang) else ""
    links = dict.fromkeys(link for link in parts.links if is_address(link))
    return Post(id, parts.text, lang, day, links=tuple(links))


def _text(answer: Mapping[str, Any], key: str, address: str) -> str:
    value = answer.get(key)
    if not isinstance(value, str):
        raise UserError(f"{address}: the answer has no {key}")
    return value


def posts_from(
    post: str | None,
    file: Path | None,
    fetcher: Fetcher | None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Post]:
    """Read the posts of a file, or else one post, which `-` reads from standard input.

    `columns` name the columns of a file's fields. A fetcher replaces web addresses by their posts.
    Raises `UserError` for an address that cannot be read; in a file only if none can.
    """
    if file is None:
        text = _standard_input() if post == "-" else post or ""
        yield resolved(Post("0", text), fetcher)
        return
    failed: list[UserError] = []
    read = 0
    for item in read_posts(file, columns):
        try:
            yield resolved(item, fetcher)
            read += 1
        except UserError as error:
            if fetcher is None:
                raise
            failed.append(error)
    if failed and not read:
        raise failed[0]
    if failed:
        log.warning("%s: skipped %d addresses: %s", file, len(failed), failed[0])


def resolved(item: Post, fetcher: Fetcher | None) -> Post:
    """Return a post, or fetch it if its text is an address. Raises `UserError` if that fails."""
    reason = address_error(item.text, fetcher or Fetcher(), "--fetch downloads")
    if reason is None:
        return item
    if fetcher is None or not is_address(item.text):
        raise UserError(f"{item.text.strip()}: {reason}")
    fetched = fetcher.post(item.text, item.id)
    return replace(fetched, date=item.date or fetched.date, lang=item.lang or fetched.lang)


def address_error(text: str, fetcher: Fetcher, offer: str) -> str | None:
    """Return the reason why a post cannot be searched, because it is an address; None if it can.

    `offer` names a way to download the post, if the fetcher knows the network.
    """
    if is_other_address(text):
        return "is an address that cannot be fetched: only https:// addresses of posts can"
    if not is_address(text):
        return None
    if fetcher.knows(text):
        return f"is an address; {offer} the post there"
    return (
        f"is an address of neither {BLUESKY} nor a known instance of Mastodon: paste the post's "
        "text, or add the instance with --instances"
    )


def _standard_input() -> str:
    data = sys.stdin.buffer.read(4 * LONGEST + 1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input", reason="is not UTF-8") from None
    if not text.strip():
        raise ConfigError("post", text[:40], "a text; standard input is empty")
    return text
