"""The tables of the report, as text that Markdown, HTML and the terminal lay out."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.bench.arms import KNOWLEDGE
from localspec.bench.bound import Bound
from localspec.bench.comparison import comparison_table
from localspec.bench.intervals import LEAST_PROMPTS, METHOD
from localspec.bench.speed_ups import geometric_mean
from localspec.bench.summary import ALL, Cell, PairSummary
from localspec.bench.table import Table, kind


def tables(summary: PairSummary, bounds: Sequence[Bound], hardware: float | None) -> list[Table]:
    """All tables of one pair that have something in them."""
    found = []
    for temperature in summary.temperatures:
        found.append(speed_table(summary, temperature, bounds, hardware))
        found.append(comparison_table(summary, temperature, bounds))
        found += [detail_table(summary, temperature), _sweep_table(summary, temperature)]
        found += gain_tables(summary, temperature)
    found += [_equality_table(summary), _calibration_table(summary)]
    found += reliability_tables(summary)
    return [table for table in found if table.rows]


def speed_table(
    summary: PairSummary,
    temperature: float,
    bounds: Sequence[Bound] = (),
    hardware: float | None = None,
) -> Table:
    """Suites as columns, arms as rows, × the baseline; tokens/s where there is none."""
    suites = [
        s for s in summary.suites if any(summary.cell(a, s, temperature) for a in summary.arms)
    ]
    compared = any(c.speed_up is not None for c in summary.cells if c.temperature == temperature)
    rows = []
    for arm in summary.arms:
        cells = [summary.cell(arm, suite, temperature) for suite in (*suites, ALL)]
        if cells[-1] is None:
            continue
        if not compared:
            rows.append([arm, *("–" if c is None else _speed(c.tokens_per_second) for c in cells)])
            continue
        rows.append([arm, *(_times(cell, summary.baseline) for cell in cells)])
    notes = _interval_notes(summary, temperature) if compared else []
    bound_of = {bound.suite: bound for bound in bounds} if temperature == 0 else {}
    if compared and bound_of:
        mean = f"{geometric_mean(b.speed_up for b in bound_of.values()):.2f}"
        shown = [f"{bound_of[s].speed_up:.2f}" if s in bound_of else "–" for s in suites]
        rows.append(["bound in hindsight", *shown, mean])
        notes.append(
            "Bound: every draft of the n-gram and the draft model as good as hindsight can make it."
        )
    if temperature == 0 and hardware is not None:
        notes.append(f"Hardware bound, drafts free and always right: {hardware:.2f}.")
    unit = f"× {summary.baseline}" if compared else "tokens/s"
    header = ["arm", *suites, "all"]
    return Table(f"{unit}, {kind(temperature)}", header, rows, notes)


def detail_table(summary: PairSummary, temperature: float) -> Table:
    """Arms as rows, their figures over all suites as columns."""
    header = ["arm", "tok/s", "accepted", "tokens/pass", "expected", "draft", "verify", "own"]
    everything = [summary.cell(arm, ALL, temperature) for arm in summary.arms]
    calibrated = any(cell is not None and cell.calibration_seconds for cell in everything)
    accounted = any(cell is not None and cell.account for cell in everything)
    header += (["before, s"] if calibrated else []) + (["saved, s", "risked, s"] * accounted)
    rows = []
    for arm in summary.arms:
        cell = summary.cell(arm, ALL, temperature)
        if cell is None:
            continue
        rate = _percent(cell.acceptance)
        if cell.acceptance is None and cell.kept is not None:
            rate = f"{_percent(cell.kept)} of drafted"
        shares = (cell.draft_share, cell.verify_share, cell.overhead_share)
        per_pass = (cell.tokens_per_pass, cell.expected_per_pass)
        rows.append(
            [arm, _speed(cell.tokens_per_second), rate, *map(_number, per_pass)]
            + [_percent(share) for share in shares]
            + ([_number(cell.calibration_seconds)] if calibrated else [])
            + (_accounts(cell) if accounted else [])
        )
    notes = [
        "accepted ÷ tested draft tokens; expected: tokens per pass that the planner predicted; "
        "draft, verify, own: shares of the time."
    ]
    if calibrated:
        notes.append(
            "before: seconds per answer spent on measuring what passes cost. They belong to the "
            "prompt, and are in no speed."
        )
    if accounted:
        notes.append("saved, risked: seconds that drafting saved and staked, all answers together.")
    notes += [f"{arm}: {KNOWLEDGE[arm]}" for arm, *_ in rows if arm in KNOWLEDGE]
    return Table(f"Figures over all suites, {kind(temperature)}", header, rows, notes)


def gain_tables(summary: PairSummary, temperature: float) -> list[Table]:
    """For each arm that expects something of its drafts: what, and what came, suite by suite."""
    header = ["suite", "steps with drafts", "accepted, foreseen", "real", "tokens, foreseen"]
    header += ["real", "ms, foreseen", "real", "×, foreseen", "real"]
    note = (
        "For steps with a draft: the planner's prediction and the result. ×: "
        "tokens per second against plain decoding; predicted from the planner's own T(1), measured "
        "against plain answers to the same prompts. Steps without drafts are excluded."
    )
    found = []
    for arm in summary.arms:
        rows = []
        for suite in (*summary.suites, ALL):
            cell = summary.cell(arm, suite, temperature)
            if cell is None or cell.gain is None:
                continue
            gain = cell.gain
            numbers = (gain.tokens, gain.real_tokens)
            times = (gain.seconds, gain.real_seconds)
            rows.append(
                [suite.strip("()"), _percent(gain.share)]
                + [_percent(gain.acceptance), _percent(gain.real_acceptance)]
                + [_number(value) for value in numbers]
                + [f"{1e3 * seconds:.1f}" for seconds in times]
                + [_number(gain.speed_up), _number(gain.real_speed_up)]
            )
        if rows:
            title = f"Gain predicted and measured: {arm}, {kind(temperature)}"
            found.append(Table(title, header, rows, [note]))
    return found


def reliability_tables(summary: PairSummary) -> list[Table]:
    """For each arm that predicts: its predictions in tenths, and how many came true."""
    found = []
    for arm, calibration in summary.calibrations.items():
        rows = [
            [str(number), _percent(predicted), _percent(accepted), str(count)]
            for number, (predicted, accepted, count) in enumerate(calibration.bins, 1)
        ]
        note = (
            "Tenths of the predicted chances on every second prompt, lowest first. Predicted − "
            "measured "
            f"over all: {100 * calibration.bias:+.1f} points."
        )
        header = ["tenth", "accepted, foreseen", "real", "tokens"]
        found.append(Table(f"Reliability: {arm}", header, rows, [note]))
    return found


def _sweep_table(summary: PairSummary, temperature: float) -> Table:
    rows = [
        [
            str(row.depth),
            _percent(row.acceptance),
            _number(row.expected_per_pass),
            _number(row.tokens_per_pass),
            _speed(row.tokens_per_second),
            _number(row.speed_up),
        ]
        for row in summary.sweep
        if row.temperature == temperature
    ]
    header = ["depth", "accepted", "tokens/pass in theory", "measured", "tok/s", "×"]
    note = "Theory: (1 − a^(k+1)) ÷ (1 − a) at the acceptance a measured (Leviathan et al. 2023)."
    return Table(f"Sweep of the depth, {kind(temperature)}", header, rows, [note])


def _equality_table(summary: PairSummary) -> Table:
    rows = []
    for found in summary.equality:
        places = [f"{suite} {prompt} at {n}" for suite, prompt, n in found.divergences[:4]]
        more = len(found.divergences) - len(places)
        shown = ", ".join(places) + (f" and {more} more" if more else "")
        rows.append([found.arm, f"{found.equal} of {found.total}", shown])
    note = (
        "Passes over several tokens use other kernels than those over one, and a near-tie can flip."
    )
    header = ["arm", "equal", "first different token"]
    return Table("Greedy answers equal to plain decoding's", header, rows, [note])


def _calibration_table(summary: PairSummary) -> Table:
    rows = []
    for arm, calibration in summary.calibrations.items():
        errors = [
            f"{cell.suite} {cell.calibration_error:.3f}"
            for cell in summary.cells
            if cell.arm == arm
            and cell.suite != ALL
            and cell.temperature == summary.temperatures[0]
            and cell.calibration_error is not None
        ]
        rows.append(
            [arm, f"{calibration.error:.3f}", f"{calibration.bias:+.3f}", ", ".join(errors)]
        )
    header = ["arm", "error", "bias", f"by suite, {kind(summary.temperatures[0])}"] if rows else []
    note = (
        "Expected calibration error of the chances of acceptance, on every second prompt; bias: "
        "mean chance − share accepted."
    )
    return Table("Calibration", header, rows, [note])


def _times(cell: Cell | None, baseline: str) -> str:
    if cell is None or cell.interval is None or cell.arm == baseline:
        return _number(None if cell is None else cell.speed_up)
    low, high = cell.interval
    return f"{_number(cell.speed_up)} ({low:.2f}–{high:.2f})"


def _interval_notes(summary: PairSummary, temperature: float) -> list[str]:
    """What the brackets are, and where they are missing."""
    cells = [
        cell
        for cell in summary.cells
        if cell.temperature == temperature
        and cell.arm != summary.baseline
        and cell.speed_up is not None
    ]
    notes = []
    if any(cell.interval is not None for cell in cells):
        notes.append(f"(low–high): {METHOD}.")
    lacking = [suite for suite in (*summary.suites, ALL) if _lacks(cells, suite)]
    if lacking:
        names = ", ".join(suite.strip("()") for suite in lacking)
        notes.append(f"No interval, fewer than {LEAST_PROMPTS} prompts: {names}.")
    return notes


def _lacks(cells: Sequence[Cell], suite: str) -> bool:
    return any(cell.suite == suite and cell.interval is None for cell in cells)


def _accounts(cell: Cell) -> list[str]:
    if cell.account is None:
        return ["–", "–"]
    return [_number(cell.account.saved), _number(cell.account.risked)]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _speed(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
