"""A small server of vLLM's completions API in a process of its own, and the test's side of it.

    GET /v1/models · POST /v1/completions: a prompt of token ids ─► the log-prob of each by a table
    the same below /FAULT/v1: what a server must not answer, or does when something is wrong

The model knows the token before alone: row t of the table has the log-probs of what follows t. Each request
is a line of the log, so that a test can count them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
NAME = "table"
# Answers of a slow server take longer than any test waits for them.
SLOW_S = 20.0


def table(vocabulary: int) -> np.ndarray:
    """float64[vocabulary, vocabulary]: log-probs of the token after each."""
    logits = np.random.default_rng(3).normal(size=(vocabulary, vocabulary)) * 2
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def expected(vocabulary: int, tokens: Sequence[int]) -> np.ndarray:
    """float32[tokens]: what the server says of a prompt, 0 for the first token."""
    values = table(vocabulary)
    pairs = itertools.pairwise(tokens)
    return np.array([0.0, *(values[before, after] for before, after in pairs)], np.float32)


# --- the server -----------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    words: list[str]
    values: np.ndarray
    context: int
    token: str
    log_file: str
    counts: ClassVar[Counter[str]] = Counter()
    lock: ClassVar[threading.Lock] = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """Standard error is for failures."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, body: bytes) -> None:
        fault, _, path = self.path.lstrip("/").rpartition("v1/")
        fault = fault.rstrip("/")
        request = json.loads(body or b"{}")
        with self.lock:
            self.counts[fault] += 1
            with open(self.log_file, "a", encoding="utf-8") as file:
                file.write(json.dumps({"path": self.path, **request}) + "\n")
        sent = self.headers.get("authorization", "")
        if fault == "echo":
            self._send(400, {"error": {"message": f"I was sent {sent} and do not like it"}})
        elif self.token and sent != f"Bearer {self.token}":
            self._send(401, {"error": {"message": "Unauthorized"}})
        elif fault == "forbidden":
            self._send(403, {"error": {"message": "not this model"}})
        elif fault == "busy" and self.counts[fault] % 3:
            self._send(503, {"error": {"message": "too many requests wait"}})
        elif fault == "closes":
            self.close_connection = True
        elif fault == "slow":
            threading.Event().wait(SLOW_S)
            self.close_connection = True
        elif fault == "moved":
            self._send(307, {}, location="/v1/" + path)
        elif path == "models":
            self._send(200, self._models(fault))
        elif path == "completions" and fault != "absent":
            self._completion(fault, request)
        else:
            self._send(404, {"detail": "Not Found"})

    def _models(self, fault: str) -> dict[str, Any]:
        names = {"two": [NAME, "other"], "empty": []}.get(fault, [NAME])
        context: dict[str, Any] = {} if fault == "boundless" else {"max_model_len": self._context(fault)}
        return {"object": "list", "data": [{"id": name, "object": "model", **context} for name in names]}

    def _context(self, fault: str) -> int:
        return self.context // 2 if fault == "tight" else self.context

    def _completion(self, fault: str, request: dict[str, Any]) -> None:
        prompt = request["prompt"]
        if request["model"] != NAME:
            return self._send(404, {"error": {"message": f"The model `{request['model']}` does not exist."}})
        if len(prompt) + request["max_tokens"] > self._context(fault):
            return self._send(400, {"error": {"message": f"the context ends at {self.context} tokens"}})
        if max(prompt) >= len(self.words) - (fault == "small"):
            return self._send(400, {"error": {"message": f"Token id {max(prompt)} is out of vocabulary"}})
        positions: list[Any] = [None]
        for before, after in itertools.pairwise(prompt):
            row = self.values[before]
            best = np.argsort(-row)[: request["prompt_logprobs"]]
            positions.append({str(token): self._score(fault, row, int(token)) for token in (*best, after)})
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": positions}
        choices = [choice]
        match fault:
            case "short":
                positions.pop()
            case "shifted":
                positions[1:] = [positions[-1], *positions[1:-1]]
            case "none":
                choice["prompt_logprobs"] = None
            case "choices":
                choices.append(choice)
            case "huge":
                choice["text"] = "x" * (8 << 20)
            case "html":
                return self._send_bytes(200, b"<html>Welcome to the proxy</html>")
            case "zipped":
                return self._send_bytes(200, b"\x1f\x8b", {"content-encoding": "gzip"})
            case "half":
                return self._send_bytes(200, b'{"choices": [', {"content-length": "4000"}, close=True)
        return self._send(200, {"id": "cmpl-1", "object": "text_completion", "choices": choices})

    def _score(self, fault: str, row: np.ndarray, token: int) -> dict[str, Any]:
        words = ["y" + word for word in self.words] if fault == "words" else self.words
        shown = None if fault == "untold" else words[token]
        logprob = {"nan": math.nan, "infinite": -9999.0, "positive": 0.5}.get(fault, float(row[token]))
        if fault == "logits":
            logprob -= 30.0
        return {"logprob": logprob, "rank": int((row > row[token]).sum()) + 1, "decoded_token": shown}

    def _send(self, status: int, content: dict[str, Any], **headers: str) -> None:
        self._send_bytes(status, json.dumps(content).encode(), headers)

    def _send_bytes(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, close: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            close = True  # the client has read as much as it takes
        self.close_connection = self.close_connection or close


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=json.loads, required=True)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--token", default="")
    parser.add_argument("--log", required=True)
    parser.add_argument("--certificate", default="")
    parser.add_argument("--key", default="")
    given = parser.parse_args()
    Handler.words, Handler.values = given.words, table(len(given.words))
    Handler.context, Handler.token, Handler.log_file = given.context, given.token, given.log
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if given.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given.certificate, given.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    server.serve_forever()


# --- the test's side ------------------------------------------------------------------------


@dataclass(frozen=True)
class CompletionsServer:
    """A server that runs. words: the texts of its tokens, by id."""

    process: subprocess.Popen[str]
    port: int
    words: list[str]
    log: Path
    scheme: str = "http"

    def url(self, fault: str = "") -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/{fault + '/' if fault else ''}v1"

    def requests(self, path: str = "/v1/completions") -> list[dict[str, Any]]:
        """The requests to a path so far."""
        lines = map(json.loads, self.log.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["path"] == path]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def completions_server(directory: Path, words: Sequence[str], *options: str) -> Iterator[CompletionsServer]:
    """A server whose tokens have these texts. options: of its command line."""
    log = directory / "requests.jsonl"
    log.touch()
    command = [sys.executable, "-m", __name__, "--words", json.dumps(list(words)), "--log", str(log)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    scheme = "https" if "--certificate" in options else "http"
    server = CompletionsServer(process, int(process.stdout.readline()), list(words), log, scheme)
    try:
        yield server
    finally:
        server.stop()
        process.stdout.close()


if __name__ == "__main__":
    main()
