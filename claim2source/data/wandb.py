"""Log to Weights & Biases, online if it can be reached; never stop the work for it."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import logging
import netrc
import os
import re
import shlex
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.core.tables import TextTable
from claim2source.core.terminal import printable_line

log = logging.getLogger(__name__)

Tracking = Literal["off", "offline", "online"]
PROJECT = "claim2source"
TRAINING_FILE = "wandb.json"
# Seconds to wait for a server's answer.
ANSWER_SECONDS = 4.0
# Server -> the reason why it cannot be used, "" if it can; checked once per process.
_failures: dict[str, str] = {}


def wandb_mode(setting: str) -> Tracking:
    """Resolve `auto`: WANDB_MODE if it is set, else online if there is a key."""
    if setting != "auto":
        return cast(Tracking, setting)
    mode = os.environ.get("WANDB_MODE")
    if mode == "disabled":
        return "off"
    return "online" if mode != "offline" and has_key() else "offline"


def has_key() -> bool:
    """Whether a W&B key is in the environment or in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def require_tracking(tracking: Tracking, option: str = "--wandb") -> None:
    """Raise `UserError` if W&B is requested but not possible; call it before the work."""
    if tracking == "off":
        return
    if importlib.util.find_spec("wandb") is None:
        raise UserError(f"wandb: not installed; run `pip install wandb`, or pass {option} off")
    if tracking == "online" and not has_key():
        raise UserError(f"wandb: no key; run `wandb login`, or pass {option} offline")


@dataclass(frozen=True)
class TrainingPage:
    """A training's run in W&B, with the project and group that its evaluations join."""

    id: str
    project: str = PROJECT
    name: str = ""
    group: str = ""

    @classmethod
    def read(cls, folder: Path) -> TrainingPage | None:
        """Read the page of a training's folder; None if it was not logged."""
        try:
            values = json.loads((folder / TRAINING_FILE).read_text(encoding="utf-8"))
            return cls(**{key: str(value) for key, value in values.items()})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return None

    @classmethod
    def begin(cls, folder: Path, project: str, name: str | None) -> TrainingPage:
        """Write the page of a training to its folder; a resumed training keeps its page."""
        before = cls.read(folder) or cls(uuid.uuid4().hex[:8])
        name, above = name or folder.resolve().name, _page_above(folder.resolve().parent)
        group = (
            before.group
            or os.environ.get("WANDB_RUN_GROUP")
            or (above[1].group if above else None)
            or f"{name}-{before.id}"  # two runs may have one name
        )
        page = cls(before.id, project, name, group)
        write_json(folder / TRAINING_FILE, asdict(page))
        return page


def _page_above(folder: Path) -> tuple[Path, TrainingPage] | None:
    parent = folder.resolve()
    pages = ((above, TrainingPage.read(above)) for above in (parent, *parent.parents))
    return next(((above, page) for above, page in pages if page is not None), None)


class Tracker:
    """Log to a W&B run; a failure is one line on stderr and never stops the work.

    If a run cannot be online (any more), it continues offline; `wandb sync` uploads it. In a
    training's folder it joins that training's project and group, and is named after both.
    """

    def __init__(
        self,
        tracking: Tracking,
        folder: Path,
        *,
        project: str | None = None,
        name: str | None = None,
        **settings: object,
    ) -> None:
        self._folder = folder
        arguments: dict[str, object] = {"project": PROJECT, "name": folder.resolve().name}
        if (training := _page_above(folder)) is not None:
            above, page = training
            subpath = folder.resolve().relative_to(above)
            arguments["name"] = str(Path(page.name or above.name, subpath))
            arguments["project"] = page.project
            # None: WANDB_RUN_GROUP applies.
            arguments["group"] = page.group or None
        arguments |= {k: v for k, v in (("project", project), ("name", name)) if v is not None}
        self._settings = {**arguments, "dir": folder, **settings}
        self._run: Any = None
        self._has_hinted = False  # whether the location of an offline run was logged
        if tracking != "off":
            self._start(tracking)

    def log(self, values: Mapping[str, object]) -> None:
        """Log numbers and tables (`as_wandb`)."""
        self._try_twice(lambda run: run.log(dict(values)))

    def define_steps(self, step: str) -> None:
        """Use the metric `step` as the x-axis of all metrics."""
        self._try_twice(lambda run: run.define_metric(step))
        self._try_twice(lambda run: run.define_metric("*", step_metric=step, step_sync=True))

    def close(self) -> None:
        """End the run; what is not uploaded within 15 seconds stays in its folder."""
        if self._run is None:
            return
        run, self._run = self._run, None
        try:
            run.finish()
            if run.offline and not self._has_hinted:
                offline = printable_line(shlex.quote(str(Path(run.dir).parent)))
                print(f"wandb: offline; `wandb sync {offline}` uploads it", file=sys.stderr)
        except Exception as error:
            self._say(error, "the rest")

    def _start(self, tracking: Tracking) -> None:
        import wandb

        # wandb's own lines have colours, and some go to stdout.
        host = wandb.setup(wandb.Settings(silent=True)).settings.base_url
        if tracking == "online" and host not in _failures:
            _failures[host] = connection_error(host)
            if _failures[host]:
                self._say(_failures[host], "the run")
        online = tracking == "online" and not _failures[host]
        try:
            self._run = self._start_run("online" if online else "offline")
            if online:
                print(f"wandb: {printable_line(str(self._run.url))}", file=sys.stderr, flush=True)
        except Exception as error:
            self._start_offline(online, error)

    def _start_run(self, mode: Tracking) -> Any:
        import wandb

        limits = {"init_timeout": 20.0, "finish_timeout": 15.0}
        limits = {k: v for k, v in limits.items() if f"WANDB_{k.upper()}" not in os.environ}
        settings = wandb.Settings(silent=True, finish_timeout_raises=True, **limits)  # type: ignore[arg-type]
        return wandb.init(**self._settings, mode=mode, settings=settings)  # type: ignore[arg-type]

    def _try_twice(self, work: Callable[[Any], object]) -> None:
        """Call a function with the run; if it fails, call it again with an offline run."""
        if self._run is None:
            return
        try:
            work(self._run)
        except Exception as error:
            failed, self._run = self._run, None
            online = not failed.offline
            with contextlib.suppress(Exception):
                failed.finish()
            self._start_offline(online, error)
            if self._run is not None:
                with contextlib.suppress(Exception):
                    work(self._run)

    def _start_offline(self, online: bool, error: Exception) -> None:
        import wandb

        if not online:
            log.warning("wandb: %s; nothing is logged there", _reason(error))
            return
        _failures[wandb.setup().settings.base_url] = _reason(error)
        self._say(error, "the run")
        self._settings.pop("id", None)  # still in use by the failed run
        try:
            self._run = self._start_run("offline")
        except Exception as retry_error:
            self._start_offline(False, retry_error)

    def _say(self, reason: Exception | str, subject: str) -> None:
        self._has_hinted = True
        offline = printable_line(shlex.quote(str(self._folder / "wandb")))
        upload = f"`wandb sync {offline}/offline-run-*` uploads it"
        log.warning("wandb: %s; %s is kept offline: %s", _reason(reason), subject, upload)


def _reason(error: Exception | str) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    key = os.environ.get("WANDB_API_KEY")
    return printable_line(text.replace(key, "...") if key else text)


def connection_error(host: str) -> str:
    """Return, within seconds, the reason why a W&B server cannot be used; "" if it answers.

    The key is not sent.
    """
    try:
        parts = urlsplit(host)
        # Without user name and password.
        address = (parts.hostname or host) + (f":{parts.port}" if parts.port else "")
    except ValueError as error:
        return f"WANDB_BASE_URL: {error}"
    reasons = [f"{address} did not answer within {ANSWER_SECONDS:g} seconds"]

    def ask() -> None:
        body, kind = b'{"query": "{ viewer { id } }"}', {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(f"{host}/graphql", data=body, headers=kind)
            # A new opener, because the shared one keeps the proxies of its first use.
            with urllib.request.build_opener().open(request, timeout=ANSWER_SECONDS):
                reasons[0] = ""
        except urllib.error.HTTPError as error:
            # Its answer to a request without a key does not matter.
            reasons[0] = f"{address} answered with {error.code}" if error.code >= 500 else ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if not isinstance(reason, TimeoutError):
                reasons[0] = f"{address}: {getattr(reason, 'strerror', None) or reason}"

    # A host's name look-up without a network has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS + 1)
    return reasons[0]


def log_tables(
    tracking: Tracking,
    tables: Mapping[str, TextTable],
    *,
    folder: Path,
    program: str,
    config: Mapping[str, object],
) -> None:
    """Log tables to a W&B run named as `folder`, unless tracking is off."""
    if tracking == "off":
        return
    tracker = Tracker(tracking, folder, job_type=program, config=dict(config))
    tracker.log({table_key(name): as_wandb(table) for name, table in tables.items()})
    tracker.close()


def as_wandb(table: TextTable) -> Any:
    """Convert to a `wandb.Table`, whose columns may mix numbers and texts."""
    import wandb

    rows = [list(row) for row in table.rows]
    return wandb.Table(columns=list(table.columns), data=rows, allow_mixed_types=True)


def table_key(name: str) -> str:
    """Turn a name into a W&B key: lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
