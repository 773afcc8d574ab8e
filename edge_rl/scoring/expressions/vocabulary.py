"""The closed list of names that mathematics may use. Knows no grammar."""

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch log ln lg exp "
    "gcd lcm max min det re im".split()
)
OPAQUE_FUNCTIONS = frozenset("fghFGH")
"""Letters that are a function's name when a parenthesis follows: f(x) is no product."""
RELATIONS = {
    "=": "=",
    "==": "=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
    "!=": "!=",
    "le": "<=",
    "leq": "<=",
    "leqslant": "<=",
    "leqq": "<=",
    "ge": ">=",
    "geq": ">=",
    "geqslant": ">=",
    "geqq": ">=",
    "lt": "<",
    "gt": ">",
    "ne": "!=",
    "neq": "!=",
    "approx": "=",
    "equiv": "=",
    "in": "in",
}
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
CONCLUSIONS = frozenset(["implies", "Rightarrow", "Longrightarrow", "iff", "Leftrightarrow", "=>", "therefore"])
"""After one of these stands what was concluded."""
SET_OPERATORS = {
    "cup": "union",
    "bigcup": "union",
    "cap": "intersection",
    "bigcap": "intersection",
    "setminus": "difference",
    "backslash": "difference",
    "smallsetminus": "difference",
}
NAMED_SETS = {"R": "R", "Z": "Z", "Q": "Q", "N": "N", "C": "C", "reals": "R"}
CONSTANTS = {
    "pi": "pi",
    "e": "e",
    "i": "i",
    "infty": "infinity",
    "infinity": "infinity",
    "inf": "infinity",
    "oo": "infinity",
}
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar".split()
)
DECORATIONS = frozenset(["overline", "bar", "vec", "hat", "widehat", "tilde", "overrightarrow", "underline"])
MATRICES = frozenset(["pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "smallmatrix", "array", "psmallmatrix"])
DEGREES = frozenset(["degree", "degrees", "deg"])
PERCENTS = frozenset(["percent", "per cent", "pct"])
JOINERS = frozenset(["and", "or", "&"])
UNITS = frozenset(
    "cm mm km m dm ft in inch inches foot feet yd yard yards mile miles mi kg g mg lb lbs oz ounce ounces pound pounds ton "
    "tons gram grams kilogram kilograms s sec second seconds min minute minutes h hr hrs hour hours day days week weeks "
    "month months year years ml l liter liters litre litres gallon gallons cup cups quart quarts pint pints meter meters "
    "metre metres kilometer kilometers kilometre kilometres centimeter centimeters centimetre centimetres millimeter "
    "millimeters mph kph kmh cent cents dollar dollars usd eur euro euros rupee rupees yen pence unit units square sq cubic "
    "people persons person students apples oranges books cookies boxes times ways items pieces points coins marbles".split()
)
"""Words that may follow a number without a space or in fewer than three letters; longer words are units wherever they stand."""
PROSE = frozenset(
    "is am are was were the a an not no it its of to for so we he she i'm has had have but be by at as if on up do does did "
    "nan none null all any ans yes who how why can may my our his her you me us this that than then too two one".split()
)
"""Short words that are never a product of their letters."""
NO_UNIT = (PROSE - frozenset("the a an of to all his her my our per one two".split())) | frozenset(
    "wrong incorrect false because since maybe perhaps unless except wait sure instead rather without".split()
)
"""Words that say something about a number instead of naming its unit."""
