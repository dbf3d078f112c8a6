"""Read a post of the APIs of Bluesky and Mastodon: its text, quotations, pictures and links.

The claim is often not in the post's own words but in what it quotes or boosts, in the description
of a picture, or on the card of a link: each is a paragraph of its own that begins with its kind in
brackets, such as `[quoted post]`. What has no text is named in `without_text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

# Posts within posts that are read, the outermost included.
_DEEPEST = 3
_LINK = "app.bsky.richtext.facet#link"
_POST_URI = re.compile(r"at://did:[a-z]+:[A-Za-z0-9._:%-]+/app\.bsky\.feed\.post/[A-Za-z0-9._~:-]+")
# Asks for the view of another post of Bluesky by its address; None where it cannot be seen.
ViewOf = Callable[[str], Mapping[str, Any] | None]


@dataclass
class PostParts:
    """Hold a post's paragraphs, links, language and time, and name its parts without text."""

    paragraphs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    lang: str = ""
    date: str = ""
    without_text: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Join the paragraphs."""
        return "\n\n".join(self.paragraphs)

    def add(self, kind: str, *texts: object) -> None:
        """Add a marked paragraph of the texts that are some, or name the kind as without text."""
        words = [text for text in map(_text_of, texts) if text]
        if words:
            self.paragraphs.append(f"[{kind}] {'. '.join(dict.fromkeys(words))}")
        else:
            self.without_text.append(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} without text")

    def add_post(self, kind: str, post: PostParts | None) -> None:
        """Add another post's text, marked; its language counts where this one has no words."""
        if post is None or not post.paragraphs:
            self.without_text.append(f"a {kind} that cannot be read")
            return
        self.lang = self.lang if self.paragraphs else post.lang or self.lang
        self.date = self.date or post.date
        first, *rest = post.paragraphs
        self.paragraphs += [f"[{kind}] {first}", *rest]
        self.links += post.links


def bluesky_post(view: Mapping[str, Any], view_of: ViewOf, depth: int = 1) -> PostParts:
    """Read the view of a post: `getPosts` answers its `record`, and its `embed` as it is shown."""
    record = _object(view.get("record")) or _object(view.get("value"))
    if _kind(record) == "app.bsky.feed.repost":  # a boost has nothing of its own
        parts = PostParts()
        parts.add_post("boosted post", _at(_object(record.get("subject")), view_of, depth))
        return parts
    parts = PostParts(_paragraphs(record.get("text")), lang=_first_lang(record))
    parts.date = _text_of(record.get("createdAt"))
    for facet in objects(record.get("facets")):
        for feature in objects(facet.get("features")):
            if _kind(feature) == _LINK and isinstance(feature.get("uri"), str):
                parts.links.append(feature["uri"])
    embed = view.get("embed")
    if not isinstance(embed, Mapping):  # a post that is quoted lists what it shows
        embed = next(iter(objects(view.get("embeds"))), {})
    _embed(parts, _object(record.get("embed")), embed, view_of, depth)
    return parts


def _embed(
    parts: PostParts,
    embed: Mapping[str, Any],
    view: Mapping[str, Any],
    view_of: ViewOf,
    depth: int,
) -> None:
    media = embed or view
    media = _object(media.get("media")) or media  # recordWithMedia holds a quotation and pictures
    for image in objects(media.get("images")):
        parts.add("image", image.get("alt"))
    if "video" in media or _kind(media).startswith("app.bsky.embed.video"):
        parts.add("video", media.get("alt"))
    external = _object(media.get("external"))
    if external:
        uri = external.get("uri")
        if isinstance(uri, str):
            parts.links.append(uri)
        if uri is None or any(map(_text_of, map(external.get, ("title", "description")))):
            parts.add("link", external.get("title"), external.get("description"))
        else:
            parts.without_text.append(f"a link to {_text_of(uri)}")
    record, record_view = _quoted(embed), _quoted(view)
    if record or record_view:
        _quotation(parts, record, record_view, view_of, depth)


def _quotation(
    parts: PostParts,
    record: Mapping[str, Any],
    view: Mapping[str, Any],
    view_of: ViewOf,
    depth: int,
) -> None:
    if isinstance(view.get("value"), Mapping) and depth < _DEEPEST:
        parts.add_post("quoted post", bluesky_post(view, view_of, depth + 1))
    elif any(_text_of(view.get(name)) for name in ("displayName", "name", "description")):
        names = (view.get(name) for name in ("displayName", "name", "description"))
        parts.add("quoted list", *names)
    else:
        hidden = _kind(view).rpartition("#")[2] in ("viewBlocked", "viewNotFound", "viewDetached")
        parts.add_post("quoted post", None if hidden else _at(record or view, view_of, depth))


def _quoted(embed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record that an embed quotes; recordWithMedia holds it one level deeper."""
    record = _object(embed.get("record"))
    return _object(record.get("record")) or record


def _at(record: Mapping[str, Any], view_of: ViewOf, depth: int) -> PostParts | None:
    uri = record.get("uri")
    if depth >= _DEEPEST or not (isinstance(uri, str) and _POST_URI.fullmatch(uri)):
        return None
    view = view_of(uri)
    return None if view is None else bluesky_post(view, view_of, depth + 1)


def mastodon_post(status: Mapping[str, Any], depth: int = 1) -> PostParts:
    """Read a status as `GET /api/v1/statuses/ID` answers it."""
    boosted = _object(status.get("reblog"))
    if boosted and depth < _DEEPEST:
        parts = PostParts()
        parts.add_post("boosted post", mastodon_post(boosted, depth + 1))
        return parts
    # Servers of other software answer the quoted status itself.
    quote = _object(status.get("quote"))
    quoted = _object(quote.get("quoted_status")) or (quote if "content" in quote else {})
    content = status.get("content")
    html = _Html(excluded=("quote-inline",) if quoted else ())
    html.feed(content if isinstance(content, str) else "")
    html.close()
    warning, text = _text_of(status.get("spoiler_text")), html.text
    own = f"{warning}\n{text}".strip() if warning else text
    parts = PostParts(_paragraphs(own), html.links, _text_of(status.get("language")))
    parts.date = _text_of(status.get("created_at"))
    for media in objects(status.get("media_attachments")):
        kind = {"gifv": "video", "unknown": "attachment"}.get(str(media.get("type")))
        parts.add(kind or _text_of(media.get("type")) or "attachment", media.get("description"))
    poll = _object(status.get("poll"))
    if poll:
        parts.add("poll", *(option.get("title") for option in objects(poll.get("options"))))
    card = _object(status.get("card"))
    if card:
        parts.links += [card["url"]] if isinstance(card.get("url"), str) else []
        parts.add("link", card.get("title"), card.get("description"))
    if quote:
        is_quoted = quoted and depth < _DEEPEST
        parts.add_post("quoted post", mastodon_post(quoted, depth + 1) if is_quoted else None)
    return parts


class _Html(HTMLParser):
    """Collect the text and the links of a status; mentions and hashtags are no links.

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
    """List the objects of a list; nothing where it is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_of(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _kind(value: Mapping[str, Any]) -> str:
    return _text_of(value.get("$type"))


def _paragraphs(value: object) -> list[str]:
    text = _text_of(value)
    return [text] if text else []


def _first_lang(record: Mapping[str, Any]) -> str:
    langs = record.get("langs")
    return langs[0] if isinstance(langs, list) and langs and isinstance(langs[0], str) else ""
