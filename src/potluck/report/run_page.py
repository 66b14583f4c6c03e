"""The page about one run."""

from __future__ import annotations

import json

from potluck.report.clients import clients_section, node_figure, sorted_clients_figure
from potluck.report.cost import run_cost_section, tier_cost_section
from potluck.report.coverage import run_coverage_section
from potluck.report.curves import loss_figure, score_figure, tier_series
from potluck.report.features import features_section, parse_features
from potluck.report.holdings import holdings_section, parse_holdings
from potluck.report.html import (
    Cell,
    Markup,
    TableCell,
    card,
    cards,
    charts,
    collapsible,
    join,
    note,
    number_cell,
    section,
    table,
    tag,
)
from potluck.report.presence import presence_section
from potluck.report.privacy import privacy_note, privacy_section
from potluck.report.records import ClientScores, LearningCurve, RunRecord
from potluck.report.summary import best_heading, capitalize, metric_format, overall_name
from potluck.report.transfer import transfer_section
from potluck.report.units import MetricFormat, format_bytes, format_count, format_joules, format_seconds

MAX_FAILURES = 30
MAX_WARNINGS = 50


def run_body(run: RunRecord) -> Markup:
    """Everything about one run, the most important first."""
    return join(
        _headline(run),
        _tier_table(run),
        _other_metrics_table(run),
        _dagger_note(run),
        section("Learning", charts(score_figure(run), loss_figure(run))),
        privacy_section(run),
        presence_section(run),
        run_cost_section(run),
        tier_cost_section(run),
        holdings_section(parse_holdings(run.holdings), {tier.name: one.colour for one, tier in tier_series(run)}),
        clients_section(run),
        features_section(parse_features(run.features)),
        transfer_section(run.transfers),
        run_coverage_section(run),
        section("What went wrong", _failures(run)),
        _settings_and_manifest(run),
    )


def run_brief(run: RunRecord) -> Markup:
    """One run in a comparison: its numbers, its learning curve, its failures and its settings."""
    return join(
        _headline(run),
        _tier_table(run),
        _dagger_note(run),
        privacy_note(run),
        charts(score_figure(run), node_figure(run) or sorted_clients_figure(run)),
        _failures(run),
        _settings_and_manifest(run),
    )


def status_line(run: RunRecord) -> Markup:
    """The status of a run, its method, its rounds and its seed in a line."""
    planned = f" of {run.planned_rounds}" if run.planned_rounds is not None else ""
    seed = f" · seed {run.seed}" if run.seed is not None else ""
    words = f" {run.label} · {run.rounds_done}{planned} rounds{seed}"
    css_class = run.status if run.status in {"done", "running", "interrupted", "failed", "diverged"} else "unknown"
    return tag("p", tag("span", run.failure or run.status, class_=f"chip {css_class}"), words, class_="lede")


def _headline(run: RunRecord) -> Markup:
    """Score, spread over clients, traffic, time and energy as cards."""
    totals = run.totals
    down, up = f"{format_bytes(totals.bytes_down)} down", f"{format_bytes(totals.bytes_up)} up"
    field_time, here = format_seconds(run.device_seconds), format_seconds(run.seconds)
    with_wait = [f"{format_seconds(run.round_seconds)} with the wait for the server"] * run.waits_for_server
    messages = [f"{format_bytes(run.message_bytes)} in messages of all kinds"] * (run.message_bytes is not None)
    return cards(
        _score_card(run),
        _clients_card(run),
        card("Traffic (measured)", format_bytes(totals.bytes), down, up, *messages),
        card("Time in the field (modelled)", field_time, "slowest device of every round, summed", *with_wait),
        card("Energy (modelled)", format_joules(totals.joules), "all devices together"),
        card("Time here (measured)", here, f"{run.rounds_done} rounds on the machine that ran this"),
    )


def _score_card(run: RunRecord) -> Markup:
    curve, metric = run.curve, metric_format(run)
    final, best, last_local = curve.final, curve.best, curve.last_local
    title = f"{capitalize(metric.name)}, mean over clients" if curve.on_clients else f"Test {metric.name}"
    lines = [f"after round {final.round}" if final else "no scores yet"]
    if best and best.score is not None:
        how = "best round by the test set" if curve.best_by == "test" else "chosen by validation"
        lines.append(f"{metric.format(best.score)} at round {best.round}, {how}")
    if last_local and last_local.local.mean is not None:
        lines.append(f"local: {metric.format(last_local.local.mean)}, each client's own examples and classes")
    if (last := curve.last_personal) and last.personal.mean is not None:
        common, own = metric.format(last.personal.mean), metric.format(last.own_mix.mean)
        lines.append(f"after local epochs: {common}; on clients' own mix of labels {own}")
    return card(title, metric.format(final.score if final else None), *lines)


def _clients_card(run: RunRecord) -> Markup:
    scores, metric = run.curve.final.clients if run.curve.final else None, metric_format(run)
    if scores is None or scores.mean is None:
        return card("Clients", format_count(run.clients), f"no {metric.name} per client recorded")
    return card(
        "Spread over clients",
        metric.format_mean_sd(scores.mean, scores.sd),
        f"worst tenth {metric.format(scores.worst)}",
        f"{format_count(scores.count)} clients, each on its own examples",
    )


def _tier_table(run: RunRecord) -> Markup:
    """Scores per tier and over its clients."""
    head = ["", "clients", "parameters", "final", best_heading(run), "client mean ± sd", "worst tenth"]
    metric = metric_format(run)
    rows: list[list[TableCell]] = [
        [tier.name, number_cell(format_count, tier.clients), _count_or_blank(tier.parameters),
         *_score_cells(tier.curve, metric)]
        for tier in run.tiers
        if tier.curve.points or tier.clients
    ]  # fmt: skip
    overall: list[TableCell] = [overall_name(run.curve), number_cell(format_count, run.clients), ""]
    return table(head, rows, last=[[*overall, *_score_cells(run.curve, metric)]], title="scores")


def _count_or_blank(value: float | None) -> TableCell:
    return number_cell(format_count, value) if value is not None else ""


def _score_cells(curve: LearningCurve, metric: MetricFormat) -> list[Cell]:
    final, best = curve.final, curve.best
    clients = final.clients if final else ClientScores()
    score = final.score if final else None
    return [
        Cell(metric.format(score) + (" †" if curve.on_clients else ""), score),
        number_cell(metric.format, best.score if best else None),
        Cell(metric.format_mean_sd(clients.mean, clients.sd), clients.mean, clients.sd),
        number_cell(metric.format, clients.worst),
    ]


def _other_metrics_table(run: RunRecord) -> Markup | None:
    """Other metrics of the last scored round, for runs whose own metric is not accuracy."""
    curves = [*((tier.name, tier.curve) for tier in run.tiers), (overall_name(run.curve), run.curve)]
    finals = [(name, curve.final) for name, curve in curves if curve.final]
    found = [(name, final.test.others) for name, final in finals if final.test.others]
    found += [(f"{name}, its clients", final.own.others) for name, final in finals if final.own.others]
    if run.metric == "accuracy" or not found:
        return None
    metrics = {name: MetricFormat.of_metric(name) for _, others in found for name in others}
    rows: list[list[TableCell]] = [
        [name, *(number_cell(metric.format, others.get(key)) for key, metric in metrics.items())]
        for name, others in found
    ]
    head = ["other metrics", *(metric.name.replace("f1 ", "F1 ") for metric in metrics.values())]
    return table(head, rows, title="other metrics")


def _dagger_note(run: RunRecord) -> Markup | None:
    """What the sign † means, if the tables show it."""
    shown = run.curve.on_clients or any(tier.curve.on_clients for tier in run.tiers)
    words = "† Models live on the clients: mean over clients, each on its own examples, not one shared test set."
    return note(words) if shown else None


def _failures(run: RunRecord) -> Markup:
    """Replies that were not accepted, and warnings."""
    totals = run.totals
    lost = f"{format_count(totals.absent)} absent, {format_count(totals.quarantined)} quarantined"
    parts = [tag("p", f"{format_count(totals.accepted)} replies accepted, {lost}.")]
    if run.failures:
        parts.append(_failure_table(run))
    if len(run.failures) > MAX_FAILURES:
        parts.append(note(f"{len(run.failures) - MAX_FAILURES} rarer kinds are left out."))
    if run.warnings:
        parts.append(_warning_list(run))
    return join(*parts)


def _failure_table(run: RunRecord) -> Markup:
    named = any(one.node for one in run.failures)
    rows: list[list[TableCell]] = [
        [one.outcome, *[one.node] * named, one.tier, one.reason or "no reason given",
         number_cell(format_count, one.times),
         str(one.first_round) if one.first_round == one.last_round else f"{one.first_round} to {one.last_round}"]
        for one in run.failures[:MAX_FAILURES]
    ]  # fmt: skip
    return table(
        ["outcome", *["node"] * named, "tier", "reason", "times", "rounds"], rows, kind="words", title="failures"
    )


def _warning_list(run: RunRecord) -> Markup:
    count = len(run.warnings)
    title = "1 warning" if count == 1 else f"{count} warnings"
    title += f", the first {MAX_WARNINGS} of them" if count > MAX_WARNINGS else ""
    lines = (f"round {index}: {words}" if index is not None else words for index, words in run.warnings[:MAX_WARNINGS])
    return collapsible(title, tag("ul", *(tag("li", line) for line in lines)), open_=count <= 5)


def _settings_and_manifest(run: RunRecord) -> Markup:
    manifest = json.dumps(run.manifest, indent=2, ensure_ascii=False, default=str)
    return join(collapsible("Settings", tag("pre", run.settings)), collapsible("Manifest", tag("pre", manifest)))
