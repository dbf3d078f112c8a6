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
# Mastodon's kinds of attachments that get another name.
_MASTODON_KINDS = {
    "gifv": "video",
    "unknown": "attachment",
}
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
            distinct = dict.fromkeys(words)
            sentences = ". ".join(distinct)
            self.paragraphs.append(f"[{kind}] {sentences}")
        else:
            article = "an" if kind[0] in "aeiou" else "a"
            self.without_text.append(f"{article} {kind} without text")

    def add_post(self, kind: str, post: PostParts | None) -> None:
        """Add another post's text, marked; use its language if this one has no words."""
        if post is None or not post.paragraphs:
            self.without_text.append(f"a {kind} that cannot be read")
            return
        if not self.paragraphs:
            self.lang = post.lang or self.lang
        self.date = self.date or post.date
        first, *rest = post.paragraphs
        marked = f"[{kind}] {first}"
        self.paragraphs += [marked, *rest]
        self.links += post.links


@dataclass(frozen=True)
class Bluesky:
    """Read views of posts; `fetch_post_view` fetches another post by its address."""

    fetch_post_view: Callable[[str], Mapping[str, Any] | None]

    def post(self, view: Mapping[str, Any], depth: int = 1) -> PostParts:
        """Read a view as `getPosts` returns it, with a `record` and the displayed `embed`."""
        record = object_or_empty(view.get("record"))
        if not record:
            record = object_or_empty(view.get("value"))
        if type_name(record) == "app.bsky.feed.repost":  # a boost has no content of its own
            subject = object_or_empty(record.get("subject"))
            boosted = self._at(subject, depth)
            parts = PostParts()
            parts.add_post("boosted post", boosted)
            return parts

        parts = PostParts()
        text = plain_text(record.get("text"))
        if text:
            parts.paragraphs.append(text)
        langs = record.get("langs")
        lang = langs[0] if isinstance(langs, list) and langs else ""
        parts.lang = lang if isinstance(lang, str) else ""
        parts.date = plain_text(record.get("createdAt"))
        _add_facet_links(parts, record)

        embed = view.get("embed")
        if not isinstance(embed, Mapping):  # a quoted post has a list of embeds
            embeds = objects(view.get("embeds"))
            embed = embeds[0] if embeds else {}
        own = object_or_empty(record.get("embed"))
        media = own or embed
        # recordWithMedia contains a quotation and pictures.
        pictures = object_or_empty(media.get("media"))
        _add_media(parts, pictures or media)
        own_record = _quoted(own)
        view_quoted = _quoted(embed)
        self._add_quotation(parts, own_record, view_quoted, depth)
        return parts

    def _add_quotation(
        self,
        parts: PostParts,
        record: Mapping[str, Any],
        view: Mapping[str, Any],
        depth: int,
    ) -> None:
        names = [plain_text(view.get(name)) for name in ("displayName", "name", "description")]
        has_value = isinstance(view.get("value"), Mapping)
        if has_value and depth < _DEEPEST:
            shown = self.post(view, depth + 1)
            parts.add_post("quoted post", shown)
        elif any(names):
            parts.add("quoted list", *names)
        elif record or view:
            address = record or view
            _, _, kind = type_name(view).rpartition("#")
            is_hidden = kind in ("viewBlocked", "viewNotFound", "viewDetached")
            fetched = None if is_hidden else self._at(address, depth)
            parts.add_post("quoted post", fetched)

    def _at(self, record: Mapping[str, Any], depth: int) -> PostParts | None:
        if depth >= _DEEPEST:
            return None
        uri = record.get("uri")
        if not isinstance(uri, str) or not _POST_URI.fullmatch(uri):
            return None
        view = self.fetch_post_view(uri)
        if view is None:
            return None
        return self.post(view, depth + 1)


def _add_facet_links(parts: PostParts, record: Mapping[str, Any]) -> None:
    """Add the addresses of the links in a record's own text."""
    for facet in objects(record.get("facets")):
        for feature in objects(facet.get("features")):
            uri = feature.get("uri")
            if type_name(feature) == _LINK and isinstance(uri, str):
                parts.links.append(uri)


def _add_media(parts: PostParts, media: Mapping[str, Any]) -> None:
    for image in objects(media.get("images")):
        parts.add("image", image.get("alt"))
    is_video = "video" in media or type_name(media).startswith("app.bsky.embed.video")
    if is_video:
        parts.add("video", media.get("alt"))

    external = object_or_empty(media.get("external"))
    if not external:
        return
    uri = external.get("uri")
    title = external.get("title")
    description = external.get("description")
    if isinstance(uri, str):
        parts.links.append(uri)
    has_text = plain_text(title) or plain_text(description)
    if uri is None or has_text:
        parts.add("link", title, description)
    else:
        parts.without_text.append(f"a link to {plain_text(uri)}")


def _quoted(embed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record that an embed quotes; recordWithMedia has it one level deeper."""
    record = object_or_empty(embed.get("record"))
    inner = object_or_empty(record.get("record"))
    return inner or record


def mastodon_post(status: Mapping[str, Any], depth: int = 1) -> PostParts:
    """Read a status as `GET /api/v1/statuses/ID` returns it."""
    boosted = object_or_empty(status.get("reblog"))
    if boosted and depth < _DEEPEST:
        boosted_parts = mastodon_post(boosted, depth + 1)
        parts = PostParts()
        parts.add_post("boosted post", boosted_parts)
        return parts

    # Servers with other software return the quoted status itself.
    quote = object_or_empty(status.get("quote"))
    quoted = object_or_empty(quote.get("quoted_status"))
    if not quoted and "content" in quote:
        quoted = quote
    excluded = ("quote-inline",) if quoted else ()
    parts = _own_parts(status, excluded)
    _add_attachments(parts, status)
    if quote:
        inner = None
        if quoted and depth < _DEEPEST:
            inner = mastodon_post(quoted, depth + 1)
        parts.add_post("quoted post", inner)
    return parts


def _add_attachments(parts: PostParts, status: Mapping[str, Any]) -> None:
    """Add a status's pictures, its poll and the card of its link."""
    for media in objects(status.get("media_attachments")):
        media_type = media.get("type")
        known_kind = _MASTODON_KINDS.get(str(media_type))
        kind = known_kind or plain_text(media_type) or "attachment"
        description = media.get("description")
        parts.add(kind, description)

    poll = object_or_empty(status.get("poll"))
    if poll:
        options = objects(poll.get("options"))
        titles = [option.get("title") for option in options]
        parts.add("poll", *titles)

    card = object_or_empty(status.get("card"))
    if card:
        address = card.get("url")
        if isinstance(address, str):
            parts.links.append(address)
        title = card.get("title")
        description = card.get("description")
        parts.add("link", title, description)


def _own_parts(status: Mapping[str, Any], excluded: tuple[str, ...]) -> PostParts:
    """Read a status's own text, after its content warning, and the links in it."""
    content = status.get("content")
    markup = content if isinstance(content, str) else ""
    html = Html(excluded)
    html.feed(markup)
    html.close()
    text = html.text
    warning = plain_text(status.get("spoiler_text"))
    if warning:
        text = f"{warning}\n{text}"
    text = text.strip()
    paragraphs = [text] if text else []
    parts = PostParts(paragraphs, html.links)
    parts.lang = plain_text(status.get("language"))
    parts.date = plain_text(status.get("created_at"))
    return parts


class Html(HTMLParser):
    """Collect the text and the links of a status, except mentions and hashtags.

    `excluded` are classes of elements to skip.
    """

    _PARAGRAPHS = frozenset(
        [
            "p",
            "blockquote",
            "pre",
            "ul",
            "ol",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "table",
            "hr",
        ]
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
        self._skipped = ""
        self._depth = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        class_names = attributes.get("class") or ""
        classes = set(class_names.split())
        if self._skipped:
            self._depth += tag == self._skipped
            return
        is_unseen = tag in self._UNSEEN or classes & self._without
        if is_unseen and tag not in self._VOID:
            self._skipped = tag
            self._depth = 1
            return

        address = attributes.get("href")
        is_of_network = {"mention", "hashtag"} & classes
        if tag == "a" and address and not is_of_network:
            self.links.append(address)
        if tag == "img":  # a server's own emoji
            emoji = attributes.get("alt") or attributes.get("title") or ""
            self._parts.append(emoji)
        if tag == "pre":
            self._verbatim += 1
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if not self._depth:
                self._skipped = ""
            return
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
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
        if not self._parts:
            return False
        last = self._parts[-1].rstrip(" ")
        return last.endswith("\n")

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        if not self._verbatim:
            data = re.sub(r"[ \t\r\n\f]+", " ", data)
        self._parts.append(data)

    @property
    def text(self) -> str:
        """Join the pieces, without spaces around line ends, and with at most one empty line."""
        joined = "".join(self._parts)
        lines = re.sub(r"[ \t]*\n[ \t]*", "\n", joined)
        paragraphs = re.sub(r"\n{3,}", "\n\n", lines)
        return paragraphs.strip()


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is not a list."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def object_or_empty(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def plain_text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def unescaped(text: str) -> str:
    """Undo the escapes of X and Reddit once: "&amp;lt;" is "&lt;", which the author wrote."""
    return _ESCAPED.sub(lambda match: html.unescape(match[0]), text)


def type_name(value: Mapping[str, Any]) -> str:
    return plain_text(value.get("$type"))
