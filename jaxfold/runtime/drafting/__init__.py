"""Drafts: guesses of a reply's next tokens, which one step verifies together.

A draft can change no token: it is kept only where it equals what the keyed draw gives at its position. `base` is what a
proposer is, `copy` and `replay` are two, `model` is a draft model (a `drafter`: it works for all lanes at once),
`record` is how well one has done, `lane` picks one for a reply, `costs` is what rounds cost, and `planner` decides
whether a round verifies drafts at all.
"""
