"""Native code: sources in C, compiled at first use with the system's compiler, for several instruction sets at once.

`build` compiles them into the user's cache folder, `library` loads what is there and chooses the instruction set. A
form that needs native code asks `weft.ops.native.library.why_not` and gives the answer as its reason.
"""
