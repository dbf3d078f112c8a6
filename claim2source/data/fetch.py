"""Read posts: of a file, standard input, or an address of Bluesky or Mastodon by its public API.

Nothing but these hosts is asked, over HTTPS: redirects are refused, answers are small, and neither
a key nor a cookie is sent. The claim is often not in a post's own words but in what it quotes or
boosts, in the description of a picture, or on the card of a link: each is a paragraph of its own
that begins with its kind in brackets, such as `[quoted post]`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from claim2source.core.arguments import is_digits
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.languages import is_language_tag, primary_language
from claim2source.data.posts import LONGEST, Post, read_posts

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
# Posts within posts that are read, the outermost included.
_DEEPEST = 3
_OTHER_ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]*://\S*|file:.*|(?:data|javascript|mailto|blob|view-source|vbscript|at):\S+",
    re.IGNORECASE,
)
_LINK = "app.bsky.richtext.facet#link"
_POST_URI = re.compile(r"at://did:[a-z]+:[A-Za-z0-9._:%-]+/app\.bsky\.feed\.post/[A-Za-z0-9._~:-]+")


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

        def fetch_post_view(uri: str) -> dict[str, Any] | None:
            """Ask for the post at an AT address; None if it cannot be seen."""
            query = f"app.bsky.feed.getPosts?uris={quote(uri, safe='')}"
            posts = objects(self._json(f"{BLUESKY_API}/xrpc/{query}", address).get("posts"))
            return posts[0] if posts and isinstance(posts[0].get("record"), dict) else None

        view = fetch_post_view(f"at://{name}/app.bsky.feed.post/{path[3]}")
        if view is None:
            raise UserError(f"{address}: no such post, or it is not public")
        return _to_post(address, id, _Bluesky(fetch_post_view).post(view))

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
                    raise UserError(f"{address}: {host} answers {code}")
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
    """Whether a text is an address and nothing else."""
    return re.fullmatch(r"https?://\S+", text.strip(), re.IGNORECASE) is not None


def is_other_address(text: str) -> bool:
    """Whether a text is nothing but an address that is not of the web, such as file:///x."""
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


def posts_from(post: str | None, file: Path | None, fetcher: Fetcher | None) -> Iterator[Post]:
    """Read the posts of a file, else the one post, which is on standard input if it is `-`.

    A fetcher reads those that are addresses of the web. Raises `UserError` for one without a
    fetcher, and for any other address.
    """
    if file is not None:
        posts = read_posts(file)
    else:
        posts = iter([Post("0", _standard_input() if post == "-" else post or "")])
    for item in posts:
        if is_other_address(item.text):
            reason = "is an address that is not fetched"
            raise UserError(f"{item.text.strip()}: {reason}: only https:// addresses of posts are")
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
        raise InputError("standard input", reason="is not UTF-8") from None
    if not text.strip():
        raise ConfigError("post", text[:40], "a text; standard input holds none")
    return text


@dataclass
class PostParts:
    """Paragraphs, links, language and time of a post, and its parts without text."""

    paragraphs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    lang: str = ""
    date: str = ""
    without_text: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)

    def add(self, kind: str, *texts: object) -> None:
        """Add a marked paragraph of the texts that are some, or name the kind as without text."""
        words = [text for text in map(_plain_text, texts) if text]
        if words:
            self.paragraphs.append(f"[{kind}] {'. '.join(dict.fromkeys(words))}")
        else:
            self.without_text.append(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} without text")

    def add_post(self, kind: str, post: PostParts | None) -> None:
        """Add another post's text, marked; its language counts if this one has no words."""
        if post is None or not post.paragraphs:
            self.without_text.append(f"a {kind} that cannot be read")
            return
        self.lang = self.lang if self.paragraphs else post.lang or self.lang
        self.date = self.date or post.date
        first, *rest = post.paragraphs
        self.paragraphs += [f"[{kind}] {first}", *rest]
        self.links += post.links


@dataclass(frozen=True)
class _Bluesky:
    """Read views of posts; `fetch_post_view` asks for another post by its address."""

    fetch_post_view: Callable[[str], Mapping[str, Any] | None]

    def post(self, view: Mapping[str, Any], depth: int = 1) -> PostParts:
        """Read a view: `getPosts` answers its `record`, and its `embed` as it is shown."""
        record = _object(view.get("record")) or _object(view.get("value"))
        if _kind(record) == "app.bsky.feed.repost":  # a boost has nothing of its own
            parts = PostParts()
            parts.add_post("boosted post", self._at(_object(record.get("subject")), depth))
            return parts
        parts, langs = PostParts(), record.get("langs")
        parts.paragraphs += filter(None, [_plain_text(record.get("text"))])
        lang = langs[0] if isinstance(langs, list) and langs else ""
        parts.lang = lang if isinstance(lang, str) else ""
        parts.date = _plain_text(record.get("createdAt"))
        for facet in objects(record.get("facets")):
            for feature in objects(facet.get("features")):
                if _kind(feature) == _LINK and isinstance(feature.get("uri"), str):
                    parts.links.append(feature["uri"])
        embed = view.get("embed")
        if not isinstance(embed, Mapping):  # a post that is quoted lists what it shows
            embed = next(iter(objects(view.get("embeds"))), {})
        own = _object(record.get("embed"))
        media = own or embed
        # recordWithMedia holds a quotation and pictures.
        _add_media(parts, _object(media.get("media")) or media)
        self._add_quotation(parts, _quoted(own), _quoted(embed), depth)
        return parts

    def _add_quotation(
        self, parts: PostParts, record: Mapping[str, Any], view: Mapping[str, Any], depth: int
    ) -> None:
        names = [_plain_text(view.get(name)) for name in ("displayName", "name", "description")]
        if isinstance(view.get("value"), Mapping) and depth < _DEEPEST:
            parts.add_post("quoted post", self.post(view, depth + 1))
        elif any(names):
            parts.add("quoted list", *names)
        elif record or view:
            kind = _kind(view).rpartition("#")[2]
            hidden = kind in ("viewBlocked", "viewNotFound", "viewDetached")
            parts.add_post("quoted post", None if hidden else self._at(record or view, depth))

    def _at(self, record: Mapping[str, Any], depth: int) -> PostParts | None:
        uri = record.get("uri")
        if depth >= _DEEPEST or not (isinstance(uri, str) and _POST_URI.fullmatch(uri)):
            return None
        view = self.fetch_post_view(uri)
        return None if view is None else self.post(view, depth + 1)


def _add_media(parts: PostParts, media: Mapping[str, Any]) -> None:
    for image in objects(media.get("images")):
        parts.add("image", image.get("alt"))
    if "video" in media or _kind(media).startswith("app.bsky.embed.video"):
        parts.add("video", media.get("alt"))
    if external := _object(media.get("external")):
        uri, texts = external.get("uri"), [external.get("title"), external.get("description")]
        parts.links += [uri] if isinstance(uri, str) else []
        if uri is None or any(map(_plain_text, texts)):
            parts.add("link", *texts)
        else:
            parts.without_text.append(f"a link to {_plain_text(uri)}")


def _quoted(embed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record that an embed quotes; recordWithMedia has it one level deeper."""
    record = _object(embed.get("record"))
    return _object(record.get("record")) or record


def mastodon_post(status: Mapping[str, Any], depth: int = 1) -> PostParts:
    """Read a status as `GET /api/v1/statuses/ID` answers it."""
    boosted = _object(status.get("reblog"))
    if boosted and depth < _DEEPEST:
        parts = PostParts()
        parts.add_post("boosted post", mastodon_post(boosted, depth + 1))
        return parts
    # Servers of other software answer the quoted status itself.
    quote = _object(status.get("quote"))
    quoted = _object(quote.get("quoted_status"))
    if not quoted and "content" in quote:
        quoted = quote
    parts = _own_parts(status, excluded=("quote-inline",) if quoted else ())
    for media in objects(status.get("media_attachments")):
        kind = {"gifv": "video", "unknown": "attachment"}.get(str(media.get("type")))
        parts.add(kind or _plain_text(media.get("type")) or "attachment", media.get("description"))
    poll = _object(status.get("poll"))
    if poll:
        options = objects(poll.get("options"))
        parts.add("poll", *(option.get("title") for option in options))
    card = _object(status.get("card"))
    if card:
        if isinstance(card.get("url"), str):
            parts.links.append(card["url"])
        parts.add("link", card.get("title"), card.get("description"))
    if quote:
        inner = None
        if quoted and depth < _DEEPEST:
            inner = mastodon_post(quoted, depth + 1)
        parts.add_post("quoted post", inner)
    return parts


def _own_parts(status: Mapping[str, Any], excluded: tuple[str, ...]) -> PostParts:
    """Read a status's own text, below its content warning, and the links in it."""
    content = status.get("content")
    html = _Html(excluded)
    html.feed(content if isinstance(content, str) else "")
    html.close()
    text = html.text
    warning = _plain_text(status.get("spoiler_text"))
    if warning:
        text = f"{warning}\n{text}"
    text = text.strip()
    parts = PostParts([text] if text else [], html.links)
    parts.lang = _plain_text(status.get("language"))
    parts.date = _plain_text(status.get("created_at"))
    return parts


class _Html(HTMLParser):
    """Collect the text and the links of a status; mentions and hashtags are not links.

    `without` are classes of elements that are left out.
    """

    _PARAGRAPHS = frozenset(
        ["p", "blockquote", "pre", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6", "table", "hr"]
    )
    _LINES = frozenset(
        "li div tr dt dd dl section article aside header footer main nav address figure figcaption "
        "caption details summary option button fieldset legend form title noscript".split()
    )
    _CELLS = frozenset(["td", "th"])
    _VOID = frozenset(["br", "hr", "img", "wbr", "input"])
    _UNSEEN = frozenset(["script", "style", "template", "head"])

    def __init__(self, excluded: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.links: list[str] = []
        self._without = set(excluded)
        self._parts: list[str] = []
        # The element that is left out, and how deep in elements of its kind the reader is.
        self._skipped, self._depth = "", 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        classes = set((attributes.get("class") or "").split())
        if self._skipped:
            self._depth += tag == self._skipped
            return
        if tag not in self._VOID and (tag in self._UNSEEN or classes & self._without):
            self._skipped, self._depth = tag, 1
            return
        if tag == "a" and attributes.get("href") and not {"mention", "hashtag"} & classes:
            self.links.append(str(attributes["href"]))
        if tag == "img":  # a server's own emoji
            self._parts.append(attributes.get("alt") or attributes.get("title") or "")
        self._verbatim += tag == "pre"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
            return
        self._verbatim = max(0, self._verbatim - (tag == "pre"))
        if tag != "br":
            self._break(tag)

    def _break(self, tag: str) -> None:
        if tag in self._PARAGRAPHS:
            self._parts.append("\n\n")
        elif tag == "br" or tag in self._LINES and not self._begins_line:
            self._parts.append("\n")
        elif tag in self._CELLS:
            self._parts.append(" ")

    @property
    def _begins_line(self) -> bool:
        return bool(self._parts) and self._parts[-1].rstrip(" ").endswith("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._parts.append(data if self._verbatim else re.sub(r"[ \t\r\n\f]+", " ", data))

    @property
    def text(self) -> str:
        """Join the pieces: no spaces around line ends, at most one empty line."""
        lines = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(self._parts))
        return re.sub(r"\n{3,}", "\n\n", lines).strip()


def objects(value: object) -> list[dict[str, Any]]:
    """List the objects of a list; nothing if it is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain_text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _kind(value: Mapping[str, Any]) -> str:
    return _plain_text(value.get("$type"))
