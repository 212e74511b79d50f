import json

from tests.cli.running import talon


def test_a_simulated_pool_for_machines() -> None:
    ended = talon("bench", "scale", "--encoders", 8, "--encoder-rate", 100, "--batches", 300, "--json")
    facts = json.loads(ended.out)
    assert ended.code == 0
    assert facts["pool"]["encoders"] == 8 and facts["pool"]["at_the_owner"] == 32
    assert 0 < facts["outcome"]["images_a_second"] < 800
    assert facts["outcome"]["most_under_way"] <= 8 * 3 + 32


def test_a_simulated_pool_for_people() -> None:
    ended = talon("bench", "scale", "--owners", 4, "--encoder-rate", 2000, "--batches", 300)
    assert ended.code == 0
    assert "encoders could make 128,000" in " ".join(ended.out.split())
    assert "busiest owner at work" in ended.out


def test_a_rate_of_nothing_is_refused() -> None:
    ended = talon("bench", "scale", "--encoder-rate", 0)
    assert ended.code != 0
    assert "--encoder-rate 0" in ended.err
