"""What people do, over HTTP: the catalog's own tests prove the rest."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from talon_ocd import Talon
from tests.service.running import Client, digits, running

HOSTILE = "<img src=x onerror=alert(1)> \" ' & </script>"


@pytest.fixture
def curator(fitted: Talon, folder: Path) -> Iterator[Client]:
    with running(fitted, folder) as service:
        client = service.client()
        assert client.batch(digits(40)).status == 200
        yield client


def discovered(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/categories?state=discovered&sort=count").json["items"]
    return found


def test_lists_are_paged_filtered_and_searched(curator: Client) -> None:
    everything = curator.get("/v1/categories?state=all&limit=500").json
    assert everything["next"] is None and everything["total"] == len(everything["items"]) > 5
    paged: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = curator.get(f"/v1/categories?state=all&limit=2{cursor and '&cursor=' + cursor}").json
        paged += page["items"]
        cursor = page["next"]
    assert paged == everything["items"]
    known = curator.get("/v1/categories?state=known&sort=name").json["items"]
    assert [category["name"] for category in known] == ["0", "1", "2", "3"]
    assert [category["id"] for category in curator.get("/v1/categories?state=all&q=COVERED-1").json["items"]].count(
        4
    ) == 1
    curator.get("/v1/categories?cursor=nonsense").problem("invalid-request")
    curator.get("/v1/categories?sort=taste").problem("invalid-request")
    curator.get("/v1/categories?limit=0").problem("invalid-request")
    curator.get("/v1/categories/99999").problem("not-found")
    curator.get("/v1/categories/cat").problem("invalid-request")
    curator.get(f"/v1/categories/{10**30}").problem("invalid-request")


def test_members_are_paged_and_add_up(curator: Client) -> None:
    total = 0
    for category in curator.get("/v1/categories?state=all&limit=500").json["items"]:
        page = curator.get(f"/v1/categories/{category['id']}/images?limit=500").json
        assert page["total"] == category["count"] == len(page["items"])
        assert all(member["home"] == category["id"] for member in page["items"])
        total += page["total"]
    assert total == 40
    large = discovered(curator)[0]
    first = curator.get(f"/v1/categories/{large['id']}/images?limit=1").json
    second = curator.get(f"/v1/categories/{large['id']}/images?limit=1&cursor={first['next']}").json
    assert second["items"][0]["index"] < first["items"][0]["index"]
    curator.get("/v1/categories/99999/images").problem("not-found")


def test_naming_hiding_and_undo(curator: Client) -> None:
    category = discovered(curator)[0]["id"]
    named = curator("PATCH", f"/v1/categories/{category}", {"name": f"  {HOSTILE} "})
    assert named.headers["content-type"] == "application/json"
    assert named.json["category"]["name"] == HOSTILE and named.json["event"]["kind"] == "named"
    assert curator.get(f"/v1/categories/{category}").json["name"] == HOSTILE
    taken = curator("PATCH", "/v1/categories/0", {"name": HOSTILE}).problem("name-taken")
    assert (taken["existing"], taken["existing_name"]) == (category, HOSTILE)
    hidden = curator("PATCH", f"/v1/categories/{category}", {"hidden": True}).json
    assert hidden["category"]["state"] == "hidden"
    assert curator("PATCH", f"/v1/categories/{category}", {"hidden": True}).json["event"] is None
    undone = curator.post("/v1/undo").json
    assert undone["undone"]["seq"] == hidden["event"]["seq"] and undone["undone"]["undone"] is True
    assert curator.get(f"/v1/categories/{category}").json["state"] == "active"
    curator.post("/v1/undo", {"event": named.json["event"]["seq"]})
    assert curator.get(f"/v1/categories/{category}").json["named"] is False
    history = curator.get("/v1/history").json["items"]
    assert [event["kind"] for event in history] == ["undone", "undone", "hidden", "named"]
    assert [event["undone"] for event in history] == [False, False, True, True]
    older = curator.get(f"/v1/history?limit=1&before={history[1]['seq']}").json
    assert older["items"] == [history[2]] and older["next"] == history[2]["seq"]


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "x" * 500, "a\nb", "a\x00b", "\ud800"])
def test_names_that_are_none_are_refused(curator: Client, name: str) -> None:
    before = curator.state()
    assert curator("PATCH", "/v1/categories/4", {"name": name}).status == 422
    assert curator.state() == before


def test_wrong_changes_are_refused(curator: Client) -> None:
    before = curator.state()
    curator("PATCH", "/v1/categories/4", {}).problem("invalid-request")
    curator("PATCH", "/v1/categories/4", {"nmae": "typo"}).problem("invalid-request")
    curator("PATCH", "/v1/categories/99999", {"name": "nobody"}).problem("not-found")
    for body in (b"{not json", b"[" * 100_000, b"9" * 10_000, b'{"hidden": NaN}', b"\xff", b""):
        assert curator("PATCH", "/v1/categories/4", body, {"Content-Type": "application/json"}).status in (400, 422)
    curator.post("/v1/categories:merge", {"categories": [4], "into": 4}).problem("conflict")
    curator.post("/v1/categories:merge", {"categories": [99999], "into": 4}).problem("conflict")
    curator.post("/v1/categories/4:split", {"images": [99999]}).problem("conflict")
    curator.post("/v1/categories/99999:split", {"images": [1]}).problem("not-found")
    curator.post("/v1/images:move", {"images": [], "category": 4}).problem("invalid-request")
    curator.post("/v1/images:move", {"images": [2**70], "category": 4}).problem("invalid-request")
    curator.post("/v1/undo").problem("conflict")
    curator.post("/v1/undo", {"event": 99999}).problem("conflict")
    curator.post("/v1/suggestions:refuse", {"first": 4, "second": 4}).problem("conflict")
    curator("DELETE", "/v1/categories/4").problem("method-not-allowed")
    curator.get("/v1/nothing").problem("not-found")
    assert curator.state() == before


def test_merge_keeps_old_ids_valid_and_undo_is_exact(curator: Client) -> None:
    first, second = (category["id"] for category in discovered(curator)[:2])
    before = [curator.get(f"/v1/categories/{category}").json for category in (first, second)]
    merged = curator.post("/v1/categories:merge", {"categories": [first, second], "into": second}).json["category"]
    assert merged["id"] == second and merged["count"] == before[0]["count"] + before[1]["count"]
    assert curator.get(f"/v1/categories/{first}").json["into"] == second
    assert curator.get(f"/v1/categories/{first}/images").json["total"] == merged["count"]
    image = before[0]["exemplars"][0]
    answer = curator.get(f"/v1/images/{image}/decision").json
    assert (answer["category"], answer["resolved"]) == (first, second)
    curator.post("/v1/undo")
    assert [curator.get(f"/v1/categories/{category}").json for category in (first, second)] == before


def test_renaming_to_a_taken_name_may_merge(curator: Client) -> None:
    category = discovered(curator)[0]
    merged = curator("PATCH", f"/v1/categories/{category['id']}", {"name": "0", "merge": True}).json
    assert merged["event"]["kind"] == "merged" and merged["category"]["name"] == "0"


def test_images_are_split_off_moved_confirmed_and_rejected(curator: Client) -> None:
    large = next(category for category in discovered(curator) if category["count"] > 2)
    members = [member["index"] for member in curator.get(f"/v1/categories/{large['id']}/images").json["items"]]
    split = curator.post(f"/v1/categories/{large['id']}:split", {"images": members[:1], "name": HOSTILE}).json
    assert split["category"]["name"] == HOSTILE and split["category"]["count"] == 1
    curator.post("/v1/categories/4:split", {"images": members[1:2], "name": HOSTILE})
    moved = curator.post("/v1/images:move", {"images": members[1:2], "category": split["category"]["id"]}).json
    assert moved["event"]["images"] == 1 and moved["event"]["data"]["images"] == members[1:2]
    assert curator.get(f"/v1/categories/{split['category']['id']}").json["count"] == 2
    assert curator.post("/v1/images:confirm", {"images": members[:2]}).json["event"]["kind"] == "confirmed"
    curator.post("/v1/images:reject", {"images": members[:1]})
    listed = {member["index"]: member for member in curator.get("/v1/images?limit=500").json["items"]}
    assert listed[members[0]]["home"] == -1 and listed[members[0]]["name"] == ""
    assert listed[members[1]]["home"] == split["category"]["id"]
    curator.post("/v1/undo")
    listed = {member["index"]: member for member in curator.get("/v1/images?limit=500").json["items"]}
    assert listed[members[0]]["home"] == split["category"]["id"]


def test_the_map_shows_every_image_where_it_belongs_now(curator: Client) -> None:
    before = curator.get("/v1/map").json["points"]
    assert sorted(point["index"] for point in before) == list(range(40))
    first, second = (category["id"] for category in discovered(curator)[:2])
    curator.post("/v1/categories:merge", {"categories": [first], "into": second})
    after = curator.get("/v1/map").json["points"]
    assert [(point["x"], point["y"]) for point in before] == [(point["x"], point["y"]) for point in after]
    assert first in {point["category"] for point in before} and first not in {point["category"] for point in after}
    assert len(curator.get("/v1/map?limit=7").json["points"]) == 7


def test_recent_images_go_on_page_by_page(curator: Client) -> None:
    first = curator.get("/v1/images?limit=30").json
    rest = curator.get(f"/v1/images?limit=30&before={first['next']}").json
    assert [member["index"] for member in first["items"] + rest["items"]] == list(range(39, -1, -1))
    assert rest["next"] is None


def test_an_empty_stream_answers_everything(fitted: Talon, tmp_path: Path) -> None:
    with running(fitted, tmp_path / "empty") as service:
        client = service.client()
        assert client.get("/v1/categories?state=discovered").json == {"items": [], "next": None, "total": 0}
        assert client.get("/v1/categories/0").json["count"] == 0
        assert client.get("/v1/categories/0/images").json["items"] == []
        assert client.get("/v1/images").json == {"items": [], "next": None}
        assert client.get("/v1/map").json["points"] == []
        assert client.get("/v1/history").json["items"] == []
        client.get("/v1/images/0").problem("not-found")
        client.post("/v1/undo").problem("conflict")


@pytest.fixture
def finer(fitted: Talon, folder: Path) -> Iterator[Client]:
    """A service that opens so many categories that some are rather one."""
    talon = copy.copy(fitted)
    assert fitted.evidence is not None
    talon.evidence = fitted.evidence.with_offset(fitted.evidence.offset + 6.0)
    with running(talon, folder) as service:
        client = service.client()
        assert client.batch(digits(40)).status == 200
        yield client


def test_suggestions_ask_until_people_have_said_no(finer: Client) -> None:
    items = finer.get("/v1/suggestions?limit=200").json["items"]
    assert items and [item["score"] for item in items] == sorted((item["score"] for item in items), reverse=True)
    first, second = items[0]["first"], items[0]["second"]
    assert first["exemplars"] and "discovered" in (first["kind"], second["kind"])
    refused = finer.post("/v1/suggestions:refuse", {"first": first["id"], "second": second["id"]}).json
    assert refused["event"]["kind"] == "refused"
    assert pairs(finer) == [(item["first"]["id"], item["second"]["id"]) for item in items[1:]]
    finer.post("/v1/undo")
    assert pairs(finer)[0] == (first["id"], second["id"])


def pairs(client: Client) -> list[tuple[int, int]]:
    items = client.get("/v1/suggestions?limit=200").json["items"]
    return [(item["first"]["id"], item["second"]["id"]) for item in items]


def test_what_if_counts_categories_at_other_values(curator: Client) -> None:
    answer = curator.get("/v1/what-if").json
    assert (answer["unit"], answer["current"], answer["images"]) == ("nats", 0.0, 40)
    counts = {point["value"]: point["discovered"] for point in answer["points"]}
    assert counts[8.0] > counts[0.0] > counts[-8.0]
    assert counts[0.0] == len(curator.get("/v1/categories?state=discovered&limit=500").json["items"])
    assert all(point["categories"] == point["discovered"] + 4 for point in answer["points"])


def test_what_if_of_a_threshold(fitted: Talon, tmp_path: Path) -> None:
    with running(fitted, tmp_path / "cosine", threshold=0.8) as service:
        client = service.client()
        assert client.batch(digits(20)).json["decisions"][0]["unit"] == "cosine"
        answer = client.get("/v1/what-if").json
        assert (answer["unit"], answer["current"]) == ("cosine", 0.8)
        counts = [point["categories"] for point in answer["points"]]
        assert counts == sorted(counts) and counts[0] < counts[-1]
