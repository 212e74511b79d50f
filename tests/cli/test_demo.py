from tests.cli.running import talon


def test_help() -> None:
    ended = talon("demo", "--help")
    assert ended.code == 0 and "digits" in ended.out and "--output" in ended.out
