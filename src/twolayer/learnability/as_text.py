"""The analysis of a target as text."""

from typing import TYPE_CHECKING

from twolayer.learnability.certificate import Certificate, Verdict

if TYPE_CHECKING:
    from twolayer.learnability.analysis import Learnability
    from twolayer.learnability.stages import LearningStages


def report(result: "Learnability") -> str:
    """Return a page of text: exponents, stages with certificates, giant steps, and the cost of every protocol."""
    lines = [f"Target  {result.text}   ({result.k} field{'s' if result.k > 1 else ''}, tensors: {_source(result)})", ""]
    rows = [
        ("information exponent", _number(result.information_exponent, result.staircase.possible_exponents)),
        ("leap", _number(result.leap, _possible_leaps(result.staircase)) + _kind(result)),
    ]
    if result.generative is None:
        rows.append(("generative leap", "not computed beyond four fields"))
    else:
        generative = result.generative
        rows.append(("generative exponent", _number(result.generative_exponent, generative.possible_exponents)))
        rows.append(("generative leap", _number(result.generative_leap, _possible_leaps(generative))))
    lines += [f"  {name:<22}{value}" for name, value in rows]
    lines += ["", "Order in which correlations with the label reveal directions", *_stages(result, result.staircase)]
    if len(result.staircase.unseen):
        lines.append(f"  {len(result.staircase.unseen)} direction(s) on which the target does not depend")
    lines += ["", *_giant(result)]
    if result.seen is not None:
        lines += ["", *_student(result)]
    if not result.scalings:
        return "\n".join(lines)
    lines += ["", f"{'protocol':<46}{'steps':<34}{'samples':<12}remark"]
    lines += [f"  {row.protocol:<44}{row.steps:<34}{row.samples:<12}{row.remark}".rstrip() for row in result.scalings]
    return "\n".join(lines)


def _source(result: "Learnability") -> str:
    return f"{result.table.how}, orders to {result.table.order}"


def _number(value: int | None, possible: tuple[int, ...]) -> str:
    if value is not None:
        return str(value)
    return f"undecided: {' or '.join(map(str, possible))}" if possible else "undecided: none found"


def _possible_leaps(staircase: "LearningStages") -> tuple[int, ...]:
    if not staircase.stages:
        return ()
    least = max(min(stage.possible) for stage in staircase.stages)
    most = max(stage.leap for stage in staircase.stages)
    return (least, most) if least != most else (most,)


def _kind(result: "Learnability") -> str:
    if result.leap == 1:
        return "   (a staircase: every stage has leap 1)" if len(result.staircase.stages) > 1 else ""
    return ""


def _stages(result: "Learnability", staircase: "LearningStages") -> list[str]:
    lines = []
    for number, stage in enumerate(staircase.stages, start=1):
        sizes = f"size {stage.size}"
        lines.append(f"  {number}. leap {stage.leap}   {', '.join(result.direction_names(stage)):<28} {sizes}")
        for r, certificate in enumerate(stage.excluded, start=1):
            lines.append(f"       order {r}: {certificate}")
        for certificate in stage.doubtful:
            lines.append(f"       another direction: {_doubt(certificate)}")
    return lines


def _doubt(certificate: Certificate) -> str:
    return (
        f"undecided at {certificate.resolution:.1g}" if certificate.verdict is Verdict.UNDECIDED else str(certificate)
    )


def _giant(result: "Learnability") -> list[str]:
    fresh = result.giant_steps()
    lines = ["Giant steps on fresh batches of order d"]
    if not fresh:
        lines.append("  find no direction: the first tensor that is not zero has order above one")
    lines += [f"  step {n} finds {', '.join(step)}" for n, step in enumerate(fresh, start=1)]
    if result.generative is not None:
        again = result.giant_steps(result.generative)
        directions = "; then ".join(", ".join(step) for step in again) or "nothing in a few steps"
        lines += ["The same batch again, or samples used twice (any function of the label)", f"  find {directions}"]
        lines += [
            f"  then {', '.join(result.direction_names(stage))} at order {stage.leap}"
            for stage in result.generative.stages[len(again) :]
        ]
    return lines


def _student(result: "Learnability") -> list[str]:
    view = result.seen
    assert view is not None
    name = type(view.student.activation).__name__
    orders = ", ".join(map(str, view.orders)) or "none"
    lines = [f"For a student of {view.student.p} {name} unit(s): its activation has the orders {orders}"]
    if not view.staircase.stages:
        return [*lines, "  it sees nothing of this target: no order is common to both"]
    lines += _stages(result, view.staircase)
    if len(view.staircase.unseen):
        lines.append(f"  {len(view.staircase.unseen)} direction(s) stay invisible to it")
    if view.right_sign is not None and view.right_sign < 1.0:
        lines.append(f"  only {view.right_sign:.0%} of its output weights have the sign that pulls towards the target")
    return lines
