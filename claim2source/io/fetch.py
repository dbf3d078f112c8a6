"""Read posts: of a file, standard input, or an address of Bluesky or Mastodon by its public API.

What a post quotes, boosts or shows belongs to it: `post_parts` says how it is read. Nothing but
these hosts is asked, over HTTPS: redirects are refused, answers are small, and neither a key nor a
cookie is sent.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.io.post_parts import PostParts, bluesky_post, mastodon_post, objects
from claim2source.io.posts import LONGEST, Post, read_posts

BLUESKY, BLUESKY_API = "bsky.app", "public.api.bsky.app"
# Instances of Mastodon that researchers and newsrooms use; others are named by the user.
MASTODON = tuple(
    (
        "mastodon.social mastodon.online mastodon.world mstdn.social mstdn.science mas.to "
        "fosstodon.org hachyderm.io scholar.social fediscience.org sciences.social "
        "med-mastodon.com troet.cafe chaos.social social.tchncs.de piaille.fr mamot.fr"
    ).split()
)
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
_HEADERS["User-Agent"] = "claim2source"
_HOST = re.compile(r"(?!-)[a-z0-9-]+(\.[a-z0-9-]+)+")
_HANDLE = re.compile(r"did:[a-z]+:[A-Za-z0-9._:%-]+|[A-Za-z0-9.-]+")
_KEY = re.compile(r"[A-Za-z0-9._~:-]+")


@dataclass(frozen=True)
class Fetcher:
    """Read posts. `instances` are further hosts of Mastodon.

    `base_urls` maps a host to where it is asked in place of https://HOST: a server of tests.
    """

    instances: tuple[str, ...] = ()
    timeout: float = 10.0
    limit: int = 2**20
    base_urls: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in self.instances:
            if not _HOST.fullmatch(host):
                raise UserError(f"instances: {host!r} is not a host, such as mastodon.social")

    def post(self, address: str, id: str = "0") -> Post:
        """Read the post at an address. Raises `UserError` where none can be read."""
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
            "name one by --instances, or paste the post's text"
        )

    def _bluesky(self, address: str, path: list[str], id: str) -> Post:
        good = len(path) == 4 and path[0] == "profile" and path[2] == "post"
        if not (good and _HANDLE.fullmatch(path[1]) and _KEY.fullmatch(path[3])):
            raise UserError(f"{address}: is not https://{BLUESKY}/profile/NAME/post/KEY")
        name = path[1]
        if not name.startswith("did:"):
            query = f"com.atproto.identity.resolveHandle?handle={quote(name, safe='')}"
            name = _text(self._json(f"{BLUESKY_API}/xrpc/{query}", address), "did", address)

        def view_of(uri: str) -> dict[str, Any] | None:
            """Ask for the post at an AT address; None where it cannot be seen."""
            query = f"app.bsky.feed.getPosts?uris={quote(uri, safe='')}"
            posts = objects(self._json(f"{BLUESKY_API}/xrpc/{query}", address).get("posts"))
            return posts[0] if posts and isinstance(posts[0].get("record"), dict) else None

        view = view_of(f"at://{name}/app.bsky.feed.post/{path[3]}")
        if view is None:
            raise UserError(f"{address}: no such post, or it is not public")
        return _post_of(address, id, bluesky_post(view, view_of))

    def _mastodon(self, address: str, host: str, path: list[str], id: str) -> Post:
        if not (len(path) == 2 and path[0].startswith("@") and path[1].isdecimal()):
            raise UserError(f"{address}: is not https://{host}/@NAME/NUMBER")
        answer = self._json(f"{host}/api/v1/statuses/{path[1]}", address)
        _text(answer, "content", address)
        return _post_of(address, id, mastodon_post(answer))

    def _json(self, url: str, address: str) -> dict[str, Any]:
        import httpx2

        host, _, rest = url.partition("/")
        endpoint = f"{self.base_urls.get(host, f'https://{host}')}/{rest}"
        data, end = b"", time.monotonic() + self.timeout
        try:
            with httpx2.stream("GET", endpoint, headers=_HEADERS, timeout=self.timeout) as answer:
                if answer.has_redirect_location:
                    code = answer.status_code
                    raise UserError(
                        f"{address}: {host} cannot be read: it redirects elsewhere ({code})"
                    )
                if answer.is_error:
                    hidden = answer.status_code in (400, 401, 403, 404, 410)
                    why = "no such post, or it is not public"
                    raise UserError(
                        f"{address}: {why if hidden else f'{host} answers {answer.status_code}'}"
                    )
                for part in answer.iter_raw():
                    data += part
                    if len(data) > self.limit:
                        raise UserError(f"{address}: {host} answers more than {self.limit} bytes")
                    if time.monotonic() > end:
                        raise httpx2.ReadTimeout("timed out")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UserError(f"{address}: {host} cannot be read: {error}") from None
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise UserError(f"{address}: {host} does not answer a JSON object")
        return reply


def is_address(text: str) -> bool:
    """Tell whether a text is an address and nothing else."""
    return re.fullmatch(r"https?://\S+", text.strip(), re.IGNORECASE) is not None


def _post_of(address: str, id: str, parts: PostParts) -> Post:
    if not parts.text.strip():
        has = ", ".join(parts.without_text)
        raise UserError(f"{address}: the post has no text" + (f"; it has {has}" if has else ""))
    date, language = parts.date, parts.lang.partition("-")[0].lower()
    day = date[:10] if re.match(r"\d{4}-\d\d-\d\d", date) else ""
    lang = language if re.fullmatch("[a-z]{2,3}", language) else ""
    links = dict.fromkeys(link for link in parts.links if is_address(link))
    return Post(id, parts.text, lang, day, links=tuple(links))


def _text(answer: Mapping[str, Any], key: str, address: str) -> str:
    value = answer.get(key)
    if not isinstance(value, str):
        raise UserError(f"{address}: the answer has no {key}")
    return value


def posts_of(post: str | None, file: Path | None, fetcher: Fetcher | None) -> Iterator[Post]:
    """Read the posts of a file, else the one post, which is on standard input where it is `-`.

    A fetcher reads those that are addresses. Raises `UserError` for an address without one.
    """
    if file is not None:
        posts = read_posts(file)
    else:
        posts = iter([Post("0", _standard_input() if post == "-" else post or "")])
    for item in posts:
        if not is_address(item.text):
            yield item
        elif fetcher is not None:
            fetched = fetcher.post(item.text, item.id)
            yield replace(fetched, date=item.date or fetched.date, lang=item.lang or fetched.lang)
        else:
            raise UserError(f"{item.text.strip()}: is an address; --fetch reads the post there")


def _standard_input() -> str:
    data = sys.stdin.buffer.read(4 * LONGEST + 1)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input", why="is not UTF-8") from None
    if not text.strip():
        raise ConfigError("post", text[:40], "a text; standard input holds none")
    return text
