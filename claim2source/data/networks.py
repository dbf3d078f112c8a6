"""Read posts as networks publish them: text, parts with their kinds, links.

Often the claim is not in a post's own words but in a quoted or boosted post, the description of a
picture, or the card of a link. Each of these becomes a paragraph that begins with its kind in
brackets, such as `[quoted post]`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

# Depth of nested posts that are read, including the outermost one.
_DEEPEST = 3
# The entities that X and Reddit write; any other entity was written by the post's author.
_ESCAPED = re.compile(r"&(?:amp|lt|gt|quot|#39);")
_LINK = "app.bsky.richtext.facet#link"
_POST_URI = re.compile(r"at://did:[a-z]+:[A-Za-z0-9._:%-]+/app\.bsky\.feed\.post/[A-Za-z0-9._~:-]+")


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
        """Add a marked paragraph with the texts that are not empty, or record their absence."""
        words = [text for text in map(plain_text, texts) if text]
        if words:
            self.paragraphs.append(f"[{kind}] {'. '.join(dict.fromkeys(words))}")
        else:
            self.without_text.append(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} without text")

    def add_post(self, kind: str, post: PostParts | None) -> None:
        """Add another post's text, marked; use its language if this one has no words."""
        if post is None or not post.paragraphs:
            self.without_text.append(f"a {kind} that cannot be read")
            return
        self.lang = self.lang if self.paragraphs else post.lang or self.lang
        self.date = self.date or post.date
        first, *rest = post.paragraphs
        self.paragraphs += [f"[{kind}] {first}", *rest]
        self.links += post.links


@dataclass(frozen=True)
class Bluesky:
    """Read views of posts; `fetch_post_view` fetches another post by its address."""

    fetch_post_view: Callable[[str], Mapping[str, Any] | None]

    def post(self, view: Mapping[str, Any], depth: int = 1) -> PostParts:
        """Read a view as `getPosts` returns it, with a `record` and the displayed `embed`."""
        record = object_or_empty(view.get("record")) or object_or_empty(view.get("value"))
        if type_name(record) == "app.bsky.feed.repost":  # a boost has no content of its own
            parts = PostParts()
            parts.add_post("boosted post", self._at(object_or_empty(record.get("subject")), depth))
            return parts
        parts, langs = PostParts(), record.get("langs")
        parts.paragraphs += filter(None, [plain_text(record.get("text"))])
        lang = langs[0] if isinstance(langs, list) and langs else ""
        parts.lang = lang if isinstance(lang, str) else ""
        parts.date = plain_text(record.get("createdAt"))
        for facet in objects(record.get("facets")):
            for feature in objects(facet.get("features")):
                if type_name(feature) == _LINK and isinstance(feature.get("uri"), str):
                    parts.links.append(feature["uri"])
        embed = view.get("embed")
        if not isinstance(embed, Mapping):  # a quoted post has a list of embeds
            embed = next(iter(objects(view.get("embeds"))), {})
        own = object_or_empty(record.get("embed"))
        media = own or embed
        # recordWithMedia contains a quotation and pictures.
        _add_media(parts, object_or_empty(media.get("media")) or media)
        self._add_quotation(parts, _quoted(own), _quoted(embed), depth)
        return parts

    def _add_quotation(
        self, parts: PostParts, record: Mapping[str, Any], view: Mapping[str, Any], depth: int
    ) -> None:
        names = [plain_text(view.get(name)) for name in ("displayName", "name", "description")]
        if isinstance(view.get("value"), Mapping) and depth < _DEEPEST:
            parts.add_post("quoted post", self.post(view, depth + 1))
        elif any(names):
            parts.add("quoted list", *names)
        elif record or view:
            kind = type_name(view).rpartition("#")[2]
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
    if "video" in media or type_name(media).startswith("app.bsky.embed.video"):
        parts.add("video", media.get("alt"))
    if external := object_or_empty(media.get("external")):
        uri, texts = external.get("uri"), [external.get("title"), external.get("description")]
        parts.links += [uri] if isinstance(uri, str) else []
        if uri is None or any(map(plain_text, texts)):
            parts.add("link", *texts)
        else:
            parts.without_text.append(f"a link to {plain_text(uri)}")


def _quoted(embed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record that an embed quotes; recordWithMedia has it one level deeper."""
    record = object_or_empty(embed.get("record"))
    return object_or_empty(record.get("record")) or record


def mastodon_post(status: Mapping[str, Any], depth: int = 1) -> PostParts:
    """Read a status as `GET /api/v1/statuses/ID` returns it."""
    boosted = object_or_empty(status.get("reblog"))
    if boosted and depth < _DEEPEST:
        parts = PostParts()
        parts.add_post("boosted post", mastodon_post(boosted, depth + 1))
        return parts
    # Servers with other software return the quoted status itself.
    quote = object_or_empty(status.get("quote"))
    quoted = object_or_empty(quote.get("quoted_status"))
    if not quoted and "content" in quote:
        quoted = quote
    parts = _own_parts(status, excluded=("quote-inline",) if quoted else ())
    for media in objects(status.get("media_attachments")):
        kind = {"gifv": "video", "unknown": "attachment"}.get(str(media.get("type")))
        parts.add(kind or plain_text(media.get("type")) or "attachment", media.get("description"))
    poll = object_or_empty(status.get("poll"))
    if poll:
        options = objects(poll.get("options"))
        parts.add("poll", *(option.get("title") for option in options))
    card = object_or_empty(status.get("card"))
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
    """Read a status's own text, after its content warning, and the links in it."""
    content = status.get("content")
    html = Html(excluded)
    html.feed(content if isinstance(content, str) else "")
    html.close()
    text = html.text
    warning = plain_text(status.get("spoiler_text"))
    if warning:
        text = f"{warning}\n{text}"
    text = text.strip()
    parts = PostParts([text] if text else [], html.links)
    parts.lang = plain_text(status.get("language"))
    parts.date = plain_text(status.get("created_at"))
    return parts


class Html(HTMLParser):
    """Collect the text and the links of a status, except mentions and hashtags.

    `excluded` are classes of elements to skip.
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
        # The element that is skipped, and the depth within elements of its kind.
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
        """Join the pieces, without spaces around line ends, and with at most one empty line."""
        lines = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(self._parts))
        return re.sub(r"\n{3,}", "\n\n", lines).strip()


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def object_or_empty(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def plain_text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def unescaped(text: str) -> str:
    """Undo the escapes of X and Reddit once: "&amp;lt;" is "&lt;", which the author wrote."""
    return _ESCAPED.sub(lambda match: html.unescape(match[0]), text)


def type_name(value: Mapping[str, Any]) -> str:
    return plain_text(value.get("$type"))
