"""The report of a fit for people: what each coefficient is, how sure, within which bounds, and what it hangs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joulecast.calibrate.descriptions.assemble import IDENTIFIED
from joulecast.calibrate.descriptions.from_rows import ParameterReport

#: Widths of the columns: name, value, standard error, unit, share of the prior variance removed, bounds.
NAME, VALUE, ERROR, UNIT, SHARE, BOUNDS = 51, 9, 7, 7, 5, 12
#: A value within this share of its bounds' distance of one of them lies at it.
AT_BOUND = 1e-3
#: Entangled pairs of a table that are shown unless all are wanted.
PAIRS = 6


def report_text(reports: Sequence[ParameterReport], *, everything: bool = False) -> str:
    """A fit by table, at most 99 columns wide.

    Parameters
    ----------
    reports
        Of all parameters.
    everything
        Also show what the rows do not identify, and all entangled pairs.
    """
    tables: dict[str, list[ParameterReport]] = {}
    for report in reports:
        tables.setdefault(report.table, []).append(report)
    lines = [_line("coefficient", "value", "s.e.", "unit", "known", "bounds"), ""]
    for table, members in tables.items():
        lines += [*_table(table, members, everything), ""]
    notes = [
        "s.e. standard error; known: share of the prior variance that the rows removed; fixed: no row asked",
        "* at a bound; correlations of 0.8 and more are listed below their table",
    ]
    return "\n".join([*lines, *notes])


def _table(table: str, members: Sequence[ParameterReport], everything: bool) -> Iterator[str]:
    known = [m for m in members if is_identified(m)]
    shown = list(members) if everything else known
    others = len(members) - len(shown)
    hidden = f"; {others} other{'s' * (others > 1)} hidden (--all shows them)" if others else ""
    yield f"[{table}] {len(known)} of {len(members)} identified{hidden}"
    for one in shown:
        share = "fixed" if not one.free else f"{100.0 * (one.identified or 0.0):.0f} %"
        mark = "*" if _at_bound(one) else ""
        cells = (f"{one.value:.4g}{mark}", f"{one.sd:.2g}", one.unit, share, _bounds(one))
        if len(one.name) > NAME:
            yield f" {one.name}"
        yield _line(one.name if len(one.name) <= NAME else "", *cells)
    yield from _entangled(shown, everything)


def is_identified(report: ParameterReport) -> bool:
    """Whether the rows say something about a coefficient."""
    return report.free and (report.identified or 0.0) >= IDENTIFIED


def _line(name: str, value: str, error: str, unit: str, share: str, bounds: str) -> str:
    return (
        f" {name:<{NAME}} {value:>{VALUE}} {error:>{ERROR}}  {unit:<{UNIT}} {share:>{SHARE}}  {bounds:<{BOUNDS}}"
    ).rstrip()


def _bounds(report: ParameterReport) -> str:
    if report.lower is None or report.upper is None:
        return ""
    return f"{report.lower:.3g} .. {report.upper:.3g}"


def _at_bound(report: ParameterReport) -> bool:
    if not report.free or report.lower is None or report.upper is None:
        return False
    near = AT_BOUND * (report.upper - report.lower)
    return min(report.value - report.lower, report.upper - report.value) < near


def _entangled(shown: Sequence[ParameterReport], everything: bool) -> Iterator[str]:
    """Pairs of coefficients whose estimates hang together, each once, the strongest first."""
    pairs: dict[frozenset[str], float] = {}
    for one in shown:
        if one.correlation is not None:
            pairs.setdefault(frozenset((one.name, one.correlated_with)), one.correlation)
    ordered = sorted(pairs.items(), key=lambda item: (-abs(item[1]), sorted(item[0])))
    for names, correlation in ordered if everything else ordered[:PAIRS]:
        first, second = sorted(names)
        yield f" {correlation:+.2f} between {first}"
        yield f"           and {second}"
    if not everything and len(ordered) > PAIRS:
        yield f" and {len(ordered) - PAIRS} weaker correlations"
