"""Everything that exists only for compatibility with Fluxion (flux-sched) and its tools.

The command behind it is `penstock resource-query`: scripts written for Fluxion's `resource-query`, including
those that compare its output byte by byte, run unchanged. The engine decides every match; this package adds
what Fluxion does around it:

* `readers` and `writers`: Fluxion's graph and resource-set formats (GRUG, JGF, R version 1, R_lite).
* `order` and `sort`: the order in which Fluxion visits children and leaves equal candidates, plugged into the
  engine through its `SearchOrder` protocol.
* `find`: the expression language of the `find` command.
* `checks`: the preliminary checks that decide how Fluxion words a refusal.
* `options`, `session` and the `*_commands` modules: the command line, the prompt and its commands.

Only `cli` imports this package, and an import contract enforces that: no scheduling decision of an instance
depends on Fluxion's quirks.
"""
