from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from talon_ocd import Talon
from talon_ocd.catalog import Catalog
from talon_ocd.images import memory_item
from talon_ocd.service.views import Views
from tests.catalog.journals import open_journal
from tests.cli.running import bad_folder
from tests.images.pictures import encoded, photo
from tests.service.running import Client, Running, digits, form, running


def test_the_answers_are_those_of_the_stream(fitted: Talon, folder: Path) -> None:
    alone = fitted.stream().observe_many([memory_item(image, f"{at}.png") for at, image in enumerate(digits())])
    with running(fitted, folder) as service:
        client = service.client()
        one_by_one = [client.decide(image, f"?source={at}.png").json for at, image in enumerate(digits()[:30])]
        together = client.batch(digits()[30:]).json["decisions"]
    for answer, wanted in zip([*one_by_one, *together], alone, strict=True):
        found = (answer["index"], answer["category"], answer["verdict"], answer["unit"], answer["runner_up"])
        assert found == (wanted.index, wanted.category, wanted.verdict, wanted.unit, wanted.runner_up)
        assert answer["similarity"] == pytest.approx(wanted.similarity, abs=1e-4)
        assert answer["margin"] == pytest.approx(wanted.similarity - wanted.threshold, abs=1e-4)
        assert answer["learned"] is True
    assert {answer["verdict"] for answer in one_by_one} == {"known", "discovered", "new"}
    assert one_by_one[7]["source"] == "7.png" and together[0]["source"] == "0.png"


def test_raw_bytes_and_forms_are_the_same(client: Client) -> None:
    image = digits()[3]
    body, kind = form([("image", "from the form.png", image)])
    answers = [
        client("POST", "/v1/decide?learn=false", image, {"Content-Type": "image/png"}),
        client("POST", "/v1/decide?learn=false", image, {"Content-Type": "application/octet-stream"}),
        client("POST", "/v1/decide?learn=false", image),
        client("POST", "/v1/decide?learn=false", body, {"Content-Type": kind}),
    ]
    assert [answer.status for answer in answers] == [200] * 4
    assert len({answer.json["category"] for answer in answers}) == 1
    assert [answer.json["source"] for answer in answers] == ["upload"] * 3 + ["from the form.png"]


def test_looking_changes_nothing(client: Client) -> None:
    before = client.state()
    answer = client.decide(digits()[5], "?learn=false").json
    assert answer["index"] is None and answer["image"] is None and answer["learned"] is False
    assert client.batch(digits()[:3], "?learn=false").status == 200
    assert client.decide(digits()[6], "?learn=false", key="ignored").status == 200
    assert client.state() == before


def test_an_answer_explains_itself(client: Client) -> None:
    answer = client.decide(digits()[0], "?learn=false").json
    shown = answer["exemplars"] + answer["runner_up_exemplars"]
    assert shown
    for index in shown:
        assert client.get(f"/v1/images/{index}/thumbnail").headers["content-type"] == "image/jpeg"
    stored = client.get("/v1/images/7/decision").json
    again = client.decide(client.get("/v1/images/7").body, "?learn=false").json
    same = again["exemplars"] if again["category"] == stored["category"] else again["runner_up_exemplars"]
    assert same[0] == 7 and 7 not in stored["exemplars"], "an image is nearest to itself"
    member = next(item for item in client.get("/v1/images?limit=500").json["items"] if item["index"] == 7)
    assert {name: stored[name] for name in ("similarity", "margin", "runner_up", "name", "verdict")} == {
        name: member[name] for name in ("similarity", "margin", "runner_up", "name", "verdict")
    }


def test_an_image_whose_feature_is_the_only_one_left_is_shown_with_typical_ones(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with journal.transaction() as connection:
        connection.execute("DELETE FROM features WHERE idx <> 4")
    shown = Views(Catalog(journal), journal).stored(4)
    journal.close()
    assert shown is not None and sorted(shown.exemplars) == [3, 5]


def test_every_bad_image_is_a_problem_and_the_odd_ones_are_answered(client: Client, tmp_path: Path) -> None:
    good, bad = bad_folder(tmp_path / "bad")
    before = client.state()
    for name in sorted(bad):
        path = tmp_path / "bad" / name
        if path.is_file():
            answer = client.decide(path.read_bytes())
            assert 400 <= answer.status < 500, name
            assert answer.problem("invalid-image")["source"] == "upload"
    for name in sorted(good):
        assert client.decide((tmp_path / "bad" / name).read_bytes(), "?learn=false").status == 200, name
    assert client.state() == before


def test_a_batch_tells_bad_images_in_their_places(client: Client) -> None:
    answers = client.batch([digits()[1], b"no image", b"", digits()[2]], "?learn=false").json["decisions"]
    assert [("problem" in answer) for answer in answers] == [False, True, True, False]
    assert answers[1]["source"] == "1.png" and answers[1]["problem"]["status"] == 422
    assert answers[3]["source"] == "3.png"


def test_wrong_content_is_refused_with_what_to_do(client: Client) -> None:
    image = digits()[0]
    refused = client("POST", "/v1/decide", image, {"Content-Type": "application/x-www-form-urlencoded"})
    assert "Content-Type: image/jpeg" in refused.problem("unsupported-media-type")["detail"]
    client("POST", "/v1/decide:batch", image, {"Content-Type": "image/png"}).problem("unsupported-media-type")
    body, kind = form([("picture", "a.png", image)])
    assert "'image'" in client("POST", "/v1/decide", body, {"Content-Type": kind}).problem("invalid-request")["detail"]
    body, kind = form([("image", None, b"a text")])
    client("POST", "/v1/decide", body, {"Content-Type": kind}).problem("invalid-request")
    client("POST", "/v1/decide", b"garbage", {"Content-Type": kind}).problem("bad-request")
    client("POST", "/v1/decide", body, {"Content-Type": "multipart/form-data"}).problem("bad-request")
    assert client.batch(digits()[:1] * 65).status in (400, 413)
    client.decide(image, "?learn=perhaps").problem("invalid-request")


def test_names_of_clients_are_only_text(client: Client) -> None:
    body, kind = form([("image", "../../etc/pass\x7fwd\u202e", digits()[0])])
    answer = client("POST", "/v1/decide?learn=false", body, {"Content-Type": kind}).json
    assert answer["source"] == "../../etc/passwd"
    answer = client.decide(digits()[0], "?learn=false&source=" + "%3Cscript%3E%00%0A" + "x" * 300).json
    assert answer["source"] == "<script>" + "x" * 192


def test_a_repeated_request_gets_the_first_answer(client: Client) -> None:
    first = client.decide(digits()[41], "?source=a", key="once")
    after = client.state()
    again = client.decide(digits()[41], "?source=a", key="once")
    assert "idempotent-replay" not in first.headers and again.headers["idempotent-replay"] == "true"
    same = ("index", "category", "similarity", "verdict", "runner_up", "steps", "source")
    assert [first.json[name] for name in same] == [again.json[name] for name in same]
    client.decide(digits()[42], "?source=a", key="once").problem("key-reused")
    client.decide(digits()[41], "?source=b", key="once").problem("key-reused")
    assert client.state() == after


def test_a_repeated_batch_gets_the_first_answers(client: Client) -> None:
    images = [digits()[43], b"no image", digits()[44]]
    first = client.batch(images, key="batch")
    after = client.state()
    again = client.batch(images, key="batch")
    assert again.headers["idempotent-replay"] == "true"
    indices = [[answer.get("index") for answer in answers.json["decisions"]] for answers in (first, again)]
    assert indices[0] == indices[1] and indices[0][1] is None
    client.batch(images[:2], key="batch").problem("key-reused")
    client.batch([], key="empty").problem("invalid-request")
    assert client.state() == after


def test_keys_are_checked(client: Client) -> None:
    for key in ("x" * 201, "with space", "ümlaut"):
        client("POST", "/v1/decide", digits()[0], {"Idempotency-Key": key.encode().decode("latin-1")}).problem(
            "invalid-request"
        )


def test_the_same_request_at_once_is_answered_once(served: Running) -> None:
    before = served.client().state()["answered"]
    gate = threading.Barrier(8)

    def send(_: int) -> tuple[int, bool]:
        gate.wait()
        answer = served.client().decide(digits()[50], key="at-once")
        return answer.json["index"], "idempotent-replay" in answer.headers

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert {index for index, _ in answers} == {before}
    assert sorted(replayed for _, replayed in answers) == [False] + [True] * 7
    assert served.client().state()["answered"] == before + 1


def test_pictures_come_back(client: Client) -> None:
    image = encoded(photo(seed=3), "JPEG")
    index = client.decide(image).json["index"]
    original = client.get(f"/v1/images/{index}")
    assert original.body == image and original.headers["content-type"] == "image/jpeg"
    assert "sandbox" in original.headers["content-security-policy"]
    tag = original.headers["etag"]
    assert client.get(f"/v1/images/{index}", **{"If-None-Match": tag}).status == 304
    small = client.get(f"/v1/images/{index}/thumbnail")
    assert (
        small.status == 200
        and client.get(f"/v1/images/{index}/thumbnail", **{"If-None-Match": small.headers["etag"]}).status == 304
    )
    assert client.get(f"/v1/images/{client.state()['answered']}").status == 404
