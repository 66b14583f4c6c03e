"""Similarity of networks: CKA of their features, a plane of them by principal components or t-SNE, and how far classes
lie apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def cka(one: Tensor, other: Tensor) -> float | None:
    """Linear centred kernel alignment of two sets of features, of (rows, units) each; None if either is constant.

    Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019,
    https://arxiv.org/abs/1905.00414. 1: equal up to rotation and scale; 0: nothing in common.
    """
    a, b = _centre(one), _centre(other)
    scale = (a.T @ a).norm() * (b.T @ b).norm()
    return float((a.T @ b).square().sum() / scale) if scale > 0 else None


def plane(features: Tensor) -> tuple[Tensor, list[float]]:
    """The first two principal components of each row, and the share of the variance that each explains."""
    left, sizes, right = torch.linalg.svd(_centre(features), full_matrices=False)
    # The sign of a component is arbitrary: make its largest entry positive.
    signs = right.gather(1, right.abs().argmax(1, keepdim=True)).sign().T
    found = torch.zeros(len(features), 2, dtype=left.dtype)
    shares, kept = torch.zeros(2, dtype=left.dtype), min(2, len(sizes))
    found[:, :kept] = (left * sizes * signs)[:, :kept]
    if sizes.any():
        shares[:kept] = (sizes.square() / sizes.square().sum())[:kept]
    return found, shares.tolist()


def neighbours(features: Tensor, seed: int) -> Tensor:
    """A place in the plane for each row, near the rows with similar features: t-SNE.

    Van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008. Distances between groups mean little.
    """
    from sklearn.manifold import TSNE

    # The perplexity, the number of neighbours that count, must be below the number of rows.
    perplexity = min(30.0, (len(features) - 1) / 3)
    made = TSNE(2, perplexity=perplexity, init="random", random_state=seed).fit_transform(_centre(features).numpy())
    return torch.from_numpy(made)


def separation(features: Tensor, labels: Sequence[int]) -> float | None:
    """How clearly classes lie apart: the mean silhouette of the rows, from -1 to 1; None with fewer than two classes.

    Rousseeuw, "Silhouettes", J. Comput. Appl. Math. 20, 1987. 0: as near to another class as to the row's own.
    """
    from sklearn.metrics import silhouette_score

    if not 1 < len(set(labels)) < len(labels):
        return None
    return float(silhouette_score(features.double().numpy(), labels))


def _centre(features: Tensor) -> Tensor:
    features = features.to(torch.float64)
    return features - features.mean(0)
