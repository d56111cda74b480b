"""The checks of a teacher that another server serves (teacher.url)."""

from __future__ import annotations

from urllib.parse import urlsplit

from earl.config.given_model import check_devices
from earl.config.run import RunConfig
from earl.errors import ConfigError, InsecureCall
from earl.loopback import is_loopback

# Keys of [teacher] that say something of ranks, of which a served teacher has none here.
OF_RANKS = ("dp", "tp", "device", "devices")
# Keys of [teacher] that say something of a server.
OF_SERVER = ("served_model", "requests", "request_s")


def check_served_teacher(config: RunConfig) -> None:
    """Raises ConfigError for what a run with teacher.url cannot have, and InsecureCall for plain text."""
    teacher = config.teacher
    if teacher.path:
        raise ConfigError(
            f"teacher.url = {teacher.url!r} with teacher.path = {teacher.path!r}: a run has one teacher",
            "remove one of them",
        )
    check_url(teacher.url, trusted_network=config.data_plane.trusted_network)
    defaults = type(teacher)()
    for name in OF_RANKS:
        if (value := getattr(teacher, name)) != getattr(defaults, name):
            raise ConfigError(
                f"teacher.{name} = {value!r} with {teacher.named}: the server computes, and no rank here",
                "remove the key, or give teacher.path",
            )
    check_devices(config, teacher.named, "the server computes on devices that the run does not have")
    if (temperature := config.scheduler.temperature) not in (0.0, 1.0):
        raise ConfigError(
            f"scheduler.temperature = {temperature:g} with {teacher.named}: a server tells log-probs of "
            "given tokens at temperature 1 alone",
            "set scheduler.temperature = 1, or give teacher.path",
        )
    if config.deterministic:
        shown = "true" if config.exact else f'"{config.deterministic}"'
        raise ConfigError(
            f"deterministic = {shown} with {teacher.named}: the bits of a server's log-probs depend on what "
            "else it computes",
            "remove deterministic, or give teacher.path",
        )
    if teacher.episodes:
        raise ConfigError(
            f"teacher.episodes = {teacher.episodes} with {teacher.named}: engines of the run play a "
            "teacher's episodes, and they have no weights of this one",
            "record episodes where its weights are (earl eval RUN --evaluation.record true), and give "
            "warmup.episodes; or give teacher.path",
        )


def check_url(url: str, *, trusted_network: bool) -> None:
    """Raises ConfigError for what is no base of an API, and InsecureCall for one that others could read."""
    if "@" in url:
        # It is not shown: it may hold a password.
        raise ConfigError(
            "teacher.url has a user, or a password, before an @",
            "remove them, and set EARL_TEACHER_TOKEN or EARL_TEACHER_TOKEN_FILE",
        )
    remedy = 'give its base, for example "http://127.0.0.1:8000/v1"'
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"teacher.url = {url!r} is no URL: {error}", remedy) from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"teacher.url = {url!r} is no http:// or https:// URL without a query", remedy)
    if parts.scheme == "http" and not is_loopback(host) and not trusted_network:
        raise InsecureCall(
            f"teacher.url = {url!r} is off this machine without TLS: trajectories would be sent in plain "
            "text",
            "give an https:// URL, or set data_plane.trusted_network = true if the network is yours alone",
        )
