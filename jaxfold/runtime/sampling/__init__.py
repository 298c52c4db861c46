"""The keyed draw: the one rule by which every token is chosen.

A token is a pure function of (logits row, settings, seed, absolute position); nothing random is carried from one
token to the next, so serial, drafted, batched, replayed and sharded decoding draw the same tokens from the same
logits. `reference` is the rule in plain numpy, `draw` the same tokens on the device. For one row of logits (float32),
in this order:

1. Adjust, in float32. With c how often the reply has generated the token inside its penalty window: where c > 0,
   divide a positive logit by `repeat_penalty` and multiply any other, subtract `presence_penalty`, subtract
   `frequency_penalty` * c. Then add the token's bias. With everything off the bits do not change.
2. NaN counts as -inf, +inf as the largest float32, a subnormal as 0. A token at -inf is never drawn; if all are,
   token 0 is.
3. `temperature` <= 0: the largest logit, ties to the lowest id. Otherwise T = max(temperature, 1e-6) and
   scaled = float64(logit) / T.
4. Candidate order: logit descending, then id ascending. `top_k` (0 or >= vocabulary: off) keeps the first k.
5. `top_p` (>= 1: off), over what is kept: mass = floor(exp(scaled - scaled of the first) * 2**40), an integer;
   need = ceil(top_p * sum of masses), with top_p the exact rational value of its float64. The shortest prefix whose
   masses reach `need` is kept, at least one token. Integers add up to the same sum in any order and on any devices.
6. `min_p` (0: off) keeps tokens with scaled >= scaled of the first + ln(min_p), ln taken once on the host. The
   masses are not summed again. The first candidate always stays.
7. Noise, in uint64 modulo 2**64 with `mix` the finaliser of splitmix64:
   a = mix(seed + 0x9E3779B97F4A7C15), b = mix(a ^ (position * 0xD1B54A32D192ED03)), c = mix(b ^ id),
   u = (c >> 11) * 2**-53 + 2**-54, g = -ln(-ln u), in float64. Position is the index of the drawn token in
   prompt + reply. The token is the kept one with the largest scaled + g, ties to the first in candidate order.

A window of n latest tokens (`penalty_last_n`; 0: none, -1: all) is counted on the device, so that the next draw need
not wait for the host to read this one. Everything with a 64-bit type is traced and called under
`jax.enable_x64(True)`.

How it is made cheap, always exactly: `narrow` settles rows whose kept tokens lie within the first 64 candidates, `wide`
those that keep more (32 contenders by a proven bound), and `whole` runs the rule over the row for what is left.
"""
