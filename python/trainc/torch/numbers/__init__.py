"""Numbers that change: a float that the program reads from an attribute, a global or an argument, and that has had several
values, is an input of what is compiled from then on (docs/capture.md, "Numbers that change").

While the program is traced a `Number` stands in its place. Python's own arithmetic with it is remembered (`Program`) and done
again, by Python, for each later value; what Python asks of it (`if beta > 0.5`) is a guard; whatever needs its value in any other
way makes it a constant.

    slots.py      where numbers are, and which of them change
    standin.py    what stands in a number's place; node.py: as PyTorch's C++ code sees it
    program.py    the arithmetic and the guards of one trace
    questions.py  the functions that would see what stands there
    operands.py   whether a number is asked for its type or its identity
    graph.py      a traced graph with numbers: elements of one input
    compare.py    whether a trace with numbers is the one that there would be without them
"""

from trainc.torch.numbers.compare import Print, compare, expect_prints, fingerprint
from trainc.torch.numbers.graph import id_of, put_in
from trainc.torch.numbers.program import Numbered, Program, Ready
from trainc.torch.numbers.slots import Constant, Group, Registry, Slot, differing
from trainc.torch.numbers.standin import Number, original

__all__ = [
    "Constant", "Group", "Number", "Numbered", "Print", "Program", "Ready", "Registry", "Slot", "compare", "differing",
    "expect_prints", "fingerprint", "id_of", "original", "put_in",
]  # fmt: skip
