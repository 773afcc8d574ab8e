"""Tokens to a tree: recursive descent with bounds on depth and size. Knows no values.

Raises ExpressionError for everything it does not know; it never guesses and never evaluates.
"""

from dataclasses import replace
from fractions import Fraction

from edge_rl.scoring.expressions.nodes import MAX_DEPTH, MAX_NODES, ExpressionError, Node, number
from edge_rl.scoring.expressions.tokens import Token, tokenize, whole_number
from edge_rl.scoring.expressions.vocabulary import (
    CONCLUSIONS,
    CONSTANTS,
    DECORATIONS,
    DEGREES,
    FUNCTIONS,
    GREEK,
    JOINERS,
    MATRICES,
    NAMED_SETS,
    NO_UNIT,
    OPAQUE_FUNCTIONS,
    PERCENTS,
    PROSE,
    RELATIONS,
    SET_OPERATORS,
    UNITS,
)

END = Token("end", "")
FRACTIONS = frozenset(["frac", "dfrac", "tfrac", "cfrac"])
BINOMIALS = frozenset(["binom", "dbinom", "tbinom"])
BARS = {"|": "|", "vert": "vert", "lvert": "rvert", "\\|": "\\|"}


def parse(text: str, *, thousands: bool = True) -> Node:
    """Return the tree of a whole mathematical text.

    Raises: ExpressionError if any of it is left over, or it is no mathematics.
    """
    tokens = tokenize(text, thousands=thousands)
    for place in range(len(tokens) - 1, -1, -1):
        if tokens[place].kind in ("command", "mark") and tokens[place].text in CONCLUSIONS:
            tokens = tokens[place + 1 :]
            break
    if len(tokens) > MAX_NODES:
        raise ExpressionError("too long to be an answer")
    return _Parser(tokens).whole()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0
        self._bars: int = 0

    # -- the token list

    @property
    def _next(self) -> Token:
        return self._tokens[self._place] if self._place < len(self._tokens) else END

    def _peek(self, ahead: int) -> Token:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else END

    def _take(self) -> Token:
        token = self._next
        self._place += 1
        return token

    def _at(self, *texts: str) -> bool:
        return self._next.kind in ("mark", "command") and self._next.text in texts

    def _accept(self, *texts: str) -> Token | None:
        return self._take() if self._at(*texts) else None

    def _expect(self, *texts: str) -> Token:
        token = self._accept(*texts)
        if token is None:
            raise ExpressionError(f"expected {' or '.join(texts)}, found {self._next.text!r}")
        return token

    # -- lists and relations

    def whole(self) -> Node:
        node = self._items()
        if self._next is not END:
            raise ExpressionError(f"{self._next.text!r} is left over")
        return node

    def _items(self) -> Node:
        items, joiner = [self._item()], ","
        while self._is_separator():
            joiner = self._separators(joiner)
            if self._next is END or self._at(")", "]", "}", "\\}"):
                break
            items.append(self._item())
        return items[0] if len(items) == 1 else Node("list", joiner, tuple(items))

    def _is_separator(self) -> bool:
        token = self._next
        if token.kind == "text":
            return token.text.strip(" ,.;").lower() in JOINERS or token.text.strip() in (",", ";")
        if token.kind == "word":
            return token.text.lower() in JOINERS
        return self._at(",", ";", "lor", "land", "text", "vee", "wedge")

    def _separators(self, joiner: str) -> str:
        while self._is_separator():
            text = self._take().text.strip(" ,.;").lower()
            joiner = {"or": "or", "lor": "or", "vee": "or", "and": "and", "land": "and", "wedge": "and"}.get(
                text, joiner
            )
        return joiner

    def _item(self) -> Node:
        if self._next.kind == "text" and self._peek(1) is not END and not self._is_separator():
            # A word of introduction ("\text{Area} = 5", "\text{either } 3"): it is a label or says nothing.
            label = self._take().text.strip(" :")
            if not self._at("="):
                return self._item()
            first = Node("symbol", label)
        else:
            first = self._sets()
        if self._at(":") and not self._bars:
            parts = [first]
            while self._accept(":"):
                parts.append(self._sets())
            return Node("ratio", args=tuple(parts))
        relations: list[Node] = []
        while (operator := self._relation()) is not None:
            second = self._sets()
            relations.append(Node("relation", operator, (first, second)))
            first = second
        if not relations:
            return first
        return relations[0] if len(relations) == 1 else Node("chain", args=tuple(relations))

    def _relation(self) -> str | None:
        token = self._next
        if (
            token.kind in ("mark", "command", "word")
            and token.text in RELATIONS
            and not (token.kind == "word" and token.text != "in")
        ):
            self._take()
            if token.text in ("<", ">") and self._at("="):
                self._take()
                return token.text + "="
            return RELATIONS[token.text]
        return None

    def _sets(self) -> Node:
        left = self._sum()
        while True:
            token = self._next
            if token.kind == "command" and token.text in SET_OPERATORS:
                self._take()
                left = Node(SET_OPERATORS[token.text], args=(left, self._sum()))
            elif (
                token.kind == "word" and token.text in ("union", "U") and left.op in ("group", "set", "union", "named")
            ):
                self._take()
                left = Node("union", args=(left, self._sum()))
            else:
                return left

    # -- arithmetic

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply")
        if self._at("pm", "mp"):
            self._take()
            left = Node("pm", args=(self._product(),))
        else:
            left = self._signed()
        while True:
            if self._accept("+"):
                left = Node("add", args=(left, self._signed_after_operator()))
            elif self._accept("-"):
                left = Node("add", args=(left, Node("neg", args=(self._signed_after_operator(),))))
            elif self._accept("pm", "mp"):
                left = Node("pm", args=(left, self._product()))
            else:
                self._depth -= 1
                return left

    def _signed(self) -> Node:
        negative = False
        while self._at("+", "-"):
            negative ^= self._take().text == "-"
        node = self._product()
        return Node("neg", args=(node,)) if negative else node

    def _signed_after_operator(self) -> Node:
        if self._at("-", "+"):
            return self._signed()
        return self._product()

    def _product(self) -> Node:
        mixed = self._mixed_number()
        left = mixed or self._factor()
        literal = mixed is not None or left.op == "number"
        while True:
            if self._accept("*", "cdot", "times", "ast"):
                left, literal = Node("mul", args=(left, self._operand())), False
            elif self._accept("/", "div"):
                left, literal = Node("div", args=(left, self._operand())), False
            elif self._at_unit(left):
                left, literal = self._unit(left), False
            elif self._starts_factor():
                if literal and self._next.kind == "number":
                    raise ExpressionError("two numbers side by side")
                right = self._factor()
                if left.op == "unit":
                    raise ExpressionError("more behind a unit")
                if _is_word(left) or _is_word(right):
                    raise ExpressionError("words side by side are prose")
                left, literal = Node("mul", args=(left, right)), False
            else:
                return left

    def _operand(self) -> Node:
        if self._at("-", "+"):
            sign = self._take().text
            node = self._operand()
            return Node("neg", args=(node,)) if sign == "-" else node
        return self._mixed_number() or self._factor()

    def _mixed_number(self) -> Node | None:
        r"""Return the sum that 3 1/2 and 3\frac{1}{2} stand for; None if no mixed number starts here."""
        whole = self._next
        if whole.kind != "number" or not whole.is_integer:
            return None
        start = self._place
        if self._peek(1).kind == "command" and self._peek(1).text in FRACTIONS:
            self._place += 1
            part = self._factor()
        elif self._peek(1).kind == "number" and self._peek(2).text == "/" and self._peek(3).kind == "number":
            top, bottom = self._peek(1), self._peek(3)
            if not (top.is_integer and bottom.is_integer and top.spaced):
                return None
            self._place += 4
            part = Node("div", args=(number(top.value), number(bottom.value)))
        else:
            return None
        is_plain = part.op == "div" and all(argument.op == "number" for argument in part.args)
        if not is_plain or not 0 < part.args[0].value < part.args[1].value:
            self._place = start
            return None
        return Node("add", args=(number(whole.value), part))

    def _starts_factor(self) -> bool:
        token = self._next
        if token.kind == "number" or token.kind in ("mathbb", "begin"):
            return True
        if token.kind == "word":
            return token.text.lower() not in JOINERS and token.text not in ("in", "union", "U")
        if token.kind == "mark":
            return token.text in ("(", "{") or (token.text == "|" and not self._bars)
        if token.kind == "command":
            return (
                token.text in FRACTIONS
                or token.text in BINOMIALS
                or token.text in FUNCTIONS
                or token.text in GREEK
                or token.text in DECORATIONS
                or token.text in ("sqrt", "pi", "infty", "lfloor", "lceil", "lvert", "imath", "mathbb")
            )
        return False

    # -- units

    def _at_unit(self, quantity: Node) -> bool:
        token = self._next
        if token.kind == "text":
            return not self._is_separator()
        if token.kind != "word" or token.text in FUNCTIONS or token.text in CONSTANTS or token.text == "sqrt":
            return False
        if any(node.op == "symbol" for node in quantity.walk()):
            return False
        lower = token.text.lower()
        if lower in DEGREES or lower in PERCENTS:
            return True
        if token.text == "in" and self._peek(1) is END:
            return True
        if lower in JOINERS or token.text in ("in", "union", "U") or len(lower) == 1:
            return False
        return lower in UNITS or (token.spaced and len(lower) >= 3)

    def _unit(self, quantity: Node) -> Node:
        words: list[str] = []
        while (self._next.kind == "text" and not self._is_separator()) or (
            self._next.kind == "word" and (not words or len(self._next.text) >= 1)
        ):
            if self._next.kind == "word" and self._next.text.lower() in JOINERS:
                break
            words.extend(self._take().text.replace("/", " / ").lower().split())
            if self._accept("^"):
                words.append("^" + self._unit_exponent())
            if self._accept("/"):
                words.append("/")
            self._accept("'")
        words = [word.strip(".,;:()") for word in words if word.strip(".,;:()")]
        if not words:
            return quantity
        if any(word in NO_UNIT for word in words):
            raise ExpressionError("words that are no unit")
        if words[0] in DEGREES:
            return Node("degree", args=(quantity,))
        if words[0] in PERCENTS:
            return Node("div", args=(quantity, number(100)))
        return Node("unit", " ".join(words), (quantity,))

    def _unit_exponent(self) -> str:
        braced = self._accept("{")
        sign = "-" if self._accept("-") else ""
        token = self._take()
        if token.kind != "number" or not token.is_integer:
            raise ExpressionError("a unit with a strange exponent")
        if braced:
            self._expect("}")
        return sign + token.text

    # -- factors

    def _factor(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply")
        start = self._next
        node = self._base()
        while True:
            if self._accept("^", "**"):
                node = self._power(node)
            elif self._accept("!"):
                node = Node("factorial", args=(node,))
            elif self._accept("%"):
                node = Node("div", args=(node, number(100)))
            elif self._accept("'", "prime"):
                node = self._rename(node, "'")
            elif self._accept("_"):
                node = self._subscript(node, start)
            elif self._accept("degree"):
                node = Node("degree", args=(node,))
            else:
                self._depth -= 1
                return node

    def _power(self, base: Node) -> Node:
        if self._accept("circ", "degree"):
            return Node("degree", args=(base,))
        if self._accept("prime"):
            return self._rename(base, "'")
        if self._at("{") and self._peek(1).text in ("circ", "prime") and self._peek(2).text == "}":
            self._place += 3
            return Node("degree", args=(base,)) if self._peek(-2).text == "circ" else self._rename(base, "'")
        return Node("pow", args=(base, self._operand()))

    def _rename(self, node: Node, suffix: str) -> Node:
        if node.op != "symbol":
            raise ExpressionError("a prime on something that is no symbol")
        return replace(node, name=node.name + suffix)

    def _subscript(self, base: Node, start: Token) -> Node:
        if self._accept("{"):
            parts: list[str] = []
            value: Node | None = None
            while not self._at("}"):
                token = self._take()
                if token is END:
                    raise ExpressionError("an open subscript")
                parts.append(token.text)
                value = number(token.value) if token.kind == "number" and token.is_integer else None
            self._take()
            name, value = "".join(parts), value if len(parts) == 1 else None
        else:
            token = self._take()
            name = token.text
            value = number(token.value) if token.kind == "number" and token.is_integer else None
        if base.op == "number" and start.is_integer and value is not None:
            return Node("based", start.text, (value,))
        if base.op == "symbol":
            return replace(base, name=f"{base.name}_{name}")
        raise ExpressionError("a subscript on something that is no symbol")

    def _base(self) -> Node:
        token = self._take()
        if token.kind == "number":
            return number(token.value)
        if token.kind == "word":
            return self._word(token)
        if token.kind == "text":
            return self._words_as_node(token)
        if token.kind == "mathbb":
            if token.text in NAMED_SETS:
                return Node("named", NAMED_SETS[token.text])
            raise ExpressionError(f"unknown set {token.text}")
        if token.kind == "Bbb":
            return self._base_named(token)
        if token.kind == "begin":
            return self._matrix(token.text)
        if token.kind == "mark":
            return self._bracketed(token.text)
        if token.kind == "command":
            return self._command(token.text)
        raise ExpressionError("an operand is missing")

    def _base_named(self, token: Token) -> Node:
        if token.text not in NAMED_SETS:
            raise ExpressionError(f"unknown set {token.text}")
        return Node("named", NAMED_SETS[token.text])

    def _words_as_node(self, token: Token) -> Node:
        text = token.text.strip()
        if text.replace(".", "", 1).replace(",", "").lstrip("-").isdigit() or len(text) == 1:
            return parse(text)
        if text.lower() in FUNCTIONS:
            return self._call(text.lower())
        if not text and self._starts_factor():
            return self._factor()
        return Node("text", " ".join(text.split()))

    def _word(self, token: Token) -> Node:
        name = token.text
        lower = name.lower()
        if lower in FUNCTIONS and len(name) > 1:
            return self._call(lower)
        if lower == "sqrt":
            return self._root()
        if name in CONSTANTS or lower in ("pi", "infinity", "inf"):
            return Node("constant", CONSTANTS.get(name) or CONSTANTS[lower])
        if lower == "abs" and self._accept("("):
            return Node("abs", args=(self._until(")"),))
        if name in OPAQUE_FUNCTIONS and self._at("("):
            self._take()
            return Node("call", name, self._arguments(")"))
        if len(name) == 1 or name in GREEK or len(name) > 3:
            return Node("symbol", name)
        if lower in PROSE or (name[0].isupper() and name[1:].islower()):
            raise ExpressionError(f"{name!r} is prose")
        # Letters side by side are a product; the next letter keeps its own exponent.
        self._place -= 1
        letters = [Token("word", letter, spaced=token.spaced and not index) for index, letter in enumerate(name)]
        self._tokens[self._place : self._place + 1] = letters
        return self._word(self._take())

    def _bracketed(self, opening: str) -> Node:
        if opening == "(":
            return self._group("(", ")", "]")
        if opening == "[":
            return self._group("[", "]", ")", "[")
        if opening == "]":
            return self._group("]", "[", "]", ")")
        if opening == "\\{":
            return self._set("\\}")
        if opening == "{":
            inner = self._braced()
            return Node("set", args=inner.args) if inner.op == "list" else inner
        if opening in BARS:
            return self._absolute(BARS[opening])
        raise ExpressionError(f"{opening!r} starts nothing")

    def _braced(self) -> Node:
        bars, self._bars = self._bars, 0
        inner = self._items()
        if self._at("choose"):
            self._take()
            inner = Node("binom", args=(inner, self._items()))
        self._expect("}")
        self._bars = bars
        return inner

    def _group(self, opening: str, *closings: str) -> Node:
        bars, self._bars = self._bars, 0
        inner = self._items()
        closing = self._expect(*closings).text
        self._bars = bars
        if inner.op == "list":
            return Node("group", opening + closing, inner.args)
        if opening + closing in ("()", "[]"):
            return inner
        raise ExpressionError("brackets that do not match")

    def _set(self, closing: str) -> Node:
        bars, self._bars = self._bars, 1
        if self._accept(closing):
            self._bars = bars
            return Node("named", "empty")
        inner = self._items()
        if self._accept("|", "mid", ":", "vert"):
            inner = self._items()
            self._expect(closing)
            self._bars = bars
            return Node("builder", args=(inner,))
        self._expect(closing)
        self._bars = bars
        if inner.op == "ratio" and len(inner.args) == 2:
            raise ExpressionError("a set of a ratio")
        return Node("set", args=inner.args if inner.op == "list" else (inner,))

    def _absolute(self, closing: str) -> Node:
        self._bars += 1
        inner = self._sum()
        self._expect(closing)
        self._bars -= 1
        return Node("abs", args=(inner,))

    def _until(self, closing: str) -> Node:
        bars, self._bars = self._bars, 0
        inner = self._sum()
        self._expect(closing)
        self._bars = bars
        return inner

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        bars, self._bars = self._bars, 0
        inner = self._items()
        self._expect(closing)
        self._bars = bars
        return inner.args if inner.op == "list" else (inner,)

    # -- commands

    def _command(self, name: str) -> Node:
        if name in FRACTIONS:
            return Node("div", args=(self._argument(), self._argument()))
        if name in BINOMIALS:
            return Node("binom", args=(self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        if name in FUNCTIONS:
            return self._call(name)
        if name in ("boxed", "fbox", "displaystyle"):
            return self._argument()
        if name in CONSTANTS or name == "imath":
            return Node("constant", CONSTANTS.get(name, "i"))
        if name in GREEK:
            return Node("symbol", name)
        if name in ("emptyset", "varnothing"):
            return Node("named", "empty")
        if name in ("R", "Z", "Q", "N", "C"):
            return Node("named", name)
        if name in DECORATIONS:
            return Node("symbol", f"{name}({_flat(self._argument())})")
        if name == "lbrace":
            return self._set("rbrace")
        if name in ("lvert", "vert"):
            return self._absolute(BARS[name])
        if name in ("lfloor", "lceil"):
            node = self._until("rfloor" if name == "lfloor" else "rceil")
            return Node("floor" if name == "lfloor" else "ceil", args=(node,))
        if name == "langle":
            return Node("group", "()", self._arguments("rangle"))
        raise ExpressionError(f"unknown command \\{name}")

    def _argument(self) -> Node:
        """Return one TeX argument: a braced group, or one token, of a number only its first digit."""
        if self._accept("{"):
            return self._braced()
        token = self._next
        if token.kind == "number" and token.is_integer and len(token.text) > 1:
            rest = token.text[1:]
            self._tokens[self._place] = Token("number", rest, Fraction(whole_number(rest)), is_integer=True)
            return number(int(token.text[0]))
        if token.kind == "word" and len(token.text) > 1 and token.text not in CONSTANTS:
            self._tokens[self._place] = replace(token, text=token.text[1:])
            return self._word(Token("word", token.text[0]))
        return self._base()

    def _root(self) -> Node:
        index = number(2)
        if self._accept("["):
            index = self._sum()
            self._expect("]")
        if self._at("{"):
            return Node("root", args=(self._argument(), index))
        token = self._next
        if token.kind == "number":
            # sqrt5 and \sqrt5 (one digit in TeX, the whole number in plain text and after a unicode root sign)
            self._take()
            return Node("root", args=(number(token.value), index))
        return Node("root", args=(self._argument(), index))

    def _call(self, name: str) -> Node:
        base: Node | None = None
        power: Node | None = None
        for _ in range(2):
            if self._accept("_") and base is None:
                base = self._argument() if self._at("{") else self._base()
            elif self._accept("^") and power is None:
                power = self._argument() if self._at("{") else self._operand()
        if self._accept("("):
            arguments = self._arguments(")")
        elif self._at("{"):
            arguments = (self._argument(),)
        else:
            arguments = (self._implicit_argument(),)
        if base is not None:
            if name != "log" or len(arguments) != 1:
                raise ExpressionError(f"a subscript on {name}")
            arguments = (*arguments, base)
        return _with_power(Node("call", name, arguments), power)

    def _implicit_argument(self) -> Node:
        negative = self._accept("-") is not None
        node = self._factor()
        while self._starts_factor() and not self._starts_call():
            node = Node("mul", args=(node, self._factor()))
        if self._accept("/", "div"):
            node = Node("div", args=(node, self._factor()))
        return Node("neg", args=(node,)) if negative else node

    def _starts_call(self) -> bool:
        return self._next.text in FUNCTIONS or self._at("(")

    def _matrix(self, name: str) -> Node:
        if name not in MATRICES:
            raise ExpressionError(f"unknown environment {name}")
        if name == "array" and self._accept("{"):
            while not self._accept("}"):
                if self._take() is END:
                    raise ExpressionError("an open array")
        rows: list[Node] = []
        cells: list[Node] = []
        while True:
            if self._next.kind == "end" and self._next is not END:
                self._take()
                break
            cells.append(self._item())
            if self._accept("&"):
                continue
            if self._next.kind == "row":
                self._take()
            elif self._next.kind != "end" or self._next is END:
                raise ExpressionError("an open matrix")
            rows.append(Node("group", "row", tuple(cells)))
            cells = []
        return Node(
            "abs" if name == "vmatrix" else "matrix",
            args=tuple(rows) if name != "vmatrix" else (Node("matrix", args=tuple(rows)),),
        )


def _with_power(call: Node, power: Node | None) -> Node:
    if power is None:
        return call
    is_inverse = power.op == "neg" and power.args[0].op == "number" and power.args[0].value == 1
    if is_inverse and call.name in ("sin", "cos", "tan", "cot", "sec", "csc"):
        return replace(call, name="arc" + call.name)
    return Node("pow", args=(call, power))


def _is_word(node: Node) -> bool:
    return node.op == "symbol" and len(node.name) > 3 and node.name.isalpha() and node.name not in GREEK


def _flat(node: Node) -> str:
    return f"{node.op}{node.name}{node.value}" + "".join(f"({_flat(child)})" for child in node.args)
