"""Checks who may look at the dashboard: every route demands the cookie, and a link gives it once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from earl.dashboard.app import application, routes
from earl.dashboard.door import STAY_S, Door, key_of
from earl.dashboard.guard import POLICY, host_name
from earl.dashboard.runs import RunFolder
from earl.dashboard.serve import LOOPBACK, forget_link, hosts_of, keep_link, listening, serve
from earl.errors import InsecureBind, PortInUse
from earl.stack.run_files import DASHBOARD_LINK
from tests.support.asgi import Answer, call
from tests.support.dashboard import Silent, config_of
from tests.support.paths import ROOT
from tests.support.recorded import recorded


class Page:
    """The application over a recorded run, and the links that it gave; made again, a restarted server."""

    def __init__(self, folder: Path) -> None:
        directory = folder / "one"
        if not directory.exists():
            directory.mkdir()
            recorded(directory, steps=4)
        self.links: list[str] = []
        self.door = Door(key_of(directory), self.links.append)
        self.folder = RunFolder(folder, lambda run, config: Silent())
        self.routes = routes(self.folder, "one")
        self.app = application(self.door, LOOPBACK, self.folder, "one")

    async def get(self, path: str, **headers: str) -> Answer:
        until = b"retry" if path.partition("?")[0].endswith("/stream") else None
        return await call(self.app, path, headers=headers, until=until)

    async def enter(self) -> str:
        """The Cookie header of somebody who opened the link."""
        answer = await self.get(f"/?token={self.links[-1]}")
        assert answer.status == 200
        return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    made = Page(tmp_path)
    yield made
    await made.folder.close()


def paths(page: Page) -> list[str]:
    """Every route, with something in place of its parameters, and with what it asks for."""
    found: list[Any] = list(page.routes.routes)
    asked = {"/api/compare": "?run=one", "/api/runs/one/series": "?key=reward_mean"}
    named = [re.sub(r"{[^}]*}", "1", route.path.replace("{run}", "one")) for route in found]
    return [path + asked.get(path, "") for path in named]


async def test_every_route_demands_the_cookie(page: Page):
    cookie = await page.enter()
    name, _, value = cookie.partition("=")
    expired = Door(key_of(Path("/nowhere")), lambda link: None)
    foreign = expired.redeem(expired._token) or ""
    wrong = [
        "",
        f"{name}=",
        f"{name}={value}x",
        f"{name}={foreign.partition('=')[2]}",
        f"{name}=9999999999.a.b",
        "a=b",
    ]
    assert len(paths(page)) >= 13
    for path in [
        *paths(page),
        "/nothing",
        "/static/../app.py",
        f"/?token={page.links[0]}",
        f"/?{'a=b&' * 9}token={page.links[-1]}",
        "/?token=%ff&token=\xff",
        "/api/runs/one/stream?token=x",
    ]:
        for sent in wrong:
            answer = await page.get(path, cookie=sent)
            assert (answer.status, answer.body[:4]) == (401, b"401 "), (path, sent)
            assert answer.headers["content-security-policy"] == POLICY
            assert "set-cookie" not in answer.headers
    for path in paths(page):
        assert (await page.get(path, cookie=cookie)).status in (200, 404), path
    # Whatever other programs of this machine left with the browser.
    for others in ('a={"x":1}', "flag", "a=b c", "n=\xe9", "user@x=1", f"{name}=1.2.3", f"a={'b' * 5000}"):
        assert (await page.get("/", cookie=f"{others}; {cookie}; last")).status == 200, others


async def test_a_link_works_once_and_the_next_one_is_there(page: Page):
    first = page.links[-1]
    cookie = (await page.get(f"/?token={first}")).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"Max-Age={STAY_S}" in cookie
    assert "Secure" not in cookie
    assert (await page.get(f"/?token={first}")).status == 401
    assert len(page.links) == 2 and page.links[-1] != first
    # Whoever is in already does not use up a link.
    assert (await page.get(f"/?token={page.links[-1]}", cookie=cookie.partition(";")[0])).status == 200
    assert len(page.links) == 2
    # A link opens the page, and nothing else.
    assert (await page.get(f"/api/runs/one/trajectories?token={page.links[-1]}")).status == 401


async def test_the_first_request_for_a_trajectory_finds_it(page: Page, tmp_path: Path):
    cookie = await page.enter()
    listed = json.loads((await page.get("/api/runs/one/trajectories", cookie=cookie)).body)
    ticket = listed["rows"][0]["ticket"]
    restarted = Page(tmp_path)
    answer = await restarted.get(f"/api/runs/one/trajectories/{ticket}", cookie=cookie)
    await restarted.folder.close()
    assert answer.status == 200 and json.loads(answer.body)["ticket"] == ticket


async def test_only_reading_from_the_same_origin_under_a_known_name(page: Page):
    cookie = await page.enter()
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = await call(page.app, "/", method=method, headers={"cookie": cookie})
        assert answer.status == 405, method
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]:1"):
        assert (await page.get("/", cookie=cookie, host=host)).status == 421, host
    for host in ("localhost:8000", "127.0.0.1", "[::1]:9", "LOCALHOST"):
        assert (await page.get("/", cookie=cookie, host=host)).status == 200, host
    for site in ("cross-site", "same-site"):
        answer = await page.get("/api/runs/one/trajectories", cookie=cookie, **{"sec-fetch-site": site})
        assert answer.status == 403
    answer = await page.get("/api/runs/one/trajectories", cookie=cookie, origin="https://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_the_policy_allows_no_foreign_or_inline_script_and_nothing_is_kept(page: Page):
    cookie = await page.enter()
    answer = await page.get("/", cookie=cookie)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy and "frame-ancestors 'none'" in policy
    assert (
        answer.headers["cache-control"] == "no-store" and answer.headers["referrer-policy"] == "no-referrer"
    )
    html = answer.body.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|https?://", html)
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', html)
    assert len(named) >= 4
    for name in named:
        assert (await page.get(name, cookie=cookie)).status == 200, name


def test_what_the_page_is_made_of_loads_nothing_from_elsewhere():
    folder = ROOT / "earl/cli/report/web"
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "@import" not in text, file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), (
            file.name
        )
        assert len(text.splitlines()) <= 400, file.name


def test_a_cookie_outlives_its_server_and_not_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    links: list[str] = []
    cookie = Door(key_of(tmp_path), links.append).redeem(links[-1])
    assert cookie is not None
    name, _, value = cookie.partition(";")[0].partition("=")
    again = Door(key_of(tmp_path), links.append)
    assert again.cookie_name == name and again.admits(value)
    assert (tmp_path / "dashboard.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("earl.dashboard.door.time.time", lambda: 1e11)
    assert not again.admits(value)
    secure = Door(key_of(tmp_path), links.append, secure=True)
    given = secure.redeem(links[-1])
    assert given is not None and given.startswith("__Host-") and given.endswith("; Secure")


async def test_off_loopback_it_takes_tls_and_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorded(tmp_path, steps=1)
    with pytest.raises(InsecureBind, match="TLS and a token"):
        await serve(
            tmp_path, config_of(tmp_path), bind="0.0.0.0:0", stop=asyncio.Event(), on_link=lambda link: None
        )
    assert not (tmp_path / "dashboard.key").exists()
    monkeypatch.setenv("EARL_ADVERTISE", "Trainer.example:9000")
    assert {"trainer.example", "10.1.2.3"} <= hosts_of("10.1.2.3:0")
    assert hosts_of("127.0.0.1:0") == LOOPBACK


def test_a_taken_port_is_named():
    with (
        listening("127.0.0.1:0") as one,
        pytest.raises(PortInUse, match=r"dashboard\.bind"),
        listening(f"127.0.0.1:{one.getsockname()[1]}"),
    ):
        pass
    assert host_name("[::1]:80") == "::1" and host_name("A.b:1") == "a.b" and host_name("") == ""


def test_the_link_lies_where_only_its_owner_reads_it(tmp_path: Path):
    keep_link(tmp_path)("http://127.0.0.1:1/?token=a")
    path = tmp_path / DASHBOARD_LINK
    assert path.read_text() == "http://127.0.0.1:1/?token=a\n" and path.stat().st_mode & 0o777 == 0o600
    forget_link(tmp_path)
    assert not path.exists()
