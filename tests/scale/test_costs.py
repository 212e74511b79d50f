"""The cost model says what its formulas say, from constants that were measured."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from talon_ocd.scale.costs import (
    BOUNDARY,
    BUSY,
    FEW_LISTED,
    LISTED_SIZE,
    MANY_LISTED,
    REGIONS_UNEVEN,
    REPLICATED,
    Costs,
    owner_load,
    plan,
)
from talon_ocd.scale.pool import Pool
from talon_ocd.scale.simulation import simulate

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MEASURED, LISTED = RESULTS / "owner.json", RESULTS / "large-memory.json"


@pytest.mark.skipif(not MEASURED.is_file(), reason="installed without the benchmarks")
def test_the_constants_are_those_that_were_measured() -> None:
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows, size = found["rows"], found["shapes"]["D"]
    parts, written = rows["talon"]["microseconds_a_feature"], rows["journal"]["microseconds_a_feature"]
    second = {
        name: 1.0 / rows["encoder"][name]["a_processor_second"] for name in ("decode", "trunk", "head", "learning")
    }
    batches = json.loads(LISTED.read_text(encoding="utf-8"))["rows"]
    listed = {row["prototypes"]: 1e-3 * row["index_ms"] / 64 for row in batches}
    extra = written["journal"] + written["snapshot"] + written["bookkeeping"] - parts["bookkeeping"]
    expected = {
        "product_seconds": 1e-6 * parts["product"] / (rows["talon"]["prototypes"] * size),
        "beside_seconds": 1e-6 * sum(value for name, value in parts.items() if name != "product"),
        "few_listed_seconds": listed[FEW_LISTED],
        "many_listed_seconds": listed[MANY_LISTED],
        "journal_seconds": 1e-6 * extra,
        "learning_seconds": second["learning"],
        "decode_seconds": second["decode"],
        "encode_seconds": second["trunk"] + second["head"],
        "image_bytes": rows["encoder"]["jpeg_bytes"],
        "number_bytes": 4,
        "answer_bytes": rows["journal"]["bytes_an_answer"]["for_ever"],
    }
    assert asdict(Costs()) == {name: pytest.approx(float(f"{value:.2g}")) for name, value in expected.items()}


def test_one_owner_is_enough_until_it_is_full() -> None:
    costs = Costs()
    full = costs.full_at(1_000, 768)
    assert owner_load(costs, 1_000, full, 768, 1) == pytest.approx(BUSY, rel=1e-3)
    assert plan(1_000, full, 768).owners == 1
    assert plan(1_000, full + 1, 768).owners == 2
    assert costs.full_at(1e6, 768) == 0


def test_an_owner_searches_in_lists_where_that_is_faster() -> None:
    costs = Costs()
    seconds = {number: costs.owner_seconds(number, LISTED_SIZE, journal=False) for number in (FEW_LISTED, MANY_LISTED)}
    assert seconds == {FEW_LISTED: pytest.approx(300e-6), MANY_LISTED: pytest.approx(570e-6)}
    exact = costs.product_seconds * 10_000 * LISTED_SIZE + costs.beside_seconds
    assert costs.owner_seconds(10_000, LISTED_SIZE, journal=False) == pytest.approx(exact)
    wide = costs.owner_seconds(MANY_LISTED, 3 * LISTED_SIZE, journal=False) - costs.beside_seconds
    assert wide == pytest.approx(3 * (570e-6 - costs.beside_seconds)), "an assumption: in proportion to the numbers"


def test_owners_are_as_few_as_will_do() -> None:
    for rate, prototypes in ((5e4, 10_000), (1e6, 10_000), (1e6, 1_000_000)):
        planned = plan(rate, prototypes)
        assert planned.owner_busy <= BUSY < owner_load(Costs(), rate, prototypes, 768, planned.owners - 1)
        held = prototypes * (1 + REPLICATED) / planned.owners
        load = REGIONS_UNEVEN * (1 + BOUNDARY) * rate / planned.owners * Costs().owner_seconds(held, 768)
        assert planned.owner_busy == pytest.approx(load)


def test_what_a_plan_sends_and_writes() -> None:
    planned = plan(1_000, 10_000, size=768, encoder_rate=100.0)
    assert planned.encoders == 13
    assert planned.images_gbit == pytest.approx(1_000 * 100_000 * 8 / 1e9)
    assert planned.features_gbit == pytest.approx(1_000 * 768 * 4 * 8 / 1e9)
    assert planned.cards == 1
    assert planned.journal_gigabytes_a_day == pytest.approx(1_000 * 200 * 86_400 / 1e9)


def test_a_simulated_pool_does_what_its_plan_says() -> None:
    rate = 30_000
    planned, costs = plan(rate, 100_000, encoder_rate=500.0), Costs()
    assert planned.owners > 1
    pool = Pool(
        encoders=planned.encoders,
        batches=3_000,
        trunk_seconds=Pool.batch / 500.0,
        owner_seconds=Pool.batch * costs.owner_seconds(planned.prototypes_each, 768),
        arrivals=rate / Pool.batch,
        shares=_uneven(planned.owners),
        boundary=BOUNDARY,
    )
    outcome = simulate(pool)
    assert outcome.images_a_second == pytest.approx(rate, rel=0.05)
    assert max(outcome.owner_busy) == pytest.approx(planned.owner_busy, rel=0.05)
    assert outcome.mean_at_source < 0.1


def _uneven(owners: int) -> tuple[float, ...]:
    """Return shares of which the first is as much larger than the mean as plans assume."""
    first = REGIONS_UNEVEN / owners
    return (first, *((1.0 - first) / (owners - 1),) * (owners - 1))
