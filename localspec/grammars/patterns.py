"""Regular expressions of other dialects, and formats, in the notation of llguidance."""

import re

MAX_PATTERN = 10_000
"""Maximum characters of a regular expression; more can take seconds."""
_ECMA = re.compile(
    r"\\u(?P<high>[dD][89abAB]\w\w)\\u(?P<low>[dD][c-fC-F]\w\w)|\\(?P<nul>0)(?!\d)"
    r"|\\[pPuUxN]\{[^}]*\}|\\(?P<letter>[<>]|[^\0-\x7f])|\\c(?P<control>[a-zA-Z])|\\."
    r"|(?P<any>\[\^\])(?!\]|[^]*+?{][^]]*\])"  # in Python, a "]" that begins a set is literal
    r"|\[(?P<not>\^?)(?P<set>\]?(?:\\.|[^]\\])*)\]|\{,(?=\d+\})|\{(?!\d+(?:,\d*)?\})",
    re.DOTALL,
)
_BRACES = {"{": r"\{", "{,": "{0,"}
_IN_SET = re.compile(
    r"(\A-|\\[^dswDSWpP]|[^\\-])-(-\Z|\\[^dswDSWpP]|[^\\-])|\\[pP]\{[^}]*\}|\\."
    r"|(?!\A)--(?!\Z)|[]&~-]|\[(?!:)",
    re.DOTALL,
)
"""A range, an escape, the sign of a difference, or a literal, such as a hyphen next to a class."""
_PART = re.compile(r"\\.|\[(?:\\.|[^]\\])*\]|.", re.DOTALL)
"""An escape, a set or a character."""
_CHARACTERS = re.compile(
    r"(?P<any>\.\*)?(?P<character>\[(?P<set>(?:\\.|[^]\\])+)\]"
    r"|(?P<one>\\[^a-zA-Z0-9]|\\[dswDSW]|[\w\s/:;,!@#%&=~<>'\"-]))(?P<twice>(?P=character)|\{2\})?"
)
"""Lookaheads for a character, or for one that occurs twice, at once or anywhere."""
_LAST = re.compile(rf"\(\?<!{_CHARACTERS.pattern}\)\$$")
"""A lookbehind at the end."""
_BLANK = {r"\s*$": r"\S", r"\s+$": r"^$|\S", "$": r"[\s\S]"}
_SECONDS = r"\d+(?:[.,]\d+)?S"
_HOURS = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_WITHOUT_LOOK_AROUND = {
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(?:\d+\.?\d*|\.\d+)$",
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
    "": rf"^P(?:\d+W|(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)(?:{_HOURS})?|{_HOURS})$",
}
"""Patterns of pydantic for decimals and of zod for durations, with equivalent ones."""
_DATE = (
    r"(?:\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_GROUP = "[0-9a-fA-F]{1,4}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_PAIR = rf"(?:{_GROUP}:{_GROUP}|(?:{_BYTE}\.){{3}}{_BYTE})"
_RIGHT = ["", _GROUP, *(rf"(?:{_GROUP}:){{{count}}}{_PAIR}" for count in range(7))]
"""The groups behind "::" in an address of IPv6, by their number."""
_IPV6 = "|".join(
    [f"::{_RIGHT[7]}", _RIGHT[8]]
    + [f"(?:{_GROUP}(?::{_GROUP}){{0,{6 - n}}})?::{_RIGHT[n]}" for n in range(7)]
)
_UUID = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-%s[0-9a-fA-F]{3}-%s[0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
_BASE64 = "^(?:[A-Za-z0-9%s]{4})*(?:[A-Za-z0-9%s]{2}==|[A-Za-z0-9%s]{3}=)?$"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_PATH = r"(?:[A-Za-z0-9._~/?!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_REFERENCE = f"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?{_PATH}(?:@{_PATH})?(?:#{_PATH})?$"
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": _UUID % ("[0-9a-fA-F]", "[0-9a-fA-F]"),
    **{f"uuid{version}": _UUID % (version, "[89abAB]") for version in (1, 3, 4, 5, 6, 7, 8)},
    "ipv6": f"^(?:{_IPV6})$",
    "base64": _BASE64.replace("%s", "+/"),
    "base64url": _BASE64.replace("%s", "_-"),
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    **dict.fromkeys(("uri-reference", "iri-reference"), _REFERENCE),
}
"""Formats that llguidance lacks, or does not enforce in full: it does not know leap years, and its
leap seconds are refused elsewhere. Addresses are written in ASCII."""


def as_rust(pattern: str, *, quoted: bool = False) -> str:
    """Write in Rust's notation what regular expressions of ECMA and Python write otherwise: escaped
    letters, pairs of surrogates, control characters, braces that repeat nothing, the end, and
    literal characters in a set. `quoted`: within JSON's strings, where llguidance lets quotes and
    backslashes through sets that exclude them, unless they exclude a rare control character."""

    def literal(one: str) -> str:
        return r"\x08" if one == r"\b" else f"\\{one}" if one in "[]&~-" else one

    def in_set(found: re.Match[str]) -> str:
        return "-".join(map(literal, found.groups() if found[1] else [found[0]]))

    def part(found: re.Match[str]) -> str:
        if found["set"]:
            inside = _ECMA.sub(part, _IN_SET.sub(in_set, found["set"]))
            if quoted and found["not"]:
                return rf"[^\x1f[{inside}]]"
            controls = quoted and re.search(r"\\x00|\\u0000|\\x\{0+\}", inside)
            return rf"[[{inside}]--\x1f]" if controls else f"[{found['not']}{inside}]"
        if found["high"]:
            units = bytes.fromhex(found["high"] + found["low"])
            return f"\\x{{{ord(units.decode('utf-16-be')):x}}}"
        if found["control"]:
            return f"\\x{ord(found['control']) % 32:02x}"
        if found["any"]:
            return r"[\s\S]"
        if found["nul"]:
            return r"\x00"
        return found["letter"] or _BRACES.get(found[0]) or found[0].replace(r"\Z", r"\z")

    return _ECMA.sub(part, pattern)


def without_look_ahead(pattern: str) -> list[str]:
    """Patterns that together match the same texts as one with lookaheads at its beginning and a
    lookbehind at its end, or fewer. Other lookarounds stay in it."""
    given = pattern = _WITHOUT_LOOK_AROUND.get(pattern, pattern)
    depth, begin, found = 0, 1, list[str]()
    if not pattern.startswith("^") or "(?" not in pattern:
        return [pattern]
    if (last := _LAST.search(pattern)) and not (last["any"] or last["twice"]):
        found, pattern = [f"^$|{_other(last)}$"], f"{pattern[: last.start()]}$"
    for part in _PART.finditer(pattern, 1):
        depth += (part[0] == "(") - (part[0] == ")")
        if part[0] == "|" and not depth:
            return [given]
        if part[0] == ")" and not depth and pattern[begin : begin + 3] in ("(?=", "(?!"):
            ahead = pattern[begin + 3 : part.start()]
            other = f"^(?:{ahead})" if pattern[begin + 2] == "=" else _excluding(ahead)
            if other is None:
                break
            found.append(other)
            begin = part.end()
    return [*found, f"^{pattern[begin:]}"] if found else [pattern]


def _other(found: re.Match[str]) -> str:
    """The complement of a set of characters."""
    one = found["set"] or found["one"]
    return f"[{one[1:]}]" if one.startswith("^") and found["set"] else f"[^{one}]"


def _excluding(pattern: str) -> str | None:
    """A pattern matched only by texts that do not begin with `pattern`; None if none is known."""
    if pattern in _BLANK:
        return _BLANK[pattern]
    if not (found := _CHARACTERS.fullmatch(pattern)):
        return None
    other = _other(found)
    if found["twice"]:
        return f"^(?:{found['character']}?{other})*{found['character']}?$" if found["any"] else None
    return f"^{other}*$" if found["any"] else f"^(?:{other}|$)"
