"""Heat maps and scatter plots of features: read with gaps, drawn with one colour per class."""

from dataclasses import replace
from pathlib import Path

from potluck.report.features import (
    FeaturePlane,
    FeatureRecord,
    FeatureStage,
    compare_features_section,
    features_section,
    parse_features,
)
from potluck.report.html import palette
from potluck.report.read import make_record


def test_what_is_missing_or_odd_leaves_gaps():
    assert parse_features({}) == FeatureRecord()
    found = parse_features(
        {
            "round": 4,
            "labels": [1, None],
            "stages": [
                {"name": "stem", "tiers": ["a", "b"], "cka": [[1, 0.5], [0.5, None]]},
                {"name": "alone", "tiers": ["a"], "cka": [[1]]},
                {"name": "crooked", "tiers": ["a", "b"], "cka": [[1, 0.5]]},
            ],
            "planes": [{"tier": "a", "points": [[1, 2], [3, "x"], [5, 6]]}, {"tier": "b"}],
        }
    )
    assert found.stages == (FeatureStage("stem", ("a", "b"), (), ((1.0, 0.5), (0.5, None))),)
    assert found.planes == (FeaturePlane("a", "", (), None, ((1.0, 2.0, 1), (5.0, 6.0, None))),)
    assert (found.round, found.rows) == (4, None)


def test_a_map_s_cells_are_as_dark_as_tiers_are_alike():
    drawn = features_section(
        FeatureRecord(stages=(FeatureStage("<stem>", ("a", "b"), (), ((1.0, 0.25), (0.25, None))),))
    )
    assert drawn is not None
    assert '<td style="--heat:60%">1.00</td><td style="--heat:15%">0.25</td>' in drawn
    assert "&lt;stem&gt;" in drawn
    assert features_section(FeatureRecord()) is None


def test_clients_are_named_with_their_tier_and_their_mean_is_told():
    stage = {"name": "body", "clients": ["c1", "c7"], "cka": [[1, 0.5], [0.5, 1]], "mean": 0.5}
    record = parse_features({"clients": {"tiers": {"c1": "phone", "c7": "tv"}, "stages": [stage, {"name": "odd"}]}})
    assert [(one.whose, one.tiers) for one in record.clients] == [(("c1", "c7"), ("phone", "tv"))]
    drawn = features_section(record) or ""
    assert "body; mean of pairs 0.50" in drawn
    assert "<div>c1 phone</div>" in drawn
    assert '<th scope="col">c1</th>' in drawn


def picture(labels):
    points = tuple((float(place), 1.0, label) for place, label in enumerate(labels))
    return features_section(FeatureRecord(planes=(FeaturePlane("a", "body", (0.75, 0.2), 0.125, points),))) or ""


def colours(page):
    return {part.split('"')[0] for part in page.split('class="dots" style="fill:')[1:]}


def test_every_class_has_a_colour_of_its_own_up_to_twenty():
    assert len(colours(picture(range(3)))) == 3
    assert len(colours(picture(range(20)))) == 20
    assert len(colours(picture(range(21)))) == 1
    assert colours(picture([None, None])) == {"var(--c0)"}
    assert "class 2" in picture(range(3))
    assert "first component (75 % of variance)" in picture(range(3))


def test_how_clearly_classes_lie_apart_is_told_beside_the_picture():
    assert "a: body; separation 0.12" in picture(range(3))


def run_with(cka, separation):
    stage = {"name": "body", "clients": ["c1", "c2"], "cka": [[1, cka], [cka, 1]], "mean": cka}
    plane = {"tier": "tv", "separation": separation, "points": [[0, 0]]}
    features = {"clients": {"stages": [stage]}, "planes": [plane]}
    return replace(make_record(Path("run"), {}, "", lambda: iter(()), []), features=features)


def test_a_comparison_has_means_over_seeds_and_leaves_out_methods_that_were_not_looked_at():
    """Seeds of 0.5 and 0.7: the mean is 0.6, the standard deviation 0.2 / sqrt(2)."""
    blank = replace(run_with(1, 1), features={})
    one, other, third = palette(["FedIN", "FedAvg", "Local"])
    drawn = compare_features_section(
        [(one, [run_with(0.5, 0.25), run_with(0.7, None)]), (other, [run_with(0.9, 0.5)]), (third, [blank])]
    )
    assert drawn is not None
    assert "0.60 ± 0.14" in drawn
    assert ">0.90<" in drawn
    assert ">0.25<" in drawn
    assert "Local" not in drawn
    assert compare_features_section([(third, [blank])]) is None
