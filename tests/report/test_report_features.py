"""Heat maps and scatter plots of features: read with gaps, drawn with one colour per class."""

from potluck.report.features import FeaturePlane, FeatureRecord, FeatureStage, features_section, parse_features


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
    assert found.stages == (FeatureStage("stem", ("a", "b"), ((1.0, 0.5), (0.5, None))),)
    assert found.planes == (FeaturePlane("a", "", (), None, ((1.0, 2.0, 1), (5.0, 6.0, None))),)
    assert (found.round, found.rows) == (4, None)


def test_a_map_s_cells_are_as_dark_as_tiers_are_alike():
    drawn = features_section(FeatureRecord(stages=(FeatureStage("<stem>", ("a", "b"), ((1.0, 0.25), (0.25, None))),)))
    assert drawn is not None
    assert '<td style="--heat:60%">1.00</td><td style="--heat:15%">0.25</td>' in drawn
    assert "&lt;stem&gt;" in drawn
    assert features_section(FeatureRecord()) is None


def test_clients_are_named_with_their_tier_and_their_mean_is_told():
    stage = {"name": "body", "clients": ["c1", "c7"], "cka": [[1, 0.5], [0.5, 1]], "mean": 0.5}
    record = parse_features({"clients": {"tiers": {"c1": "phone", "c7": "tv"}, "stages": [stage, {"name": "odd"}]}})
    assert [one.whose for one in record.clients] == [("c1 (phone)", "c7 (tv)")]
    drawn = features_section(record)
    assert "body; mean of pairs 0.50" in drawn
    assert "c1 (phone)" in drawn


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
