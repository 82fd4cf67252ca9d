"""A certificate in words, made of its JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.verify.comparison import CertificateDifference


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The verdict, then each check: how a line begins, and its text."""
    lines = [("", f"{found['verdict']}: {verdict(found)}"), ("", "")]
    for check in found["checks"]:
        early = "" if check["complete"] else " (as far as there was time)"
        lines.append((f"{check['verdict']:<8}", f"{check['check']}{early}"))
        lines += [(" " * 8, line) for line in (check["summary"], *check["faults"])]
    return [*lines, *((f"{'not run':<8}", name) for name in found["missing"])]


def verdict(found: dict[str, Any]) -> str:
    names = [check["check"] for check in found["checks"] if check["verdict"] == "failed"]
    if names:
        return f"localspec changes the output of this model ({', '.join(names)})."
    if found["missing"]:
        return f"nothing is wrong so far; not done: {', '.join(found['missing'])}."
    return f"no fault was found in {found['seconds']:.0f} s ({found['effort']})."


def markdown(found: dict[str, Any]) -> str:
    """The certificate as a page; all figures are in the JSON."""
    machine, files = found["machine"], found["files"]
    lines = [
        f"# localspec verify: {found['verdict']}",
        "",
        verdict(found).capitalize(),
        "",
        f"- command: `{found['command']}`",
        f"- date: {found['date']}, {found['seconds']:.0f} s, effort {found['effort']}",
        f"- localspec {machine['localspec']}, commit {machine['commit'] or 'unknown'}, "
        f"llama-cpp-python {machine['llama_cpp_python']}, Python {machine['python']}",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"GPU {machine['gpu'] or 'none'}, {machine['system']}",
    ]
    settings = found["settings"]
    if "kernels" in settings:  # of older ones nobody said
        exact = ", the same bits in every pass" if settings["bit_for_bit"] else ""
        lines.append(f"- kernels: {settings['kernels']}{exact}")
    for name, parts in files.items():
        shown = [f"`{facts['path']}`, SHA-256 `{facts['sha256']}`" for facts in parts]
        lines.append(f"- {name}: {'; '.join(shown) or 'none'}")
    for check in found["checks"]:
        lines += ["", f"## {check['check']}: {check['verdict']}", "", check["summary"]]
        if not check["complete"]:
            lines += ["", "The time was over before all of it was tried."]
        if check["faults"]:
            lines += ["", *(f"- {fault}" for fault in check["faults"])]
    if found["missing"]:
        lines += ["", f"Not run: {', '.join(found['missing'])}."]
    return "\n".join(lines) + "\n"


def comparison(found: dict[str, Any], differences: Sequence[CertificateDifference]) -> str:
    """What a certificate says, and whether it is about what is here."""
    lines = []
    for one in differences:
        state = "same" if one.same else ("OTHER" if one.decides else "other")
        shown = one.here or "none"
        if not one.same:
            shown = f"{shown}, certified {one.certified or 'none'}"
        lines.append(f"{state:<8}{one.what}: {shown}")
    done = ", ".join(f"{check['check']} {check['verdict']}" for check in found["checks"])
    lines.append(f"run     {found['command']} on {found['date']}: {done or 'nothing'}")
    if found["missing"]:
        lines.append(f"not run {', '.join(found['missing'])}")
    about = all(one.same for one in differences if one.decides)
    lines.append(
        f"certified {found['verdict']}, "
        + ("and it is about these files and versions." if about else "but of something else.")
    )
    return "\n".join(lines) + "\n"
