"""Token types: those of a second text are 1, told by the separator; and a real encoder, where a folder holds one."""

import json

import pytest
import torch
from real_data import real

from potluck.core import Newborn, SettingsError, stream
from potluck.data.subwords import subword_tokenizer
from potluck.data.tokenizer import encode_row
from potluck.models import ModelZoo, make_spec, tier_spec

FIRST, SECOND, NOTHING = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]


def stem(**options):
    """Embeddings that show a token's type and nothing else: (1, 0) or (0, 1)."""
    spec = make_spec(
        "bert", input=(7,), classes=2, depth=1, hidden=2, heads=1, ffn=2, vocab=9, norm="none", dropout=0.0, **options
    )
    net = ModelZoo(spec).build(Newborn(spec), stream(0)).eval()
    with torch.no_grad():
        net.stem.word_embeddings.weight.zero_()
        net.stem.position_embeddings.weight.zero_()
        net.stem.token_type_embeddings.weight.copy_(torch.eye(2)[: len(net.stem.token_type_embeddings.weight)])
    return net.stem


@pytest.mark.parametrize(
    ("ids", "types"),
    [
        ([1, 5, 3, 6, 7, 3, 0], [0, 0, 0, 1, 1, 1, None]),
        ([1, 5, 6, 7, 3, 0, 0], [0, 0, 0, 0, 0, None, None]),
        ([3, 5, 3, 6, 7, 3, 0], [0, 0, 0, 1, 1, 1, None]),  # a row may begin with what also ends texts
        ([1, 3, 3], [0, 0, 1]),
        ([1, 3], [0, 0]),
        ([1], [0]),
    ],
)
def test_tokens_after_the_first_separator_are_of_the_second_type(ids, types):
    kinds = {0: FIRST, 1: SECOND, None: NOTHING}
    assert stem(sep=3)(torch.tensor([ids]))[0].tolist() == [kinds[kind] for kind in types]


def test_without_a_separator_or_a_second_type_all_tokens_are_alike():
    pair = torch.tensor([[1, 5, 3, 6, 7, 3, 0]])
    assert stem()(pair)[0].tolist() == [FIRST] * 6 + [NOTHING]
    assert stem(sep=3, types=1)(pair)[0].tolist() == [FIRST] * 6 + [NOTHING]


def test_rows_of_a_batch_have_types_of_their_own():
    found = stem(sep=3)(torch.tensor([[1, 3, 5, 3], [1, 5, 6, 3]]))
    assert found.tolist() == [[FIRST, FIRST, SECOND, SECOND], [FIRST] * 4]


def test_one_type_makes_one_spec_whatever_separates_texts():
    plain = {"input": (7,), "classes": 2, "types": 1}
    assert make_spec("bert", sep=3, **plain) == make_spec("bert", **plain)
    with pytest.raises(SettingsError, match="sep = 9 is not a token of vocab = 9"):
        stem(sep=9)


PAIR = ("No Weapons of Mass Destruction Found in Iraq Yet.", "Weapons of Mass Destruction Found in Iraq.")
IDS = [
    101, 2053, 4255, 1997, 3742, 6215, 2179, 1999, 5712, 2664, 1012, 102, 4255, 1997, 3742, 6215, 2179, 1999, 5712,
    1012, 102,
]  # fmt: skip
ODD = "Naïve café-goers paid ¥500 (≈£2.70) for 不味い tea; \u200dit's unaffable!"
ODD_IDS = [
    15743, 7668, 1011, 2175, 2545, 3825, 1071, 29345, 1006, 1606, 29646, 2475, 1012, 3963, 1007, 2005, 1744, 100, 1647,
    5572, 1025, 2009, 1005, 1055, 14477, 20961, 3468, 999,
]  # fmt: skip
STATES = {
    2: ([-0.047052410924, 0.007872226400, -0.011515429976], [0.703575646302, -0.001640367939, -0.079200541406]),
    4: ([-0.006397671976, 0.022231157592, 0.002474430053], [0.025435313797, -0.169560283810, 0.290569016138]),
    6: ([0.418160120793, -0.039891700358, 0.186003460824], [0.520159727519, -0.051197102608, 0.635569076014]),
}
"""The first three numbers of the pair's first and last token after so many layers, as `transformers` has them."""


def test_a_real_encoder_s_tokens_are_its_own_tokenizer_s():
    folder = real("minilm-l6")
    cut = subword_tokenizer(folder)
    assert json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"] == cut.known
    assert encode_row(cut, 32, *map(cut, PAIR)) == IDS
    assert cut(ODD) == ODD_IDS


@pytest.mark.parametrize("depth", [2, 4, 6])
def test_a_real_encoder_s_states_of_a_pair_are_its_own(depth):
    full = make_spec("bert", input=(32,), classes=2, pretrained=str(real("minilm-l6")), sep=102)
    spec = tier_spec(full, depth=depth)
    zoo = ModelZoo(spec)
    net = zoo.build(zoo.fresh(spec, stream(0, "init"))).double().eval()
    with torch.no_grad():
        found = net.body(net.stem(torch.tensor([[*IDS, *[0] * 11]])))[0]
    first, last = STATES[depth]
    torch.testing.assert_close(found[0, :3].tolist(), first, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[20, :3].tolist(), last, rtol=1e-9, atol=1e-9)
