"""The token of a served teacher: its sources, and the places that it may be sent to."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.config.frozen_stage import TeacherConfig
from earl.errors import ConfigError, InsecureCall
from earl.rpc.tokens import current
from earl.served.endpoint import ServedEndpoint
from earl.stack import credentials

HERE, FAR = "http://127.0.0.1:8000/v1/", "http://teacher.example:8000/v1"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "EARL_TEACHER_TOKEN",
        "EARL_TEACHER_TOKEN_FILE",
        "EARL_TLS_CA",
        "EARL_TLS_CERT",
        "EARL_TLS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


def endpoint(url: str = HERE) -> ServedEndpoint:
    return ServedEndpoint.of(TeacherConfig(url=url, requests=3, request_s=7.0))


def test_it_has_the_run_files_keys_and_no_token_unless_one_is_set(monkeypatch: pytest.MonkeyPatch):
    assert endpoint() == ServedEndpoint("http://127.0.0.1:8000/v1", 3, 7.0)
    monkeypatch.setenv("EARL_TLS_CA", "tls/ca.pem")
    assert endpoint().authority == Path("tls/ca.pem")


def test_a_token_is_a_variables_or_a_files_which_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setenv("EARL_TEACHER_TOKEN_FILE", str(file))
    token = endpoint().token
    assert current(token) == endpoint().bearer() == "first"
    (tmp_path / "new").write_text("second\n")
    (tmp_path / "new").replace(file)
    assert current(token) == "second"
    monkeypatch.setenv("EARL_TEACHER_TOKEN", " alone\n")
    assert current(endpoint().token) == "alone"
    monkeypatch.setenv("EARL_TEACHER_TOKEN", "of two\nlines")
    with pytest.raises(ConfigError, match="characters that no token has") as refused:
        endpoint().bearer()
    assert "two" not in str(refused.value)


def test_a_file_that_cannot_be_read_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EARL_TEACHER_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read; check EARL_TEACHER_TOKEN_FILE"):
        endpoint()


def test_a_token_goes_nowhere_in_plain_text(monkeypatch: pytest.MonkeyPatch):
    assert endpoint(FAR).token == ""
    monkeypatch.setenv("EARL_TEACHER_TOKEN", "secret")
    with pytest.raises(InsecureCall, match=r"would be sent to http://teacher\.example") as refused:
        endpoint(FAR)
    assert "secret" not in str(refused.value)
    assert endpoint(FAR.replace("http", "https")).token == endpoint().token == "secret"


def test_only_processes_that_ask_the_teacher_have_its_token(monkeypatch: pytest.MonkeyPatch):
    hidden = {"EARL_TEACHER_TOKEN": ""}
    monkeypatch.setenv("EARL_TEACHER_TOKEN", "secret")
    assert credentials.environment("worker") == hidden
    assert credentials.environment("worker", calls_teacher=True) == {}
    assert hidden.items() <= credentials.environment("environment").items()
    assert "EARL_TEACHER_TOKEN" not in credentials.environment("", calls_teacher=True)
