"""The first things to know about one run: score, spread, traffic, time, energy."""

from __future__ import annotations

from potluck.report.html import Markup, card, cards, table, tag
from potluck.report.records import LearningCurve, RunRecord, TaskTotals, TierRecord
from potluck.report.summary import capitalize, metric_format, metric_name
from potluck.report.units import (
    GAP,
    MetricFormat,
    format_bytes,
    format_count,
    format_flops,
    format_joules,
    format_seconds,
)


def state(run: RunRecord) -> Markup:
    """How far a run got, as one line."""
    planned = f" of {run.planned_rounds}" if run.planned_rounds is not None else ""
    seed = f" · seed {run.seed}" if run.seed is not None else ""
    words = f" {run.label} · {run.rounds_done}{planned} rounds{seed}"
    known = run.status if run.status in {"done", "running", "interrupted", "failed"} else "unknown"
    return tag("p", tag("span", run.status, class_=f"chip {known}"), words, class_="lede")


def numbers(run: RunRecord) -> Markup:
    """The headline as cards."""
    totals = run.totals
    return cards(
        _score(run),
        _clients(run),
        card(
            "Traffic (measured)",
            format_bytes(totals.bytes),
            f"{format_bytes(totals.bytes_down)} down",
            f"{format_bytes(totals.bytes_up)} up",
        ),
        card(
            "Time in the field (modelled)",
            format_seconds(run.device_seconds),
            "slowest device of every round, summed",
        ),
        card("Energy (modelled)", format_joules(totals.joules), "all devices together"),
        card(
            "Time here (measured)",
            format_seconds(run.seconds),
            f"{run.rounds_done} rounds on the machine that ran this",
        ),
    )


def _score(run: RunRecord) -> Markup:
    curve, judge = run.curve, metric_format(run)
    what = judge.name
    final, best = curve.final, curve.best
    title = f"{capitalize(what)}, mean over clients" if curve.on_clients else f"Test {what}"
    after = f"after round {final.round}" if final else "no scores yet"
    known = best is not None and best.score is not None
    chosen = f"{judge.format(best.score)} at round {best.round}, chosen by validation" if best and known else ""
    return card(title, judge.format(final.score if final else None), after, chosen, _local(curve, judge))


def _local(curve: LearningCurve, judge: MetricFormat) -> str:
    mean = curve.last_local.local.mean if curve.last_local else None
    return f"local: {judge.format(mean)}, each client's own examples and classes" if mean is not None else ""


def _clients(run: RunRecord) -> Markup:
    spread = run.curve.final.clients if run.curve.final else None
    if spread is None or spread.mean is None:
        return card("Clients", format_count(run.clients), f"no {metric_name(run)} per client recorded")
    return card(
        "Spread over clients",
        metric_format(run).format_mean_sd(spread.mean, spread.sd),
        f"worst tenth {metric_format(run).format(spread.worst)}",
        f"{format_count(spread.count)} clients, each on its own examples",
    )


def everyone(curve: LearningCurve) -> str:
    """What to call the score of the whole run."""
    return "all clients" if curve.on_clients else "global"


def tier_table(run: RunRecord) -> Markup:
    """The score per tier, and over its clients."""
    head = ["", "clients", "parameters", "final", "by validation", "client mean ± sd", "worst tenth"]
    rows = [
        _scores(tier.name, tier.clients, tier.parameters, tier.curve, metric_format(run))
        for tier in run.tiers
        if tier.curve.points or tier.clients
    ]
    rows.append(_scores(everyone(run.curve), run.clients, None, run.curve, metric_format(run)))
    return table(head, rows)


def _scores(
    name: str, clients: int | None, parameters: int | None, curve: LearningCurve, judge: MetricFormat
) -> list[str]:
    final, best = curve.final, curve.best
    spread = final.clients if final else None
    mark = " †" if curve.on_clients else ""
    return [
        name,
        format_count(clients),
        format_count(parameters) if parameters is not None else "",
        judge.format(final.score if final else None) + mark,
        judge.format(best.score if best else None),
        judge.format_mean_sd(spread.mean, spread.sd) if spread else GAP,
        judge.format(spread.worst if spread else None),
    ]


def beside_table(run: RunRecord) -> Markup | None:
    """Other scores of the last scored round, where the run is judged by something else than accuracy."""
    curves = [*((tier.name, tier.curve) for tier in run.tiers), (everyone(run.curve), run.curve)]
    ends = [(name, curve.final) for name, curve in curves if curve.final]
    found = [(name, end.test.others) for name, end in ends] + [
        (f"{name}, its clients", end.own.others) for name, end in ends
    ]
    found = [(name, beside) for name, beside in found if beside]
    if run.metric == "accuracy" or not found:
        return None
    names = list(dict.fromkeys(name for _, beside in found for name in beside))
    scores = {name: MetricFormat.of_metric(name) for name in names}
    rows = [[name, *(scores[score].format(beside.get(score)) for score in names)] for name, beside in found]
    return table(["beside it", *(score.name.replace("f1 ", "F1 ") for score in scores.values())], rows)


def dagger(run: RunRecord) -> Markup | None:
    """What the dagger says, where one was set."""
    marked = run.curve.on_clients or any(tier.curve.on_clients for tier in run.tiers)
    words = "† Models live on the clients: mean over clients, each on its own examples, not one shared test set."
    return tag("p", words, class_="note") if marked else None


def cost_table(run: RunRecord) -> Markup:
    """What one client's part in one round takes, and what the whole run took."""
    head = ["", "device", "down", "up", "compute", "memory", "time", "energy", "traffic", "worked", "energy"]
    groups = [("", 2), ("per client and round: measured", 2), ("modelled", 4), ("whole run: measured", 2)]
    groups.append(("modelled", 1))
    rows = [_costs(tier) for tier in run.tiers]
    return table(head, [*rows, _sum(run.totals)], groups)


def _costs(tier: TierRecord) -> list[str]:
    one, all_ = tier.accepted, tier.totals
    each = one.per_visit
    shape = [f"width {tier.width}" if tier.width else "", f"depth {tier.depth}" if tier.depth else ""]
    return [
        tier.name,
        ", ".join(filter(None, [tier.profile, *shape])) or GAP,
        format_bytes(each(one.bytes_down)),
        format_bytes(each(one.bytes_up)),
        format_flops(each(one.flops)),
        format_bytes(one.memory),
        format_seconds(each(one.modelled_seconds)),
        format_joules(each(one.joules)),
        format_bytes(all_.bytes),
        format_seconds(all_.measured_seconds),
        format_joules(all_.joules),
    ]


def _sum(totals: TaskTotals) -> list[str]:
    return [
        "all",
        *[""] * 7,
        format_bytes(totals.bytes),
        format_seconds(totals.measured_seconds),
        format_joules(totals.joules),
    ]
