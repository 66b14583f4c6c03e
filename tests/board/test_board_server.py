"""The board's server: who may ask, what a page gets, and how it ends."""

import http.client
import json
import os
import shutil
from pathlib import Path

import httpx
import pytest
from board_life import MANIFEST, Stream, append, ended_round, make_run, scored, served, start, until

from potluck.board.guard import Guard, is_loopback
from potluck.board.server import STREAMS, address_of, listen, make_token
from potluck.core import ResourceError
from potluck.ledger import Lock


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def ask(address, path="/", method="GET", **headers):
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.request(
            method, address + path, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )


def test_the_page_and_its_files_have_a_strict_policy_and_no_inline_script(runs):
    with served(runs) as address:
        answers = {path: ask(address, path) for path in ("/", "/board.js", "/board.css", "/board.svg")}
    assert [answer.status_code for answer in answers.values()] == [200] * 4
    for answer in answers.values():
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    page = answers["/"].text
    assert page.count("<script") == 1
    assert "style=" not in page
    assert "://" not in page
    for name in ("/board.js", "/board.css"):
        assert "innerHTML" not in answers[name].text
        assert answers[name].text.replace("http://www.w3.org/2000/svg", "").count("://") == 0


@pytest.mark.parametrize(
    "path", ["/manifest.json", "/../outside", "/..%2f..%2fetc/passwd", "/assets/board.js", "/runs/a", "/stop/a"]
)
def test_there_are_no_other_paths(path, runs, tmp_path):
    (tmp_path / "outside").write_text("secret")
    make_run(runs / "a")
    with served(runs) as address:
        host, port = address.removeprefix("http://").split(":")
        raw = http.client.HTTPConnection(host, int(port), timeout=60)
        raw.request("GET", path)  # as it is written; httpx would tidy it
        answer = raw.getresponse()
        assert answer.status == 404
        assert b"secret" not in answer.read()
        raw.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[", "a b"]
)
def test_another_hosts_name_is_refused(host, runs):
    with served(runs) as address:
        assert ask(address, Host=host).status_code == 400
        assert ask(address, "/events", Host=host).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:7", "LOCALHOST"])
def test_own_names_are_answered_whatever_port_a_tunnel_gives_them(host, runs):
    with served(runs) as address:
        assert ask(address, Host=host).status_code == 200


def test_beyond_loopback_addresses_and_own_names_are_answered_and_others_are_not():
    guard = Guard(None, "0.0.0.0", "secret-token")
    own = ["192.168.0.7:80", "localhost:1", os.uname().nodename, "[fe80::1]:80"]
    assert [guard._is_own(name) for name in own] == [True] * 4
    assert [guard._is_own(name) for name in ("evil.example", "192.168.0.7.evil.example", "")] == [False] * 3
    assert Guard(None, "my.box", "t")._is_own("my.box:80")


def test_what_is_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")] == [True] * 5
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "localhost.evil.example", "")] == [False] * 5


def test_a_token_is_made_where_others_could_ask_or_runs_can_be_stopped():
    assert make_token("127.0.0.1", "", allow_stop=False) == ""
    assert make_token("127.0.0.1", "mine-1234", allow_stop=False) == "mine-1234"
    assert len(make_token("0.0.0.0", "", allow_stop=False)) >= 32
    assert len(make_token("127.0.0.1", "", allow_stop=True)) >= 32
    assert make_token("0.0.0.0", "", False) != make_token("0.0.0.0", "", False)


def test_a_token_is_asked_for_and_becomes_a_cookie_that_scripts_and_other_pages_do_not_get(runs):
    with served(runs, token="secret-token") as address:
        for path in ("/", "/?token=", "/?token=wrong", "/events", "/events?token=secret-token", "/board.js", "/stop/a"):
            refused = ask(address, path)
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        assert "open the link" in ask(address).text
        let_in = ask(address, "/?token=secret-token")
        assert let_in.status_code == 200
        cookie = let_in.headers["set-cookie"]
        assert "; HttpOnly" in cookie
        assert "; SameSite=Strict" in cookie
        pair = cookie.split(";")[0]
        assert [ask(address, path, Cookie=pair).status_code for path in ("/", "/board.js")] == [200, 200]
        assert ask(address, "/", Cookie=pair[:-1] + "x").status_code == 401
        assert ask(address, "/", Cookie="=;;\x7f").status_code == 401


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "own"}, 404),
        ({"Origin": "own", "Sec_Fetch_Site": "cross-site"}, 403),
    ],
)
def test_only_the_boards_own_page_may_post(headers, code, runs):
    with served(runs, allow_stop=True) as address:
        told = {name: address if value == "own" else value for name, value in headers.items()}
        assert ask(address, "/stop/0123456789abcdef", "POST", **told).status_code == code


def test_another_page_may_link_to_the_board_but_load_nothing_from_it(runs):
    with served(runs) as address:
        assert ask(address, "/", Sec_Fetch_Site="cross-site").status_code == 200
        assert ask(address, "/events", Sec_Fetch_Site="cross-site").status_code == 403
        assert ask(address, "/board.js", Sec_Fetch_Site="same-site").status_code == 403


def test_without_leave_to_stop_there_is_nothing_to_post_to(runs):
    with served(runs) as address:
        assert ask(address, "/stop/0123456789abcdef", "POST", Origin=address).status_code == 404


def test_a_stream_tells_of_new_rounds_new_runs_and_folders_that_are_gone(runs):
    path = make_run(runs / "a", [start()], status="running")
    held = Lock(path / "lock")
    try:
        with served(runs) as address:
            with Stream(address) as first:
                id = until(lambda: first.rows.get("a"))["id"]
            with Stream(address, id) as stream:
                until(lambda: id in stream.details)
                append(path / "live.jsonl", ended_round(1, 102.0, scored(1, 0.5, small=0.25)))
                until(lambda: stream.details[id]["points"] == [[1, 0.5, 0.25]])
                assert until(lambda: stream.rows["a"]["left"]) == 18.0
                make_run(runs / "b")
                until(lambda: "b" in stream.rows)
                shutil.rmtree(path)
                until(lambda: id in stream.gone)
    finally:
        held.release()


def test_ids_that_are_no_runs_are_ignored_and_at_most_two_are_followed(runs):
    for name in "abc":
        make_run(runs / name)
    with served(runs) as address:
        with Stream(address) as first:
            until(lambda: len(first.rows) == 3)
        ids = [row["id"] for row in first.rows.values()]
        with Stream(address, "../a", "%2e%2e", *ids) as stream:
            until(lambda: len(stream.rows) == 3)
        assert not set(stream.details) - set(ids[:2])


def test_more_pages_than_a_browser_has_connections_for_get_their_news_and_let_go(runs):
    make_run(runs / "a")
    with served(runs) as address:
        streams = [Stream(address) for _ in range(STREAMS)]
        for stream in streams:
            stream.__enter__()
            until(lambda stream=stream: stream.rows)
        more = ask(address, "/events")  # ends, as the others do not
        assert more.text.startswith("retry: ")
        assert '"folder":"a"' in more.text
        assert more.text.endswith("event: pause\ndata: {}\n\n")
        streams.pop().__exit__()
        until(lambda: stays_open(address, runs))
        for stream in streams:
            stream.__exit__()


def stays_open(address, runs):
    """Whether a new stream is one that stays: it tells of a run that comes later."""
    with Stream(address) as stream:
        until(lambda: stream.rows)
        name = f"new-{len(list(runs.iterdir()))}"
        make_run(runs / name)
        until(lambda: name in stream.rows or stream.events[-1][0] == "pause")
        return name in stream.rows


def test_a_server_with_open_streams_ends_at_once_when_it_is_closed(runs):
    with served(runs) as address:
        stream = Stream(address)
        stream.__enter__()
        until(lambda: stream.events)
    stream.__exit__()  # `served` has waited for the server's thread


def test_a_port_in_use_and_an_unknown_host_are_one_line():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ResourceError, match=rf"^port {port} of 127\.0\.0\.1 is in use; choose another --port"
        ) as found:
            listen("127.0.0.1", port)
        assert found.value.exit_code == 6
    with pytest.raises(ResourceError, match=r"^cannot listen on no-such-host\.invalid, port 0: "):
        listen("no-such-host.invalid", 0)


def test_the_address_has_the_token_and_brackets_where_they_belong():
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert address_of(listening, "127.0.0.1", "") == f"http://127.0.0.1:{port}/"
        assert address_of(listening, "::1", "abc") == f"http://[::1]:{port}/?token=abc"
        assert address_of(listening, "0.0.0.0", "abc") == f"http://{os.uname().nodename}:{port}/?token=abc"


def test_reading_changes_nothing_in_a_run_folder(runs):
    path = make_run(runs / "a", [start(), ended_round(1, 101.0)], [scored(1, 0.5)], status="running")
    (path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    before = {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in Path(path).iterdir()}
    with served(runs, allow_stop=True) as address:
        with Stream(address) as first:
            id = until(lambda: first.rows.get("a"))["id"]
        with Stream(address, id) as stream:
            until(lambda: id in stream.details)
        told = ask(address, f"/stop/{id}", "POST", Origin=address)
    assert (told.status_code, told.json()["told"]) == (409, "it runs on another machine (elsewhere).")
    assert {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in Path(path).iterdir()} == before
    assert json.loads((path / "manifest.json").read_text())["name"] == MANIFEST["name"]
