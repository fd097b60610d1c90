"""The running scheduler: take events, decide, commit, act, confirm. One loop, one owner of the truth."""
