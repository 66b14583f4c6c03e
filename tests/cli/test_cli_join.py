def test_join_explains_what_leaves_a_node_to_someone_who_has_no_kit_yet(potluck):
    code, out, err = potluck("join", "--explain")
    assert (code, err) == (0, "")
    assert out.startswith("- Once, when it joins: ")
    assert "audit.jsonl" in out


def test_join_without_a_kit_says_what_is_missing(potluck):
    code, out, err = potluck("join", "--data", "clinic-a.npz")
    assert (code, out) == (2, "")
    assert err.startswith("potluck: --kit is missing")
