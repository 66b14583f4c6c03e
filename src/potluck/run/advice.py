"""What a user should know of an experiment before round 0: it can run, but hardly means what it says."""

from __future__ import annotations

from potluck.core import display_name, facts_of
from potluck.learn import ServerClip
from potluck.run.assemble import FederationDatasets, Setup
from potluck.run.secure import closed_blocks, cut_noise


def advice(setup: Setup) -> list[str]:
    """Warnings about an experiment that can run, one line each."""
    tiers, rows = (_uncut_tiers, _empty_tiers, _small_population), (_idle_rows, _other_networks)
    return [text for look in (*tiers, *rows, _drowned_tiers, closed_blocks, cut_noise) for text in look(setup)]


def _uncut_tiers(setup: Setup) -> list[str]:
    """A method that cuts networks, and tiers that all train the whole of it."""
    method, zoo = setup.context.method, setup.context.zoo
    facts = facts_of(method)
    if facts is None or facts.bound or facts.networks not in ("width", "depth"):
        return []
    if any(tier.spec != zoo.full for tier in zoo.tiers):
        return []
    name, what = display_name(method), facts.networks
    return [
        f"{name} gives devices networks that differ in {what}, and no tier has a {what} below 1: every device trains "
        f"the whole network. Give the tiers a {what}."
        if what == "width"
        else f"{name} gives devices networks that differ in depth, and no tier is shallower than the server's network: "
        "every device trains the whole of it. Give the tiers a depth."
    ]


def _empty_tiers(setup: Setup) -> list[str]:
    counts, tiers = setup.population.counts(), setup.population.tiers
    empty = [tier.name for tier in tiers if not tier.absent and not counts.get(tier.name)]
    named = ", ".join(f"'{name}'" for name in empty)
    return [f"no client belongs to tier {named}: there are {setup.population.clients} clients."] if empty else []


def _small_population(setup: Setup) -> list[str]:
    cohort, present = setup.experiment.cohort, setup.population.present
    if cohort <= present:
        return []
    return [f"cohort = {cohort}, but there are {present} clients: all of them take part in every round."]


def _idle_rows(setup: Setup) -> list[str]:
    """Training rows that a partition leaves to nobody."""
    datasets, data = setup.context.datasets, setup.experiment.data
    idle = datasets.federation.idle_rows if isinstance(datasets, FederationDatasets) else 0
    return [f"data.partition = '{data.partition}' leaves {idle} training rows to nobody."] if idle else []


def _other_networks(setup: Setup) -> list[str]:
    """Tiers whose profile was measured with another network than theirs."""
    found = [name for name, device in setup.population.devices.items() if device.basis == "other network"]
    return [
        f"tier '{name}': its profile '{setup.population.devices[name].name}' was measured with another network, so its "
        "times and memory follow from FLOP/s alone. Measure this one: potluck measure FILE."
        for name in found
    ]


def _drowned_tiers(setup: Setup) -> list[str]:
    """Noise of the server that is at least a whole clip on every entry, for what a tier holds alone."""
    mechanism, odds = setup.context.mechanism, setup.population.odds(setup.experiment.cohort)
    if not isinstance(mechanism, ServerClip):
        return []
    few = {name: found.expected for name, found in odds.items() if 0 < found.expected <= mechanism.noise}
    return [
        f"of tier '{name}' {expected:.3g} clients are expected in a round, and the noise is {mechanism.noise:.3g} "
        "clips: it drowns what only they hold. A larger cohort of more clients helps, or fewer tiers."
        for name, expected in few.items()
    ]
