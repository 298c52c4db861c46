"""Constraints on replies: which tokens may come next, as a mask that the draw takes with its settings.

`lane` follows one reply through its reasoning and its grammar, `grammars` compiles grammars with xgrammar, `guard`
imports xgrammar without torch. Everything depends on the reply's own tokens only, so a constrained reply is the same
in any company, drafted or not.
"""
