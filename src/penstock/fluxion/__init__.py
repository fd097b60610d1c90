"""`penstock resource-query`: the tool that Fluxion's users and scripts know, on our engine.

What Fluxion does beside the matching itself (its memory under `first`, its way of counting jobs, its
messages) lives here and nowhere else, so that scripts that compare bytes run unchanged.
"""
